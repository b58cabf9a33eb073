"""An engine fails and the client notices nothing: same text, same tools, same usage, one connection.

RFC 流式 replay 与重调度, 多 prompt; contract section 7. The model is an oracle whose every token depends on all tokens
before it, so a wrong replay shows in the text. The sidecar's witness tells a state that was altered, a token that was
derendered twice, and a prompt that Render never returned.
"""

from __future__ import annotations

import itertools

import pytest
import trio

from motor_flow.effects.context import RequestRun
from motor_flow.effects.stream import stream_effects
from motor_flow.sim.faults import Fault
from motor_flow.views.parity.compare import differences
from tests.scripted import DONE, SSE_END, SSE_HEAD, Scripted, error, tokens
from tests.world import CHAT, TEXT, make_world

USAGE = {"stream_options": {"include_usage": True}}
PLAIN = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True} | USAGE
TALK = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 40, "ignore_eos": True}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Weather in Paris?"}],
    "max_tokens": 200,
    "tools": TOOLS,
} | USAGE
SHAPES = {
    "completion": (TEXT, PLAIN),
    "logprobs": (TEXT, PLAIN | {"logprobs": 2}),
    "chat": (CHAT, TALK | USAGE),
    "chat logprobs": (CHAT, TALK | USAGE | {"logprobs": True, "top_logprobs": 2}),
    "tool call": (CHAT, CALL),
    "min tokens": (TEXT, PLAIN | {"min_tokens": 25, "ignore_eos": False}),
    "emoji": (CHAT, TALK | USAGE | {"messages": [{"role": "user", "content": "你好 🎉🚀 emoji 家"}]}),
}
HIDDEN = {"enable": True, "seed_content": "a seed", "vocab_size": 646, "token_white_list": [0, 2]}
KINDS = ("cut", "eof", "done", "stall", "error", "garbage", "abort", "recomputed", "die")


async def same_as_without(world, path, body, *faults):
    """Ask twice, the second time with these faults, where its turn is; returns what came then."""
    want = await world.stream(path, body)
    assert want.error is None
    for fault in faults:
        world.engines[1].faults.add(fault)
    for seen in (*world.engines, world.sidecar):
        seen.seen.clear()
    got = await world.stream(path, body)
    assert got.error is None, got.error
    check_same(got, want)
    return got


def check_same(got, want):
    """The same answer, however it is cut into chunks."""
    assert list(map(str, differences(want.answer, got.answer))) == []
    assert len({chunk["id"] for chunk in got.chunks}) == 1
    assert len({chunk["created"] for chunk in got.chunks}) == 1
    assert got.body.count(b"data: [DONE]") == 1


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_engine_dies_after_every_chunk(nursery, autojump_clock, shape):
    """At every point of the answer: inside characters, tool-call arguments and reasoning too."""
    path, body = SHAPES[shape]
    world = await make_world(nursery, engines=2, engine={"pace_s": 0.01})
    want = await world.stream(path, body)
    length = want.answer.usage["completion_tokens"]
    for after in range(1, length):
        for one in (*world.engines, world.sidecar):
            one.seen.clear()
        for engine in world.engines:
            engine.faults.clear()
        world.engines[after % 2].faults.add(Fault("cut", after=after, on="generate", times=1))
        world.engines[1 - after % 2].faults.add(Fault("cut", after=after, on="generate", times=1))
        got = await world.stream(path, body)
        assert got.error is None, (after, got.error)
        check_same(got, want)
        check_replay(world, body)
    await world.check()
    assert world.sidecar.repeats == []


def check_replay(world, body):
    """Each attempt asks for prompt + committed tokens exactly and for what is left of the budget, under its own id."""
    legs = sorted((record.body for record in world.seen()), key=lambda body: body["request_id"].split(".")[-3])
    assert len({leg["request_id"] for leg in legs}) == len(legs)
    prompt, done = legs[0]["token_ids"], 0
    for leg in legs[1:]:
        committed = len(leg["token_ids"]) - len(prompt)
        assert leg["token_ids"][: len(prompt)] == prompt
        assert committed >= done
        assert leg["sampling_params"]["max_tokens"] == body["max_tokens"] - committed
        assert (leg["sampling_params"].get("min_tokens") or 0) == max(0, body.get("min_tokens", 0) - committed)
        done = committed
    assert len(world.seen("render")) == 1


