"""Native vLLM and Render -> Generate -> Derender answer the same requests alike, field by field."""

from __future__ import annotations

import httpx
import pytest
from rich.console import Console
from rich.table import Table

from motor_flow.views.parity.answers import read_answer
from motor_flow.views.parity.compare import differences
from tests.e2e.requests import REFUSED, REQUESTS

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ACCEPTED = {
    # field: why the chain may differ from native vLLM 0.33
    "reasoning_tokens": "the derender endpoint counts no reasoning tokens",
}


def ask(base, path, body):
    reply = httpx.post(base + path, json=body, timeout=120)
    return read_answer(reply.status_code, reply.headers["content-type"], reply.content)


def refused_before_the_stream(native, chain):
    """Native vLLM reports what it finds late as an event inside HTTP 200; the chain says it by status."""
    return native.kinds == ["error", "done"] and native.error and chain.status == native.error["code"]


def compare(served, native_url, path, body):
    native, chain = ask(native_url, path, body), ask(served.infer, path, body)
    found = [d for d in differences(native, chain) if d.field not in ACCEPTED]
    if refused_before_the_stream(native, chain):
        found = [d for d in found if d.field not in ("status", "kinds")]
    return found


def test_native_and_chain_agree(vllm, served, capsys):
    table = Table("request", "whole", "stream", title="native vLLM 0.33 and the chain")
    different = []
    for name, (path, body) in {**REQUESTS, **REFUSED}.items():
        sent = {key: value for key, value in body.items() if value is not None}
        row = []
        for stream in (False, True):
            extra = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            found = compare(served, vllm.native, path, sent | extra)
            different += [f"{name}, {'stream' if stream else 'whole'}: {difference}" for difference in found]
            row.append("equal" if not found else ", ".join(difference.field for difference in found))
        table.add_row(name, *row)
    with capsys.disabled():
        Console(width=110).print(table)
        print(f"{2 * len(table.rows)} requests, {len(different)} differences")
    assert 2 * len(table.rows) >= 60
    assert different == []


def test_a_refused_request_never_reaches_an_engine(vllm, served):
    """What Render refuses, no engine sees: the engine's request counter stands still."""
    by_the_engine = {"logprobs beyond the limit", "id beyond the vocabulary", "bad schema"}
    before = engine_requests(vllm)
    for name, (path, body) in REFUSED.items():
        if name in by_the_engine:
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
