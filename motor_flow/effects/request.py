"""What does a request do in each state of its machine?

Source: RFC 请求生命周期; contract section 7.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import trio

from machines import REQUEST
from machines.context import TokenizedPrompt
from motor_flow.derender.answer import client_answer
from motor_flow.derender.normalise import ChatNormaliser, TextNormaliser, role_choice
from motor_flow.derender.session import ChunkDerenderer, derender_whole, slim_request
from motor_flow.derender.usage import encoded_usage, usage_object
from motor_flow.effects.context import Barrier, Leg, RequestRun, StreamRun
from motor_flow.effects.leg import fetch_whole_leg, read_stream_leg
from motor_flow.effects.native import native_answer
from motor_flow.effects.stream import derender_errors_logged, drive
from motor_flow.engine.token_only import leg_id
from motor_flow.errors import ClientError, ScheduleError
from motor_flow.flow import Effects
from motor_flow.render.route import decide
from motor_flow.telemetry.log import get_logger

SSE_MEDIA_TYPE = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"

request_effects: Effects[RequestRun] = Effects(REQUEST)
_encode = msgspec.json.encode
_log = get_logger()


# --- rendering ------------------------------------------------------------------------------------


@request_effects.on("rendering")
async def render(run: RequestRun) -> Literal["rendered"]:
    """Choose the route, and get the request's tokens from Render."""
    envelope, services = run.envelope, run.services
    run.stream = envelope.stream
    run.include_usage, run.continuous_usage = envelope.include_usage, envelope.continuous_usage
    decision = decide(envelope, run.capability, stream=run.stream)
    if decision.render:
        run.tokens = await services.render.render(
            envelope, headers={**run.headers, "x-request-id": run.identity.engine_base}
        )
        # Render read the request as an engine would: its view of these is the right one.
        run.stream = run.tokens.stream
        run.include_usage, run.continuous_usage = run.tokens.include_usage, run.tokens.continuous_usage
        decision = decide(envelope, run.capability, stream=run.stream)
    run.route, run.native_reason = decision.route, decision.reason
    _refuse_too_many(run)
    run.marks.rendered = trio.current_time()
    if run.tokens is not None:
        _log.info(
            "render.ok",
            request_id=run.identity.request_id,
            model=envelope.model,
            prompts=len(run.tokens.prompts),
            tokens=run.prompt_tokens,
            latency_ms=round((run.marks.rendered - run.marks.arrived) * 1e3, 1),
            tokenizer_source=run.tokens.source,
            route=run.route,
            reason=run.native_reason,
        )
    return "rendered"


def _refuse_too_many(run: RequestRun) -> None:
    """Every choice of every prompt is a stream with a state of its own; a small body can ask for millions."""
    tokens, limit = run.tokens, run.services.choices_max
    asked = run.envelope.n * run.envelope.prompts if tokens is None else sum(prompt.n for prompt in tokens.prompts)
    if asked > limit:
        raise ClientError(f"at most {limit} choices (prompts x n) are served in one request")


# --- admitted -------------------------------------------------------------------------------------


@request_effects.on("admitted")
async def admit(_: RequestRun) -> Literal["granted"]:
    """Every request is granted at once."""
    await trio.lowlevel.checkpoint()
    return "granted"


# --- scheduled ------------------------------------------------------------------------------------


@request_effects.on("scheduled")
async def schedule(run: RequestRun) -> Literal["placed"]:
    """Reserve an instance for each leg of a new attempt, and make everything that belongs to the attempt."""
    await trio.lowlevel.checkpoint()
    run.attempt += 1
    run.legs = []
    if run.route == "token_only":
        assert run.tokens is not None
        slim = _encode(slim_request(run.envelope.fields, chat=run.chat)) if run.stream else b""
        for prompt in run.tokens.prompts:
            streams = _streams(run, prompt, slim) if run.stream else []
            run.streams += streams
            run.legs.append(_leg(run, prompt, streams))
    else:
        run.legs.append(_leg(run, None, []))
    if run.stream and run.envelope.api != "other":
        run.barrier = Barrier(len(run.legs))
    run.marks.placed = trio.current_time()
    return "placed"


