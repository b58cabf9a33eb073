"""How does one attempt of one prompt run, from its placement to its report?

The leg and the streams of its choices, in one nursery. An engine's failure is reported and hurts no sibling; anything
else (Derender failed, a bug, the client left) goes on upwards and ends the request.

Source: RFC 请求生命周期; contract section 7.
"""

from __future__ import annotations

import trio

from machines.faults import TREATMENTS, Fault
from machines.tokens import SemanticIds, SemanticJson
from motor_flow.effects.context import Attempt, PromptRun, RequestRun
from motor_flow.effects.inbox import Event
from motor_flow.effects.placing import look_for_native
from motor_flow.effects.stream import drive
from motor_flow.effects.topologies import LEGS
from motor_flow.errors import EngineError, Unsupported
from motor_flow.flow import leaves


async def run_attempt(run: RequestRun, prompt: PromptRun, attempt: Attempt) -> None:
    """Run it; `prompt` is done or broken afterwards."""
    relayed = attempt.committed > 0
    try:
        with attempt.held:
            await _run(run, prompt, attempt)
        prompt.progress = "done"
        if run.visible and run.grant is not None:  # before, it might all be started again
            run.grant.give_back(prompt.index)
    except BaseExceptionGroup as group:
        engine, rest = group.split(EngineError)
        if rest is not None:
            raise rest from None
        assert engine is not None
        attempt.error = next(error for error in leaves(engine) if isinstance(error, EngineError))
        prompt.fault = attempt.error.fault
        prompt.progress = "broken"
        if prompt.fault is Fault.UNSUPPORTED:
            await look_for_native(run)
        _count_fault(run, prompt, attempt)
    finally:
        if prompt.progress == "running":
            prompt.progress = "broken"  # cancelled: nobody waits for it but a rollback
        if relayed:
            run.services.metrics.relays["ok" if prompt.progress == "done" else "failed"].inc()
        run.reports.ring()


async def _run(run: RequestRun, prompt: PromptRun, attempt: Attempt) -> None:
    leg = attempt.leg
    async with trio.open_nursery() as nursery:
        if leg is None:
            for stream in prompt.streams:
                if stream.finish is None:
                    stream.inbox.put(_lost_finish(stream.choice))
        else:
            nursery.start_soon(LEGS[attempt.topology], run, prompt, attempt, leg)
        for stream in prompt.streams:
            if stream.finish is None:
                nursery.start_soon(drive, stream)
    for done in attempt.legs:
        done.instance.breaker.succeeded()
    reader = attempt.prefill or attempt.leg  # who has read the prompt
    if reader is not None and prompt.cached_tokens is None and reader.cached_tokens is not None:
        # A relayed leg's prompt includes what was answered before: that is no part of the client's.
        limit = len(prompt.prompt.ids) if prompt.prompt is not None else reader.cached_tokens
        prompt.cached_tokens = min(reader.cached_tokens, limit)


def _lost_finish(choice: int) -> Event:
    """The whole budget was used, only the end was lost: Derender gets an end without tokens, so that parsers flush."""
    raw = b'{"request_id":"","choices":[{"index":%d,"token_ids":[],"logprobs":null,"finish_reason":"length"}]}' % choice
    return Event(SemanticJson(raw), SemanticIds([]), "length")


def _count_fault(run: RequestRun, prompt: PromptRun, attempt: Attempt) -> None:
    """For the breaker, one request's attempts on one instance are one failure."""
    assert attempt.error is not None
    fault = attempt.error.fault
    if fault in (Fault.NO_PARTNER, Fault.EXPIRED):
        prompt.instance = None  # no instance has failed
        return
    leg = next((leg for leg in attempt.legs if leg.error is attempt.error), attempt.leg)
    assert leg is not None
    instance = leg.instance
    prompt.instance = instance.id  # of two legs, the one that failed
    if isinstance(attempt.error, Unsupported) and run.route == "token_only":
        instance.token_only = False
    if TREATMENTS[fault].counted and instance.id not in run.counted:
        run.counted.add(instance.id)
        instance.breaker.failed()
