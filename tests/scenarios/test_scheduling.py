"""Which engine gets a request, and is the load that it was given always given back?"""

from __future__ import annotations

import io
import json
import random

import pytest
import structlog
import trio

from motor_flow.edge.server import Server
from motor_flow.scheduling.conductor import PAUSE_S, QUERY_TIMEOUT_S
from motor_flow.scheduling.registration import REGISTER_INTERVAL_S
from motor_flow.sim.conductor import Conductor
from motor_flow.sim.faults import Fault
from motor_flow.sim.prefix_cache import BLOCK_TOKENS
from motor_flow.telemetry.log import configure
from tests.scripted import CUT, END, HANG, SSE_END, SSE_HEAD, Scripted, reply, tokens
from tests.world import CHAT, TEXT, make_world

PORT = 13333
BALANCE = {"scheduler_config": {"scheduler_type": "load_balance"}}
AFFINITY = {
    "scheduler_config": {"scheduler_type": "kv_cache_affinity"},
    "prefill_kv_event_config": {
        "conductor_service": "conductor",
        "http_server_port": PORT,
        "block_size": BLOCK_TOKENS,
    },
}
LONG = "One two three four five six seven eight nine ten. " * 8
SHORT = {"model": "tiny", "max_tokens": 4, "ignore_eos": True, "stream_options": {"include_usage": True}}
EXPLAIN = {"x-motor-flow-explain": "1"}


async def affine_world(nursery, *, engines=3, objects=False, config=None, conductor=None, **more):
    """A world with a conductor that looks into its engines' caches."""
    world = await make_world(
        nursery, engines=engines, engine={"cache_blocks": 4096, **more}, config={**AFFINITY, **(config or {})}
    )
    caches = {f"vllm-union-{number}": engine.cache for number, engine in enumerate(world.engines, 1)}
    world.conductor = conductor or Conductor(caches, objects=objects)
    world.net.listen("conductor", PORT, Server(world.conductor).serve_stream)
    await trio.sleep(REGISTER_INTERVAL_S * 1.5)
    return world


def loads(world):
    return [instance.load_tokens for instance in world.app.registry]


def asked(world):
    """Which engines were asked since the last time, by number."""
    found = [number for number, engine in enumerate(world.engines, 1) for _ in engine.seen]
    for engine in world.engines:
        engine.seen.clear()
    return found


def queries(world):
    return [record.body for record in world.conductor.seen if record.path == "/query"]


@pytest.fixture
def lines():
    """Log lines so far, as objects."""
    out = io.StringIO()
    configure(stream=out)
    yield lambda *events: [
        line for line in map(json.loads, out.getvalue().splitlines()) if not events or line["event"] in events
    ]
    structlog.reset_defaults()


# --- load -----------------------------------------------------------------------------------------


async def test_the_least_loaded_engine_gets_the_request(nursery, autojump_clock):
    """A long answer weighs more than a short one: short ones go past it."""
    world = await make_world(nursery, engine={"pace_s": 0.05}, config=BALANCE)
    body = SHORT | {"prompt": "abc"}
    nursery.start_soon(world.stream, TEXT, body | {"max_tokens": 200})
    await trio.sleep(0.5)
    assert asked(world) == [1]
    for _ in range(3):
        await world.stream(TEXT, body)
    assert asked(world) == [2, 2, 2]
    await trio.sleep(12)
    assert loads(world) == [0, 0]
    await world.check()


async def test_load_is_prompt_and_output_that_may_still_come(nursery, autojump_clock):
    world = await make_world(nursery, engines=1, engine={"pace_s": 0.05}, config=BALANCE)
    prompt = list(range(500, 530))
    for body in (
        SHORT | {"prompt": prompt, "max_tokens": 12},
        SHORT | {"prompt": prompt, "max_tokens": 4, "n": 3},
        SHORT | {"prompt": [prompt[:10], prompt[:8]], "max_tokens": 12},
    ):
        nursery.start_soon(world.stream, TEXT, body)
        await trio.sleep(0.1)
        assert loads(world) == [42]
        await trio.sleep(2)
        assert loads(world) == [0]
    await world.check()


