"""What does one engine leg do, from its request to its last token?

Coarse on purpose: a leg opens one engine stream and feeds the inboxes of its choices, or fetches one whole answer. It
has no per-chunk states; those belong to the streams. It does not raise for an engine's failure while streaming: the
fault goes into the inboxes, behind the tokens that came before it.

Source: RFC Generate 阶段; vLLM 0.33 scale_out/token_in_token_out/serving.py; contract section 7.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Literal

import msgspec
import trio

from machines.faults import Fault
from machines.tokens import SemanticIds, SemanticJson
from motor_flow.derender.coalesce import apart, split
from motor_flow.derender.endings import names_an_end, unnamed
from motor_flow.effects.context import Leg, RequestRun
from motor_flow.effects.inbox import Event
from motor_flow.engine.client import ENGINE, EngineClient, may_miss_tokenizer, read_whole, refuses_stops
from motor_flow.engine.events import EventReader, silent
from motor_flow.engine.token_only import GENERATE_PATH, generate_body
from motor_flow.engine.transfer import one_token, without_stops
from motor_flow.engine.vigil import while_alive
from motor_flow.engine.wire import ChunkChoice, ErrorObject, decode_chunk, decode_prefill, decode_whole
from motor_flow.errors import UNREADABLE, EngineError
from motor_flow.net.http1 import Exchange, Reply
from motor_flow.obfuscation.codec import TokenCodec
from motor_flow.render.capability import EXACT_SINCE
from motor_flow.telemetry.log import get_logger

GOOD_FINISHES = frozenset({"stop", "length", "repetition", "tool_calls"})  # the last one on the native route only
ABANDON_S = 1.0
RECOMPUTED = "recomputed"  # vllm-ascend: the engine gave up the request's KV; what came so far is not an end
_log = get_logger()


async def read_stream_leg(run: RequestRun, leg: Leg) -> None:
    """Feed the inboxes of the leg's choices until each has finished or the engine has failed."""
    try:
        with accounted(run, leg):
            await _pump(run, leg)
    except EngineError as fault:
        if run.barrier is not None and not run.barrier.decided:
            raise  # nothing is on its way to the client that would have to come first
        for inbox in leg.inboxes:
            inbox.fail(fault)


async def _pump(run: RequestRun, leg: Leg) -> None:
    services, barrier = run.services, run.barrier
    asked_at = leg.since
    left_s = max(0.0, asked_at + services.patience.first_event_s - trio.current_time())
    assert barrier is not None
    markers = run.capability.markers if run.chat else None
    async with _answering(run, leg, head_timeout_s=left_s) as exchange:
        barrier.head(leg.prompt)
        reader = EventReader(exchange, services.patience, asked_at)
        late: list[bytes] = []
        with _while_wanted(leg):
            while not leg.is_finished():
                events = await reader.next()
                if not events:
                    raise ended()
                if run.marks.first_event is None:
                    run.marks.first_event = trio.current_time()
                for number, event in enumerate(events):
                    if leg.is_finished():
                        late = events[number:]  # behind the last finish: the engine's usage, and no failure counts
                        break
                    _dispatch(services.codec, leg, event, markers)
                    barrier.first(leg.prompt)
                redeem(leg)
                for inbox in leg.inboxes:
                    await inbox.room()
        if any(inbox.left for inbox in leg.inboxes):
            return  # the engine would go on: it learns that we have left
        with suppress(EngineError):
            for event in [*late, *await reader.rest()]:
                _dispatch(services.codec, leg, event, markers)


@asynccontextmanager
async def _answering(run: RequestRun, leg: Leg, head_timeout_s: float | None = None) -> AsyncIterator[Exchange]:
    """The engine's answer. One that refuses to look for stop strings is asked without them, now and from now on."""
    instance, engines = leg.instance, run.services.engines
    assert leg.plan is not None
    leg.ends = None if run.capability.before(EXACT_SINCE) else leg.plan.sampling.get("stop_token_ids") or ()
    headers = leg_headers(run, leg)

    async def asked(stack: AsyncExitStack) -> Exchange:
        leg.blind = instance.tokenizer is False
        for inbox in leg.inboxes:
            inbox.blind = leg.blind
        answer = engines.open(
            instance.url + GENERATE_PATH, _body(run, leg), headers=headers, head_timeout_s=head_timeout_s
        )
        return await stack.enter_async_context(answer)

    async with by_tokenizer(run, leg), AsyncExitStack() as stack:
        try:
            exchange = await asked(stack)
        except EngineError as refusal:
            if leg.blind or not leg.plan.sampling.get("stop") or not refuses_stops(refusal):
                raise
            run.services.tokenizers.refused(instance)
            exchange = await asked(stack)
        yield exchange


