"""How does a request get the right to run, and instances to run on?

Source: RFC 流控, Router、Scheduler 和 KV Conductor.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Literal

import trio

from machines.replay import RetryRequestPlan, plan
from motor_flow.effects.context import Attempt, Barrier, Leg, PromptRun, RequestRun
from motor_flow.effects.inbox import Inbox
from motor_flow.effects.registered import request_effects
from motor_flow.engine.token_only import leg_id
from motor_flow.errors import NoTokenEngine
from motor_flow.scheduling.scheduler import Experience
from motor_flow.telemetry.log import get_logger

_log = get_logger()


@request_effects.on("admitted")
async def admit(_: RequestRun) -> Literal["granted"]:
    """Every request is granted at once."""
    await trio.lowlevel.checkpoint()
    return "granted"


@request_effects.on("scheduled", no_token_engine=NoTokenEngine)
async def schedule(run: RequestRun) -> Literal["placed"]:
    """Reserve an instance for every prompt that waits, and make everything that belongs to its attempt."""
    await trio.lowlevel.checkpoint()
    for prompt in run.prompts:
        if prompt.progress == "waiting":
            _place(run, prompt)
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
    services = run.services
    instance = services.scheduler.place("union", run.route, Experience(prompt.tried, prompt.avoid))
    held.enter_context(services.leases.hold("instance_slots"))
    prompt.instance = instance.id
    number = prompt.attempts + 1
    asked: RetryRequestPlan | None = None
    if prompt.prompt is not None:
        # Choices of one prompt share its engine stream, and are relayed only when there is one.
        asked = plan(prompt.prompt, prompt.streams[0].ledger if prompt.committed else ())
    prompt.attempt.leg = Leg(
        prompt=prompt.index,
        attempt=number,
        instance=instance,
        request_id=leg_id(run.identity.engine_base, number, prompt.index),
        plan=asked,
        inboxes=[stream.inbox for stream in prompt.streams],
    )
    if before is not None:
        _log.info(
            "relay" if run.visible else "retry",
            request_id=run.identity.request_id,
            prompt=prompt.index,
            attempt=number,
            committed=prompt.committed,
            remaining=asked.remaining if asked is not None else None,
            previous=before.instance.name,
            instance=instance.name,
        )