async def test_a_relayed_answer_weighs_what_is_left_of_it(nursery, autojump_clock):
    world = await make_world(nursery, engine={"pace_s": 0.1}, config=BALANCE)
    world.engines[0].faults.add(Fault("cut", after=10, on="generate"))
    body = SHORT | {"prompt": list(range(500, 530)), "max_tokens": 20}
    nursery.start_soon(world.stream, TEXT, body)
    await trio.sleep(0.5)
    assert loads(world) == [50, 0]
    await trio.sleep(1)
    assert loads(world) == [0, 50]  # 10 of the 20 are prompt now
    await trio.sleep(2)
    assert loads(world) == [0, 0]
    await world.check()


async def test_a_list_is_spread(nursery, autojump_clock):
    """Each prompt is charged as it is placed, so the next one goes elsewhere."""
    world = await make_world(nursery, engines=3, config=BALANCE)
    await world.stream(TEXT, SHORT | {"prompt": ["a", "b", "c"]})
    assert asked(world) == [1, 2, 3]
    await world.check()


KINDS = ("reset", "status", "late", "cut", "eof", "stall", "error", "garbage", "abort", "recomputed", "die", "lost")


@pytest.mark.parametrize("kind", [BALANCE, AFFINITY], ids=["load", "affinity"])
@pytest.mark.parametrize("seed", range(6))
async def test_load_returns_to_zero_after_every_failure(nursery, autojump_clock, seed, kind):
    """Many requests at once, of which most meet a failure and some leave; load is never negative meanwhile."""
    config = {**kind, "exception_config": {"stall_timeout": 2, "first_token_timeout": 3, "max_retry": 3}}
    world = await make_world(nursery, engines=3, engine={"pace_s": 0.02, "cache_blocks": 64}, config=config)
    luck = random.Random(seed)
    for engine in world.engines:
        for _ in range(8):
            engine.faults.add(Fault(luck.choice(KINDS), after=luck.randrange(8), skip=luck.randrange(6), seconds=0.5))
    least = 0

    async def ask():
        await trio.sleep(luck.random() * 3)
        body = SHORT | {"max_tokens": luck.randrange(1, 20), "n": luck.choice([1, 1, 2])}
        if luck.random() < 0.5:
            path, body = CHAT, body | {"messages": [{"role": "user", "content": LONG[: luck.randrange(1, 400)]}]}
        else:
            path, body = TEXT, body | {"prompt": [LONG[: luck.randrange(1, 300)]] * luck.choice([1, 1, 3])}
        native = {"echo": True} if path == TEXT and luck.random() < 0.4 else {}
        stream = luck.random() < 0.7
        extra = {} if stream else {"stream_options": None}
        with trio.move_on_after(luck.choice([0.1, 60, 60])):
            await world.ask(path, body | native | extra | {"stream": stream})

    async def watch():
        nonlocal least
        while True:
            least = min(least, *loads(world))
            await trio.sleep(0.01)

    async with trio.open_nursery() as watching:
        watching.start_soon(watch)
        async with trio.open_nursery() as clients:
            for _ in range(30):
                clients.start_soon(ask)
        watching.cancel_scope.cancel()
    await trio.sleep(3)
    assert loads(world) == [0, 0, 0]
    assert least == 0
    await world.check()


# --- affinity -------------------------------------------------------------------------------------


@pytest.mark.parametrize("objects", [False, True])
async def test_a_prompt_goes_where_its_beginning_was_read(nursery, autojump_clock, objects):
    """The conductor is asked with Render's ids, and both of its dialects are understood."""
    world = await affine_world(nursery, objects=objects)
    first, second = (SHORT | {"prompt": f"{word} {LONG}"} for word in ("Red", "Blue"))
    await world.stream(TEXT, first)
    await world.stream(TEXT, second)
    one, two = asked(world)
    assert one != two
    for body, engine in ((second, two), (first, one), (first, one), (second, two)):
        got = await world.stream(TEXT, body | {"prompt": body["prompt"] + " And then?"})
        assert asked(world) == [engine]
        assert got.answer.usage["prompt_tokens_details"]["cached_tokens"] > 100
    body = queries(world)[-1]
    assert set(body) == {"model", "block_size", "token_ids"}
    assert (body["model"], body["block_size"]) == ("tiny", BLOCK_TOKENS)
    assert len(body["token_ids"]) == got.answer.usage["prompt_tokens"]
    await world.check()


