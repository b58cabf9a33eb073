"""Real vLLM for the tests that are marked `vllm`, started once per session; and the embedded cluster as a process.

MOTOR_FLOW_VLLM names the directory that tests/e2e/vllm/install.sh made. Without it these tests are skipped, unless
MOTOR_FLOW_VLLM_REQUIRED is set, as .ci/run does: then they fail.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.e2e import real
from tests.e2e.residue import assert_idle

READY = re.compile(r"^ready (http://\S+) mgmt (http://\S+) obs (http://\S+)\n", re.MULTILINE)


@pytest.fixture(scope="session")
def vllm_home():
    """What install.sh made."""
    home = os.environ.get("MOTOR_FLOW_VLLM")
    if not home:
        reason = "MOTOR_FLOW_VLLM is not set: no real vLLM here"
        if os.environ.get("MOTOR_FLOW_VLLM_REQUIRED"):
            pytest.fail(reason)
        pytest.skip(reason)
    return Path(home)


@pytest.fixture(scope="session")
def vllm(vllm_home, tmp_path_factory):
    """A real Render sidecar and a real engine: `vllm.sidecar` and `vllm.engine` are ports."""
    venv = vllm_home / "v033"
    where = tmp_path_factory.mktemp("vllm")
    model = real.model_dir(where / "tiny")
    sidecar, engine = real.free_port(), real.free_port()
    with contextlib.ExitStack() as stack:
        started = []
        for name, command, port in (
            ("sidecar", real.sidecar_command(venv, model, sidecar), sidecar),
            ("engine", real.engine_command(venv, model, engine), engine),
        ):
            log = where / f"{name}.log"
            started.append((stack.enter_context(real.running(command, log)), log, port))
        for child, log, port in started:
            real.wait_for(f"http://127.0.0.1:{port}/health", child, log)
        native = f"http://127.0.0.1:{engine}"
        yield SimpleNamespace(sidecar=sidecar, engine=engine, model=model, native=native, venv=venv)


@pytest.fixture(scope="session")
def served(vllm, tmp_path_factory):
    """The Coordinator in front of real vLLM: base URLs of its three ports."""
    where = tmp_path_factory.mktemp("coordinator")
    with real.coordinator(where, vllm.sidecar, [vllm.engine]) as (infer, mgmt, obs):
        yield SimpleNamespace(infer=infer, mgmt=mgmt, obs=obs, log=where / "motor-flow.log")


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    """`motor-flow serve` without a configuration, on free ports; ended with SIGTERM, which must be clean."""
    log = tmp_path_factory.mktemp("embedded") / "motor-flow.log"
    with log.open("wb") as out:
        child = subprocess.Popen([sys.executable, "-m", "motor_flow.cli", "serve", "--port", "0"], stderr=out)
    until = time.monotonic() + 30
    while not (found := READY.search(log.read_text())):
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.05)  # noqa: TID251 - another process is starting
    infer, mgmt, obs = found.groups()
    yield SimpleNamespace(infer=infer, mgmt=mgmt, obs=obs)
    assert_idle(obs)
    child.send_signal(signal.SIGTERM)
    assert child.wait(10) == 0, log.read_text()[-3000:]
    assert "Traceback" not in log.read_text()


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    """After every test that used the Coordinator, everything it counts is back to zero."""
    yield
    if "served" in request.fixturenames:
        assert_idle(request.getfixturevalue("served").obs)