def _leg(run: RequestRun, prompt: TokenizedPrompt | None, streams: list[StreamRun]) -> Leg:
    services, index = run.services, len(run.legs)
    candidates = services.registry.of_role("union")
    if not candidates:
        there = ", ".join(instance.name for instance in services.registry) or "none"
        raise ScheduleError(
            "no engine instance can serve this request", retry_after_s=1, detail=f"registered instances: {there}"
        )
    instance = services.policy.choose("union", candidates)
    run.held.enter_context(services.leases.hold("instance_slots"))
    return Leg(
        index=index,
        instance=instance,
        request_id=leg_id(run.identity.engine_base, run.attempt, index),
        prompt=prompt,
        streams=streams,
    )


def _streams(run: RequestRun, prompt: TokenizedPrompt, slim: bytes) -> list[StreamRun]:
    """One stream for each choice of a prompt; the client's index is prompt * n + choice."""
    envelope, services = run.envelope, run.services
    derenderer = ChunkDerenderer(
        services.derender,
        chat=run.chat,
        request=slim,
        model=envelope.model,
        ids=prompt.ids,
        parser=run.capability.parser,
    )
    wants_ids = envelope.flag("return_token_ids")
    first = len(run.streams)
    return [
        StreamRun(
            request=run,
            prompt=prompt,
            index=first + choice,
            choice=choice,
            emit=run.responder.put,
            derenderer=derenderer,
            chat=ChatNormaliser(first + choice, services.reasoning_field) if run.chat else None,
            text=None if run.chat else TextNormaliser(first + choice),
            prompt_ids=_encode(prompt.ids) if wants_ids and choice == 0 else b"",
        )
        for choice in range(prompt.n)
    ]


# --- generating -----------------------------------------------------------------------------------


@request_effects.on("generating")
async def generate(run: RequestRun) -> Literal["generated", "streamed", "answered"]:
    """Run the legs, and the streams beside them, in one nursery: whatever ends one of them badly ends all."""
    run.engine_asked = True
    async with trio.open_nursery() as nursery:
        if run.barrier is not None:
            nursery.start_soon(_seal_when_ready, run, run.barrier)
        for leg in run.legs:
            if run.route == "native":
                nursery.start_soon(native_answer, run, leg)
            elif run.stream:
                nursery.start_soon(read_stream_leg, run, leg)
            else:
                nursery.start_soon(fetch_whole_leg, run, leg)
        for stream in run.streams:
            nursery.start_soon(drive, stream)
    if run.route == "native":
        return "answered"
    return "streamed" if run.stream else "generated"


async def _seal_when_ready(run: RequestRun, barrier: Barrier) -> None:
    """HTTP 200 once every engine stream has answered; see `Barrier`."""
    await barrier.all_heads.wait()
    if run.services.keep_alive_s:
        with trio.move_on_after(run.services.keep_alive_s):
            await barrier.all_firsts.wait()
    else:
        await barrier.all_firsts.wait()
    run.responder.seal(_role_events(run), SSE_MEDIA_TYPE)
    barrier.open.set()


def _role_events(run: RequestRun) -> bytes:
    """The first events of a chat: the roles of all choices, in order. Prompt ids go out once, with the first."""
    if not run.chat or run.route == "native":
        return b""
    events = []
    for stream in run.streams:
        usage = encoded_usage(len(stream.prompt.ids), 0) if run.continuous_usage else None
        top = b',"prompt_token_ids":%b' % stream.prompt_ids if stream.prompt_ids else b""
        events.append(run.frame.event(role_choice(stream.index), usage, top))
    return b"".join(events)


# --- derendering ----------------------------------------------------------------------------------


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
        leg.whole = b""
    return "derendered"


# --- committed ------------------------------------------------------------------------------------


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


# --- the end --------------------------------------------------------------------------------------


@request_effects.final("completed", "failed", "cancelled")
async def settle(run: RequestRun) -> None:
    """Give back what the request holds. The nurseries have closed every engine stream already."""
    run.held.close()
    await trio.lowlevel.checkpoint()


request_effects.beyond_deadline("committed")  # a client that reads too slowly is the server's business
request_effects.seal()
