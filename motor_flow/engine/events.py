"""How is an engine's event stream read, and when is it judged to have stalled?

One reader for token-only, native and passed-through streams. It splits events, notices silence (a limit to the first
event and one between events; comments are no events), and tells the end that was announced with `[DONE]` from a body
that merely ended.

Source: contract section 7 (first_token_timeout, stall_timeout); RFC Engine 和 token-only 接口.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import trio

from machines.faults import Fault
from motor_flow.engine.client import ENGINE
from motor_flow.errors import EngineError
from motor_flow.net.http1 import Exchange, TransportFault
from motor_flow.net.sse import EventSplitter, OversizedEvent

DONE = b"[DONE]"
REST_S = (
    1.0  # silence after the last token that is not waited out: usage, [DONE] and the end of the body follow at once
)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an engine may be silent, in seconds."""

    first_event_s: float
    stall_s: float


class EventReader:
    """The events of one engine stream.

    Args:
        exchange: the response.
        patience: limits.
        asked_at: when the engine was asked; the limit to the first event counts from then.
        whole: give each event with all of its fields (`event: x` LF `data: y`), instead of only its data.

    Attributes:
        done: `[DONE]` was seen.

    """

    __slots__ = ("_deadline", "_exchange", "_limit_s", "_split", "_stall_s", "done")

    def __init__(self, exchange: Exchange, patience: Patience, asked_at: float, *, whole: bool = False) -> None:
        splitter = EventSplitter()
        self._exchange = exchange
        self._split = splitter.feed_whole if whole else splitter.feed
        self._deadline: float | None = asked_at + patience.first_event_s
        self._limit_s = patience.first_event_s
        self._stall_s = patience.stall_s
        self.done = False

    async def next(self) -> list[bytes]:
        """The next events, as many as one read brought; empty at the end of the body.

        Raises:
            EngineError: the stream was cut, is no event stream, or has been silent for too long.

        """
        deadline = trio.current_time() + self._stall_s if self._deadline is None else self._deadline
        with trio.CancelScope(deadline=deadline):
            return await self._read()
        raise silent(self._limit_s)

    async def rest(self) -> list[bytes]:
        """What still comes, with the end of the body, after everything that matters: until there is a silence.

        Read for the engine's usage, and because it makes the connection usable again; no failure counts any more.
        """
        found: list[bytes] = []
        with suppress(EngineError):  # the answer is complete without it
            while True:
                events: list[bytes] = []
                with trio.move_on_after(REST_S):
                    events = await self._read()
                if not events:
                    break
                found += events
        return found

    async def _read(self) -> list[bytes]:
        while True:
            try:
                data = await self._exchange.receive()
            except TransportFault as exc:
                raise ENGINE.broken(exc) from exc
            if not data:
                return []
            try:
                events = self._split(data)
            except OversizedEvent as exc:
                raise EngineError("the engine sent no valid event", detail=str(exc)) from exc
            if not events:
                continue
            self._deadline = None
            self._limit_s = self._stall_s
            if events[-1] == DONE:
                self.done = True
                events.pop()
                if not events:
                    continue  # what follows is the end of the body
            return events


def silent(seconds: float) -> EngineError:
    """Nothing came in time."""
    return EngineError(f"the engine has been silent for {seconds:g} s", fault=Fault.SILENT, status=504)
