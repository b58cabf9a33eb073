"""How does a request get the right to run, and instances to run on?

Source: RFC 流控, Router、Scheduler 和 KV Conductor.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Literal

import trio

from machines.replay import RetryRequestPlan, plan
from machines.topology import LETTERS, TRIGGER, Role
from motor_flow.effects.context import Attempt, Barrier, Leg, PromptRun, RequestRun
from motor_flow.effects.demand import needs
from motor_flow.effects.inbox import Inbox
from motor_flow.effects.matching import survey
from motor_flow.effects.registered import request_effects
from motor_flow.engine.token_only import leg_id, needs_tokenizer_for
from motor_flow.errors import MotorFlowError, NoTokenEngine, NoTokenizer, RenderDown, ScheduleError
from motor_flow.scheduling.registry import NATIVE, Wanted
from motor_flow.scheduling.scheduler import Experience
from motor_flow.telemetry.log import get_logger

PLACEMENTS_SHOWN_MAX = 8
_log = get_logger()


@request_effects.on("admitted")
async def admit(run: RequestRun) -> Literal["granted"]:
    """Take the request's tokens, and wait for them if need be."""
    flow = run.services.flow
    if flow is None:
        await trio.lowlevel.checkpoint()
    else:
        wanted = needs(run, flow.limits.unasked_output_tokens)
        try:
            run.grant = await flow.admit(run.identity.client, wanted)
        finally:
            run.responder.show_tokens(flow.capacity, flow.free)
        run.held.callback(run.grant.close)
    run.marks.admitted = trio.current_time()
    return "granted"


@request_effects.on("scheduled", no_token_engine=NoTokenEngine)
async def schedule(run: RequestRun) -> Literal["placed"]:
    """Reserve an instance for every prompt that waits, and make everything that belongs to its attempt."""
    await survey(run)
    if _depends_on_tokenizers(run):
        await run.services.tokenizers.ask_unknown()
    try:
        for prompt in run.prompts:
            if prompt.progress == "waiting":
                _place(run, prompt)
    except NoTokenEngine:
        await look_for_native(run)
        raise
    except NoTokenizer as error:
        raise _untold(run, error) from error
    explain(run)
    if run.stream and run.envelope.api != "other" and not run.responder.sealed:
        run.barrier = Barrier(len(run.prompts))
    if run.marks.placed is None:
        run.marks.placed = trio.current_time()
    return "placed"


def _place(run: RequestRun, prompt: PromptRun) -> None:
    held = ExitStack()
    run.held.callback(held.close)
    before = prompt.leg
    prompt.attempt = Attempt(leg=None, committed=prompt.committed, held=held)
    for stream in prompt.streams:
        stream.inbox = Inbox()
    if prompt.attempts and prompt.spent:
        return  # only the finish is missing: it is said without an engine
    wanted = wanted_by(run, prompt)
    choice = run.services.scheduler.choose(
        wanted,
        Experience(prompt.tried, prompt.avoid),
        pairs=divisible(prompt),
    )
    if choice.topology is TRIGGER and run.stream and len(run.prompts) > 1 and not run.obfuscated:
        # The RFC's rule: one decode engine would have to call back for every prompt of one stream.
        if not run.visible and run.services.scheduler.serves(NATIVE):
            raise NoTokenEngine("a streamed list of prompts takes the native route in Trigger")
        choice = run.services.scheduler.choose(wanted, Experience(prompt.tried, prompt.avoid), pairs=False)
    prompt.attempt.topology = choice.topology
    leg = prompt.attempt.leg = reserve(run, prompt, prompt.attempt, choice.role)
    if before is not None:
        _log.info(
            "relay" if run.visible else "retry",
            request_id=run.identity.request_id,
            prompt=prompt.index,
            attempt=leg.attempt,
            committed=prompt.committed,
            remaining=leg.plan.remaining if leg.plan is not None else None,
            topology=str(choice.topology),
            previous=before.instance.name,
            instance=leg.instance.name,
            placement=leg.reason,
        )


