"""An engine without a tokenizer gives the answers of one with a tokenizer, stop strings included.

vLLM's `--tokens-only` refuses stop strings; they are found here, on streams and on whole answers.
"""

from __future__ import annotations

import fnmatch

import httpx
import pytest
import trio

from motor_flow.net.stream import network
from motor_flow.views.parity.cases import shipped
from motor_flow.views.parity.run import parity
from tests.e2e import real

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
KINDS = ("stopping/*", "unicode/*", "completions/*")
# These take the engine's own API, which --tokens-only does not serve: they have a test of their own.
NEEDS_A_TOKENIZER = {"echo", "suffix"}
CUTS_MARKUP = ("*the marker*/stream", "*in arguments/stream")


@pytest.fixture(scope="module")
def without_tokenizer(vllm, tmp_path_factory):
    where, port = tmp_path_factory.mktemp("tokens-only"), real.free_port()
    command = real.engine_command(vllm.venv, vllm.model, port, "--tokens-only")
    for part in real.PARSERS:
        command.remove(part)  # they would need a tokenizer
    with real.running(command, where / "engine.log") as child:
        real.wait_for(f"http://127.0.0.1:{port}/health", child, where / "engine.log")
        with real.coordinator(where, vllm.sidecar, [port]) as (infer, *_):
            yield infer


def test_the_answers_are_the_same(vllm, without_tokenizer):
    cases = [case for case in shipped() if any(fnmatch.fnmatch(case.name, kind) for kind in KINDS)]
    cases = [case for case in cases if not any(case.body.get(key) for key in NEEDS_A_TOKENIZER)]
    cases = [case for case in cases if not any(fnmatch.fnmatch(case.name, name) for name in CUTS_MARKUP)]
    outcome = trio.run(parity, network(), [vllm.native, without_tokenizer], None, cases)
    assert len(outcome.results) == len(cases) > 80
    wrong = [f"{case.name}: {judged.difference}" for case, judged in outcome.judged if not judged.accepted]
    assert wrong == [], "\n".join(wrong)


NEEDS_ONE = {
    "echo": ("/v1/completions", {"prompt": "Once upon", "max_tokens": 4, "echo": True}),
    "a stop string that may cut a marker": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hello!"}], "stop": ["think"], "stream": True},
    ),
    "a passed route": ("/v1/responses", {"input": "Hello!"}),
    "structured outputs": ("/v1/completions", {"prompt": "Once upon", "structured_outputs": {"regex": "a+"}}),
    "bad words": ("/v1/completions", {"prompt": "Once upon", "bad_words": ["time"]}),
}


def test_what_needs_a_tokenizer_is_told_and_asked_of_no_engine(without_tokenizer):
    """Known from the start."""
    for path, body in NEEDS_ONE.values():
        for _ in range(4):
            reply = httpx.post(without_tokenizer + path, json={"model": "tiny"} | body, timeout=60)
            assert reply.status_code == 501
            assert "--tokens-only" in reply.json()["error"]["message"]
    body = {"model": "tiny", "prompt": "Once upon", "max_tokens": 4}
    assert httpx.post(without_tokenizer + "/v1/completions", json=body, timeout=60).status_code == 200
