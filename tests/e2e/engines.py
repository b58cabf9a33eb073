"""Real engines that a test may kill, each behind its gate."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import httpx

from tests.e2e import real
from tests.e2e.gate import Gate

# One process less to start: the engine core computes by itself.
IN_ONE = ("--distributed-executor-backend", "uni"), {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


class MortalEngine:
    """An engine process group on a port of its own, reached through `gate` only."""

    def __init__(self, venv, model, log):
        self.port = real.free_port()
        more, self._env = IN_ONE
        self._command = real.engine_command(venv, model, self.port, *more)
        self._log = log
        self._held = contextlib.ExitStack()
        self.child = None
        self.gate = Gate(self.port)

    def start(self):
        """Start the process; `wait` tells when it serves."""
        self.child = self._held.enter_context(real.running(self._command, self._log, self._env))

    def wait(self):
        real.wait_for(f"http://127.0.0.1:{self.port}/health", self.child, self._log)

    def kill(self):
        """`kill -9` the whole process group; nothing listens afterwards. Returns when that was."""
        now = time.monotonic()
        os.killpg(self.child.pid, signal.SIGKILL)
        self.gate.close()
        self.child.wait()
        return now

    def stop_core(self, leg):
        """Stop the process that computes if it serves this leg, or it would be done long before it is killed."""
        if leg.gate is self.gate:
            os.kill(self._core(), signal.SIGSTOP)

    def go_on(self):
        """Undo `stop_core`; nothing happens to a process that was not stopped."""
        os.killpg(self.child.pid, signal.SIGCONT)

    def kill_core(self):
        """`kill -9` the process that computes; the one that speaks HTTP lives on, for a moment."""
        now = time.monotonic()
        os.kill(self._core(), signal.SIGKILL)
        return now

    def _core(self):
        return next(pid for pid in group(self.child.pid) if command(pid).startswith("VLLM::EngineCore"))

    def restart(self):
        """Begin to start a new process on the same port."""
        self._held.close()
        self.start()

    def reopen(self):
        """Let the Coordinator find the new process."""
        self.wait()
        self.gate.close()
        self.gate.open()

    @contextlib.contextmanager
    def stopped(self):
        """Neither dead nor alive; gives the time since when."""
        os.killpg(self.child.pid, signal.SIGSTOP)
        try:
            yield time.monotonic()
        finally:
            os.killpg(self.child.pid, signal.SIGCONT)

    def running(self):
        """Requests that the engine works on."""
        lines = httpx.get(f"http://127.0.0.1:{self.port}/metrics", timeout=10).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_requests_running"))

    def stop(self):
        self._held.close()
        self.gate.close()


def group(leader):
    """Process ids of a process group."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            if int(fields[2]) == leader:
                yield int(entry.name)


def command(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
