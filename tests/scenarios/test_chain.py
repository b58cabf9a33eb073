"""Render -> Generate -> Derender: streamed and not, one and several prompts and choices.

RFC 验收标准 (非流式能力, 流式能力), 测试方案 (功能测试). The right answer is what the same engine says on its own
OpenAI API.
"""

from __future__ import annotations

import hashlib
import json

import pytest

from motor_flow.net.stream import Origin
from tests.world import CHAT, TEXT, make_world, unexplained

SIDECAR = Origin("sidecar", 80)
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]


def chat(text, **more):
    return CHAT, {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 200} | more


def text(prompt, **more):
    return TEXT, {"model": "tiny", "prompt": prompt, "max_tokens": 25} | more


REQUESTS = {
    "chat": chat("Tell me"),
    "chat with reasoning": chat("Hello!"),
    "Chinese and emoji": chat("Say hello in Chinese."),
    "tool call": chat("Weather in Paris?", tools=TOOLS),
    "two tool calls": chat("Weather in Paris and 北京?", tools=TOOLS),
    "thinking off": chat("Hello!", chat_template_kwargs={"enable_thinking": False}),
    "n = 3": chat("three of them", n=3, max_tokens=20),
    "logprobs": chat("Tell me", logprobs=True, top_logprobs=2, max_tokens=12),
    "one token": chat("Hello!", max_tokens=1),
    "completion": text("Once upon"),
    "default budget": (TEXT, {"model": "tiny", "prompt": "Once upon"}),
    "list": text(["first", "second ∑", "third"]),
    "token ids": text([630, 595]),
    "list of token ids": text([[630, 595], [5, 6, 7]]),
    "list, n = 2": text(["first", "second"], n=2, max_tokens=11),
    "completion logprobs": text("Once upon", logprobs=1, max_tokens=9),
    "return_token_ids": text("Once upon", return_token_ids=True),
    "stop string": text("Once upon", stop=[" w"]),
    "echo": text("Once upon", echo=True),
}
NATIVE = {"echo": (False, True)}  # stream values that take the native route


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REQUESTS)
async def test_the_chain_answers_what_the_engine_would(nursery, autojump_clock, name, stream):
    world = await make_world(nursery, engine={"pace_s": 0.01})
    path, body = REQUESTS[name]
    if stream:
        body = body | {"stream_options": {"include_usage": True}}
    native = await world.native(path, body, stream)
    for one in world.engines:
        one.seen.clear()
    got = await (world.stream if stream else world.ask)(path, body)
    assert got.status == 200, got.body
    found = unexplained(native.answer, got.answer)
    assert found == []
    prompts = len(body["prompt"]) if isinstance(body.get("prompt", ""), list) and name.startswith("list") else 1
    if stream in NATIVE.get(name, ()):
        assert (len(world.seen("generate")), len(world.seen("native"))) == (0, 1)
    else:
        assert (len(world.seen("generate")), len(world.seen("native"))) == (prompts, 0)
        assert len(world.seen("render")) == 1
        assert (len(world.seen("derender")) > 1) == (stream and body.get("max_tokens") != 1)
    await world.check()


async def test_the_engine_gets_renders_ids_and_parameters_untouched(nursery, autojump_clock):
    """RFC Render: no second tokenizer, nothing lost, nothing added but what an engine needs."""
    world = await make_world(nursery)
    body = chat("Hello!", temperature=0.25, seed=7, priority=4, cache_salt="pepper", top_k=9, max_tokens=9)[1]
    await world.ask(CHAT, body)
    rendered = (await world.ask(CHAT + "/render", body, to=SIDECAR)).json
    (seen,) = world.seen()
    assert seen.body["token_ids"] == rendered["token_ids"]
    assert seen.body["sampling_params"] == rendered["sampling_params"]
    kept = {key: value for key, value in rendered.items() if "transfer" not in key and key != "request_id"}
    assert {key: seen.body[key] for key in kept} == kept
    assert (seen.body["priority"], seen.body["cache_salt"]) == (4, "pepper")
    assert "messages" not in seen.body


@pytest.mark.parametrize("stream", [False, True])
async def test_transfer_parameters_of_a_client_reach_nobody(nursery, autojump_clock, stream):
    """They name other engines' memory; {"do_remote_prefill": true} alone kills a real engine."""
    world = await make_world(nursery)
    poison = {"do_remote_prefill": True}
    body = chat("Hello!", kv_transfer_params=poison, ec_transfer_params=poison, stream=stream)[1]
    body["vllm_xargs"] = {"kv_transfer_params": poison, "mine": 1}
    for path, sent in ((CHAT, body), (TEXT, text("x", kv_transfer_params=poison, echo=True)[1])):
        assert (await world.ask(path, sent)).status == 200
    for record in (*world.seen("generate"), *world.seen("native"), *world.seen("render"), *world.seen("derender")):
        assert "do_remote_prefill" not in json.dumps(record.body), record.kind
    await world.check()


