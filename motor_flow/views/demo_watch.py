"""Which edges does the one request in flight take, and when?

The machines count their edges where they take them (`Census`). After every step of a task this file compares the
counts with those before it, so an edge is seen in the step that took it, and nothing in the serving path knows that it
is watched. Several edges of one step are told in the order in which they can only have been taken: each begins where
the last one ended.

Invariant: one request at a time, since the counts are the process's.

Source: trio.abc.Instrument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from machines import Edge
from motor_flow.flow import Census, Effects


class EdgeWatch(trio.abc.Instrument):
    """Tells every edge that a machine takes.

    Args:
        effects: the machine. One flow of it may run.
        tell: called with each edge, from inside trio's scheduler: it must neither wait nor raise.

    """

    def __init__(self, effects: Effects[object], tell: Callable[[Edge], None]) -> None:
        self._edges = effects.table.edges
        self._state = effects.table.initial
        self._census = effects.census
        self._before = list(effects.census.taken)
        self._tell = tell

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        del task
        if self._census.taken != self._before:
            for edge in self._taken():
                self._tell(edge)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """For the length of the block."""
        trio.lowlevel.add_instrument(self)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(self)

    def _taken(self) -> Iterator[Edge]:
        now = list(self._census.taken)
        counts = zip(self._edges, self._before, now, strict=True)
        new = [edge for edge, before, after in counts for _ in range(after - before)]
        self._before = now
        while new:
            edge = next((edge for edge in new if edge.source == self._state), new[0])
            new.remove(edge)
            self._state = edge.target
            yield edge


class Loop:
    """How often one stream has gone round its loop: the edges of its machine, counted from here on."""

    def __init__(self, effects: Effects[object]) -> None:
        self._edges = effects.table.edges
        self._finals = effects.table.finals
        self._census: Census | None = effects.census
        self._before = list(effects.census.taken)
        self._counts: dict[str, int] = {}

    @property
    def counts(self) -> dict[str, int]:
        """How often each event was taken, those that ended it last."""
        if self._census is not None:
            counts: dict[str, int] = {}
            taken = zip(self._edges, self._before, self._census.taken, strict=True)
            for edge, before, now in sorted(taken, key=lambda each: each[0].target in self._finals):
                if now > before:
                    counts[edge.event] = counts.get(edge.event, 0) + now - before
            self._counts = counts
        return self._counts

    def stop(self) -> None:
        """Count no further: the stream has ended."""
        self._counts = self.counts
        self._census = None