@asynccontextmanager
async def by_tokenizer(run: RequestRun, leg: Leg) -> AsyncIterator[None]:
    """For a leg whose engine may need a tokenizer. One that has none fails it and is well: another one may do it.

    What it says then is no more than a hint: 500 without a message, or a refusal that a client's words may stand in.
    """
    instance = leg.instance
    try:
        yield
    except EngineError as error:
        if not leg.wanted.tokenizer or not may_miss_tokenizer(error):
            raise
        await run.services.tokenizers.ask(instance)
        if instance.tokenizer is not False:
            raise
        message = "the engine has no tokenizer (--tokens-only)"
        raise EngineError(message, fault=Fault.UNSUPPORTED, status=501) from error


@contextmanager
def _while_wanted(leg: Leg) -> Iterator[None]:
    """Ends early when every choice has ended here, although the engine has not finished it."""

    def left() -> None:
        if leg.is_finished():
            scope.cancel()

    for inbox in leg.inboxes:
        inbox.on_leave = left
    with trio.CancelScope() as scope:
        yield


def _body(run: RequestRun, leg: Leg, *, answers: bool = True) -> bytes:
    """A token-only request: for the answer, or for the prompt's KV alone."""
    prompt = run.prompts[leg.prompt].prompt
    assert prompt is not None
    assert leg.plan is not None
    codec, sampling = run.services.codec, leg.plan.sampling
    if not answers:
        sampling = one_token(sampling)
    elif leg.blind:
        sampling = without_stops(sampling)
    return generate_body(
        codec.physical(leg.plan.ids),
        codec.physical_sampling(sampling),
        codec.physical_rest(prompt.rest),
        request_id=leg.request_id,
        stream=answers and run.stream,
        kv=leg.kv,
    )


def _dispatch(codec: TokenCodec, leg: Leg, received: bytes, markers: frozenset[int] | None) -> None:
    try:
        raw = codec.semantic_event(received)
        chunk = decode_chunk(raw)
    except UNREADABLE as exc:
        raise EngineError("the engine sent an event that cannot be read", detail=str(exc)) from None
    if chunk.error is not None:
        raise reported(chunk.error)
    if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
        leg.cached_tokens = chunk.usage.prompt_tokens_details.cached_tokens
    choices = chunk.choices
    if len(choices) == 1:
        _deliver(leg, choices[0], raw, markers)
    elif choices:
        for choice, part in zip(choices, split(raw), strict=True):
            _deliver(leg, choice, part, markers)


def _deliver(leg: Leg, choice: ChunkChoice, raw: SemanticJson, markers: frozenset[int] | None) -> None:
    if not 0 <= choice.index < len(leg.inboxes):
        raise EngineError(f"the engine sent choice {choice.index} of {len(leg.inboxes)}")
    check_finish(choice.finish_reason, choice.stop_reason)
    inbox = leg.inboxes[choice.index]
    if inbox.left:
        return
    if inbox.finished:
        raise EngineError(f"the engine went on with choice {choice.index} after its finish reason")
    if leg.ends is not None and names_an_end(choice.stop_reason, leg.ends):
        raw = unnamed(raw, leg.ends)
    ids = SemanticIds(choice.token_ids or [])
    leg.completion_tokens += len(ids)
    finish = choice.finish_reason
    parts = [(raw, ids)] if markers is None else apart(raw, ids, markers, ended=finish is not None)
    for number, (part, some) in enumerate(parts, 1):
        end = finish if number == len(parts) else None
        if end is None:
            lone = markers is not None and not markers.isdisjoint(some)
        else:
            # vLLM's parsers complete a call that came in the last delta: what came before it must not be merged into
            # that. Nor into the token that completed a stop string: where it ends would not be known.
            lone = markers is not None or isinstance(choice.stop_reason, str)
        inbox.put(Event(part, some, end, lone))


async def prefill_leg(run: RequestRun, leg: Leg) -> dict[str, Any]:
    """Have the prompt read on an engine that will hand its KV over; returns what it says.

    Raises:
        EngineError: it failed or refused.

    """
    services, done = run.services, False
    try:
        with accounted(run, leg):
            with trio.move_on_after(services.patience.first_event_s):
                async with (
                    by_tokenizer(run, leg),
                    services.engines.open(
                        leg.instance.url + GENERATE_PATH, _body(run, leg, answers=False), headers=leg_headers(run, leg)
                    ) as exchange,
                ):
                    answer = _prefilled(leg, await read_whole(exchange))
                done = True
                return answer
            raise silent(services.patience.first_event_s)
    finally:
        if not done:  # it may hold KV by now that nobody knows of
            run.services.errands.send(abandon, run.services.engines, leg)


def _prefilled(leg: Leg, body: bytes) -> dict[str, Any]:
    try:
        answer = decode_prefill(body)
        fields: dict[str, Any] = msgspec.json.decode(body)
    except UNREADABLE as exc:
        raise EngineError("the engine gave an answer that cannot be read", detail=str(exc)) from None
    for choice in answer.choices:
        check_finish(choice.finish_reason, choice.stop_reason)
    if answer.usage is not None and answer.usage.prompt_tokens_details is not None:
        leg.cached_tokens = answer.usage.prompt_tokens_details.cached_tokens or 0
    return fields


