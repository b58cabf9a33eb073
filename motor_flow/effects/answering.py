"""How does a whole answer become the client's, and how does any answer end?

Source: RFC Derender 阶段; contract section 3.
"""

from __future__ import annotations

from typing import Literal

import trio

from machines.tokens import Thought
from motor_flow.derender.answer import Derendered, client_answer, read_answer
from motor_flow.derender.late_stops import LateStops
from motor_flow.derender.reasoning import reasoning_tokens
from motor_flow.derender.session import derender_whole
from motor_flow.derender.stops import StopStrings
from motor_flow.derender.usage import encoded_usage, usage_object
from motor_flow.effects.context import NOTHING, Leg, RequestRun
from motor_flow.effects.registered import request_effects
from motor_flow.effects.stream import derender_errors_logged
from motor_flow.engine.wire import decode_whole

DONE = b"data: [DONE]\n\n"


@request_effects.on("derendering")
async def derender(run: RequestRun) -> Literal["derendered"]:
    """All whole answers of the request in one call."""
    services, tokens = run.services, run.tokens
    assert tokens is not None
    with services.metrics.derender_whole(), derender_errors_logged(run):
        for leg in run.legs:
            if leg.blind:
                await _cut_at_stops(run, leg)
        body = await derender_whole(
            services.derender,
            chat=run.chat,
            fields=run.envelope.fields,
            model=run.envelope.model,
            prompts=[prompt.ids for prompt in tokens.prompts],
            answers=[leg.whole for leg in run.legs],
        )
        answer = read_answer(body, choices=sum(prompt.n for prompt in tokens.prompts))
        if run.thought is not None:
            run.whole_reasoning = _count_reasoning(run, run.thought, answer)
        run.pending_answer = client_answer(
            answer,
            identity=run.identity.response_id,
            created=run.identity.created,
            model=services.shown_model(run.envelope.model),
            usage=usage_object(run.prompt_tokens, run.completion_tokens, run.cached_tokens, run.reasoning_tokens),
            reasoning_field=services.reasoning_field,
            role=run.envelope.role,
        )
    for leg in run.legs:
        leg.whole = NOTHING
    return "derendered"


def _count_reasoning(run: RequestRun, thought: Thought, answer: Derendered) -> int:
    """Of a chat: all its choices come from one engine answer."""
    generated = {choice.index: choice for choice in decode_whole(run.legs[0].whole).choices}
    prompt = run.prompts[0].prompt
    assert prompt is not None
    count = 0
    for choice in answer.choices:
        came, shown = generated[choice.index], choice.shown
        shown.finish(came.finish_reason, came.stop_reason)
        count += reasoning_tokens(prompt.ids, came.token_ids or (), thought, shown, hidden=run.hides_reasoning)
    return count


async def _cut_at_stops(run: RequestRun, leg: Leg) -> None:
    """What its engine could not do."""
    prompt = run.prompts[leg.prompt].prompt
    assert prompt is not None
    stops = StopStrings.of(prompt.sampling)
    if stops is not None:
        late = LateStops(run.services.derender, stops, prompt.ids, prompt.sampling, run.envelope.model)
        leg.whole, leg.completion_tokens = await late.cut(leg.whole)


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
        usage = encoded_usage(run.prompt_tokens, run.completion_tokens, run.cached_tokens, run.reasoning_tokens)
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
