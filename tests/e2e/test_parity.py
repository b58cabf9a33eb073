"""Native vLLM and Render -> Generate -> Derender answer the shipped corpus alike, field by field."""

from __future__ import annotations

import contextlib

import httpx
import pytest
import trio
from rich.console import Console

from motor_flow.net.stream import network
from motor_flow.views.parity.cases import matching, shipped
from motor_flow.views.parity.run import parity
from motor_flow.views.parity.telling import tell
from tests.e2e import real
from tests.e2e.recut import recut
from tests.e2e.requests import REFUSED

BY_RENDER = {
    *("no messages", "empty messages", "unknown model", "negative temperature", "max_tokens 0", "wrong type"),
    *("prompt beyond the context", "budget beyond the context", "too many stop strings", "empty stop string", "n = 0"),
    *("top_logprobs without logprobs", "tool_choice without tools", "empty prompt", "empty list of prompts", "suffix"),
    "negative id",
}
FAST = ("stopping", "tools")
WHOLE = ("any", False)
PACES = [WHOLE, ("any", True), ("five", False), ("five", True), ("one", False)]  # tokens of an event, coalescing
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


def test_native_and_chain_agree(vllm, served, capsys):
    cases = shipped()
    outcome = trio.run(parity, network(), [vllm.native, served.infer], None, cases)
    with capsys.disabled():
        tell(outcome, Console(width=160))
    assert len(outcome.results) == len(cases) >= 300
    assert [(case.name, str(judged.difference)) for case, judged in outcome.judged if not judged.accepted] == []


@pytest.fixture(scope="module")
def paced(vllm, tmp_path_factory):
    """Coordinators that merge what waits, and that do not, in front of engines whose events have other sizes."""
    where = tmp_path_factory.mktemp("paced")
    port = real.free_port()
    command = real.engine_command(vllm.venv, vllm.model, port, "--stream-interval", 5)
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(real.running(command, where / "engine.log"))
        real.wait_for(f"http://127.0.0.1:{port}/health", child, where / "engine.log")
        mixed = stack.enter_context(recut(vllm.native, seed=1))
        served = {}
        for number, (size, coalesce) in enumerate(PACES):
            own = tmp_path_factory.mktemp(f"pace-{number}")
            engine = {"one": vllm.engine, "five": port, "any": mixed}[size]
            changes = {"stream_config": {"coalesce": coalesce}}
            infer, *_ = stack.enter_context(real.coordinator(own, vllm.sidecar, [engine], **changes))
            served[size, coalesce] = infer
        yield served


@pytest.mark.parametrize("pace", PACES, ids=lambda pace: f"{pace[0]}-{'merged' if pace[1] else 'as it is'}")
def test_how_a_stream_is_cut_makes_no_difference(vllm, paced, pace):
    """Events of any size take the whole corpus; one token and merged is the test above."""
    cases = matching(shipped(), "*/stream") if pace == WHOLE else [*fast_streams()]
    outcome = trio.run(parity, network(), [vllm.native, paced[pace]], None, cases)
    assert len(outcome.results) == len(cases) > (300 if pace == WHOLE else 40)
    assert [(case.name, str(judged.difference)) for case, judged in outcome.judged if not judged.accepted] == []


def fast_streams():
    for kind in FAST:
        yield from matching(shipped(), f"{kind}/*/stream")


def test_a_refused_request_never_reaches_an_engine(vllm, served):
    """What Render refuses, no engine sees: the engine's request counter stands still."""
    before = engine_requests(vllm)
    for name, (path, body, *_) in REFUSED.items():
        if name not in BY_RENDER:
            continue
        for stream in (False, True):
            reply = httpx.post(served.infer + path, json=body | ({"stream": True} if stream else {}), timeout=60)
            assert 400 <= reply.status_code < 500, name
            assert reply.json()["error"]["stage"] == "render", name
    assert engine_requests(vllm) == before


def engine_requests(vllm):
    lines = httpx.get(f"{vllm.native}/metrics", timeout=10).text.splitlines()
    counted = [line for line in lines if line.startswith("http_requests_total") and "/inference/v1/generate" in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in counted)
