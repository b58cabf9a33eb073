"""Silence, slowness and size have limits, and each limit holds exactly.

Contract section 7 (first_token_timeout, stall_timeout, infer_timeout); stream_config.
"""

from __future__ import annotations

import json

import pytest
import trio

from tests.scripted import DONE, HANG, SSE_END, SSE_HEAD, Scripted, event, reply, tokens
from tests.world import CHAT, TEXT, Response, make_world

TEXT_BODY = {"model": "tiny", "prompt": "Once upon", "max_tokens": 20}
QUICK = {"exception_config": {"max_retry": 1, "first_token_timeout": 3, "stall_timeout": 2, "infer_timeout": 20}}
PING = b"8\r\n: ping\n\n\r\n"


def native(text, finish=None):
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return event({"id": "cmpl-e", "object": "text_completion", "created": 1, "model": "tiny", "choices": [choice]})


@pytest.mark.parametrize("route", ["token-only", "native"])
async def test_comments_are_no_sign_of_life(nursery, autojump_clock, route):
    world = await make_world(nursery, engines=1, config=QUICK)
    first = tokens(630) if route == "token-only" else native("Once")
    script = [SSE_HEAD, first, *[step for _ in range(12) for step in (1.0, PING)], HANG]
    Scripted(world, "engine-1", {"/generate": [script], "/v1/completions": [script]})
    got = await world.stream(TEXT, TEXT_BODY | {"echo": route == "native"})
    assert "silent for 2 s" in got.error["message"]
    assert trio.current_time() == pytest.approx(2.0)
    await world.check()


async def test_the_limit_to_the_first_event_counts_from_the_request(nursery, autojump_clock):
    world = await make_world(nursery, engines=1, config=QUICK)
    Scripted(world, "engine-1", {"/generate": [[2.9, SSE_HEAD, HANG]]})
    got = await world.stream(TEXT, TEXT_BODY)
    assert got.status == 504
    assert trio.current_time() == pytest.approx(3.0)
    await world.check()


async def test_a_slow_start_is_not_a_stall_and_a_stall_is_not_a_slow_start(nursery, autojump_clock):
    world = await make_world(nursery, engines=1, config=QUICK)
    finish = tokens(595, finish="stop")
    Scripted(world, "engine-1", {"/generate": [[SSE_HEAD, 2.5, tokens(630), 1.9, finish, DONE, SSE_END]]})
    got = await world.stream(TEXT, TEXT_BODY)
    assert got.answer.choices[0].finish_reason == "stop"
    await world.check()


async def test_a_choice_that_starts_late_does_not_hold_up_its_sibling(nursery, autojump_clock):
    """More than an inbox holds arrives for one choice before the other one's first event."""
    world = await make_world(nursery, engines=1, config=QUICK | {"stream_config": {"sse_keep_alive_interval": 0}})
    padded = {"index": 0, "token_ids": [630], "finish_reason": None, "logprobs": None, "routed": "x" * 8000}
    script = [SSE_HEAD, *[event({"request_id": "x", "choices": [padded]})] * 60]
    script += [tokens(finish="length"), tokens(630, index=1, finish="length"), DONE, SSE_END]
    Scripted(world, "engine-1", {"/generate": [script]})
    got = await world.stream(TEXT, TEXT_BODY | {"n": 2, "temperature": 1.0})
    assert [choice.finish_reason for choice in got.answer.choices.values()] == ["length", "length"]
    assert trio.current_time() < 1
    await world.check()


@pytest.mark.parametrize("tail", [[HANG], [0.1, "cut"]])
async def test_a_native_answer_is_complete_when_every_choice_has_finished(nursery, autojump_clock, tail):
    world = await make_world(nursery, engines=1, config=QUICK)
    Scripted(world, "engine-1", {"/v1/completions": [[SSE_HEAD, native("Once"), native(" x", "stop"), *tail]]})
    got = await world.stream(TEXT, TEXT_BODY | {"echo": True})
    assert got.error is None
    assert got.answer.choices[0].content == "Once x"
    assert got.body.endswith(b"data: [DONE]\n\n")
    assert trio.current_time() < 1.5
    await world.check()


async def test_a_client_that_reads_slowly_gets_its_end_once(nursery, autojump_clock):
    """infer_timeout passes while the last bytes are still waiting for the client."""
    world = await make_world(
        nursery, engine={"pace_s": 0.001}, config=QUICK | {"stream_config": {"queue_chunks_max": 10_000}}
    )
    client = await world.net.connect("coordinator", 80)
    body = json.dumps(TEXT_BODY | {"stream": True, "max_tokens": 1500, "ignore_eos": True}).encode()
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (TEXT.encode(), len(body))
    await client.send_all(head + body)
    await trio.sleep(25)
    raw = b""
    while not raw.endswith(b"0\r\n\r\n"):
        raw += await client.receive_some(50_000)
    client.close()
    assert (raw.count(b"[DONE]"), raw.count(b'"error"')) == (1, 0)
    await world.check()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompts", "n"), [(1, 2049), (600, 4)])
async def test_a_small_body_cannot_ask_for_millions(nursery, autojump_clock, prompts, n, stream):
    world = await make_world(nursery)
    body = {"prompt": [[630]] * prompts, "n": n, "max_tokens": 1, "temperature": 1.0, "stream": stream}
    got = await world.ask(TEXT, {"model": "tiny", **body})
    assert (got.status, got.error["stage"]) == (400, "client")
    assert "at most 2048" in got.error["message"]
    assert world.seen() == []
    await world.check()