async def test_a_busy_engine_gives_its_prefix_up(nursery, autojump_clock):
    world = await affine_world(nursery, engines=2, pace_s=0.05)
    body = SHORT | {"prompt": LONG}
    await world.stream(TEXT, body)
    asked(world)
    nursery.start_soon(world.stream, TEXT, body | {"max_tokens": 3000})
    await trio.sleep(0.5)
    await world.stream(TEXT, body)
    assert asked(world) == [1, 2]
    await trio.sleep(200)
    await world.check()


async def test_a_prompt_of_less_than_a_block_is_not_asked_for(nursery, autojump_clock):
    world = await affine_world(nursery)
    got = await world.stream(TEXT, SHORT | {"prompt": list(range(500, 500 + BLOCK_TOKENS - 1))}, EXPLAIN)
    assert queries(world) == []
    assert "kv_cache_affinity load=0 matched=0" in got.headers["x-motor-flow-route"]
    await world.stream(TEXT, SHORT | {"prompt": list(range(500, 500 + BLOCK_TOKENS))})
    assert len(queries(world)) == 1
    await world.check()


async def test_of_a_list_the_longest_prompt_is_asked_for(nursery, autojump_clock):
    """Others gain as far as they begin like it."""
    world = await affine_world(nursery)
    shared, other = list(range(500, 548)), list(range(300, 340))
    await world.stream(TEXT, SHORT | {"prompt": [*shared, *range(600, 632)]})
    (home,) = asked(world)
    body = SHORT | {"prompt": [shared[:32], other, [*shared, *range(600, 633)]]}
    got = await world.stream(TEXT, body, EXPLAIN)
    assert len(queries(world)) == 2
    assert queries(world)[-1]["token_ids"] == body["prompt"][2]
    receipts = got.headers["x-motor-flow-route"].split("; ")
    assert [f"union-{home} " in receipt for receipt in receipts] == [True, False, True]
    assert "matched=32" in receipts[0]
    assert "matched=80" in receipts[2]
    await world.check()


async def test_a_relayed_prompt_is_asked_for_again(nursery, autojump_clock):
    """With what has been answered, which is prompt now."""
    world = await affine_world(nursery, pace_s=0.05)
    await world.stream(TEXT, SHORT | {"prompt": LONG})
    world.engines[0].faults.add(Fault("cut", after=5, on="generate"))
    got = await world.stream(TEXT, SHORT | {"prompt": LONG, "max_tokens": 20})
    assert got.error is None
    _, first, again = (len(body["token_ids"]) for body in queries(world))
    assert again == first + 5
    await world.check()


# --- a conductor that is not well -----------------------------------------------------------------

OTHER = b'{"default": {"vllm-union-2": {"longest_matched": 96, "DP": {"0": 96}}}}'
UNFIT = {
    "refusing": None,
    "silent": [HANG],
    "slow": [QUERY_TIMEOUT_S * 3, reply(200, OTHER)],
    "cut": [CUT],
    "ending": [END],
    "503": [reply(503, {"error": "no"})],
    "text": [reply(200, b"<html>", "text/html")],
    "list": [reply(200, b"[]")],
    "strings": [reply(200, OTHER.replace(b"96}", b'"96"}'))],
    "fractions": [reply(200, OTHER.replace(b"96}", b"9.5}"))],
    "booleans": [reply(200, OTHER.replace(b"96}", b"true}"))],
}


@pytest.mark.parametrize("how", UNFIT)
async def test_without_the_conductor_load_decides(nursery, autojump_clock, lines, how):
    """Nobody waits longer than the deadline, and after one failure nobody waits at all for a time. One line tells."""
    world = await affine_world(nursery, engines=2)
    if UNFIT[how] is None:
        world.net.refuse("conductor", PORT)
        world.app.pool.close()
    else:
        world.net.listen("conductor", 80, Server(world.conductor).serve_stream)
        script = Scripted(world, "conductor", {"/query": [UNFIT[how]]})
        world.net.listen("conductor", PORT, script)
    took = []
    for number in range(6):
        start = trio.current_time()
        got = await world.stream(TEXT, SHORT | {"prompt": LONG}, EXPLAIN)
        took.append(trio.current_time() - start)
        assert got.error is None
        assert got.headers["x-motor-flow-route"].startswith(f"union-{number % 2 + 1} load_balance load=0")
        assert "(kv_cache_affinity: the conductor is away)" in got.headers["x-motor-flow-route"]
    assert took[0] < QUERY_TIMEOUT_S + 0.05
    assert max(took[1:]) < 0.05
    await trio.sleep(PAUSE_S)
    await world.stream(TEXT, SHORT | {"prompt": LONG})
    assert len(lines("conductor.lost")) == 1
    if UNFIT[how] is not None:
        assert len(script.requests) <= 4  # one, and one more after the pause; each once more when cut while idle
    world.net.listen("conductor", PORT, Server(world.conductor).serve_stream)
    world.app.pool.close()
    await trio.sleep(PAUSE_S)
    got = await world.stream(TEXT, SHORT | {"prompt": LONG}, EXPLAIN)
    assert " kv_cache_affinity load=0 matched=" in got.headers["x-motor-flow-route"]
    assert len(lines("conductor.found")) == 1
    await world.check()


