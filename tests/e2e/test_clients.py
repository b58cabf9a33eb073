"""The official openai client reads everything, from the embedded cluster and from real vLLM."""

from __future__ import annotations

import asyncio  # noqa: TID251 - the loop that the client's users run
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.e2e import sdk
from tests.e2e.residue import assert_idle


@pytest.fixture(scope="module")
def embedded():
    """`motor-flow serve` without a configuration, on free ports; ended with SIGTERM, which must be clean."""
    child = subprocess.Popen(
        [sys.executable, "-m", "motor_flow.cli", "serve", "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    for line in child.stderr:
        if found := re.fullmatch(r"ready (http://\S+) mgmt (http://\S+) obs (http://\S+)\n", line):
            break
    infer, mgmt, obs = found.groups()
    yield SimpleNamespace(infer=infer, mgmt=mgmt, obs=obs)
    assert_idle(obs)
    child.send_signal(signal.SIGTERM)
    with child.stderr:
        rest = child.stderr.read()
    assert child.wait(10) == 0, rest
    assert "Traceback" not in rest


@pytest.mark.parametrize("use", sdk.SYNC, ids=lambda use: use.__name__)
def test_sync(embedded, use):
    use(embedded.infer)


@pytest.mark.parametrize("use", sdk.ASYNC, ids=lambda use: use.__name__)
def test_async(embedded, use):
    asyncio.run(use(embedded.infer))


@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("use", sdk.SYNC, ids=lambda use: use.__name__)
def test_sync_on_real_vllm(served, use):
    use(served.infer)


@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("use", sdk.ASYNC, ids=lambda use: use.__name__)
def test_async_on_real_vllm(served, use):
    asyncio.run(use(served.infer))
