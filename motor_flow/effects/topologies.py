"""How do the legs of one attempt follow each other?

One function per topology; each returns when the answering leg has ended, and raises the fault of any leg. The answering
leg is the same code for all of them (`answer_leg`); so are relay, rollback, fan-out and cancellation, which do not know
the topology.

Source: MindIE Motor's handoff and trigger sequences; RFC Router、Scheduler 和 KV Conductor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import trio

from machines.faults import Fault
from machines.topology import HANDOFF, TRIGGER, UNION, Role, Topology
from motor_flow.effects.context import Attempt, Leg, PromptRun, RequestRun
from motor_flow.effects.handing_over import held
from motor_flow.effects.leg import abandon, fetch_whole_leg, prefill_leg, read_stream_leg
from motor_flow.effects.native import native_answer
from motor_flow.effects.placing import explain, reserve
from motor_flow.engine.events import silent
from motor_flow.engine.transfer import KEY, REMOTE_DECODE, is_ticket, remote_prefill, turned_round
from motor_flow.errors import EngineError, ScheduleError
from motor_flow.scheduling.callbacks import Expected

Legs = Callable[[RequestRun, PromptRun, Attempt, Leg], Awaitable[None]]


async def answer_leg(run: RequestRun, leg: Leg) -> None:
    """The leg that brings the answer, in the form that the request wants."""
    if run.route == "native":
        await native_answer(run, leg)
    elif run.stream:
        await read_stream_leg(run, leg)
    else:
        await fetch_whole_leg(run, leg)


async def _union(run: RequestRun, _prompt: PromptRun, _attempt: Attempt, leg: Leg) -> None:
    await answer_leg(run, leg)


async def _handoff(run: RequestRun, prompt: PromptRun, attempt: Attempt, prefill: Leg) -> None:
    """Prefill first; decode gets its instance only when there is something to decode."""
    prefill.kv = REMOTE_DECODE
    params = (await prefill_leg(run, prefill)).get(KEY)
    if not is_ticket(params):
        run.services.errands.send(abandon, run.services.engines, prefill)  # it may hold something all the same
        raise EngineError(
            "the prefill engine gave no KV to hand over; was it started with a KV connector (--kv-transfer-config)?",
            fault=Fault.PROTOCOL,
        )
    prefill.hand_over()
    async with held(run, prefill, params) as ticket:
        decode = _second(run, prompt, attempt, "decode")
        decode.kv, decode.ticket = params, ticket
        attempt.leg, attempt.prefill = decode, prefill
        explain(run)
        if ticket.expired:
            raise EngineError("the KV of the prefill engine is no longer held", fault=Fault.EXPIRED)
        await answer_leg(run, decode)


async def _trigger(run: RequestRun, prompt: PromptRun, attempt: Attempt, decode: Leg) -> None:
    """Decode first; its engine calls back for the prefill."""
    callbacks = run.services.callbacks
    with callbacks.expect(decode.request_id, decode.attempt) as expected:
        decode.kv = remote_prefill(callbacks.url_of(decode.attempt))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_prefill_when_called, run, prompt, attempt, expected)
            await answer_leg(run, decode)
            nursery.cancel_scope.cancel(reason="the answer is complete")


async def _prefill_when_called(run: RequestRun, prompt: PromptRun, attempt: Attempt, expected: Expected) -> None:
    decode, patience_s = attempt.leg, run.services.patience.first_event_s
    assert decode is not None
    with trio.move_on_after(patience_s):
        await expected.called.wait()
    if expected.params is None:
        if decode.completion_tokens:
            return  # it needed no KV
        raise silent(patience_s)
    prefill = _second(run, prompt, attempt, "prefill")
    prefill.kv = turned_round(expected.params)
    attempt.prefill = prefill
    explain(run)
    try:
        answer = await prefill_leg(run, prefill)
    except EngineError:
        if decode.completion_tokens:
            return  # the KV has arrived all the same
        raise
    prefill.hand_over()
    expected.resolve(msgspec.json.encode(answer))


def _second(run: RequestRun, prompt: PromptRun, attempt: Attempt, role: Role) -> Leg:
    """The second leg's instance. When the last one has gone, the next attempt finds another topology."""
    try:
        return reserve(run, prompt, attempt, role)
    except ScheduleError as none:
        raise EngineError(none.message, fault=Fault.NO_PARTNER, status=none.status, detail=none.detail) from none


LEGS: dict[Topology, Legs] = {UNION: _union, HANDOFF: _handoff, TRIGGER: _trigger}
