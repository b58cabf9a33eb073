"""Every effect of the request and the stream machine fails in every way it can, once and always.

Afterwards the client has the undisturbed answer or one clear error from the right stage, and nothing is left. Which of
the two is written down here a second time, without the machines: a row of `ways` for each state.

RFC 故障处理, 故障测试.
"""

from __future__ import annotations

import pytest
import trio

from machines.faults import TREATMENTS, Fault as Why
from motor_flow.edge.inference import STAGES
from motor_flow.effects import leg as leg_module, native as native_module
from motor_flow.effects.request import request_effects
from motor_flow.effects.stream import stream_effects
from motor_flow.engine.events import EventReader
from motor_flow.errors import (
    AdmissionError,
    ClientError,
    DerenderError,
    EngineError,
    NoTokenEngine,
    RenderDown,
    RenderError,
    ScheduleError,
    Unsupported,
)
from motor_flow.render.client import RenderClient
from motor_flow.sim.faults import Fault
from motor_flow.telemetry.metrics import FALLBACK_REASONS
from tests.sweeps.ends import check_beginning, check_same, said
from tests.sweeps.strides import stride
from tests.world import CHAT, TEXT, make_world

MODES = {
    "stream": (CHAT, {"messages": [{"role": "user", "content": "Tell me"}], "stream": True}),
    "whole": (CHAT, {"messages": [{"role": "user", "content": "Tell me"}]}),
    "list": (TEXT, {"prompt": ["a", "b", "c"], "stream": True}),
    "list, whole": (TEXT, {"prompt": ["a", "b", "c"]}),
}
COMMON = {"model": "tiny", "max_tokens": 6, "ignore_eos": True}
ATTEMPTS_MAX = 3
CONFIG = {"exception_config": {"infer_timeout": 20, "max_retry": ATTEMPTS_MAX, "retry_delay": 0}}
HANG = "hang"
SAME = None
SKIPPED = "skipped"
GIVEN_UP = (502, "generate")


def first_attempts(record):
    return ".a1." in record.body["request_id"]


ARRANGED = {
    # what must be so for a request to come to this state
    "localizing": lambda world: [(world.sidecar, Fault("status", times=99, on="render"))],
    "rolling_back": lambda world: [
        (engine, Fault("status", times=99, on="generate", only=first_attempts)) for engine in world.engines
    ],
    "relaying": lambda world: [
        (engine, Fault("eof", after=2, times=99, on="generate", only=first_attempts)) for engine in world.engines
    ],
}
STREAMED = ("stream", "list")
WHOLE = ("whole", "list, whole")


def engine_faults():
    """(error, outcome of one, outcome of always) for every kind of failure of an engine on the token-only route."""
    for why in (why for why in Why if why is not Why.UNSUPPORTED):
        yield EngineError("it was planned", fault=why), SAME if TREATMENTS[why].retried else GIVEN_UP, GIVEN_UP


def ways(machine, state):
    """How its effect can fail: (what it raises, what the client gets when it does so once, and when always)."""
    stage = STAGES[state] if machine == "request" else "generate"
    yield ZeroDivisionError("secret"), (500, stage), (500, stage)
    if state != "committed":
        yield HANG, (504, stage), (504, stage)
    match machine, state:
        case "request", "rendering":
            for why in FALLBACK_REASONS:
                yield RenderDown("it was planned", fault=why), SAME, SAME
            for status in (400, 404, 422):
                yield RenderError("it was planned", status=status), *[(status, "render")] * 2
            yield ClientError("it was planned"), *[(400, "client")] * 2
        case "request", "localizing":
            yield ClientError("it was planned"), *[(400, "client")] * 2
        case "request", "admitted":
            for status in (429, 503):
                yield AdmissionError("it was planned", status=status, retry_after_s=1), *[(status, "admission")] * 2
        case "request", "scheduled":
            yield ScheduleError("it was planned"), *[(503, "schedule")] * 2
            yield NoTokenEngine("it was planned"), SAME, (501, "schedule")
        case "request", "generating":  # always: only an attempt can say that, see below
            yield EngineError("it was planned", fault=Why.FAILED), SAME, SKIPPED
            yield Unsupported("it was planned", fault=Why.UNSUPPORTED), SAME, SKIPPED
        case ("request", "derendering") | ("stream", "derendering"):
            for status in (400, 404, 422, 501, 502, 504):
                yield DerenderError("it was planned", status=status), *[(status, "derender")] * 2
        case "stream", ("opening" | "generating"):
            yield from engine_faults()
            # From the second attempt on the engine speaks OpenAI, and has no such states.
            yield Unsupported("it was planned", fault=Why.UNSUPPORTED), SAME, SAME


PLACES = [
    ("request", state, mode)
    for state in request_effects.run
    for mode in MODES
    if not (state == "derendering" and mode in STREAMED) and not (state == "relaying" and mode in WHOLE)
] + [("stream", state, mode) for state in stream_effects.run for mode in STREAMED]
EFFECTS = {"request": request_effects, "stream": stream_effects}