@pytest.mark.parametrize("after", [0, 7])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["completion", "tool call"])
async def test_every_kind_of_failure(nursery, autojump_clock, shape, kind, after):
    path, body = SHAPES[shape]
    config = {"exception_config": {"stall_timeout": 2, "first_token_timeout": 3}}
    world = await make_world(nursery, engines=2, engine={"pace_s": 0.01}, config=config)
    fault = Fault(kind, after=after, on="generate")
    got = await same_as_without(world, path, body, fault)
    assert world.engines[0].faults.left == world.engines[1].faults.left == 0
    assert len(world.seen()) == 2
    assert got.status == 200
    check_replay(world, body)
    counted = kind != "recomputed"
    assert [instance.breaker.failures for instance in world.app.registry] == [0, int(counted)]
    await world.check()


async def test_the_finish_alone_is_lost(nursery, autojump_clock):
    """The whole budget is there: no engine is asked again, and the end says `length`."""
    world = await make_world(nursery, engines=2, engine={"pace_s": 0.01})
    got = await same_as_without(world, TEXT, PLAIN, Fault("cut", after=40, on="generate"))
    assert got.answer.choices[0].finish_reason == "length"
    world.engines[1].faults.add(Fault("lost", on="generate"))
    want = await world.stream(TEXT, PLAIN)
    assert want.error is None
    await world.check()


@pytest.mark.parametrize("kind", ["cut", "status", "abort", "error"])
async def test_the_only_instance_is_asked_again_after_a_pause(nursery, autojump_clock, kind):
    world = await make_world(nursery, engines=1, engine={"pace_s": 0.01})
    world.engines[0].faults.add(Fault(kind, after=3, on="generate"))
    start = trio.current_time()
    got = await world.stream(TEXT, PLAIN)
    assert got.error is None
    assert len(world.seen()) == 2
    assert trio.current_time() - start > 0.2
    (instance,) = world.app.registry
    assert instance.breaker.failures == 0
    await world.check()


async def test_attempts_are_bounded_and_slow_down(nursery, autojump_clock):
    """Five attempts: 0.2, 0.4, 0.8 and 1.6 s between them, since there is no other instance."""
    world = await make_world(nursery, engines=1)
    world.engines[0].faults.add(Fault("status", status=503, times=99, on="generate"))
    start = trio.current_time()
    got = await world.ask(TEXT, PLAIN | {"stream_options": None})
    assert (got.status, got.error["stage"], got.headers["x-should-retry"]) == (502, "generate", "false")
    assert len(world.seen()) == 5
    assert trio.current_time() - start == pytest.approx(3.0)
    await world.check()


async def test_attempts_are_used_up_in_mid_stream(nursery, autojump_clock):
    """What was said stays said; then one error event that tells why it does not go on."""
    config = {"exception_config": {"max_retry": 3, "retry_delay": 0}}
    world = await make_world(nursery, engines=2, engine={"pace_s": 0.01}, config=config)
    for engine in world.engines:
        engine.faults.add(Fault("abort", after=4, times=9, on="generate"))
    got = await world.stream(TEXT, PLAIN)
    assert (got.status, got.ended, got.error["code"], got.error["stage"]) == (200, True, 502, "generate")
    assert "attempts are used up (3)" in got.error["message"]
    assert len(world.seen()) == 3
    assert got.events[-1][1] == b"[DONE]"
    await world.check()


async def test_an_engine_that_is_gone_for_good(nursery, autojump_clock):
    """Its connections break and no new one is made: others serve, and its breaker opens."""
    world = await make_world(nursery, engines=2, engine={"pace_s": 0.01})
    want = await world.stream(TEXT, PLAIN)
    world.engines[0].faults.add(Fault("die", after=5, seconds=1e9, on="generate"))
    for _ in range(8):
        got = await world.stream(TEXT, PLAIN)
        assert got.error is None
        check_same(got, want)
    gone = world.app.registry.of_role("union")[0]
    assert gone.breaker.state == "opened"
    await trio.sleep(40)
    assert (gone.breaker.state, gone.breaker.pause_s) == ("opened", 60)
    world.engines[0].dead_until = 0.0
    await trio.sleep(65)
    assert gone.breaker.closed
    assert gone.breaker.failures == gone.breaker.threshold - 1  # on trial
    await world.check()


async def test_an_open_breaker_is_asked_before_who_has_just_failed(nursery, autojump_clock):
    """The one that is known to be bad from before may be back; the one that refused this request is not."""
    world = await make_world(nursery, engines=2)
    back, gone = world.app.registry.of_role("union")
    for _ in range(back.breaker.threshold):
        back.breaker.failed()
    await trio.sleep(0.1)
    assert (back.breaker.state, gone.breaker.state) == ("opened", "available")
    world.net.refuse("engine-2", 80)
    world.app.pool.close()
    got = await world.stream(TEXT, PLAIN)
    assert got.error is None
    assert len(world.engines[0].seen) == 1
    await world.check()


# --- what cannot go on ----------------------------------------------------------------------------


