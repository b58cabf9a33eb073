"""Every pair of faults: one in the first attempt, and one in the second, in Derender or in Render.

Afterwards the client has the undisturbed answer, or is told why not: nothing is cut off in silence, nothing comes
twice, and the breakers have counted the engines' faults and no one else's.

RFC 故障处理, 故障测试.
"""

from __future__ import annotations

import pytest
import trio

from motor_flow.sim.faults import KINDS, Fault
from tests.sweeps.ends import check_beginning, check_same, said
from tests.sweeps.strides import offset, stride
from tests.world import CHAT, TEXT, make_world

pytestmark = pytest.mark.timeout(600)  # of all pairs
BODIES = {
    "stream": (TEXT, {"model": "tiny", "prompt": "Once upon", "max_tokens": 8, "ignore_eos": True, "stream": True}),
    "whole": (
        CHAT,
        {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "ignore_eos": True},
    ),
}
CONFIG = {
    "render_config": {"timeout_ms": 1500},
    "exception_config": {"stall_timeout": 2, "first_token_timeout": 3, "infer_timeout": 60, "retry_delay": 0},
}
AFTER, AFTER_BYTES, LATE_S = 2, 500, 1.0
RECOVERED_S = 6  # the watch has looked at the sidecar again

# What each kind does to one engine attempt. A whole answer is no stream: some of the kinds mean nothing to it.
NOTHING = {"stream": {"late"}, "whole": {"late", "slow"}}
UNCOUNTED = {"recomputed"}
ENDLESS = {"stream": set(), "whole": {"stall"}}  # only the request's own deadline ends it
# What each kind does to a Derender call whose connection is asked once more when it breaks.
ENGINES_OWN = {"abort", "recomputed"}  # finish reasons; no sidecar has them
DERENDER = {"status": 502, "garbage": 502, "oversized": 502, "die": 502, "stall": 504}


def planned(kind, on, *, attempt=None, skip=0):
    after = AFTER_BYTES if kind == "bytes" else AFTER
    fault = Fault(kind, after=after, seconds=LATE_S, on=on, skip=skip)
    if attempt is not None:
        fault.only = lambda record: f".a{attempt}." in record.body["request_id"]
    return fault


class Pairs:
    """A world, and requests with two faults each."""

    def __init__(self, world, mode, want):
        self.world, self.want = world, want
        self.path, self.body = BODIES[mode]

    async def ask(self, *faults):
        """`faults` are (server, fault): any engine, or the sidecar."""
        world = self.world
        for fault, where in faults:
            for server in where:
                server.faults.add(fault)
        got = await world.ask(self.path, self.body)
        await trio.sleep(RECOVERED_S)
        await world.check()
        counted = sum(instance.breaker.failures for instance in world.app.registry)
        happened = [record.fault for one in (world.sidecar, *world.engines) for record in one.seen if record.fault]
        asked = len(world.seen("generate"))
        for server in (world.sidecar, *world.engines):
            server.faults.clear()
            server.seen.clear()
            server.dead_until = 0.0
        for instance in world.app.registry:
            instance.breaker.failures = 0
        return got, counted, asked, happened


async def pairs(nursery, mode):
    world = await make_world(nursery, engines=3, engine={"pace_s": 0.01}, config=CONFIG)
    one = Pairs(world, mode, None)
    one.want, *_ = await one.ask()
    assert said(one.want) is None
    return one


def sampled(kinds):
    """Pairs: every kind of fault of a first attempt, each with another sample of the second ones."""
    step = stride(5)
    for row, first in enumerate(KINDS):
        for second in kinds[(row + offset(step)) % step :: step]:
            yield first, second


@pytest.mark.parametrize("mode", BODIES)
async def test_two_attempts_fail(nursery, autojump_clock, mode):
    one = await pairs(nursery, mode)
    engines = one.world.engines
    for first, second in sampled(KINDS):
        got, counted, asked, happened = await one.ask(
            *(
                (planned(kind, "generate", attempt=number), [engine])
                for number, kind in ((1, first), (2, second))
                for engine in engines
            )
        )
        breaks = [first] if first not in NOTHING[mode] else []
        if breaks and first not in ENDLESS[mode]:
            breaks += [second] if second not in NOTHING[mode] else []
        wanted = sum(kind not in UNCOUNTED for kind in breaks)
        if ENDLESS[mode] & set(breaks):
            assert said(got) == (504, "generate")
            assert counted == wanted - 1, (first, second)  # a deadline is nobody's fault
            continue
        check_same(got, one.want)
        if (first, mode) == ("lost", "stream"):  # one token is left: what follows may come too late to harm it
            assert asked - 1 in (1, 2)
            assert counted in {1, wanted}
        else:
            assert asked == 1 + len(breaks), (first, second, happened)
            assert counted == wanted, (first, second, happened)


@pytest.mark.parametrize("mode", BODIES)
async def test_an_attempt_and_derender_fail(nursery, autojump_clock, mode):
    one = await pairs(nursery, mode)
    world = one.world
    for first, second in sampled([kind for kind in KINDS if kind not in ENGINES_OWN]):
        got, counted, asked, happened = await one.ask(
            *((planned(first, "generate", attempt=1), [engine]) for engine in world.engines),
            (planned(second, "derender", skip=mode == "stream"), [world.sidecar]),
        )
        end = said(got)
        if first in ENDLESS[mode]:
            assert end == (504, "generate"), (first, second)
        elif end is None:
            assert second not in DERENDER, first
            check_same(got, one.want)
        else:
            assert end == (DERENDER[second], "derender"), (first, second, happened)
            check_beginning(got, one.want)
            assert asked <= 2
        assert counted <= 1, (first, second)


@pytest.mark.parametrize("mode", BODIES)
async def test_an_attempt_and_render_fail(nursery, autojump_clock, mode):
    """Without Render the engine speaks OpenAI, and an answer that is visible cannot go on elsewhere."""
    one = await pairs(nursery, mode)
    world = one.world
    for first, second in sampled(KINDS):
        got, counted, _, happened = await one.ask(
            *((planned(first, "any", attempt=1), [engine]) for engine in world.engines),
            (planned(second, "render"), [world.sidecar]),
        )
        end = said(got)
        if end is None:
            assert got.answer.choices == one.want.answer.choices, (first, second)
        else:
            assert end in ((502, "generate"), (504, "generate")), (first, second, happened)
            check_beginning(got, one.want)
        assert counted <= 1, (first, second)
