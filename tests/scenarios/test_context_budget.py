"""More is asked for than the context leaves: the request is cut, and everybody works with the same number.

RFC context budget; contract section 2 (context_budget_mode).
"""

from __future__ import annotations

import pytest

from motor_flow.sim.faults import Fault
from tests.scenarios.test_relay import check_same
from tests.world import CHAT, TEXT, make_world

ON = {"context_budget_mode": "on"}
LIMIT = 200


async def small_world(nursery, *, config=ON, sidecar=None, **more):
    size = {"max_model_len": LIMIT}
    return await make_world(
        nursery, sidecar=size | (sidecar or {}), engine=size | {"pace_s": 0.01}, config=config, **more
    )


def text(**more):
    return {"model": "tiny", "prompt": "b" * 100, "ignore_eos": True, **more}


def chat(**more):
    return {"model": "tiny", "messages": [{"role": "user", "content": "b" * 100}], "ignore_eos": True, **more}


CASES = {
    "completion": (TEXT, text(max_tokens=500)),
    "chat": (CHAT, chat(max_tokens=500)),
    "chat max_completion_tokens": (CHAT, chat(max_completion_tokens=500, max_tokens=3)),
    "less than the context, more than it leaves": (TEXT, text(max_tokens=150)),
    "with min_tokens": (TEXT, text(max_tokens=500, min_tokens=120)),
    "with stop": (TEXT, text(max_tokens=500, stop=["never comes"])),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", CASES)
async def test_it_is_cut_to_what_is_left(nursery, autojump_clock, case, stream):
    path, body = CASES[case]
    world = await small_world(nursery)
    got = await world.ask(
        path, body | {"stream": stream, "stream_options": {"include_usage": True} if stream else None}
    )
    assert got.status == 200, got.body
    (asked,) = world.seen("render")
    assert asked.body["max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"] == 1
    usage = got.answer.usage
    assert usage["total_tokens"] == LIMIT
    assert got.answer.choices[0].finish_reason == "length"
    key = next(key for key in ("max_completion_tokens", "max_tokens") if key in body)
    assert got.headers["x-motor-flow-warning"] == f"{key}: the context leaves {usage['completion_tokens']}"
    (leg,) = world.seen()
    sampling = leg.body["sampling_params"]
    assert sampling["max_tokens"] == usage["completion_tokens"]
    assert sampling.get("min_tokens") == (usage["completion_tokens"] if "min_tokens" in body else None)
    await world.check()


async def test_the_same_answer_as_if_the_right_number_had_been_asked(nursery, autojump_clock):
    world = await small_world(nursery)
    cut = await world.stream(TEXT, text(max_tokens=500))
    exact = await world.stream(TEXT, text(max_tokens=100))
    assert cut.answer.choices == exact.answer.choices
    first, second = (engine.seen[0] for engine in world.engines)
    assert first.body["sampling_params"] == second.body["sampling_params"]
    assert "x-motor-flow-warning" not in exact.headers


async def test_every_prompt_has_its_own(nursery, autojump_clock):
    world = await small_world(nursery)
    got = await world.ask(TEXT, text(max_tokens=500, n=2) | {"prompt": ["b" * 100, "c" * 20]})
    assert [leg.body["sampling_params"]["max_tokens"] for leg in sorted_by_prompt(world)] == [180, 100]
    assert got.json["usage"]["completion_tokens"] == 2 * 100 + 2 * 180
    assert got.headers["x-motor-flow-warning"] == "max_tokens: the context leaves 100"
    await world.check()


def sorted_by_prompt(world):
    return sorted(world.seen(), key=lambda record: len(record.body["token_ids"]))


@pytest.mark.parametrize("body", [text(), text(max_tokens=30), text(max_tokens=100)])
async def test_nothing_is_raised_and_nothing_is_invented(nursery, autojump_clock, body):
    world = await small_world(nursery)
    got = await world.ask(TEXT, body)
    assert got.json["usage"]["completion_tokens"] == body.get("max_tokens", 16)
    assert "x-motor-flow-warning" not in got.headers
    await world.check()


async def test_a_chat_that_asks_for_nothing_gets_the_rest_of_the_context(nursery, autojump_clock):
    world = await small_world(nursery)
    got = await world.ask(CHAT, chat())
    assert "max_tokens" not in world.seen("render")[0].body
    assert got.json["usage"]["total_tokens"] == LIMIT


@pytest.mark.parametrize("value", [0, -5, True, "many", 1.5, None, 10**30])
async def test_what_is_no_budget_is_answered_by_render(nursery, autojump_clock, value):
    on, off = [await small_world(nursery, config=config) for config in (ON, {})]
    wanted, got = [await world.ask(TEXT, text(max_tokens=value)) for world in (off, on)]
    if value == 10**30:
        assert (wanted.status, got.status) == (400, 200)
        return
    assert on.seen("render")[0].body["max_tokens"] == value
    assert (got.status, got.json.get("error")) == (wanted.status, wanted.json.get("error"))


async def test_a_prompt_that_leaves_no_room_is_refused(nursery, autojump_clock):
    world = await small_world(nursery)
    for length in (LIMIT, LIMIT + 1):
        got = await world.ask(TEXT, text(max_tokens=5) | {"prompt": "b" * length})
        assert (got.status, got.error["type"]) == (400, "BadRequestError"), got.body
    await world.check()


async def test_switched_off(nursery, autojump_clock):
    world = await small_world(nursery, config={})
    got = await world.ask(TEXT, text(max_tokens=500))
    assert (got.status, got.error["param"]) == (400, "max_tokens")
    assert world.seen("render")[0].body["max_tokens"] == 500


async def test_flow_control_counts_what_is_left(nursery, autojump_clock):
    """Otherwise this request could never fit."""
    world = await small_world(nursery, config=ON | {"flow_control_config": {"max_inflight_tokens": LIMIT}})
    got = await world.ask(TEXT, text(max_tokens=500))
    assert (got.status, got.headers["x-ratelimit-remaining-tokens"]) == (200, "0")
    await world.check()


async def test_a_relay_goes_on_with_what_is_left_of_it(nursery, autojump_clock):
    world = await small_world(nursery)
    want = await world.stream(TEXT, text(max_tokens=500))
    world.engines[1].faults.add(Fault("cut", after=30, times=1, on="generate"))
    got = await world.stream(TEXT, text(max_tokens=500))
    check_same(got, want)
    (_, relayed), (broken,) = (engine.seen for engine in world.engines)
    done = len(relayed.body["token_ids"]) - len(broken.body["token_ids"])
    assert (broken.body["sampling_params"]["max_tokens"], done) == (100, 30)
    assert relayed.body["sampling_params"]["max_tokens"] == 70
    await world.check()


async def test_the_native_route_is_cut_too(nursery, autojump_clock):
    """One number for all prompts: the longest one decides."""
    world = await small_world(nursery)
    body = text(max_tokens=500, min_tokens=130, echo=True) | {"prompt": ["b" * 100, "c" * 20]}
    got = await world.ask(TEXT, body)
    (asked,) = world.seen("native")
    assert (asked.body["max_tokens"], asked.body["min_tokens"]) == (100, 100)
    assert got.status == 200
    await world.check()


@pytest.mark.parametrize(
    ("configured", "limit"),
    [(0, LIMIT), (150, 150), (4096, LIMIT)],
)
async def test_the_smallest_limit_that_anybody_names(nursery, autojump_clock, configured, limit):
    world = await small_world(nursery, config=ON | {"model_config": {"max_model_len": configured}})
    got = await world.ask(TEXT, text(max_tokens=500))
    assert got.json["usage"]["total_tokens"] == limit
    await world.check()


async def test_an_engine_with_a_smaller_context(nursery, autojump_clock):
    world = await small_world(
        nursery, sidecar={"max_model_len": 1000}, config=ON | {"model_config": {"max_model_len": 0}}
    )
    got = await world.ask(TEXT, text(max_tokens=500))
    assert got.json["usage"]["total_tokens"] == LIMIT
    await world.check()