async def look_for_native(run: RequestRun) -> None:
    """The token-only route has failed: is there another one?"""
    await run.services.tokenizers.ask_unknown()
    run.native_offered = run.services.scheduler.serves(NATIVE)


def _depends_on_tokenizers(run: RequestRun) -> bool:
    """Where it goes, or how it is asked, follows from what the engines can do."""
    if run.route == "native" or (run.stream and len(run.prompts) > 1):
        return True
    given = (each.prompt.sampling for each in run.prompts if each.prompt is not None)
    return any(sampling.get("stop") or needs_tokenizer_for(sampling) for sampling in given)


def wanted_by(run: RequestRun, prompt: PromptRun) -> Wanted:
    """What the prompt's next attempt asks of its engines."""
    if run.route == "native":
        return NATIVE
    assert prompt.prompt is not None
    return Wanted(run.route, tokenizer=bool(needs_tokenizer_for(prompt.prompt.sampling)))


def _untold(run: RequestRun, error: NoTokenizer) -> MotorFlowError:
    """Which of its wishes it is, and whether it may be fulfilled later."""
    given = [each.prompt for each in run.prompts if each.prompt is not None]
    why = run.native_reason or next(filter(None, (needs_tokenizer_for(each.sampling) for each in given)), "")
    if run.render_fault is not None:
        return RenderDown.and_needed("engines without a tokenizer allow", run.render_fault)
    message = f"{error.message}, which it needs: {why or 'its token-only route has failed'}"
    if run.services.scheduler.pauses_tokenizer:
        return ScheduleError(message, retry_after_s=1)
    return NoTokenizer(message)


def explain(run: RequestRun) -> None:
    """Tell the client why its instances were chosen, if it wants to know: all legs that are placed so far."""
    if run.explain:
        legs = [leg for prompt in run.prompts if prompt.attempt is not None for leg in prompt.attempt.legs]
        run.responder.explain("; ".join(leg.reason for leg in legs[:PLACEMENTS_SHOWN_MAX]))


def divisible(prompt: PromptRun) -> bool:
    """It can be split into prefill and decode: one prompt's KV is used once, by one choice.

    A native request is served whole by one instance: its engines render it themselves, so two legs could disagree.
    """
    return prompt.prompt is not None and prompt.prompt.n == 1


def reserve(run: RequestRun, prompt: PromptRun, attempt: Attempt, role: Role) -> Leg:
    """An instance of this role, and a leg for it; both are given back with the attempt.

    Raises:
        ScheduleError: there is none.

    """
    services = run.services
    pair = attempt.topology.profile
    first = attempt.leg.instance if attempt.leg is not None else None
    experience = Experience(prompt.tried, prompt.avoid)
    wanted = wanted_by(run, prompt)
    placement = services.scheduler.place(role, wanted, experience, prompt.demand, pair=pair, partner=first)
    instance = placement.instance
    held = attempt.held.enter_context(ExitStack())
    held.enter_context(placement.charge)
    held.enter_context(services.leases.hold("instance_slots"))
    if attempt.leg is None:
        prompt.instance = instance.id
        number = prompt.attempts + 1
    else:  # the second leg of a running attempt
        prompt.tried.add(instance.id)
        number = prompt.attempts
    asked: RetryRequestPlan | None = None
    if prompt.prompt is not None:
        # Choices of one prompt share its engine stream, and are relayed only when there is one.
        asked = plan(prompt.prompt, prompt.streams[0].ledger if prompt.committed else ())
    letter = LETTERS["union" if pair is None else role]
    return Leg(
        prompt=prompt.index,
        attempt=number,
        instance=instance,
        wanted=wanted,
        request_id=leg_id(run.identity.engine_base, number, prompt.index, letter),
        plan=asked,
        inboxes=[stream.inbox for stream in prompt.streams],
        held=held,
        reason=placement.reason,
        since=trio.current_time() if attempt.leg is None else attempt.leg.since,
    )
