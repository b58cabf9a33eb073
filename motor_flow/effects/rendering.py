"""How does a request get its tokens?

From Render. When Render cannot be used, from the local tokenizer, which can only count: the engine then renders the
request itself, on the native route.

Source: RFC Render 阶段, Render Token In fallback.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import trio

from machines.replay import caveats
from motor_flow.derender.normalise import ChatNormaliser, TextNormaliser
from motor_flow.derender.session import ChunkDerenderer, slim_request
from motor_flow.derender.stops import StopStrings
from motor_flow.effects.context import PromptRun, RequestRun, StreamRun
from motor_flow.effects.registered import request_effects
from motor_flow.errors import ClientError, RenderDown
from motor_flow.obfuscation.limits import natively
from motor_flow.render.budget import OutputBudget
from motor_flow.render.route import Decision, decide
from motor_flow.telemetry.log import get_logger

_encode = msgspec.json.encode
_log = get_logger()


@request_effects.on("rendering", render_down=RenderDown)
async def render(run: RequestRun) -> Literal["rendered", "bypassed"]:
    """Choose the route, and get the request's tokens from Render."""
    envelope, services = run.envelope, run.services
    run.stream = envelope.stream
    run.include_usage, run.continuous_usage = envelope.include_usage, envelope.continuous_usage
    if services.context_budget:
        run.budget = OutputBudget.of(envelope, services.context_tokens())
    decision = _decide(run)
    if decision.render:
        try:
            run.tokens = await services.render.render(
                envelope, headers={**run.headers, "x-request-id": run.identity.engine_base}, budget=run.budget
            )
        except RenderDown as down:
            run.native_reason = f"render is {services.metrics.fallback(down.fault)}"
            run.render_fault = down.fault
            if run.obfuscated:  # nobody else may read it
                raise RenderDown.and_needed("token obfuscation allows", down.fault, down.detail) from down
            raise
        # Render read the request as an engine would: its view of these is the right one.
        run.stream = run.tokens.stream
        run.include_usage, run.continuous_usage = run.tokens.include_usage, run.tokens.continuous_usage
        decision = _decide(run)
    run.native_reason = decision.reason
    _refuse_too_many(run)
    _tell_cut(run)
    run.marks.rendered = trio.current_time()
    if run.tokens is not None:
        _log_tokens("render.ok", run, route=decision.route)
    if decision.route == "native":
        return "bypassed"
    assert run.tokens is not None
    for prompt in run.tokens.prompts:
        services.codec.admit(prompt, own_ids=run.envelope.gives_ids)
    run.prompts = _prompts(run)
    return "rendered"


def _decide(run: RequestRun) -> Decision:
    """The route of the first attempt. Engines that must not read requests have no native one."""
    decision = decide(run.envelope, run.capability, stream=run.stream)
    if run.obfuscated and decision.route == "native":
        raise natively(decision.reason)
    return decision


def _refuse_too_many(run: RequestRun) -> None:
    """Every choice of every prompt is a stream with a state of its own; a small body can ask for millions."""
    tokens, limit = run.tokens, run.services.choices_max
    asked = run.envelope.n * run.envelope.prompts if tokens is None else sum(prompt.n for prompt in tokens.prompts)
    if asked > limit:
        raise ClientError(f"at most {limit} choices (prompts x n) are served in one request")


def _tell_cut(run: RequestRun) -> None:
    """A client that gets less than it asked for is told so."""
    if run.budget is not None and run.tokens is not None:
        left = run.budget.cut(run.tokens.prompts)
        if left is not None:
            run.responder.warn(f"{run.budget.key}: the context leaves {left}")


def _prompts(run: RequestRun) -> list[PromptRun]:
    """One for each prompt, and one stream for each of its choices; the client's index is prompt * n + choice."""
    assert run.tokens is not None
    prompts = [PromptRun(prompt, index=index) for index, prompt in enumerate(run.tokens.prompts)]
    if not run.stream:
        return prompts
    slim = _encode(slim_request(run.envelope.fields, chat=run.chat))
    first = 0
    for prompt in prompts:
        prompt.streams = _streams(run, prompt, slim, first)
        first += len(prompt.streams)
    for caveat in caveats(run.tokens.prompts[0]):
        run.responder.warn(caveat)
    return prompts


def _streams(run: RequestRun, prompt: PromptRun, slim: bytes, first: int) -> list[StreamRun]:
    envelope, services, tokens = run.envelope, run.services, prompt.prompt
    assert tokens is not None
    derenderer = ChunkDerenderer(
        services.derender,
        chat=run.chat,
        request=slim,
        model=envelope.model,
        ids=tokens.ids,
        parser=run.capability.parser,
    )
    stops = StopStrings.of(tokens.sampling)
    wants_ids = envelope.flag("return_token_ids")
    return [
        StreamRun(
            request=run,
            prompt=tokens,
            index=first + choice,
            choice=choice,
            emit=run.responder.put,
            derenderer=derenderer,
            chat=ChatNormaliser(first + choice, services.reasoning_field) if run.chat else None,
            text=None if run.chat else TextNormaliser(first + choice),
            stops=stops,
            prompt_ids=_encode(tokens.ids) if wants_ids and (choice == 0 or not run.chat) else b"",
        )
        for choice in range(tokens.n)
    ]


@request_effects.on("localizing")
async def localize(run: RequestRun) -> Literal["localized"]:
    """Count tokens without Render, as far as that is possible: the route does not depend on it."""
    run.tokens = await run.services.local.tokenize(run.envelope)
    _refuse_too_many(run)
    _tell_cut(run)
    run.marks.rendered = trio.current_time()
    _log_tokens("render.fallback", run, route=run.route, fallback="local_tokenizer")
    return "localized"


def _log_tokens(event: str, run: RequestRun, **more: str) -> None:
    assert run.marks.rendered is not None
    tokens = run.tokens
    _log.info(
        event,
        request_id=run.identity.request_id,
        model=run.envelope.model,
        prompts=len(tokens.prompts) if tokens is not None else None,
        tokens=run.prompt_tokens if tokens is not None else None,
        latency_ms=round((run.marks.rendered - run.marks.arrived) * 1e3, 1),
        tokenizer_source=tokens.source if tokens is not None else None,
        reason=run.native_reason,
        **more,
    )
