"""The client leaves at every step of the scheduler: whatever is half done then ends, and is given back.

A step is one turn of one task of the whole world, simulators included. The order of tasks is seeded, so a step that
fails is found again.

RFC 故障处理 (客户端断开); 故障测试 (nothing may be left behind).
"""

from __future__ import annotations

import pytest
import trio

from motor_flow.effects.request import request_effects
from motor_flow.effects.stream import stream_effects
from motor_flow.sim.faults import Fault
from tests.sweeps.strides import offset, stride
from tests.world import CHAT, TEXT, Response, make_world

pytestmark = pytest.mark.timeout(600)  # of every step
SOON_S = 0.3
SEED = 7
PLAIN = {"model": "tiny", "prompt": "Once upon", "max_tokens": 5, "ignore_eos": True}
TALK = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 5, "ignore_eos": True}
LIST = PLAIN | {"prompt": ["a", "b", "c"], "max_tokens": 3}
# Everything takes its time, so that a moment that has passed is a time that has passed.
ENGINE = {"first_token_s": 0.01, "pace_s": 0.01}
SIDECAR = {"render_s": 0.01, "derender_s": 0.002}


def first_attempts(record):
    return ".a1." in record.body["request_id"]


SCENARIOS = {
    # path, body, fault of every first attempt, stride of the default run
    "stream": (CHAT, TALK | {"stream": True}, None, 8),
    "whole": (CHAT, TALK, None, 2),
    "two choices": (CHAT, TALK | {"n": 2, "stream": True}, None, 8),
    "list": (TEXT, LIST | {"stream": True}, None, 10),
    "list, whole": (TEXT, LIST, None, 3),
    "relay": (TEXT, PLAIN | {"stream": True}, "cut after=2 on=generate", 4),
    "relay after a pause": (TEXT, PLAIN | {"stream": True}, "abort after=2 on=generate", 5),
    "relay of a list": (TEXT, LIST | {"stream": True}, "eof after=1 on=generate", 11),
    "rollback": (TEXT, PLAIN | {"stream": True}, "status status=503 on=generate", 4),
    "rollback, whole": (TEXT, PLAIN, "reset on=generate", 2),
    "native": (TEXT, PLAIN | {"echo": True, "stream": True}, None, 3),
    "native, whole": (TEXT, PLAIN | {"echo": True}, None, 1),
}
ENGINES = {"relay after a pause": 1, "list": 3, "list, whole": 3}


class Leaving(trio.abc.Instrument):
    """Counts steps, and has the client leave at one of them.

    Attributes:
        step: so far.
        left_at: when the client left (trio clock, seconds).

    """

    def __init__(self, client, at):
        self.client, self.at = client, at
        self.step = 0
        self.left_at = None

    def before_task_step(self, _task):
        if self.step == self.at:
            self.left_at = trio.current_time()
            self.client.cancel()
        self.step += 1


class Asked:
    """When engines were asked."""

    def __init__(self, engines):
        self.at = []
        for engine in engines:
            engine.meet = self._noting(engine.meet)

    def _noting(self, meet):
        def note(call, record):
            self.at.append(trio.current_time())
            meet(call, record)

        return note


async def ask_and_leave(world, path, body, at):
    """One request whose client leaves at this step; never, when there are fewer."""
    trio._core._run._r.seed(SEED)  # every request anew, so that a step is the same step in all of them
    response = Response(0, {})
    with trio.CancelScope() as client:
        leaving = Leaving(client, at)
        trio.lowlevel.add_instrument(leaving)
        try:
            await world.read(response, path, body)
        finally:
            trio.lowlevel.remove_instrument(leaving)
    return leaving, response


def failures():
    """Machines that have ended badly so far."""
    return sum(
        effects.census.taken[edge.index]
        for effects in (request_effects, stream_effects)
        for edge in effects.table.edges
        if edge.target == "failed"
    )


def busy(world):
    """What is not free yet."""
    return {
        "requests": world.app.requests,
        "leases": {kind: held for kind, held in world.app.leases.held.items() if held},
        "engines": [engine.running for engine in world.engines],
        "server": world.server.active,
        "instances": [instance.requests for instance in world.app.registry],
    }


async def until(holds):
    while not holds():  # noqa: ASYNC110 - nobody tells when the last of it is free
        await trio.sleep(0.001)


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_the_client_leaves_at_every_step(nursery, autojump_clock, scenario):
    path, body, fault, default = SCENARIOS[scenario]
    world = await make_world(nursery, engines=ENGINES.get(scenario, 2), engine=ENGINE, sidecar=SIDECAR)
    asked = Asked(world.engines)
    idle = busy(world)

    async def one(at):
        for engine in world.engines:
            engine.faults.clear()
            if fault is not None:
                planned = Fault.read(fault)
                planned.times, planned.only = 99, first_attempts
                engine.faults.add(planned)
        asked.at.clear()
        failed = failures()
        leaving, response = await ask_and_leave(world, path, body, at)
        if leaving.left_at is not None:
            with trio.move_on_after(SOON_S):
                await until(lambda: busy(world) == idle)
            assert busy(world) == idle, (at, leaving.step)
            assert trio.current_time() - leaving.left_at <= SOON_S, at
            await trio.sleep(1)  # longer than any pause between attempts
            assert [when for when in asked.at if when > leaving.left_at] == [], at
            assert failures() == failed, at
        await world.check()
        assert all(instance.breaker.closed for instance in world.app.registry)
        for instance in world.app.registry:
            instance.breaker.failures = 0
        return leaving, response

    whole, response = await one(-1)
    assert (response.status, response.error, response.ended) == (200, None, True)
    assert len(asked.at) == (1 if fault is None else 2) * (3 if "list" in scenario else 1)
    step = stride(default)
    departures = 0
    for at in range(offset(step), whole.step, step):
        leaving, _ = await one(at)
        departures += leaving.left_at is not None
    assert departures > whole.step // step * 0.9
    assert world.sidecar.repeats == []
