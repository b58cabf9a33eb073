"""How does an engine answer in OpenAI form itself, on the native route?

For requests that the chain cannot answer, for a process without Render, and for routes that only engines know. The
engine's events and answers keep their content; the id is ours, KV parameters are removed, nulls that no client
wants are dropped, and an end without a finish reason is a failure here as anywhere.

Source: RFC 能力范围 (原生链路); contract sections 3 and 7 (Route, Pass-through).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec
import trio
from msgspec import Raw

from machines.faults import Fault
from motor_flow.derender.normalise import clean_delta, rename_reasoning
from motor_flow.effects.context import Leg, RequestRun
from motor_flow.effects.leg import accounted, by_tokenizer, check_finish, ended, leg_headers, reported
from motor_flow.engine.client import read_whole
from motor_flow.engine.events import EventReader
from motor_flow.engine.vigil import while_alive
from motor_flow.engine.wire import ErrorObject, Usage
from motor_flow.errors import UNREADABLE, EngineError
from motor_flow.net.transfer import TRANSFER_KEYS, without_transfer
from motor_flow.render.envelope import peek

EVENT_STREAM = b"text/event-stream"
_TOP_NULLS = frozenset({"usage", "prompt_token_ids"})
_CHOICE_NULLS = frozenset({"finish_reason", "logprobs", "stop_reason", "token_ids", "prompt_token_ids"})
_encode = msgspec.json.encode


class _Finish(msgspec.Struct):
    index: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class _Peek(msgspec.Struct):
    choices: list[_Finish] | None = None
    error: ErrorObject | None = None
    usage: Usage | None = None


_read = msgspec.json.Decoder(_Peek).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode
_fields = msgspec.json.Decoder(dict[str, Raw]).decode


def native_body(run: RequestRun, leg: Leg) -> bytes:
    """The client's own request under the leg's id. Streams always ask for usage, for our own count."""
    if run.obfuscated:
        raise RuntimeError("an obfuscated request is about to leave in clear")
    fields: dict[str, object] = dict(run.envelope.fields)
    if run.envelope.api == "other":
        return _encode(fields)
    fields["request_id"] = leg.request_id
    if run.budget is not None and run.tokens is not None:
        fields |= run.budget.for_engine(run.tokens.prompts)
    raw = run.envelope.fields.get("stream_options", Raw(b"null"))
    if run.stream and bytes(raw)[:1] in (b"{", b"n"):  # anything else is refused by the engine, with its own words
        fields["stream_options"] = {**peek(raw, dict[str, Any], {}), "include_usage": True}
    return _encode(fields)


async def native_answer(run: RequestRun, leg: Leg) -> None:
    """One engine call in OpenAI form, streamed into the client's channel or put into `run.pending_answer`.

    Raises:
        EngineError: the engine refused or failed.

    """
    services, url = run.services, leg.instance.url
    with accounted(run, leg):
        async with by_tokenizer(run, leg):
            if run.stream:
                await _answer(run, leg)
            else:
                await while_alive(services.engines, url, services.patience.stall_s, partial(_answer, run, leg))


async def _answer(run: RequestRun, leg: Leg) -> None:
    services = run.services
    asked_at = trio.current_time()
    async with services.engines.open(
        leg.instance.url + run.path,
        native_body(run, leg),
        headers=leg_headers(run, leg),
        head_timeout_s=services.patience.first_event_s if run.stream else None,
    ) as exchange:
        media_type = next((v for k, v in exchange.headers if k.lower() == b"content-type"), b"application/json")
        streams = media_type.lower().startswith(EVENT_STREAM)
        if run.envelope.api == "other":
            run.media_type = media_type.decode("latin-1")
            if streams:
                await _pass_through(run, EventReader(exchange, services.patience, asked_at, whole=True))
            else:
                run.status = exchange.status
                run.pending_answer = _hidden(await read_whole(exchange))
        elif not run.stream:
            _take_whole(run, leg, await read_whole(exchange))
        elif not streams:
            raise EngineError("the engine answered a stream request without a stream")
        else:
            await _relay_events(run, leg, EventReader(exchange, services.patience, asked_at))


async def _pass_through(run: RequestRun, reader: EventReader) -> None:
    """Events of a route whose meaning only engine and client know: its end is the end of the body."""
    run.stream = True
    seen = False
    while events := await reader.next():
        if not run.responder.sealed:
            run.responder.seal(b"", run.media_type)
        await run.responder.reserve()
        run.show(b"".join(b"%b\n\n" % event for event in events), visible=True)
        seen = True
    if not seen:
        raise EngineError("the engine's stream ended without any event", fault=Fault.ENDED)


def _hidden(body: bytes) -> bytes:
    """A JSON object without transfer parameters; anything else as it is."""
    try:
        fields = _fields(body)
    except UNREADABLE:
        return body
    return body if TRANSFER_KEYS.isdisjoint(fields) else _encode(without_transfer(fields))


def _take_whole(run: RequestRun, leg: Leg, body: bytes) -> None:
    try:
        seen = _read(body)
        answer = without_transfer(_object(body))
    except UNREADABLE as exc:
        raise EngineError("the engine gave an answer that cannot be read", detail=str(exc)) from None
    choices = sorted(choice.index for choice in seen.choices or ())
    wanted = run.envelope.n * run.envelope.prompts
    if choices != list(range(wanted)):
        raise EngineError(f"the engine answered {len(choices)} choices of {wanted}")
    for choice in seen.choices or ():
        check_finish(choice.finish_reason or "no reason", choice.stop_reason)
    _count(leg, seen.usage)
    answer["id"] = run.identity.response_id
    for choice in answer.get("choices") or ():
        if isinstance(choice, dict) and isinstance(message := choice.get("message"), dict):
            rename_reasoning(message, run.services.reasoning_field)
    run.pending_answer = _encode(answer)


async def _relay_events(run: RequestRun, leg: Leg, reader: EventReader) -> None:
    """Stream events to the client until every choice has finished."""
    barrier = run.barrier
    assert barrier is not None
    barrier.head(leg.prompt)
    choices = Choices(run.envelope.n * run.envelope.prompts)
    roles_said = run.responder.sealed  # by an attempt through the chain, which came to nothing visible
    while not choices.complete:
        events = await reader.next()
        if not events:
            raise ended()
        if run.marks.first_event is None:
            run.marks.first_event = trio.current_time()
        for raw in events:
            event = _client_event(run, leg, raw, choices)  # a fault in the first one is still told by the status
            barrier.first(leg.prompt)
            await barrier.open.wait()
            if not (roles_said and event.role_only):
                await _show(run, event)
    with suppress(EngineError):
        for raw in await reader.rest():
            await _show(run, _client_event(run, leg, raw, choices))


async def _show(run: RequestRun, event: _ClientEvent) -> None:
    if not event.sse:
        return
    await run.responder.reserve()
    if event.visible:
        run.marks.chunk(trio.current_time())
    run.show(event.sse, visible=event.visible)


class _ClientEvent(NamedTuple):
    """An event as the client is to see it.

    Attributes:
        sse: empty when it is none of the client's.
        visible: it bears tokens, or an end.
        role_only: it says who speaks, and nothing else.

    """

    sse: bytes
    visible: bool
    role_only: bool = False


class Choices:
    """Which choices have begun, and which have finished?

    Args:
        wanted: at least so many.

    """

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._open: set[int] = set()
        self._finished: set[int] = set()

    def see(self, choice: _Finish) -> None:
        if choice.finish_reason is not None:
            self._finished.add(choice.index)
            self._open.discard(choice.index)
        elif choice.index not in self._finished:
            self._open.add(choice.index)

    @property
    def complete(self) -> bool:
        return not self._open and len(self._finished) >= self._wanted


def _client_event(run: RequestRun, leg: Leg, raw: bytes, choices: Choices) -> _ClientEvent:
    try:
        seen = _read(raw)
        event = _object(raw)
    except UNREADABLE as exc:
        raise EngineError("the engine sent an event that cannot be read", detail=str(exc)) from None
    if seen.error is not None:
        raise reported(seen.error)
    for choice in seen.choices or ():
        check_finish(choice.finish_reason, choice.stop_reason)
        choices.see(choice)
    _count(leg, seen.usage)
    if not run.include_usage:
        if not seen.choices:
            return _ClientEvent(b"", visible=False)
        event.pop("usage", None)
    event["id"] = run.identity.response_id
    event["created"] = run.identity.created
    event["choices"] = [_clean_choice(run, choice) for choice in event.get("choices") or ()]
    shown = {k: v for k, v in without_transfer(event).items() if v is not None or k in _TOP_NULLS}
    visible = any(_bears_tokens(choice) for choice in event["choices"])
    role_only = bool(event["choices"]) and not visible and all("delta" in choice for choice in event["choices"])
    return _ClientEvent(b"data: %b\n\n" % _encode(shown), visible, role_only)


def _bears_tokens(choice: Any) -> bool:
    """A role alone is nothing that a new attempt could not say again."""
    if not isinstance(choice, dict):
        return True
    delta = choice.get("delta")
    said = [value for key, value in delta.items() if key != "role"] if isinstance(delta, dict) else [choice.get("text")]
    return any(said) or choice.get("finish_reason") is not None


def _clean_choice(run: RequestRun, choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    delta = choice.get("delta")
    if isinstance(delta, dict) and "role" not in delta:
        choice["delta"] = clean_delta(delta)
        rename_reasoning(choice["delta"], run.services.reasoning_field)
    elif isinstance(delta, dict):
        choice["delta"] = {key: value for key, value in delta.items() if value is not None}
    return {key: value for key, value in choice.items() if value is not None or key in _CHOICE_NULLS}


def _count(leg: Leg, usage: Usage | None) -> None:
    if usage is None:
        return
    leg.completion_tokens = usage.completion_tokens or leg.completion_tokens
    if usage.prompt_tokens_details is not None:
        leg.cached_tokens = usage.prompt_tokens_details.cached_tokens
