"""Bad input is refused with a clear error, named in the response, and seen by the operator.

Contract section 3.
"""

from __future__ import annotations

import json

import pytest

from tests.scenarios.test_observability import lines  # noqa: F401 - a fixture
from tests.world import CHAT, TEXT, make_world

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
NESTED = b'{"model":"tiny","prompt":"x","a":%b%b}' % (b"[" * 100_000, b"]" * 100_000)
REFUSED = {
    # method, path, body, status
    "no JSON": ("POST", TEXT, b"{", 400),
    "no object": ("POST", TEXT, b"[1]", 400),
    "nested deeply": ("POST", TEXT, NESTED, 400),
    "nothing but nesting": ("POST", TEXT, b"[" * 200_000, 400),
    "unknown path": ("POST", "/v1/nothing", b"{}", 404),
    "method": ("GET", CHAT, None, 405),
    "unknown model card": ("GET", "/v1/models/none", None, 404),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refused_request_has_a_name_and_a_line(nursery, autojump_clock, lines, case):  # noqa: F811
    method, path, body, status = REFUSED[case]
    world = await make_world(nursery)
    got = await world.ask(path, body, {"x-request-id": "r1"}, method=method)
    assert (got.status, got.error["stage"], got.headers["x-request-id"]) == (status, "client", "r1")
    (line,) = lines("request.end")
    assert (line["request_id"], line["outcome"], line["status"], line["level"]) == ("r1", "refused", status, "info")
    assert (status != 405) or got.headers["allow"] == "POST"
    await world.check()


async def test_a_wrong_key_is_seen_by_the_operator(nursery, autojump_clock, lines):  # noqa: F811
    world = await make_world(nursery, config={"api_key_config": {"enable_api_key": True, "valid_keys": ["0" * 64]}})
    got = await world.ask(CHAT, BODY, {"authorization": "Bearer no", "x-request-id": "r1"})
    assert (got.status, got.headers["www-authenticate"], got.headers["x-request-id"]) == (401, "Bearer", "r1")
    assert [line["status"] for line in lines("request.end")] == [401]
    await world.check()


HEADERS = {
    # as sent: as forwarded
    ("traceparent", "00-abc-def-01"): "00-abc-def-01",
    ("tracestate", "a=b, c=d"): "a=b, c=d",
    ("x-session-id", "s1"): "s1",
    ("tracestate", "\xe9"): None,
    ("traceparent", "a" * 300): None,
    ("x-session-id", "two words"): None,
}


@pytest.mark.parametrize(("header", "value"), HEADERS)
async def test_only_plain_headers_go_on(nursery, autojump_clock, header, value):
    world = await make_world(nursery)
    got = await world.ask(CHAT, BODY, {header: value})
    assert got.status == 200
    (render,), (engine,) = world.seen("render"), world.seen("generate")
    assert render.headers.get(header) == engine.headers.get(header) == HEADERS[header, value]
    await world.check()


@pytest.mark.parametrize(("session", "expected"), [("s-1", "s-1"), ("a b", None), ("\u00e9", None), ("\ud800", None)])
async def test_a_session_in_the_body_is_a_header_for_engines(nursery, autojump_clock, session, expected):
    world = await make_world(nursery)
    got = await world.ask(CHAT, BODY | {"session_id": session})
    assert world.bugs == []
    if got.status == 200:
        assert world.seen("generate")[0].headers.get("x-session-id") == expected


@pytest.mark.parametrize("echo", [False, True])
async def test_transfer_parameters_never_pass_however_they_are_written(nursery, autojump_clock, echo):
    world = await make_world(nursery)
    hidden = b'"vllm_xargs":{"kv_transfer_params":{"do_remote_prefill":true},"x":1e999,"y":1}'
    raw = b'{"model":"tiny","prompt":"x","max_tokens":2,"echo":%b,"kv_transfer_params":{},%b}'
    await world.ask(TEXT, raw % (json.dumps(echo).encode(), hidden))
    for kind in ("render", "generate", "native"):
        for record in world.seen(kind):
            assert "transfer" not in json.dumps(record.body)
    await world.check()


async def test_what_render_takes_for_a_stream_is_one(nursery, autojump_clock):
    """`"stream": "yes"` is true to vLLM."""
    world = await make_world(nursery)
    got = await world.ask(TEXT, {"model": "tiny", "prompt": "x", "max_tokens": 5, "stream": "yes"})
    assert got.headers["content-type"].startswith("text/event-stream")
    assert [len(world.seen(kind)) for kind in ("generate", "native")] == [1, 0]
    await world.check()


async def test_readiness_means_that_something_could_serve(nursery, autojump_clock):
    for role, ready in (("decode", False), ("prefill", True), ("union", True)):
        world = await make_world(nursery, config={"instances": [{"id": 1, "role": role, "url": "http://engine-1"}]})
        assert world.app.ready is ready
        got = await world.ask(CHAT, BODY)
        assert (got.status == 200) is ready
