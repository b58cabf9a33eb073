"""How is an engine's event stream read, and when is it judged to have stalled?

One reader for token-only and native streams. It splits events, notices silence (a limit to the first event and one
between events), and tells the end that was announced with `[DONE]` from a body that merely ended.

Source: contract section 7 (first_token_timeout, stall_timeout); RFC Engine 和 token-only 接口.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from motor_flow.engine.client import ENGINE
from motor_flow.errors import EngineError
from motor_flow.net.http1 import Exchange, TransportFault
from motor_flow.net.sse import EventSplitter, OversizedEvent

DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an engine may be silent, in seconds."""

    first_event_s: float
    stall_s: float


class EventReader:
    """The events of one engine stream.

    Attributes:
        done: `[DONE]` was seen.

    """

    __slots__ = ("_exchange", "_limit_s", "_splitter", "_stall_s", "done")

    def __init__(self, exchange: Exchange, patience: Patience) -> None:
        self._exchange = exchange
        self._splitter = EventSplitter()
        self._limit_s = patience.first_event_s
        self._stall_s = patience.stall_s
        self.done = False

    async def next(self) -> list[bytes]:
        """The data of the next events, as many as one read brought; empty at the end of the body.

        Raises:
            EngineError: the stream was cut, is no event stream, or has been silent for too long.

        """
        while True:
            with trio.CancelScope(deadline=trio.current_time() + self._limit_s) as scope:
                try:
                    data = await self._exchange.receive()
                except TransportFault as exc:
                    raise ENGINE.broken(exc) from exc
            if scope.cancelled_caught:
                raise EngineError(f"the engine has been silent for {self._limit_s:g} s", status=504)
            if not data:
                return []
            try:
                events = self._splitter.feed(data)
            except OversizedEvent as exc:
                raise EngineError("the engine sent no valid event", detail=str(exc)) from exc
            if not events:
                continue
            self._limit_s = self._stall_s
            if events[-1] == DONE:
                self.done = True
                events.pop()
                if not events:
                    continue  # what follows is the end of the body
            return events