@pytest.mark.parametrize("visible", [False, True])
async def test_several_choices_of_one_prompt(nursery, autojump_clock, visible):
    """Before anything is visible they start again; after it they end with a clear error."""
    world = await make_world(nursery, engines=2, engine={"pace_s": 0.01})
    body = PLAIN | {"n": 2}
    want = await world.stream(TEXT, body)
    fault = Fault("cut", after=6 if visible else 0, on="generate")
    world.engines[0].faults.add(fault)
    world.engines[1].faults.add(Fault("cut", after=fault.after, on="generate"))
    got = await world.stream(TEXT, body)
    if visible:
        assert (got.error["code"], got.error["stage"]) == (502, "generate")
        assert "several choices share one engine stream" in got.error["message"]
    else:
        check_same(got, want)
    await world.check()


@pytest.mark.parametrize("visible", [False, True])
async def test_a_grammar_would_start_again(nursery, autojump_clock, visible):
    """So what follows a grammar is retried only while nothing of it is visible."""
    config = {"exception_config": {"retry_delay": 0}}
    world = await make_world(nursery, engines=1, config=config)
    script = [SSE_HEAD, *([tokens(630), tokens(595)] if visible else []), SSE_END]
    good = [SSE_HEAD, tokens(630), tokens(595, finish="stop"), DONE, SSE_END]
    engine = Scripted(world, "engine-1", {"/generate": [script, good]})
    got = await world.stream(TEXT, PLAIN | {"structured_outputs": {"regex": "[a-z]+"}})
    assert len(engine.requests) == (1 if visible else 2)
    if visible:
        assert "a grammar would start again" in got.error["message"]
    else:
        assert got.error is None
    await world.check()


async def test_a_seed_is_warned_of_beforehand(nursery, autojump_clock):
    world = await make_world(nursery)
    got = await world.stream(TEXT, PLAIN | {"seed": 7, "temperature": 1.0})
    assert got.headers["x-motor-flow-warning"].startswith("seed: ")
    for body in (PLAIN, PLAIN | {"seed": 7, "temperature": 0}):
        assert "x-motor-flow-warning" not in (await world.stream(TEXT, body)).headers
    await world.check()


# --- lists of prompts -----------------------------------------------------------------------------

LIST = PLAIN | {"prompt": ["one", "two", "three"]}


def meant_for(prompt):
    """Calls for this prompt of a list."""
    return lambda record: f".p{prompt}." in record.body["request_id"]


@pytest.mark.parametrize("after", [1, 5, 20])
@pytest.mark.parametrize("failing", [(1,), (0, 2), (0, 1, 2)])
async def test_prompts_of_a_list_are_relayed_on_their_own(nursery, autojump_clock, failing, after):
    """Siblings stream on: their engines are asked once."""
    world = await make_world(nursery, engines=3, engine={"pace_s": 0.05})
    want = await world.stream(TEXT, LIST)
    for engine in world.engines:
        engine.seen.clear()
    for prompt in failing:
        for engine in world.engines:
            once = Fault(
                "cut", after=after, on="generate", only=lambda r, p=prompt: f".a1.p{p}." in r.body["request_id"]
            )
            engine.faults.add(once)
    got = await world.stream(TEXT, LIST)
    check_same(got, want)
    asked = [sum(meant_for(prompt)(record) for record in world.seen()) for prompt in range(3)]
    assert asked == [2 if prompt in failing else 1 for prompt in range(3)]
    assert max(b - a for (a, _), (b, _) in itertools.pairwise(got.events)) < 0.2
    await world.check()


async def test_a_list_is_retried_whole_before_anything_is_visible(nursery, autojump_clock):
    world = await make_world(nursery, engines=3)
    want = await world.stream(TEXT, LIST)
    for engine in world.engines:
        engine.faults.add(Fault("reset", on="generate", only=lambda r: ".a1.p1." in r.body["request_id"]))
    for engine in world.engines:
        engine.seen.clear()
    got = await world.stream(TEXT, LIST)
    check_same(got, want)
    second = [record for record in world.seen() if ".a2." in record.body["request_id"]]
    assert len(second) == 3
    await world.check()


async def test_a_whole_list_is_retried(nursery, autojump_clock):
    world = await make_world(nursery, engines=3)
    body = {key: value for key, value in LIST.items() if key != "stream_options"}
    want = await world.ask(TEXT, body)
    for engine in world.engines:
        engine.faults.add(Fault("cut", on="generate", only=lambda r: ".a1.p1." in r.body["request_id"]))
    got = await world.ask(TEXT, body)
    assert differences(want.answer, got.answer) == []
    await world.check()


