"""How does a whole answer become the client's, and how does any answer end?

Source: RFC Derender 阶段; contract section 3.
"""

from __future__ import annotations

from typing import Literal

import trio

from motor_flow.derender.answer import client_answer
from motor_flow.derender.session import derender_whole
from motor_flow.derender.usage import encoded_usage, usage_object
from motor_flow.effects.context import NOTHING, RequestRun
from motor_flow.effects.registered import request_effects
from motor_flow.effects.stream import derender_errors_logged

DONE = b"data: [DONE]\n\n"


@request_effects.on("derendering")
async def derender(run: RequestRun) -> Literal["derendered"]:
    """All whole answers of the request in one call."""
    services, tokens = run.services, run.tokens
    assert tokens is not None
    with services.metrics.derender_whole(), derender_errors_logged(run):
        body = await derender_whole(
            services.derender,
            chat=run.chat,
            fields=run.envelope.fields,
            model=run.envelope.model,
            prompts=[prompt.ids for prompt in tokens.prompts],
            answers=[leg.whole for leg in run.legs],
        )
        run.pending_answer = client_answer(
            body,
            identity=run.identity.response_id,
            created=run.identity.created,
            model=services.shown_model(run.envelope.model),
            usage=usage_object(run.prompt_tokens, run.completion_tokens, run.cached_tokens),
            choices=sum(prompt.n for prompt in tokens.prompts),
            reasoning_field=services.reasoning_field,
        )
    for leg in run.legs:
        leg.whole = NOTHING
    return "derendered"


@request_effects.on("committed")
async def deliver(run: RequestRun) -> Literal["delivered"]:
    """Send what is left: the whole answer, or the end of the stream."""
    responder = run.responder
    if not responder.sealed:
        assert run.answer is not None
        await responder.answer(run.status, run.answer, run.media_type)
        return "delivered"
    tail = b""
    if run.route == "token_only" and run.include_usage:
        usage = encoded_usage(run.prompt_tokens, run.completion_tokens, run.cached_tokens)
        tail = run.frame.event(b"", usage)
    if run.envelope.api != "other":
        tail += DONE
    await responder.finish(tail)
    return "delivered"


@request_effects.final("completed", "failed", "cancelled")
async def settle(run: RequestRun) -> None:
    """Give back what the request holds. The nurseries have closed every engine stream already."""
    run.held.close()
    await trio.lowlevel.checkpoint()
