"""What becomes of the KV that a prefill engine holds for us?

A ticket is used once, by one decode leg, within its lease; whatever else happens to the attempt, its holder is told
at once that nobody will come: by abort where aborting frees the blocks, and by a one-token decode where only a pull
does (Nixl).

Source: MindIE Motor (abandoned tickets hold memory for minutes); vLLM 0.33 NixlConnector.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from motor_flow.effects.context import Leg, RequestRun
from motor_flow.effects.leg import abandon
from motor_flow.engine.ticket import Ticket
from motor_flow.engine.token_only import GENERATE_PATH, generate_body
from motor_flow.engine.transfer import one_token
from motor_flow.scheduling.registry import Instance
from motor_flow.telemetry.log import get_logger

RELEASE_S = 2.0
SALT_CHARS_MAX = 128  # of vLLM
PULLED = ("nixl",)  # connectors whose blocks are freed by a pull, and by nothing else
_log = get_logger()


@asynccontextmanager
async def held(run: RequestRun, prefill: Leg, params: dict[str, Any]) -> AsyncIterator[Ticket]:
    """The ticket for the length of the block; given back at the end unless it was used."""
    ticket = Ticket(params, trio.current_time() + prefill.instance.kv_lease_s)
    with run.services.leases.hold("kv_tickets"):
        try:
            yield ticket
        finally:
            if not ticket.used:
                attempt = run.prompts[prefill.prompt].attempt
                failed = [leg.instance for leg in attempt.legs if leg.error is not None] if attempt is not None else []
                run.services.errands.send(_release, run, prefill, ticket, failed)


async def _release(run: RequestRun, prefill: Leg, ticket: Ticket, failed: Sequence[Instance]) -> None:
    instance = prefill.instance
    pulled = any(name in instance.kv_connector.lower() for name in PULLED)
    done = await _pull(run, prefill, ticket, failed) if pulled else await abandon(run.services.engines, prefill)
    say = _log.info if done else _log.warning  # the blocks stay until their lease ends
    say(
        "ticket.released",
        request_id=run.identity.request_id,
        instance=instance.name,
        way="pull" if pulled else "abort",
        outcome="ok" if done else "failed",
    )


async def _pull(run: RequestRun, prefill: Leg, ticket: Ticket, failed: Sequence[Instance]) -> bool:
    """Have some decode engine take the KV, and throw it away."""
    services = run.services
    # Closed breakers first, and last of all the one that has just failed.
    decodes = sorted(
        (each for each in services.scheduler.of_role("decode") if each.fits(prefill.instance)),
        key=lambda each: (each in failed, not each.breaker.closed),
    )
    if ticket.expired or prefill.plan is None or not decodes:
        return False
    body = generate_body(
        services.codec.physical(prefill.plan.ids),
        services.codec.physical_sampling(one_token(prefill.plan.sampling)),
        services.codec.physical_rest({"cache_salt": f"{prefill.request_id}.x"[-SALT_CHARS_MAX:]}),
        request_id=f"{prefill.request_id}.x",
        stream=False,
        kv=ticket.params,
    )
    with trio.CancelScope(shield=True, deadline=trio.current_time() + RELEASE_S):
        for decode in decodes:
            if await services.engines.ask(decode.url + GENERATE_PATH, body):
                return True
    return False
