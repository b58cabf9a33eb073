"""How do engine tokens get from the one reader of a leg to the stream of each choice?

A bounded queue per choice, drained in batches. A fault travels in band, behind what arrived before it: that is still
derendered and committed, and no derender is cancelled for an engine's failure.

Bounded in bytes: when a choice's consumer is slow (its client is), the reader stops reading the socket, and TCP
slows the engine down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from machines.tokens import SemanticIds, SemanticJson
from motor_flow.bell import Bell
from motor_flow.derender.coalesce import TOKENS_MAX
from motor_flow.errors import MotorFlowError

INBOX_BYTES_MAX = 256 << 10


class Event(NamedTuple):
    """One engine event of one choice.

    Attributes:
        raw: its JSON, in semantic ids.
        ids: its token ids; may be empty.
        finish: the engine's finish reason, on the last one.
        lone: a marker token, or the end of a parsed answer: it is not merged with others.

    """

    raw: SemanticJson
    ids: SemanticIds
    finish: str | None
    lone: bool = False


class Inbox:
    """Engine events of one choice in one attempt. Made new for each attempt, never reset.

    Attributes:
        finished: nothing more is expected.
        left: because the consumer wants no more, whatever the engine says.
        on_leave: tells the reader so.
        blind: its engine does not look for stop strings.

    """

    __slots__ = ("_arrival", "_bytes", "_room", "blind", "events", "fault", "finished", "left", "on_leave")

    def __init__(self) -> None:
        self.left = False
        self.blind = False
        self.on_leave: Callable[[], None] | None = None
        self.events: list[Event] = []
        self.fault: MotorFlowError | None = None
        self.finished = False
        self._bytes = 0
        self._arrival = Bell()
        self._room = Bell()

    # --- the reader's side ---

    def put(self, event: Event) -> None:
        if self.left:
            return
        self.events.append(event)
        self._bytes += len(event.raw)
        if event.finish is not None:
            self.finished = True
        self._arrival.ring()

    def fail(self, fault: MotorFlowError) -> None:
        """Nothing more will come. Ignored when the choice has finished already."""
        if not self.finished and self.fault is None:
            self.fault = fault
            self._arrival.ring()

    async def room(self) -> None:
        """Wait until the consumer has taken enough."""
        while self._bytes > INBOX_BYTES_MAX:
            await self._room.wait()

    # --- the consumer's side ---

    async def arrival(self) -> None:
        """Wait for an event.

        Raises:
            MotorFlowError: the fault that ended the leg, once everything before it was taken.

        """
        while not self.events:
            if self.fault is not None:
                raise self.fault
            await self._arrival.wait()

    def leave(self) -> None:
        """The choice has ended before the engine's finish reason."""
        self.left = self.finished = True
        self.events.clear()
        self._bytes = 0
        self._room.ring()
        if self.on_leave is not None:
            self.on_leave()

    def take(self, *, alone: bool) -> list[Event]:
        """The next batch: one event, or as many as may be merged."""
        events = self.events
        count = 1
        if not (alone or events[0].lone):
            tokens = len(events[0].ids)
            while count < len(events) and not events[count].lone:
                tokens += len(events[count].ids)
                if tokens > TOKENS_MAX:
                    break
                count += 1
        batch = events[:count]
        del events[:count]
        for event in batch:
            self._bytes -= len(event.raw)
        self._room.ring()
        return batch
