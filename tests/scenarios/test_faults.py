"""Every failure gets a clear end: the right status or event, one inference at most, nothing left behind.

RFC 故障处理; contract section 7. With one attempt only, so that each fault shows its own end; what further attempts
make of it is in test_relay.py.
"""

from __future__ import annotations

import json

import pytest
import trio

from motor_flow.net.stream import Origin
from tests.scripted import CUT, DONE, END, HANG, SSE_END, SSE_HEAD, Scripted, error, event, reply, tokens
from tests.world import CHAT, TEXT, make_world

SIDECAR = Origin("sidecar", 80)
CHAT_BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 20}
TEXT_BODY = {"model": "tiny", "prompt": "Once upon", "max_tokens": 20}
QUICK = {
    "render_config": {"timeout_ms": 500},
    "exception_config": {
        "max_retry": 1,
        "first_token_timeout": 3,
        "stall_timeout": 2,
        "infer_timeout": 20,
        "connect_timeout": 1,
    },
}

# --- Render ---------------------------------------------------------------------------------------

REFUSED = {
    # script of the render call: (status, type, message)
    "400": ([error(400, "bad", "BadRequestError", "messages")], 400, "BadRequestError", "bad"),
    "422": ([error(422, "odd", "UnprocessableEntityError", "x")], 422, "UnprocessableEntityError", "odd"),
    "unknown model": ([error(404, "no model", "NotFoundError", "model")], 404, "NotFoundError", "no model"),
}
DOWN = {
    # script of the render call: reason that is counted
    "no such endpoint": ([reply(404, {"detail": "Not Found"})], "unsupported"),
    "forbidden": ([error(403, "x", "PermissionDeniedError")], "unsupported"),
    "501": ([reply(501, {"detail": "x"})], "unsupported"),
    "our key is wrong": ([reply(401, {"error": "Unauthorized"})], "failed"),
    "500": ([error(500)], "failed"),
    "503 html": ([reply(503, b"<html>", "text/html")], "failed"),
    "busy": ([error(429)], "failed"),
    "cut": ([CUT], "unreachable"),
    "closed": ([END], "unreachable"),
    "silent": ([HANG], "timeout"),
    "nonsense": ([reply(200, {"unexpected": True})], "malformed"),
    "html": ([reply(200, b"<html>", "text/html")], "malformed"),
    "not HTTP": ([b"hello"], "malformed"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", REFUSED)
async def test_what_render_refuses_is_the_clients_fault(nursery, autojump_clock, case, stream):
    script, status, kind, message = REFUSED[case]
    world = await make_world(nursery, config=QUICK)
    Scripted(world, "sidecar", {"/render": [script]})
    got = await world.ask(CHAT, CHAT_BODY | {"stream": stream})
    assert (got.status, got.error["code"], got.error["type"], got.error["stage"]) == (status, status, kind, "render")
    assert message in got.error["message"]
    assert "x-should-retry" not in got.headers
    assert world.seen() == world.seen("native") == []
    await world.check()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", DOWN)
async def test_without_render_the_engine_renders(nursery, autojump_clock, case, stream):
    """The same answer, by the native route; no attempt is spent, and the reason is counted."""
    script, reason = DOWN[case]
    world = await make_world(nursery, config=QUICK)
    want = await world.ask(CHAT, CHAT_BODY | {"stream": stream})
    Scripted(world, "sidecar", {"/render": [script]})
    got = await world.ask(CHAT, CHAT_BODY | {"stream": stream})
    assert got.answer.choices == want.answer.choices
    assert [len(world.seen(kind)) for kind in ("generate", "native")] == [1, 1]
    assert f'motor_flow_render_fallback_total{{reason="{reason}"}} 1.0' in world.app.metrics.exposition().decode()
    await world.check()


async def test_a_sidecar_that_is_down_keeps_nobody_waiting(nursery, autojump_clock):
    """Refused, and then silent: from the second look on, new requests do not wait for it."""
    world = await make_world(nursery, config=QUICK)
    Scripted(world, "sidecar", {"": [[HANG]]})
    assert (await world.ask(CHAT, CHAT_BODY)).status == 200
    await trio.sleep(6)
    before = trio.current_time()
    assert (await world.ask(CHAT, CHAT_BODY)).status == 200
    direct = trio.current_time()
    await world.native(CHAT, CHAT_BODY, stream=False)
    assert direct - before == pytest.approx(trio.current_time() - direct)
    await world.check()


async def test_render_cannot_be_connected(nursery, autojump_clock):
    world = await make_world(nursery, config=QUICK)
    world.net.refuse("sidecar", 80)
    world.app.pool.close()
    for body in (CHAT_BODY, CHAT_BODY | {"stream": True}):
        got = await world.ask(CHAT, body)
        assert (got.status, got.error) == (200, None)
    assert len(world.seen("native")) == 2
    await world.check()


# --- engines --------------------------------------------------------------------------------------

ERROR_EVENT = event(
    {"error": {"message": "EngineCore died", "type": "InternalServerError", "param": None, "code": 500}}
)
BAD_EVENT = event({"error": {"message": "too long", "type": "BadRequestError", "param": "p", "code": 400}})
HEAD = {
    # before anything was sent: script, status, message
    "400": ([error(400, "logit_bias is odd", "BadRequestError", "logit_bias")], 400, "logit_bias is odd"),
    "422": ([error(422, "odd", "UnprocessableEntityError")], 422, "odd"),
    "does not know the model": ([error(404, "x", "NotFoundError", "model")], 502, "does not know this model"),
    "no token-only route": ([reply(404, {"detail": "Not Found"})], 501, "does not offer"),
    "scale-out is off": ([error(403, "x", "PermissionDeniedError")], 501, "does not offer"),
    "our key is wrong": ([reply(401, {"error": "Unauthorized"})], 502, "refused our key"),
    "429": ([error(429)], 502, "HTTP 429"),
    "500": ([error(500)], 502, "HTTP 500"),
    "503": ([reply(503, b"")], 502, "HTTP 503"),
    "redirect": ([b"HTTP/1.1 302 X\r\nlocation: http://elsewhere/\r\ncontent-length: 0\r\n\r\n"], 502, "HTTP 302"),
    "cut": ([CUT], 502, "cannot be reached"),
    "not HTTP": ([b"hello"], 502, "cannot be reached"),
}
STREAM_HEAD = {
    "error event": ([SSE_HEAD, ERROR_EVENT, DONE, SSE_END], 502, "HTTP 500"),
    "bad request found late": ([SSE_HEAD, BAD_EVENT, DONE, SSE_END], 400, "too long"),
    "abort": ([SSE_HEAD, tokens(finish="abort"), DONE, SSE_END], 502, "'abort'"),
    "empty": ([SSE_HEAD, SSE_END], 502, "without a finish reason"),
    "done at once": ([SSE_HEAD, DONE, SSE_END], 502, "without a finish reason"),
    "garbage": ([SSE_HEAD, event(b"{nonsense"), SSE_END], 502, "cannot be read"),
    "negative token": ([SSE_HEAD, tokens(-1), SSE_END], 502, "cannot be read"),
    "choice that was not asked for": ([SSE_HEAD, tokens(5, index=1), SSE_END], 502, "choice 1 of 1"),
    "silent after the head": ([SSE_HEAD, HANG], 504, "silent for 3 s"),
    "silent before the head": ([HANG], 504, "in time"),
    "cut in an event": ([SSE_HEAD, tokens(5)[:30], CUT], 502, "cannot be reached"),
    "line without end": ([SSE_HEAD, *[b"10000\r\n%b\r\n" % (b"x" * 65536)] * 300, HANG], 502, "no valid event"),
}
WHOLE_HEAD = {
    "cut in the body": ([b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{", CUT], 502, "cannot be reached"),
    "garbage": ([reply(200, b"{nonsense")], 502, "cannot be read"),
    "nothing known": ([reply(200, {"unexpected": 1})], 502, "cannot be read"),
    "aborted": ([reply(200, {"choices": [{"index": 0, "token_ids": [5], "finish_reason": "abort"}]})], 502, "'abort'"),
    "no finish": ([reply(200, {"choices": [{"index": 0, "token_ids": [5]}]})], 502, "no reason"),
    "recomputed": (
        [
            reply(
                200, {"choices": [{"index": 0, "token_ids": [5], "finish_reason": "stop", "stop_reason": "recomputed"}]}
            )
        ],
        502,
        "recompute",
    ),
    "choice missing": ([reply(200, {"choices": []})], 502, "choices [] of 1"),
    "silent": ([HANG], 504, "infer_timeout"),
}


@pytest.mark.parametrize(
    ("stream", "case"),
    [(stream, case) for stream in (False, True) for case in HEAD]
    + [(True, case) for case in STREAM_HEAD]
    + [(False, f"whole {case}") for case in WHOLE_HEAD],
)
async def test_engine_faults_before_anything_was_sent(nursery, autojump_clock, case, stream):
    whole = {f"whole {name}": row for name, row in WHOLE_HEAD.items()}
    script, status, message = (HEAD | STREAM_HEAD | whole)[case]
    world = await make_world(nursery, engines=1, config=QUICK)
    engine = Scripted(world, "engine-1", {"/generate": [script]})
    got = await world.ask(TEXT, TEXT_BODY | {"stream": stream})
    assert (got.status, got.error["code"], got.error["stage"]) == (status, status, "generate")
    assert message in got.error["message"]
    assert got.headers["x-should-retry"] == "false"
    assert len(engine.requests) == 1
    await world.check()
    assert engine.open == 0


LATE = {
    "cut": ([0.1, CUT], 502),  # a reset takes with it what was not read yet
    "closed": ([SSE_END], 502),
    "done without a finish": ([DONE, SSE_END], 502),
    "error event": ([ERROR_EVENT, DONE, SSE_END], 502),
    "aborted": ([tokens(finish="abort"), DONE, SSE_END], 502),
    "recomputed": ([tokens(finish="stop", stop_reason="recomputed"), DONE, SSE_END], 502),
    "error as finish": ([tokens(finish="error"), DONE, SSE_END], 502),
    "garbage": ([event(b"[1,2]"), SSE_END], 502),
    "broken chunking": ([b"zzz\r\n"], 502),
    "silent": ([HANG], 504),
}


@pytest.mark.parametrize("case", LATE)
async def test_engine_faults_in_mid_stream(nursery, autojump_clock, case):
    """What came before the fault is delivered; then one error event and the end. No failure is silent."""
    script, status = LATE[case]
    world = await make_world(nursery, engines=1, config=QUICK)
    engine = Scripted(world, "engine-1", {"/generate": [[SSE_HEAD, tokens(630), tokens(595), *script]]})
    got = await world.stream(TEXT, TEXT_BODY)
    assert (got.status, got.ended) == (200, True)
    assert "".join(c["text"] for chunk in got.chunks if "choices" in chunk for c in chunk["choices"]) == "Once upon"
    assert (got.error["code"], got.error["stage"]) == (status, "generate")
    assert [data[:9] for _, data in got.events[-2:]] == [b'{"error":', b"[DONE]"]
    assert b'"finish_reason":"' not in got.body
    assert len(engine.requests) == 1
    await world.check()
    assert engine.open == 0


async def test_an_engine_that_ends_before_its_first_event_after_the_200(nursery, autojump_clock):
    """Headers and then a keep-alive interval of silence open the barrier; the fault behind it is an error event."""
    config = {"stream_config": {"sse_keep_alive_interval": 1}}
    world = await make_world(nursery, engines=1, config=config)
    Scripted(world, "engine-1", {"/generate": [[SSE_HEAD, 2.5, SSE_END]]})
    got = await world.stream(TEXT, TEXT_BODY)
    assert (got.status, got.ended, got.error["stage"]) == (200, True, "generate")
    assert got.body.startswith(b": keep-alive\n\n")
    await world.check()


async def test_a_failed_prompt_of_a_list_ends_the_others(nursery, autojump_clock):
    """The RFC's rule, when prompts are not relayed on their own: siblings are cancelled; one error event."""
    config = {"stream_config": {"per_prompt_relay": False}}
    world = await make_world(nursery, engines=3, engine={"pace_s": 0.1}, config=config)
    Scripted(world, "engine-2", {"/generate": [[SSE_HEAD, tokens(5), 1.0, CUT]]})
    got = await world.stream(TEXT, TEXT_BODY | {"prompt": ["a", "b", "c"], "max_tokens": 100})
    assert got.error["stage"] == "generate"
    assert "stream_config.per_prompt_relay" in got.error["message"]
    assert got.body.count(b"data: [DONE]") == 1
    await world.check()
    assert [record.peer_closed for record in world.seen()] == [True, True]


async def test_a_failed_prompt_of_a_whole_list_ends_the_others(nursery, autojump_clock):
    world = await make_world(nursery, engines=2, engine={"pace_s": 1.0}, config=QUICK)
    Scripted(world, "engine-2", {"/generate": [[0.5, error(500)]]})
    got = await world.ask(TEXT, TEXT_BODY | {"prompt": ["a", "b"], "max_tokens": 100})
    assert (got.status, got.error["stage"]) == (502, "generate")
    await world.check()
    assert [record.peer_closed for record in world.seen()] == [True]


async def test_no_engine(nursery, autojump_clock):
    world = await make_world(nursery, config={"instances": []})
    got = await world.ask(CHAT, CHAT_BODY)
    assert (got.status, got.error["stage"], got.headers["retry-after"]) == (503, "schedule", "1")
    assert "x-should-retry" not in got.headers
    assert not world.app.ready
    await world.check()


async def test_the_whole_request_has_a_deadline(nursery, autojump_clock):
    """infer_timeout from arrival: 504 before 200, an error event after."""
    config = {"exception_config": {"infer_timeout": 4, "first_token_timeout": 100, "stall_timeout": 100}}
    world = await make_world(nursery, engine={"pace_s": 1.0}, config=config)
    body = TEXT_BODY | {"ignore_eos": True}
    got = await world.ask(TEXT, body)
    assert (got.status, got.error["stage"], got.headers["x-should-retry"]) == (504, "generate", "false")
    start = trio.current_time()
    got = await world.stream(TEXT, body)
    assert trio.current_time() - start == pytest.approx(4)
    assert (got.status, got.error["code"], got.error["stage"]) == (200, 504, "generate")
    await world.check()


# --- Derender -------------------------------------------------------------------------------------

DERENDER = {
    "400": ([error(400, "bad state", "BadRequestError", "stream_state")], 400, "bad state"),
    "422": ([error(422, "bad state", "UnprocessableEntityError", "stream_state")], 422, "bad state"),
    "404 with an error object": ([error(404, "no model", "NotFoundError", "model")], 404, "no model"),
    "404": ([reply(404, {"detail": "Not Found"})], 501, "does not offer"),
    "405": ([reply(405, {"detail": "Method Not Allowed"})], 501, "does not offer"),
    "501": ([reply(501, {"detail": "x"})], 501, "does not offer"),
    "403": ([error(403, "x", "PermissionDeniedError")], 501, "does not offer"),
    "401": ([reply(401, {"error": "Unauthorized"})], 502, "refused our key"),
    "500": ([error(500)], 502, "HTTP 500"),
    "503": ([error(503)], 502, "HTTP 503"),
    "cut": ([CUT], 502, "cannot be reached"),
    "silent": ([HANG], 504, "in time"),
    "nonsense": ([reply(200, {"unexpected": True})], 502, "invalid derender answer"),
    "html": ([reply(200, b"<html>", "text/html")], 502, "invalid derender answer"),
}


@pytest.mark.parametrize("case", DERENDER)
@pytest.mark.parametrize("mode", ["whole", "first chunk", "later chunk"])
async def test_derender_faults(nursery, autojump_clock, case, mode):
    """Mapped by one table, for stream and not; no second inference; the engine is let go at once."""
    script, status, message = DERENDER[case]
    world = await make_world(nursery, engines=1, engine={"pace_s": 0.5}, config=QUICK)
    good = [] if mode != "later chunk" else [[*await _good_derender(world)]]
    sidecar = Scripted(world, "sidecar", {"/derender": [*good, script]})
    got = await world.ask(TEXT, TEXT_BODY | {"stream": mode != "whole"})
    assert (got.error["code"], got.error["stage"]) == (status, "derender")
    assert message in got.error["message"]
    if mode == "whole":
        assert (got.status, got.headers["x-should-retry"]) == (status, "false")
    else:
        # The barrier has opened with the first engine event, before its derender.
        assert (got.status, got.ended, got.events[-1][1]) == (200, True, b"[DONE]")
    if status in (400, 422):
        assert got.error["param"] == "stream_state"
    assert len(world.seen("generate")) == 1
    # A broken connection is tried once more; on one that was idle before, the call may never have been seen: once more.
    again = (1 + (mode == "later chunk")) if case == "cut" else 0
    assert len(sidecar.requests) == len(good) + 1 + again
    await world.check()
    assert world.seen("generate")[0].peer_closed == (mode != "whole")


async def _good_derender(world):
    """One right answer, to be played before the fault."""
    chunk = {"request_id": "x", "choices": [{"index": 0, "token_ids": [630], "finish_reason": None}]}
    got = await world.ask(f"{TEXT}/derender", {"stream": True, "generate_chunk": chunk}, to=SIDECAR)
    return [reply(200, got.json)]


@pytest.mark.parametrize("choices", [[], [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}]])
async def test_a_derendered_chunk_has_one_choice(nursery, autojump_clock, choices):
    world = await make_world(nursery, config=QUICK)
    Scripted(world, "sidecar", {"/derender": [[reply(200, {"chunk": {"choices": choices}, "stream_state": {}})]]})
    got = await world.stream(TEXT, TEXT_BODY)
    assert (got.error["code"], got.error["stage"]) == (502, "derender")
    await world.check()


async def test_the_derender_time_limit_is_per_chunk(nursery, autojump_clock):
    """Twenty chunks of 400 ms each pass under a limit of 500 ms."""
    world = await make_world(nursery, sidecar={"derender_s": 0.4}, engine={"pace_s": 0.5}, config=QUICK)
    start = trio.current_time()
    got = await world.stream(TEXT, TEXT_BODY | {"ignore_eos": True})
    assert got.error is None
    assert trio.current_time() - start > 8
    await world.check()


async def test_an_engine_fault_does_not_lose_what_is_being_derendered(nursery, autojump_clock):
    """Tokens that arrived before the fault are derendered and committed before it is told."""
    world = await make_world(nursery, engines=1, sidecar={"derender_s": 0.2}, config=QUICK)
    events = [tokens(630), tokens(595), tokens(630), tokens(595)]
    Scripted(world, "engine-1", {"/generate": [[SSE_HEAD, *events, ERROR_EVENT, DONE, SSE_END]]})
    got = await world.stream(TEXT, TEXT_BODY)
    text = "".join(c["text"] for chunk in got.chunks if "choices" in chunk for c in chunk["choices"])
    assert text == "Once uponOnce upon"
    assert got.error["stage"] == "generate"
    await world.check()


# --- the native route -----------------------------------------------------------------------------

NATIVE_BODY = TEXT_BODY | {"echo": True}


def native_chunk(text, finish=None):
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return event({"id": "cmpl-e", "object": "text_completion", "created": 1, "model": "tiny", "choices": [choice]})


NATIVE = {
    "cut": ([0.1, CUT], 502),
    "closed": ([SSE_END], 502),
    "done without a finish": ([DONE, SSE_END], 502),
    "error event": ([ERROR_EVENT, DONE, SSE_END], 502),
    "aborted": ([native_chunk("", "abort"), DONE, SSE_END], 502),
    "garbage": ([event(b"{nonsense"), SSE_END], 502),
    "silent": ([HANG], 504),
}


@pytest.mark.parametrize("visible", [False, True])
@pytest.mark.parametrize("case", NATIVE)
async def test_native_stream_faults(nursery, autojump_clock, case, visible):
    script, status = NATIVE[case]
    world = await make_world(nursery, engines=1, config=QUICK)
    before = [native_chunk("Once"), native_chunk(" upon")] if visible else []
    Scripted(world, "engine-1", {"/v1/completions": [[SSE_HEAD, *before, *script]]})
    got = await world.stream(TEXT, NATIVE_BODY)
    assert (got.status, got.error["code"], got.error["stage"]) == (200 if visible else status, status, "generate")
    if visible:
        assert got.events[-1][1] == b"[DONE]"
        assert "".join(c["text"] for k in got.chunks if "choices" in k for c in k["choices"]) == "Once upon"
    else:
        assert got.headers["x-should-retry"] == "false"
    await world.check()


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ([error(400, "no", "BadRequestError", "echo")], 400),
        ([error(500)], 502),
        ([CUT], 502),
        ([reply(200, b"{nonsense")], 502),
        ([reply(200, {"choices": [{"index": 0, "text": "x", "finish_reason": "abort"}]})], 502),
    ],
)
async def test_native_whole_faults(nursery, autojump_clock, script, status):
    world = await make_world(nursery, engines=1, config=QUICK)
    Scripted(world, "engine-1", {"/v1/completions": [script]})
    got = await world.ask(TEXT, NATIVE_BODY)
    assert (got.status, got.error["code"], got.error["stage"]) == (status, status, "generate")
    await world.check()


async def test_a_stream_request_answered_without_a_stream(nursery, autojump_clock):
    """An SDK would read an empty stream from it and never know."""
    world = await make_world(nursery, engines=1, config=QUICK)
    Scripted(world, "engine-1", {"/v1/completions": [[reply(200, {"choices": []})]]})
    got = await world.stream(TEXT, NATIVE_BODY)
    assert (got.status, got.error["stage"]) == (502, "generate")


# --- the client's own -----------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"{} {}"])
async def test_bodies_that_cannot_be_read(nursery, autojump_clock, body):
    world = await make_world(nursery)
    got = await world.ask(CHAT, body)
    assert (got.status, got.error["stage"], got.error["type"]) == (400, "client", "BadRequestError")
    assert not world.seen("render")
    await world.check()


async def test_a_body_of_33_mib(nursery, autojump_clock):
    world = await make_world(nursery)
    body = json.dumps(CHAT_BODY | {"messages": [{"role": "user", "content": "x" * (33 << 20)}]}).encode()
    near = await world.net.connect("coordinator", 80)
    await near.send_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body))
    answer = b""
    while not answer.endswith(b"}"):
        answer += await near.receive_some()
    near.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    said = json.loads(answer.split(b"\r\n\r\n")[1])["error"]
    assert (said["code"], said["stage"]) == (413, "client")
    await world.check()


async def test_a_bug_is_a_500_without_detail(nursery, autojump_clock, monkeypatch, capsys):
    world = await make_world(nursery)

    def boom(*_args, **_more):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("motor_flow.effects.answering.client_answer", boom)
    got = await world.ask(CHAT, CHAT_BODY)
    assert (got.status, got.error["message"], got.error["stage"]) == (500, "internal error", "derender")
    assert b"secret" not in got.body
    await world.check()