async def test_every_request_gets_its_own_words_when_all_are_evicted(nursery, autojump_clock):
    world = await make_world(nursery, engine={"pace_s": 1.0})
    streaming, rendering = Response(0, {}), Response(0, {})
    nursery.start_soon(world.read, streaming, TEXT, TEXT_BODY | {"stream": True})
    await trio.sleep(3)
    Scripted(world, "sidecar", {"/render": [[HANG]]})
    nursery.start_soon(world.read, rendering, TEXT, TEXT_BODY)
    await trio.sleep(1)
    world.app.evict_all()
    await trio.sleep(1)
    assert (streaming.error["stage"], streaming.error["code"]) == ("generate", 503)
    assert (rendering.status, rendering.error["stage"]) == (503, "render")
    await world.check()


async def test_a_role_is_nothing_that_could_not_be_said_again(nursery, autojump_clock):
    """vLLM sends the role at once, and the first token later."""
    config = {"render_config": {"enable_streaming": False}}  # the native route
    world = await make_world(nursery, engines=1, engine={"first_token_s": 5.0, "pace_s": 1.0}, config=config)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9}
    got = Response(0, {})
    nursery.start_soon(world.read, got, CHAT, body | {"stream": True})
    seen = []
    for _ in range(40):
        await trio.sleep(0.5)
        seen += [(len(got.events) > 0, live["visible"]) for live in world.app.journal.describe()]
    assert (True, False) in seen
    assert (True, True) in seen
    await world.check()


async def test_an_engine_that_goes_on_after_its_end_is_not_listened_to(nursery, autojump_clock):
    world = await make_world(nursery, engines=1)
    script = [SSE_HEAD, tokens(630, finish="stop"), tokens(595), DONE, SSE_END]
    Scripted(world, "engine-1", {"/generate": [script]})
    got = await world.stream(TEXT, TEXT_BODY | {"stream_options": {"include_usage": True}})
    assert got.error is None
    assert got.answer.usage["completion_tokens"] == 1
    await world.check()


@pytest.mark.parametrize("stream", [False, True])
async def test_engines_memory_is_never_shown(nursery, autojump_clock, stream):
    """KV parameters in a native answer, which a misconfigured engine may give."""
    world = await make_world(nursery, engines=1)
    kv = {"kv_transfer_params": {"remote_host": "10.0.0.1"}, "ec_transfer_params": {}}
    choice = {"index": 0, "text": "Once", "logprobs": None, "finish_reason": "stop"}
    whole = {"id": "e", "object": "text_completion", "created": 1, "model": "tiny", "choices": [choice], **kv}
    script = [SSE_HEAD, event(whole), DONE, SSE_END] if stream else [reply(200, whole)]
    Scripted(world, "engine-1", {"/v1/completions": [script]})
    got = await world.ask(TEXT, TEXT_BODY | {"echo": True, "stream": stream})
    assert got.answer.choices[0].content == "Once"
    assert b"transfer" not in got.body
    await world.check()


async def test_a_native_answer_without_its_choices_is_none(nursery, autojump_clock):
    world = await make_world(nursery, engines=1)
    answer = {"id": "e", "object": "text_completion", "created": 1, "model": "tiny", "choices": []}
    Scripted(world, "engine-1", {"/v1/completions": [[reply(200, answer)]]})
    got = await world.ask(TEXT, TEXT_BODY | {"echo": True})
    assert (got.status, got.error["message"]) == (502, "the engine answered 0 choices of 1")
    await world.check()


@pytest.mark.parametrize("route", ["token-only", "native"])
async def test_a_hung_engine_does_not_keep_a_whole_answer(nursery, autojump_clock, route):
    """It accepts connections and says nothing, as a stopped process does: the request goes on elsewhere."""
    config = {"exception_config": {**QUICK["exception_config"], "max_retry": 2}}
    world = await make_world(nursery, config=config)
    body = TEXT_BODY | {"echo": route == "native"}
    want = await world.ask(TEXT, body)
    hung = Scripted(world, "engine-1", {"": [[HANG]]})
    world.app.pool.close()
    before = trio.current_time()
    answers = [await world.ask(TEXT, body) for _ in range(2)]
    assert [got.answer.choices for got in answers] == [want.answer.choices] * 2
    assert {"/health"} < {path for path, _ in hung.requests}
    assert trio.current_time() - before == pytest.approx(2 + 5 + 1 + 5)  # once only: who has failed is not asked first
    await world.check()


async def test_a_busy_engine_that_lives_may_be_silent(nursery, autojump_clock):
    """Its health route answers, once late: the whole answer is waited for."""
    world = await make_world(nursery, engines=1, config=QUICK)
    whole = reply(200, {"request_id": "x", "choices": [{"index": 0, "token_ids": [630], "finish_reason": "length"}]})
    Scripted(world, "engine-1", {"/generate": [[15.0, whole]], "/health": [[HANG], [reply(200, {})]]})
    got = await world.ask(TEXT, TEXT_BODY)
    assert got.status == 200
    assert trio.current_time() == pytest.approx(15.0)
    await world.check()


async def test_the_last_hung_engine_ends_the_request_with_504(nursery, autojump_clock):
    world = await make_world(nursery, engines=1, config=QUICK)
    Scripted(world, "engine-1", {"": [[HANG]]})
    world.app.pool.close()
    got = await world.ask(TEXT, TEXT_BODY)
    assert (got.status, got.error["stage"]) == (504, "generate")
    assert "stopped answering" in got.error["message"]
    await world.check()