async def abandon(engines: EngineClient, leg: Leg) -> bool:
    """Tell an engine that nobody waits for this leg. Bounded, also when everything around it is cancelled.

    By the leg's whole name inside the engine, prefix included: nothing else is found there.
    """
    with trio.CancelScope(shield=True, deadline=trio.current_time() + ABANDON_S):
        return await engines.abort(leg.instance.url, [f"generate-tokens-{leg.request_id}"])
    return False


async def fetch_whole_leg(run: RequestRun, leg: Leg) -> None:
    """Fetch the engine's complete answer for one prompt.

    Raises:
        EngineError: it failed, refused, or its answer is not complete.

    """
    services, url = run.services, leg.instance.url
    with accounted(run, leg):
        await while_alive(services.engines, url, services.patience.stall_s, partial(_fetch, run, leg))


async def _fetch(run: RequestRun, leg: Leg) -> None:
    async with _answering(run, leg) as exchange:
        whole = await read_whole(exchange)
        redeem(leg)
    prompt = run.prompts[leg.prompt].prompt
    assert prompt is not None
    _take_whole(run.services.codec, leg, whole, wanted=prompt.n)


def _take_whole(codec: TokenCodec, leg: Leg, received: bytes, *, wanted: int) -> None:
    try:
        whole = codec.semantic_event(received)
        answer = decode_whole(whole)
    except UNREADABLE as exc:
        raise EngineError("the engine gave an answer that cannot be read", detail=str(exc)) from None
    indexes = sorted(choice.index for choice in answer.choices)
    if indexes != list(range(wanted)):
        raise EngineError(f"the engine answered choices {indexes} of {wanted}")
    for choice in answer.choices:
        check_finish(choice.finish_reason or "no reason", choice.stop_reason)
    leg.completion_tokens = sum(len(choice.token_ids or ()) for choice in answer.choices)
    if answer.usage is not None and answer.usage.prompt_tokens_details is not None:
        leg.cached_tokens = answer.usage.prompt_tokens_details.cached_tokens
    if leg.ends is not None and any(names_an_end(choice.stop_reason, leg.ends) for choice in answer.choices):
        whole = unnamed(whole, leg.ends)
    leg.whole = whole


@contextmanager
def accounted(run: RequestRun, leg: Leg) -> Iterator[None]:
    """One leg, from its request to its end: what it holds, its metric and its line in the log."""
    services = run.services
    outcome: Literal["ok", "failed"] | None = None
    error: EngineError | None = None
    try:
        with leg.instance.serving(), services.leases.hold("producers"), services.leases.hold("engine_streams"):
            yield
        outcome = "ok"
    except EngineError as exc:
        outcome, error = "failed", exc
        leg.error = exc
        raise
    finally:
        if outcome is not None:  # a cancelled leg is its request's line, not one of its own
            services.metrics.attempts[leg.instance.role, outcome].inc()
        fields = {} if error is None else {"fault": error.fault.value, "status": error.status, "detail": error.detail}
        say = _log.warning if outcome == "failed" else _log.info
        say(
            "engine.leg",
            request_id=run.identity.request_id,
            phase=leg.instance.role,
            instance=leg.instance.name,
            attempt=leg.attempt,
            prompt=leg.prompt,
            route=run.route,
            outcome=outcome or "cancelled",
            tokens=leg.completion_tokens,
            placement=leg.reason,
            **fields,
        )


def redeem(leg: Leg) -> None:
    """The engine has answered: it has the KV."""
    if leg.ticket is not None:
        leg.ticket.used = True


def leg_headers(run: RequestRun, leg: Leg) -> dict[str, str]:
    """vLLM takes this header before the body's request_id: both carry the leg's own id."""
    return {**run.headers, "x-request-id": leg.request_id}


def check_finish(finish: str | None, stop_reason: int | str | None) -> None:
    """HTTP 200, `[DONE]` and a finish reason are not success: an aborted or recomputed request has all three.

    Raises:
        EngineError: the engine ended the request without finishing it.

    """
    if finish is None:
        return
    if finish not in GOOD_FINISHES:
        raise EngineError(f"the engine ended the request with finish reason {finish!r}", fault=Fault.ABORTED)
    if stop_reason == RECOMPUTED:
        raise EngineError("the engine gave the request up to recompute it", fault=Fault.RECOMPUTED)


def ended() -> EngineError:
    """The body ended as if all were well."""
    return EngineError("the engine's stream ended without a finish reason", fault=Fault.ENDED)


def reported(error: ErrorObject) -> EngineError:
    """An error event inside HTTP 200: vLLM reports so what it finds late, a bad request as well as its own death."""
    code = error.code if isinstance(error.code, int) else 500
    return ENGINE.refusal(Reply(code, [], msgspec.json.encode({"error": error})))