async def test_one_request_finds_out_whether_it_is_back(nursery, autojump_clock):
    world = await affine_world(nursery, engines=2)
    world.net.listen("conductor", 80, Server(world.conductor).serve_stream)
    script = Scripted(world, "conductor", {"/query": [[HANG]]})
    world.net.listen("conductor", PORT, script)
    await world.stream(TEXT, SHORT | {"prompt": LONG})
    await trio.sleep(PAUSE_S)
    before, start = len(script.requests), trio.current_time()
    async with trio.open_nursery() as clients:
        for _ in range(10):
            clients.start_soon(world.stream, TEXT, SHORT | {"prompt": LONG})
    assert len(script.requests) - before == 1
    assert trio.current_time() - start < QUERY_TIMEOUT_S + 0.05
    await world.check()


async def test_a_model_that_nobody_registered(nursery, autojump_clock, lines):
    """An answer, not a failure: others are asked for all the same."""
    world = await affine_world(nursery, engines=2)
    world.conductor.services.clear()
    for _ in range(2):
        got = await world.stream(TEXT, SHORT | {"prompt": LONG}, EXPLAIN)
        assert "(kv_cache_affinity: the conductor does not know the model)" in got.headers["x-motor-flow-route"]
    assert len(queries(world)) == 2
    assert lines("conductor.lost") == []
    await world.check()


@pytest.mark.parametrize(
    "said",
    [
        {"default": {}},
        {},
        {"other tenant": {"vllm-union-2": {"longest_matched": 96, "DP": {"0": 96}}}},
        {"default": {"vllm-union-2": {"longest_matched": 96, "DP": {"1": 96}}}},  # another rank's cache
        {"default": {"vllm-prefill-2": {"longest_matched": 96}, "vllm-union-77": {"longest_matched": 96}}},
        {"default": {"vllm-union-2": {"longest_matched": -5, "DP": {"0": -5}}}},
    ],
)
async def test_what_is_said_of_others_is_nothing(nursery, autojump_clock, said):
    world = await affine_world(nursery, engines=2)
    world.net.listen("conductor", 80, Server(world.conductor).serve_stream)
    world.net.listen("conductor", PORT, Scripted(world, "conductor", {"/query": [[reply(200, said)]]}))
    got = await world.stream(TEXT, SHORT | {"prompt": LONG}, EXPLAIN)
    assert got.headers["x-motor-flow-route"].startswith("union-1 kv_cache_affinity load=0 matched=0")
    await world.check()


# --- without Render -------------------------------------------------------------------------------


async def test_affinity_without_render_is_load_and_one_warning(nursery, autojump_clock, lines):
    """Render is not switched on by it."""
    world = await affine_world(nursery, engines=2, config={"render_config": {"enable": False}})
    for number in range(3):
        got = await world.stream(TEXT, SHORT | {"prompt": LONG}, EXPLAIN)
        assert got.headers["x-motor-flow-route"].startswith(f"union-{number % 2 + 1} load_balance ")
    assert queries(world) == world.seen("render") == []
    assert len(lines("conductor.no_token_ids")) == 1
    await world.check()


async def test_a_native_request_that_render_has_read_is_asked_for(nursery, autojump_clock):
    world = await affine_world(nursery, engines=2)
    body = SHORT | {"prompt": LONG, "echo": True}
    for _ in range(3):
        await world.stream(TEXT, body)
    assert asked(world) == [1, 1, 1]
    assert len(queries(world)) == 3
    assert loads(world) == [0, 0]
    await world.check()


