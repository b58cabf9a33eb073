"""What a step and a streamed chunk cost, beside their rivals. Ratios of CPU time, interleaved, on one machine."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar

import pytest

from machines import STREAM

HERE = Path(__file__).parent
STREAMS, CHUNKS, ROUNDS = 32, 64, 2
STEP_RATIO_MAX = 1 / 20
CHUNK_RATIO_MAX = 1 / 3
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.mark.bench
def test_a_compiled_step_costs_a_fraction_of_the_librarys(capsys):
    class Facts:
        finish: ClassVar[None] = None

        def commit(self):
            """Nothing to move."""

    facts = Facts()
    loop = ["chunk", "derendered", "onward"]
    library = STREAM.machine(start_value="generating")
    table, machine = [], []
    for _ in range(5):
        start = time.process_time()
        state = "generating"
        for _ in range(20_000):
            for event in loop:
                edge = STREAM.step(state, event, facts)
                for action in edge.actions:
                    action(facts)
                state = edge.target
        table.append((time.process_time() - start) / 60_000)
        start = time.process_time()
        for _ in range(100):
            for event in loop:
                library.send(event, ctx=facts)
        machine.append((time.process_time() - start) / 300)
    ours, theirs = min(table) * 1e6, min(machine) * 1e6
    with capsys.disabled():
        print(f"\nper step: table {ours:.2f} us, library {theirs:.1f} us, ratio 1/{theirs / ours:.0f}")
    assert ours <= theirs * STEP_RATIO_MAX


@pytest.mark.bench
@pytest.mark.timeout(170)
def test_a_streamed_chunk_costs_a_fraction_of_the_usual_parts(tmp_path, capsys):
    """render, engine stream, one derender call per chunk, SSE out; saturated, 32 streams, coalescing off."""
    stub, ours, rival = (free_port() for _ in range(3))
    config = {
        "model_config": {"model_name": "tiny"},
        "api_config": dict(
            zip(
                ("coordinator_api_infer_port", "coordinator_api_mgmt_port", "coordinator_obs_port"),
                (ours, free_port(), free_port()),
                strict=True,
            )
        ),
        "render_config": {"endpoint": {"host": "127.0.0.1", "port": stub}},
        "instances": [{"id": 1, "role": "union", "url": f"http://127.0.0.1:{stub}"}],
        "stream_config": {"coalesce": False},
    }
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(config))
    with (
        process(HERE / "stub.py", stub, CHUNKS, port=stub),
        process("-m", "motor_flow.cli", "serve", "--config", path, port=ours) as us,
        process(HERE / "rival.py", rival, stub, port=rival) as them,
    ):
        for port in (ours, rival):
            load(port, 2)  # warm up
        costs = {"ours": [], "rival": []}
        for _ in range(ROUNDS):
            for name, child, port in (("ours", us, ours), ("rival", them, rival)):
                before = cpu_seconds(child)
                load(port, STREAMS)
                costs[name].append((cpu_seconds(child) - before) / (STREAMS * CHUNKS) * 1e6)
    us_cost, rival_cost = min(costs["ours"]), min(costs["rival"])
    with capsys.disabled():
        print(f"\nCPU per chunk: {us_cost:.0f} us, rival {rival_cost:.0f} us, ratio 1/{rival_cost / us_cost:.1f}")
    assert us_cost <= rival_cost * CHUNK_RATIO_MAX


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def process(*command, port):
    child = subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=HERE.parents[1]
    )
    try:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert child.poll() is None, f"{command} has ended"
            threading.Event().wait(0.05)
        yield child
    finally:
        child.terminate()
        child.wait(10)


def cpu_seconds(child):
    """User and system time of a child that is still running."""
    fields = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def load(port, streams):
    """Run this many streams at once and read each to its end."""
    failures = []

    def one():
        body = json.dumps({"model": "tiny", "prompt": "Once upon a time", "stream": True, "max_tokens": 1024}).encode()
        with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
            head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            s.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            answer = bytearray()
            while not answer.endswith(b"0\r\n\r\n") and (data := s.recv(1 << 16)):
                answer += data
        if answer.count(b"data: ") != CHUNKS + 1:
            failures.append(bytes(answer[:500]))

    threads = [threading.Thread(target=one) for _ in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
