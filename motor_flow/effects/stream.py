"""What does one stream do in each state of its machine?

The hot path: one pass is one batch of engine tokens, from the inbox through Derender into the client's channel. The
batch is taken late, once the channel has room, so whatever arrived meanwhile is merged into it.

Source: RFC Streaming Derender, steps 1-6.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import trio

from machines import STREAM
from machines.context import PendingChunk
from machines.tokens import SemanticIds, SemanticJson
from motor_flow.derender.coalesce import beginning, merged
from motor_flow.derender.codec import ChatChoice, TextChoice
from motor_flow.derender.normalise import shown_finish
from motor_flow.derender.reasoning import Shown
from motor_flow.derender.stops import NOTHING
from motor_flow.derender.usage import encoded_usage
from motor_flow.effects.context import RequestRun, StreamRun
from motor_flow.errors import DerenderError, EngineError
from motor_flow.flow import Effects, Flow
from motor_flow.telemetry.log import get_logger

NO_TEXT = Shown()
_log = get_logger()
stream_effects: Effects[StreamRun] = Effects(STREAM)


async def drive(stream: StreamRun) -> None:
    """Run one stream to its end; raises what ended it badly."""
    flow = Flow(stream_effects, stream)
    if await flow.run() != "finished":
        raise flow.fault or RuntimeError(f"a stream ended {flow.state} without a reason")


@stream_effects.on("opening", engine_failed=EngineError)
async def wait_until_ready(stream: StreamRun) -> Literal["ready"]:
    """The first event of this stream, and of every engine stream of the request."""
    barrier = stream.request.barrier
    assert barrier is not None
    await stream.inbox.arrival()
    await barrier.open.wait()
    return "ready"


@stream_effects.on("generating", engine_failed=EngineError)
async def wait_for_tokens(stream: StreamRun) -> Literal["chunk"]:
    await stream.inbox.arrival()
    return "chunk"


@stream_effects.on("derendering")
async def derender(stream: StreamRun) -> Literal["derendered"]:
    """Room for the result first, then the batch: nothing may wait between the answer and its commit."""
    run = stream.request
    responder, metrics = run.responder, run.services.metrics
    await responder.reserve()
    try:
        batch = stream.inbox.take(alone=stream.state is None or not run.coalesce or stream.searched)
        last = batch[-1]
        if len(batch) == 1:
            ids, raw = last.ids, last.raw
        else:
            ids = SemanticIds([token for event in batch for token in event.ids])
            raw = merged([event.raw for event in batch])
            metrics.coalesced_chunks.inc(len(batch) - 1)
        started = trio.current_time()
        try:
            choice, state, finish, tokens = await _derendered(stream, raw, len(ids), last.finish)
        except DerenderError as error:
            metrics.derender_stream_failed.inc()
            metrics.phase("derender", trio.current_time() - started, ok=False)
            log_derender_error(run, error, prompt=stream.index // stream.prompt.n, choice=stream.choice)
            raise
        now = trio.current_time()
        metrics.derender_stream_ok.inc()
        metrics.derender_seconds.observe(now - started)
    except BaseException:
        responder.unreserve()
        raise
    if choice:
        run.marks.chunk(now)
    if tokens < len(ids) or (finish is not None and last.finish is None):
        ids = SemanticIds(ids[:tokens])
        stream.inbox.leave()
    usage = _running_usage(stream, ids) if run.continuous_usage and choice else None
    stream.pending = PendingChunk(ids, state, run.frame.event(choice, usage) if choice else b"", finish)
    return "derendered"


def log_derender_error(run: RequestRun, error: DerenderError, **where: int) -> None:
    """Which stream, which attempt, which kind of error."""
    _log.warning(
        "derender.error",
        request_id=run.identity.request_id,
        attempt=run.attempt,
        status=error.status,
        type=error.kind,
        detail=error.detail,
        **where,
    )


@contextmanager
def derender_errors_logged(run: RequestRun) -> Iterator[None]:
    """The same for a whole answer."""
    try:
        yield
    except DerenderError as error:
        log_derender_error(run, error)
        raise


class Derendered(NamedTuple):
    """What one batch has become.

    Attributes:
        choice: the client's choice object.
        state: the next one.
        finish: as the client sees it.
        tokens: how many of the batch are part of the answer.

    """

    choice: bytes
    state: bytes
    finish: str | None
    tokens: int


async def _derendered(stream: StreamRun, raw: SemanticJson, tokens: int, finish: str | None) -> Derendered:
    """Derender a batch.

    Args:
        stream: whose.
        raw: engine tokens.
        tokens: how many.
        finish: the engine's finish reason, on the last ones.

    """
    done = await _tried(stream, raw, tokens, finish)
    few = 0
    while done.found and few + 1 < tokens:  # a stop string was found here: with which of these tokens?
        half = (few + tokens) // 2
        part = beginning(raw, half)
        less = await _tried(stream, part, half, None)
        if less.found:
            done, raw, tokens = less, part, half
        else:
            few = half
    choice = done.choice
    if isinstance(choice, ChatChoice):
        assert stream.chat is not None
        stream.shown.reasoning |= done.shown.reasoning
        stream.shown.answer |= done.shown.answer
        stream.shown.finish(done.finish, choice.stop_reason)
        finish = shown_finish(choice.finish_reason, done.finish)
        return Derendered(stream.chat.choice(choice, finish), done.state, finish, tokens)
    finish = shown_finish(choice.finish_reason, done.finish)
    assert stream.text is not None
    shown = stream.text.choice(choice, finish, b"" if stream.spoken else stream.prompt_ids)
    return Derendered(shown, done.state, finish, tokens)


class Tried(NamedTuple):
    """A batch, or its beginning, as derendered.

    Attributes:
        choice: what may be shown of it.
        state: the next one.
        finish: of the engine, or of a stop string that was found here.
        shown: which kinds of text it holds.
        found: a stop string was found here.

    """

    choice: ChatChoice | TextChoice
    state: bytes
    finish: str | None
    shown: Shown
    found: bool


async def _tried(stream: StreamRun, raw: SemanticJson, tokens: int, finish: str | None) -> Tried:
    derenderer, stops = stream.derenderer, stream.stops
    assert derenderer is not None
    held, inner, shown = NOTHING, stream.state, NO_TEXT
    if stops is not None:
        held, inner = stops.opened(inner)
    choice: ChatChoice | TextChoice
    if stream.chat is not None:
        choice, state = await derenderer.chat_chunk(raw, inner)
        shown = Shown()
        shown.add(choice.delta)
    else:
        choice, state = await derenderer.text_chunk(raw, inner)
    if stops is None:
        return Tried(choice, state, finish, shown, found=False)
    reported = finish == "stop" and isinstance(choice.stop_reason, str)
    since = await _counts_since(stream, raw, tokens, inner) if stream.searched or reported else None
    applied = stops.apply(held, choice, finish, since=since, search=stream.searched)
    return Tried(choice, stops.closed(applied.held, state), applied.finish, shown, applied.found)


async def _counts_since(stream: StreamRun, raw: SemanticJson, tokens: int, inner: bytes | None) -> int | None:
    """From which character of a batch on stop strings count; None: they do not yet."""
    derenderer, stops = stream.derenderer, stream.stops
    assert derenderer is not None
    assert stops is not None
    left = stops.least - len(stream.ledger)  # tokens before which none counts
    if left <= 0:
        return 0
    if left >= tokens:
        return None
    if stream.chat is None:
        choice, _ = await derenderer.text_chunk(beginning(raw, left), inner)
        return len(choice.text)
    chunk, _ = await derenderer.chat_chunk(beginning(raw, left), inner)
    return sum(len(chunk.delta.get(slot) or "") for slot in ("reasoning", "content"))


def _running_usage(stream: StreamRun, more: SemanticIds) -> bytes:
    thought = stream.reasoning_tokens(more) if stream.request.thought is not None else None
    return encoded_usage(len(stream.prompt.ids), len(stream.ledger) + len(more), reasoning_tokens=thought)


@stream_effects.on("committed")
async def move_on(_: StreamRun) -> Literal["onward"]:
    """Nothing to wait for: the guard decides whether there is more."""
    return "onward"


stream_effects.seal()