# --- an engine without the token-only route -------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("refusal", [error(403, "x", "PermissionDeniedError"), error(501)])
async def test_without_a_token_only_route_the_engine_speaks_openai(nursery, autojump_clock, refusal, stream):
    """The finding is remembered, and asked for again."""
    world = await make_world(nursery, engines=1)
    want = await world.ask(CHAT, TALK | {"stream": stream})
    world.engines[0].seen.clear()
    good = world.net._listening["engine-1", 80]
    lacking = Scripted(world, "engine-1", {"/generate": [[refusal]]})
    for _ in range(3):
        got = await world.ask(CHAT, TALK | {"stream": stream})
        assert got.answer.choices == want.answer.choices
    assert len(lacking.requests) == 1
    assert len(world.seen("native")) == 3
    world.net.listen("engine-1", 80, good)
    world.app.pool.close()
    await trio.sleep(31)
    await world.ask(CHAT, TALK | {"stream": stream})
    assert len(world.seen("generate")) == 1
    await world.check()


async def test_another_instance_lacks_it_too_in_mid_stream(nursery, autojump_clock):
    """The answer is visible, so it cannot go on natively: a clear end."""
    world = await make_world(nursery, engines=2)
    lacks = error(403, "x", "PermissionDeniedError")
    Scripted(world, "engine-1", {"/generate": [[SSE_HEAD, tokens(630), 0.1, SSE_END], [lacks]]})
    Scripted(world, "engine-2", {"/generate": [[lacks]]})
    got = await world.stream(TEXT, PLAIN)
    assert got.status == 200
    assert (got.error["code"], got.error["stage"]) == (501, "schedule")
    assert got.events[-1][1] == b"[DONE]"
    await world.check()


# --- obfuscated requests --------------------------------------------------------------------------


async def test_semantic_ids_never_leave_for_the_native_route(nursery, autojump_clock):
    """Without Render, or without a token-only engine, an obfuscated request ends."""
    world = await make_world(nursery, engines=1, config={"token_obfuscation_config": HIDDEN})
    Scripted(world, "engine-1", {"/generate": [[error(403, "x", "PermissionDeniedError")]]})
    got = await world.ask(CHAT, TALK)
    assert (got.status, got.error["stage"]) == (501, "schedule")
    world.net.refuse("sidecar", 80)
    world.app.pool.close()
    got = await world.ask(CHAT, TALK)
    assert (got.status, got.error["stage"], got.headers["retry-after"]) == (503, "render", "1")
    assert world.seen("native") == []
    await world.check()


# --- the same moment ------------------------------------------------------------------------------


@pytest.mark.parametrize("relayed", [True, False])
async def test_a_sibling_becomes_visible_while_everything_is_rolled_back(nursery, autojump_clock, monkeypatch, relayed):
    """Its chunk is derendered in the very moment in which the other prompt breaks: nothing visible is taken back."""
    config = {"stream_config": {"per_prompt_relay": relayed, "sse_keep_alive_interval": 1}}
    world = await make_world(nursery, engines=2, config=config)
    body = PLAIN | {"prompt": ["a", "b"], "max_tokens": 8}
    want = await world.stream(TEXT, body)
    decided = trio.Event()
    derender = stream_effects.run["derendering"]
    blame = RequestRun.blame

    async def until_decided(stream):
        reported = await derender(stream)
        if stream.index == 0:
            await decided.wait()
        return reported

    def blame_late(run):
        decided.set()
        blame(run)

    monkeypatch.setitem(stream_effects.run, "derendering", until_decided)
    monkeypatch.setattr(RequestRun, "blame", blame_late)
    world.engines[1].first_token_s = 3.0  # the barrier opens without it
    world.engines[1].faults.add(Fault("eof", on="generate"))
    got = await world.stream(TEXT, body)
    assert got.status == 200
    assert got.body.count(b"[DONE]") == 1
    if relayed:
        check_same(got, want)
    else:
        assert got.error["stage"] == "generate"
    await world.check()


async def test_a_sealed_stream_goes_native_when_the_next_engine_lacks_the_route(nursery, autojump_clock):
    """The 200 and the role have gone, no token has: the answer comes natively, and the role is not said again."""
    config = {"stream_config": {"sse_keep_alive_interval": 1}}
    world = await make_world(nursery, engines=2, config=config)
    want = await world.stream(CHAT, TALK)
    for engine in world.engines:
        engine.first_token_s = 2.5
        engine.faults.add(Fault("eof", on="generate", only=lambda record: ".a1." in record.body["request_id"]))
        engine.faults.add(Fault("status", status=403, on="generate", only=lambda r: ".a2." in r.body["request_id"]))
    got = await world.stream(CHAT, TALK)
    check_same(got, want)
    assert sum("role" in choice["delta"] for chunk in got.chunks for choice in chunk["choices"]) == 1
    await world.check()
