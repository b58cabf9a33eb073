"""What a stream looks like on the wire: order, ids, nulls, usage, pace, keep-alive, the end.

Contract section 3; ecosystem conventions that OpenAI clients depend on.
"""

from __future__ import annotations

import json

import pytest
import trio

from motor_flow.sim.tokenizer import tiny
from tests.scripted import DONE, HANG, SSE_END, SSE_HEAD, Scripted, event, tokens
from tests.world import CHAT, TEXT, Response, make_world, unexplained

CHAT_BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 20}
TEXT_BODY = {"model": "tiny", "prompt": "Once upon", "max_tokens": 20}
TOP_NULLS = {"usage", "prompt_token_ids"}
CHOICE_NULLS = {"finish_reason", "logprobs", "stop_reason", "token_ids", "prompt_token_ids"}


def nulls(value, allowed):
    return [key for key, inner in value.items() if inner is None and key not in allowed]


REQUESTS = {
    "chat": (CHAT, CHAT_BODY, 1),
    "chat n=3": (CHAT, CHAT_BODY | {"n": 3}, 3),
    "tools": (CHAT, CHAT_BODY | {"messages": [{"role": "user", "content": "Weather in Paris?"}], "max_tokens": 200}, 1),
    "list n=2": (TEXT, TEXT_BODY | {"prompt": ["a", "b"], "n": 2}, 4),
    "native": (CHAT, CHAT_BODY | {"stop": ["zzz"], "n": 2}, 2),
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_every_event_has_the_shape_clients_expect(nursery, autojump_clock, name):
    world = await make_world(nursery)
    path, body, choices = REQUESTS[name]
    got = await world.stream(path, body)
    assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (got.headers["cache-control"], got.headers["x-accel-buffering"]) == ("no-cache", "no")
    lines = got.body.split(b"\n")
    assert all(line.startswith((b"data: ", b":")) for line in lines if line)
    assert [data for _, data in got.events].count(b"[DONE]") == 1
    assert got.events[-1][1] == b"[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in got.chunks}) == 1
    assert got.chunks[0]["id"] == ("chatcmpl-" if path == CHAT else "cmpl-") + got.headers["x-request-id"]
    finished, roles = set(), []
    for chunk in got.chunks:
        assert nulls(chunk, TOP_NULLS) == []
        for choice in chunk["choices"]:
            assert nulls(choice, CHOICE_NULLS) == []
            assert choice["index"] in range(choices)
            assert choice["index"] not in finished
            if choice["finish_reason"] is not None:
                finished.add(choice["index"])
            if path == CHAT:
                assert nulls(choice["delta"], ()) == []
                if "role" in choice["delta"]:
                    roles.append(choice["index"])
                else:
                    assert len(roles) == choices, "a delta before all roles"
    assert finished == set(range(choices))
    if path == CHAT:
        assert roles == list(range(choices))
    assert b"transfer" not in got.body
    assert b"generate-tokens" not in got.body
    await world.check()


@pytest.mark.parametrize("coalesce", [False, True])
@pytest.mark.parametrize("chunk_tokens", [1, 7, 60])
async def test_a_marker_is_derendered_alone_however_the_engine_sends_it(
    nursery, autojump_clock, chunk_tokens, coalesce
):
    """Parsers read the boundaries of their chunks; the tokens are the engine's, in its order."""
    config = {"stream_config": {"coalesce": coalesce}}
    world = await make_world(nursery, engine={"chunk_tokens": chunk_tokens}, config=config)
    path, body, _ = REQUESTS["tools"]
    got = await world.stream(path, body | {"return_token_ids": True, "logprobs": True})
    markers = tiny().marker_ids
    asked = [record.body["generate_chunk"]["choices"][0] for record in world.seen("derender")]
    lone = [choice["token_ids"] for choice in asked if markers.intersection(choice["token_ids"])]
    assert len(lone) == len([ids for ids in lone if len(ids) == 1]) >= 4
    assert len(asked[-1]["token_ids"]) == 1, "nor does the end come with what was before it"
    ids = [token for choice in asked for token in choice["token_ids"]]
    assert ids == [
        token for chunk in got.chunks for choice in chunk["choices"] for token in choice.get("token_ids") or ()
    ]
    assert [len(choice["logprobs"]["content"]) for choice in asked] == [len(choice["token_ids"]) for choice in asked]
    assert [choice["finish_reason"] for choice in asked[:-1]] == [None] * (len(asked) - 1)
    assert asked[-1]["finish_reason"] == "stop"
    await world.check()


@pytest.mark.parametrize("chunk_tokens", [2, 7, 60])
async def test_wherever_an_answer_ends_the_engines_events_make_no_difference(nursery, autojump_clock, chunk_tokens):
    """In the middle of a call, before and behind every marker."""
    uncoalesced = {"stream_config": {"coalesce": False}}
    fine = await make_world(nursery, config=uncoalesced)
    coarse = await make_world(nursery, engine={"chunk_tokens": chunk_tokens}, config=uncoalesced)
    path, body, _ = REQUESTS["tools"]
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    finishes = set()
    for limit in range(2, 40):
        want, got = [
            await world.stream(path, body | {"tools": [tool], "max_tokens": limit}) for world in (fine, coarse)
        ]
        assert unexplained(want.answer, got.answer) == [], limit
        finishes.add(got.answer.choices[0].finish_reason)
    assert finishes == {"length", "tool_calls"}
    await coarse.check()


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_usage_comes_once_and_only_when_asked(nursery, autojump_clock, path):
    world = await make_world(nursery)
    body = CHAT_BODY if path == CHAT else TEXT_BODY | {"prompt": ["a", "b"], "n": 2, "ignore_eos": True}
    got = await world.stream(path, body)
    assert [chunk for chunk in got.chunks if "usage" in chunk] == []
    got = await world.stream(path, body | {"stream_options": {"include_usage": True}})
    with_usage = [chunk for chunk in got.chunks if chunk.get("usage")]
    assert with_usage == [got.chunks[-1]]
    assert with_usage[0]["choices"] == []
    prompt = sum(len(record.body["token_ids"]) for record in world.seen()[-2 if path == TEXT else -1 :])
    made = 80 if path == TEXT else 20
    assert with_usage[0]["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        **({"completion_tokens_details": {"reasoning_tokens": 19}} if path == CHAT else {}),
    }


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_continuous_usage_is_on_every_chunk(nursery, autojump_clock, path):
    world = await make_world(nursery)
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    got = await world.stream(path, (CHAT_BODY if path == CHAT else TEXT_BODY) | options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in got.chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0 if path == CHAT else 1, 20)


async def test_chunks_arrive_as_they_are_generated(nursery, autojump_clock):
    """Generate, parse and return as it goes; not one event at the end."""
    world = await make_world(nursery, engine={"pace_s": 0.05})
    start = trio.current_time()
    got = await world.stream(TEXT, TEXT_BODY)
    times = [at - start for at, data in got.events if b'"text":' in data]
    assert times[0] < 0.1
    assert times[-1] > 0.9
    assert len(set(times)) >= 8


async def test_a_stream_that_is_silent_gets_comments(nursery, autojump_clock):
    """While the engine prefills: 200 one interval after the headers, then a comment every interval."""
    world = await make_world(nursery, engine={"first_token_s": 70.0})
    start = trio.current_time()
    response = Response(0, {})
    nursery.start_soon(world.read, response, CHAT, CHAT_BODY | {"stream": True})
    await trio.sleep(14)
    assert response.status == 0
    await trio.sleep(2)
    assert response.status == 200
    await trio.sleep(60)
    assert response.ended
    assert response.comments == 3
    assert response.events[0][0] - start == pytest.approx(15)


async def test_comments_can_be_switched_off(nursery, autojump_clock):
    world = await make_world(
        nursery, engine={"first_token_s": 70.0}, config={"stream_config": {"sse_keep_alive_interval": 0}}
    )
    response = Response(0, {})
    nursery.start_soon(world.read, response, CHAT, CHAT_BODY | {"stream": True})
    await trio.sleep(69)
    assert response.status == 0
    await trio.sleep(5)
    assert (response.ended, response.comments) == (True, 0)


async def test_200_waits_for_every_engine_stream(nursery, autojump_clock):
    """One late stream of three holds the head back, although its siblings have tokens."""
    world = await make_world(nursery, engines=3)
    late = [SSE_HEAD[:20], 0.8, SSE_HEAD[20:], tokens(5), tokens(6, finish="length"), DONE, SSE_END]
    Scripted(world, "engine-2", {"/generate": [late]})
    start = trio.current_time()
    got = await world.stream(TEXT, TEXT_BODY | {"prompt": ["a", "b", "c"]})
    assert got.events[0][0] - start >= 0.8
    assert {choice["index"] for chunk in got.chunks for choice in chunk["choices"]} == {0, 1, 2}
    await world.check()


async def test_the_first_event_is_looked_at_before_200(nursery, autojump_clock):
    """vLLM reports a bad request found late as an event inside HTTP 200: the client still gets a status."""
    world = await make_world(nursery, engines=1)
    said = {"error": {"message": "too long", "type": "BadRequestError", "param": "input", "code": 400}}
    Scripted(world, "engine-1", {"/generate": [[SSE_HEAD, event(said), DONE, SSE_END]]})
    got = await world.stream(TEXT, TEXT_BODY)
    assert got.status == 400
    assert got.error == said["error"] | {"stage": "generate"}
    assert got.headers["x-should-retry"] == "false"
    await world.check()


async def test_the_end_of_the_stream_is_one_write(nursery, autojump_clock):
    """`[DONE]` and the end of the body; clients give up a connection whose end comes late."""
    world = await make_world(nursery)
    near = await world.net.connect("coordinator", 80)
    body = json.dumps(TEXT_BODY | {"stream": True}).encode()
    await near.send_all(
        b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (TEXT.encode(), len(body), body)
    )
    received = []
    while not b"".join(received).endswith(b"0\r\n\r\n"):
        received.append(await near.receive_some())
    near.close()
    assert b"data: [DONE]\n\n" in received[-1]
    assert received[-1].endswith(b"0\r\n\r\n")


async def test_prompt_ids_come_where_native_vllm_has_them(nursery, autojump_clock):
    """Once for a chat, once in every choice of completions."""
    world = await make_world(nursery)
    got = await world.stream(CHAT, CHAT_BODY | {"return_token_ids": True, "n": 2})
    assert [i for i, chunk in enumerate(got.chunks) if "prompt_token_ids" in chunk] == [0]
    got = await world.stream(TEXT, TEXT_BODY | {"return_token_ids": True, "n": 2, "prompt": ["a", "b"]})
    holders = [c["index"] for chunk in got.chunks for c in chunk["choices"] if "prompt_token_ids" in c]
    assert sorted(holders) == [0, 1, 2, 3]


async def test_a_character_split_over_chunks_is_sent_whole(nursery, autojump_clock):
    world = await make_world(nursery, engine={"pace_s": 0.01})
    got = await world.stream(
        CHAT, CHAT_BODY | {"messages": [{"role": "user", "content": "Say hello in Chinese."}], "max_tokens": 200}
    )
    text = "".join(c["delta"].get("content", "") for chunk in got.chunks for c in chunk["choices"])
    assert "你好，世界！👋🌍" in text
    assert "\ufffd" not in got.body.decode()


async def test_reasoning_can_be_called_what_old_clients_read(nursery, autojump_clock):
    for field, keys in (("reasoning_content", {"reasoning_content"}), ("both", {"reasoning", "reasoning_content"})):
        world = await make_world(nursery, config={"response_config": {"reasoning_field": field}})
        body = CHAT_BODY | {"messages": [{"role": "user", "content": "Hello!"}]}
        got = await world.stream(CHAT, body)
        seen = {key for chunk in got.chunks for c in chunk["choices"] for key in c["delta"] if "reasoning" in key}
        assert seen == keys
        message = (await world.ask(CHAT, body)).json["choices"][0]["message"]
        assert {key for key in message if "reasoning" in key and message[key]} == keys


async def test_waiting_chunks_are_merged_but_nothing_is_lost(nursery, autojump_clock):
    """A slow sidecar behind a fast engine: fewer calls, the same text, in order."""
    texts, calls = [], []
    for coalesce in (True, False):
        world = await make_world(
            nursery, sidecar={"derender_s": 0.03}, config={"stream_config": {"coalesce": coalesce}}
        )
        got = await world.stream(TEXT, TEXT_BODY | {"max_tokens": 60})
        texts.append("".join(c["text"] for chunk in got.chunks for c in chunk["choices"]))
        calls.append(len(world.seen("derender")))
        await world.check()
    assert texts[0] == texts[1]
    assert calls[0] < calls[1] / 2
    assert calls[1] >= 60


@pytest.mark.parametrize(
    "events",
    [
        [
            tokens(5),
            event({"request_id": "x", "choices": [{"index": 0, "token_ids": None, "finish_reason": "length"}]}),
        ],
        [tokens(5), tokens(finish="length")],
        [tokens(5, finish="length")],
        [tokens(), tokens(5), tokens(), tokens(6, finish="length")],
    ],
)
async def test_events_without_tokens_are_normal(nursery, autojump_clock, events):
    world = await make_world(nursery, engines=1)
    Scripted(world, "engine-1", {"/generate": [[SSE_HEAD, *events, DONE, SSE_END]]})
    got = await world.stream(TEXT, TEXT_BODY | {"stream_options": {"include_usage": True}})
    assert got.answer.choices[0].finish_reason == "length"
    made = sum(
        len(c["token_ids"] or ())
        for raw in events
        for c in json.loads(raw.split(b"data: ")[1].split(b"\n\n")[0])["choices"]
    )
    assert got.answer.usage["completion_tokens"] == made
    await world.check()


async def test_an_engine_that_lingers_after_the_last_token_does_not_hold_the_answer(nursery, autojump_clock):
    world = await make_world(nursery, engines=1)
    engine = Scripted(world, "engine-1", {"/generate": [[SSE_HEAD, tokens(5, finish="length"), HANG]]})
    start = trio.current_time()
    got = await world.stream(TEXT, TEXT_BODY)
    assert got.events[-1][1] == b"[DONE]"
    assert trio.current_time() - start < 2
    assert engine.open == 0
    await world.check()
