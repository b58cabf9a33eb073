"""The trampoline: events in, edges out, cancellation and bugs kept apart, clean-up always."""

from __future__ import annotations

import json
from typing import Literal

import pytest
import trio
from statemachine import State, StateMachine

from machines import Table
from motor_flow.errors import EngineError, MotorFlowError, RenderError
from motor_flow.flow import CLEANUP_S, Effects, Flow, Overdue


class Machine(StateMachine):
    class active(State.Compound):
        one = State(initial=True)
        two = State()
        went = one.to(two)
        broke = one.to(two)

    done = State(final=True)
    failed = State(final=True)
    cancelled = State(final=True)
    ended = active.two.to(done)
    fail = active.to(failed)
    cancel = active.to(cancelled)


TABLE = Table.of(Machine)


def effects(one, two=None, cleanup=None):
    made = Effects(TABLE)

    @made.on("one", broke=EngineError)
    async def _one(ctx) -> Literal["went"]:
        return await one(ctx)

    @made.on("two")
    async def _two(ctx) -> Literal["ended"]:
        return await (two or finish)(ctx)

    if cleanup is not None:
        made.final("done", "failed", "cancelled")(cleanup)
    made.seal()
    return made


async def go(_ctx):
    await trio.lowlevel.checkpoint()
    return "went"


async def finish(_ctx):
    return "ended"


async def hang(_ctx):
    await trio.sleep_forever()


def path(flow):
    return [edge.source for edge, _ in flow.trace] + [flow.state]


async def test_effects_report_and_the_table_decides(autojump_clock):
    made = effects(go)
    flow = Flow(made, None)
    assert await flow.run() == "done"
    assert path(flow) == ["one", "two", "done"]
    assert sum(made.census.taken) == 2
    assert set(made.census.population.values()) == {0}


async def test_a_mapped_fault_is_an_event(autojump_clock):
    async def fail(_ctx):
        raise EngineError("x")

    flow = Flow(effects(fail), None)
    assert await flow.run() == "done"
    assert flow.trace[0][0].event == "broke"
    assert isinstance(flow.fault, EngineError)


@pytest.mark.parametrize("error", [RenderError("x"), ZeroDivisionError()])
async def test_anything_else_is_fail(autojump_clock, error):
    async def fail(_ctx):
        raise error

    flow = Flow(effects(fail), None)
    assert await flow.run() == "failed"
    assert flow.fault is error


async def test_a_bug_beside_a_fault_wins(autojump_clock):
    async def both(_ctx):
        raise ExceptionGroup("x", [EngineError("x"), ExceptionGroup("y", [bug := KeyError("bug")])])
        return bug

    flow = Flow(effects(both), None)
    assert await flow.run() == "failed"
    assert isinstance(flow.fault, KeyError)


async def test_cancellation_is_an_edge_and_travels_on(autojump_clock):
    flow = Flow(effects(hang), None)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flow.run)
            await trio.sleep(1)
            scope.cancel(reason="client disconnected")
    assert scope.cancelled_caught
    assert (path(flow), flow.reason, flow.fault) == (["one", "cancelled"], "client disconnected", None)


async def test_a_fault_in_the_tick_of_a_departure_does_not_escape(autojump_clock):
    """A nursery hands over both in one group; only the cancelled part may travel on."""
    flow = None
    with trio.CancelScope() as scope:

        async def effect(_ctx):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                scope.cancel(reason="client disconnected")
                raise EngineError("died in the same tick")

        flow = Flow(effects(effect), None)
        await flow.run()
    assert scope.cancelled_caught
    assert flow.state == "cancelled"


@pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
async def test_clean_up_runs_once_whatever_the_end(autojump_clock, end):
    runs = []

    async def cleanup(_ctx):
        await trio.sleep(1)  # shielded: a cancelled request may still await here
        runs.append(trio.current_time())

    async def boom(_ctx):
        raise ZeroDivisionError

    flow = Flow(effects({"done": go, "failed": boom, "cancelled": hang}[end], cleanup=cleanup), None)
    with trio.move_on_after(5):
        await flow.run()
    assert flow.state == end
    assert len(runs) == 1


async def test_clean_up_has_a_deadline(autojump_clock):
    flow = Flow(effects(go, cleanup=hang), None)
    start = trio.current_time()
    assert await flow.run() == "done"
    assert trio.current_time() - start == CLEANUP_S


async def test_the_deadline_of_a_flow_fails_it(autojump_clock):
    flow = Flow(effects(hang), None, deadline=trio.current_time() + 7)
    start = trio.current_time()
    assert await flow.run() == "failed"
    assert isinstance(flow.fault, Overdue)
    assert flow.fault.status == 504
    assert trio.current_time() - start == 7


async def test_an_action_that_raises_changes_no_state(autojump_clock):
    def bad(_ctx):
        raise ZeroDivisionError

    class Acting(StateMachine):
        a = State(initial=True)
        b = State(final=True)
        failed = State(final=True)
        cancelled = State(final=True)
        went = a.to(b, on=bad)
        fail = a.to(failed)
        cancel = a.to(cancelled)

    made = Effects(Table.of(Acting))

    @made.on("a")
    async def _a(_ctx) -> Literal["went"]:
        return "went"

    flow = Flow(made, None)
    assert await flow.run() == "failed"
    assert isinstance(flow.fault, ZeroDivisionError)
    assert path(flow) == ["a", "failed"]


async def test_a_trace_is_bounded(autojump_clock):
    class Loop(StateMachine):
        a = State(initial=True)
        b = State(final=True)
        failed = State(final=True)
        cancelled = State(final=True)
        again = a.to.itself()
        stop = a.to(b)
        fail = a.to(failed)
        cancel = a.to(cancelled)

    made = Effects(Table.of(Loop))
    left = [1000]

    @made.on("a")
    async def _a(_ctx) -> Literal["again", "stop"]:
        left[0] -= 1
        return "again" if left[0] else "stop"

    flow = Flow(made, None)
    await flow.run()
    assert len(flow.trace) == 64
    assert sum(made.census.taken) == 1000


def test_seal_wants_an_effect_for_every_state():
    with pytest.raises(TypeError, match=r"Machine\.one has no effect"):
        Effects(TABLE).seal()


def test_seal_wants_effects_and_edges_to_name_the_same_events():
    made = Effects(TABLE)

    @made.on("one")
    async def _one(_ctx) -> Literal["went", "flew"]:
        return "went"

    with pytest.raises(TypeError, match=r"Machine\.one: no edge takes \['flew'\], no effect reports \['broke'\]"):
        made.seal()


def test_a_state_has_one_effect():
    made = Effects(TABLE)
    made.on("one")(go)
    with pytest.raises(TypeError, match="has an effect already"):
        made.on("one")(go)


def test_error_bodies_have_one_shape():
    error = MotorFlowError("m", status=503, param="p", retry_after_s=2)
    assert json.loads(error.encode("schedule")) == {
        "error": {"message": "m", "type": "ServiceUnavailableError", "param": "p", "code": 503, "stage": "schedule"}
    }
    assert MotorFlowError("x" * 100_000).message.endswith("…")
    assert MotorFlowError("x", status=429).kind == "Too Many Requests"