# --- the route receipt ----------------------------------------------------------------------------


async def test_the_receipt_is_shown_on_request_only(nursery, autojump_clock, lines):
    world = await make_world(nursery, config=BALANCE)
    body = SHORT | {"prompt": "abc"}
    for stream in (True, False):
        extra = {} if stream else {"stream_options": None}
        got = await world.ask(TEXT, body | extra | {"stream": stream}, EXPLAIN)
        assert got.headers["x-motor-flow-route"].split()[1:] == ["load_balance", "load=0", "tier=1", "candidates=2"]
        for headers in ({}, {"x-motor-flow-explain": "0"}):
            got = await world.ask(TEXT, body | extra | {"stream": stream}, headers)
            assert "x-motor-flow-route" not in got.headers
    assert all(line["placement"].startswith(line["instance"] + " load_balance") for line in lines("engine.leg"))
    await world.check()


async def test_the_receipt_of_the_last_attempt_is_shown(nursery, autojump_clock, lines):
    world = await make_world(nursery, config=BALANCE)
    world.engines[0].faults.add(Fault("reset", on="generate"))
    got = await world.stream(TEXT, SHORT | {"prompt": "abc"}, EXPLAIN)
    assert got.headers["x-motor-flow-route"] == "union-2 load_balance load=0 tier=1 candidates=1"
    (retry,) = lines("retry")
    assert retry["placement"] == got.headers["x-motor-flow-route"]
    assert got.error is None
    await world.check()


async def test_a_long_list_has_a_short_receipt(nursery, autojump_clock):
    world = await make_world(nursery)
    got = await world.stream(TEXT, SHORT | {"prompt": ["a"] * 40}, EXPLAIN)
    assert got.headers["x-motor-flow-route"].count("; ") == 7
    await world.check()


async def test_the_receipt_is_in_the_journal(nursery, autojump_clock):
    world = await make_world(nursery, engine={"pace_s": 0.1})
    nursery.start_soon(world.stream, TEXT, SHORT | {"prompt": "abc", "max_tokens": 20})
    await trio.sleep(0.5)
    (described,) = world.app.journal.describe()
    assert described["placements"] == ["union-1 round_robin load=0 tier=1 candidates=2"]
    await trio.sleep(3)
    await world.check()


# --- registration ---------------------------------------------------------------------------------


async def test_instances_are_registered_again_when_the_conductor_has_forgotten_them(nursery, autojump_clock):
    world = await affine_world(nursery, engines=2)
    known = {key: service.endpoint for key, service in world.conductor.services.items()}
    assert known == {
        ("vllm-union-1", 0): "tcp://engine-1:5557",
        ("vllm-union-2", 0): "tcp://engine-2:5557",
    }
    world.conductor.services.clear()
    await trio.sleep(REGISTER_INTERVAL_S)
    assert set(world.conductor.services) == set(known)
    count = len(world.conductor.seen)
    await trio.sleep(REGISTER_INTERVAL_S * 3)
    assert len(world.conductor.seen) == count  # nothing to tell
    await world.check()


async def test_a_conductor_that_is_away_is_told_once(nursery, autojump_clock, lines):
    world = await make_world(nursery, config=AFFINITY)
    world.net.refuse("conductor", PORT)
    await trio.sleep(REGISTER_INTERVAL_S * 5)
    assert len(lines("conductor.not_registered")) == 1
    conductor = Conductor()
    world.net.listen("conductor", PORT, Server(conductor).serve_stream)
    await trio.sleep(REGISTER_INTERVAL_S * 2)
    assert len(conductor.services) == 2
    await world.check()


async def test_a_finish_that_was_lost_asks_nobody(nursery, autojump_clock, lines):
    """No engine is needed, so nobody is asked which."""
    world = await affine_world(nursery, engines=2)
    engine = Scripted(world, "engine-1", {"/generate": [[SSE_HEAD, tokens(630), 0.1, tokens(595), 0.1, SSE_END]]})
    got = await world.stream(TEXT, SHORT | {"prompt": LONG, "max_tokens": 2})
    assert got.error is None
    assert len(queries(world)) == 1
    assert (len(engine.requests), asked(world)) == (1, [])
    assert lines("conductor.no_token_ids") == []
    await world.check()