class Disturbed:
    """A world, the undisturbed answer, and requests that are disturbed."""

    def __init__(self, world, mode, planned=lambda _world: ()):
        self.world, self.planned = world, planned
        self.path, body = MODES[mode]
        self.body = COMMON | body

    async def undisturbed(self):
        self.want = await self.world.ask(self.path, self.body)
        assert said(self.want) is None

    async def ask(self):
        """One more request, after which everything is as before."""
        for engine in self.world.engines:
            engine.seen.clear()
        for server, fault in self.planned(self.world):
            server.faults.add(fault)
        got = await self.world.ask(self.path, self.body)
        counted = sum(instance.breaker.failures for instance in self.world.app.registry)
        for server in (self.world.sidecar, *self.world.engines):
            server.faults.clear()
        for instance in self.world.app.registry:
            instance.breaker.failures, instance.token_only = 0, True
        await self.world.check()
        return got, counted

    def judge(self, got, outcome):
        assert said(got) == outcome
        if outcome is not SAME:
            check_beginning(got, self.want)
        elif self.world.seen("native"):  # usage and roles may come in other chunks
            assert got.answer.choices == self.want.answer.choices
        else:
            check_same(got, self.want)
        assert b"secret" not in got.body


async def disturbed(nursery, mode, planned=lambda _world: ()):
    world = await make_world(nursery, engines=3, engine={"pace_s": 0.01}, config=CONFIG)
    one = Disturbed(world, mode, planned)
    await one.undisturbed()
    return one


@pytest.mark.parametrize(("machine", "state", "mode"), PLACES, ids=[", ".join(place) for place in PLACES])
async def test_an_effect_fails(nursery, autojump_clock, monkeypatch, machine, state, mode):
    one = await disturbed(nursery, mode, ARRANGED.get(state, lambda _world: ()))
    # What tells the ways of one state apart is the same for lists: some of them will do.
    for raised, once, always in list(ways(machine, state))[:: stride(4) if "list" in mode else 1]:
        for times, outcome in ((1, once), (99, always)):
            if outcome is SKIPPED:
                continue
            with monkeypatch.context() as patched:
                entered = failing(patched, machine, state, raised, times)
                got, _ = await one.ask()
            assert entered, "the state was never entered"
            try:
                one.judge(got, outcome)
            except AssertionError as wrong:
                wrong.add_note(f"{machine}.{state} raised {raised!r}, {times} times at most")
                raise


def failing(patched, machine, state, raised, times):
    """Have the effect of a state fail so often; returns the list of its failures."""
    effects, entered = EFFECTS[machine].run, []
    # The effect chooses what it needs before it asks Render.
    inside = state == "rendering" and isinstance(raised, RenderError)
    good = RenderClient.render if inside else effects[state]

    async def fail(*given, **more):
        await trio.lowlevel.checkpoint()
        if len(entered) == times:
            return await good(*given, **more)
        entered.append(raised)
        if raised is HANG:
            await trio.sleep_forever()
        raise raised

    if inside:
        patched.setattr(RenderClient, "render", fail)
    else:
        patched.setitem(effects, state, fail)
    return entered


@pytest.mark.parametrize("mode", MODES)
async def test_an_engine_fails(nursery, autojump_clock, monkeypatch, mode):
    """At its first event, later, and always; a whole answer when it is read. Breakers count what they should."""
    one = await disturbed(nursery, mode)
    for why in Why:
        kind = Unsupported if why is Why.UNSUPPORTED else EngineError
        retried, counts = TREATMENTS[why].retried, TREATMENTS[why].counted
        for skip, times in ((0, 1), (3, 1), (0, 99)):
            with monkeypatch.context() as patched:
                failed = breaking(patched, kind("it was planned", fault=why), skip, times)
                got, counted = await one.ask()
            one.judge(got, GIVEN_UP if failed and (times > 1 or not retried) else SAME)
            if "list" not in mode and failed:
                instances = 1 if times == 1 or not retried else ATTEMPTS_MAX
                assert counted == counts * instances, why


def breaking(patched, error, skip, times):
    """Have engines fail where their answers are read, from one call on; returns the list of failures."""
    calls, failed = [], []
    next_events, read_whole = EventReader.next, leg_module.read_whole

    def due():
        calls.append(error)
        if skip < len(calls) <= skip + times:
            failed.append(error)
            raise error

    async def next_or_not(reader):
        due()
        return await next_events(reader)

    async def whole_or_not(exchange):
        due()
        return await read_whole(exchange)

    patched.setattr(EventReader, "next", next_or_not)
    patched.setattr(leg_module, "read_whole", whole_or_not)
    patched.setattr(native_module, "read_whole", whole_or_not)
    return failed