async def test_ids_are_unique_per_attempt_prompt_and_leg_in_header_and_body_alike(nursery, autojump_clock):
    world = await make_world(nursery)
    for stream in (False, True):
        for _ in range(2):  # a client that repeats its id
            got = await world.ask(TEXT, text(["a b", "c d"])[1] | {"stream": stream}, {"x-request-id": "client-77"})
            assert got.headers["x-request-id"] == "client-77"
    seen = world.seen()
    assert len({record.body["request_id"] for record in seen}) == len(seen) == 8
    for record in seen:
        assert record.headers["x-request-id"] == record.body["request_id"]
        assert record.body["request_id"].startswith("client-77.")
    await world.check()


@pytest.mark.parametrize("given", [None, "x" * 129, "a b", "a\tb", "é"])
async def test_a_missing_or_odd_request_id_is_replaced(nursery, autojump_clock, given):
    world = await make_world(nursery)
    got = await world.ask(TEXT, text("x")[1], {"x-request-id": given} if given else {})
    assert got.headers["x-request-id"] not in ("", given)
    assert len(got.headers["x-request-id"]) == 32


async def test_trace_and_session_headers_reach_the_engine_and_nothing_else_does(nursery, autojump_clock):
    world = await make_world(nursery, config={"upstream_config": {"api_key": "ours"}})
    headers = {
        "traceparent": "00-11111111111111111111111111111111-2222222222222222-01",
        "tracestate": "a=b",
        "authorization": "Bearer the-clients-own",
        "x-data-parallel-rank": "3",
        "cookie": "secret",
    }
    for path, body in (chat("Hello!", session_id="s-1"), text("x", echo=True, session_id="s-1")):
        assert (await world.ask(path, body, headers)).status == 200
    for record in (*world.seen("generate"), *world.seen("native")):
        assert record.headers["traceparent"] == headers["traceparent"]
        assert (record.headers["tracestate"], record.headers["x-session-id"]) == ("a=b", "s-1")
        assert record.headers["authorization"] == "Bearer ours"
        assert not {"x-data-parallel-rank", "cookie"} & set(record.headers)
    assert {record.headers.get("authorization") for record in world.seen("derender")} == {"Bearer ours"}


async def test_instances_take_turns(nursery, autojump_clock):
    world = await make_world(nursery, engines=3)
    for _ in range(6):
        await world.ask(TEXT, text("x", max_tokens=1)[1])
    assert [len(engine.seen) for engine in world.engines] == [2, 2, 2]


async def test_render_switched_off_keeps_the_native_route_for_everything(nursery, autojump_clock):
    world = await make_world(nursery, config={"render_config": {"enable": False}})
    for path, body in (chat("Hello!"), text("Once upon"), text(["a", "b"], n=2)):
        for stream in (False, True):
            native = await world.native(path, body, stream)
            got = await (world.stream if stream else world.ask)(path, body)
            assert unexplained(native.answer, got.answer) == []
    assert not (world.seen("generate"))
    assert not (world.seen("render"))
    assert not (world.seen("derender"))
    await world.check()


async def test_other_routes_pass_through(nursery, autojump_clock):
    """Their bodies travel as they are; the answer comes back as it is."""
    world = await make_world(nursery)
    body = {"model": "tiny", "input": "Hello!", "odd": {"x": None}}
    got = await world.ask("/v1/responses", body)
    assert (got.status, got.json["object"]) == (200, "response")
    assert world.seen("native")[-1].body == body
    await world.check()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/nothing", 404),
        ("POST", "/inference/v1/generate", 404),
        ("POST", "/v1/chat/completions/render", 404),
        ("POST", "/v1/load_lora_adapter", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
    ],
)
async def test_nothing_else_is_served(nursery, autojump_clock, method, path, status):
    world = await make_world(nursery)
    got = await world.ask(path, {}, method=method)
    assert (got.status, got.error["code"], got.error["stage"]) == (status, status, "client")


async def test_models(nursery, autojump_clock):
    world = await make_world(nursery)
    got = await world.ask("/v1/models", None, method="GET")
    (card,) = got.json["data"]
    assert (card["id"], card["max_model_len"]) == ("tiny", world.sidecar.served.max_model_len)
    assert (await world.ask("/v1/models/tiny", None, method="GET")).json == card
    missing = await world.ask("/v1/models/nope", None, method="GET")
    assert (missing.status, missing.error["type"], missing.error["param"]) == (404, "NotFoundError", "model")


async def test_api_keys(nursery, autojump_clock):
    digest = hashlib.sha256(b"sesame").hexdigest()
    world = await make_world(nursery, config={"api_key_config": {"enable_api_key": True, "valid_keys": [digest]}})
    path, body = text("x")
    for header in (
        {},
        {"authorization": "Bearer nope"},
        {"authorization": "sesame"},
        {"authorization": "Basic sesame"},
    ):
        got = await world.ask(path, body, header)
        assert (got.status, got.error["stage"], got.headers["www-authenticate"]) == (401, "client", "Bearer")
    assert (await world.ask(path, body, {"authorization": "Bearer sesame"})).status == 200
    assert len(world.seen()) == 1
