"""When does which token exist?

    started ── first_token_s ──▶ token 1 ── pace_s ──▶ token 2 ── pace_s ──▶ …

Tokens come by the clock, not by how fast a reader takes them. So whatever a slow reader left waiting is one larger
chunk when it reads again, as an engine merges what has not been fetched. Without a pace there is no clock: the next
chunk exists when it is asked for, and nothing is ever late.

A chunk holds one token at first, then `interval` tokens, more only when late, and never more than
`MERGED_TOKENS_MAX`.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

MERGED_TOKENS_MAX = 4096
_SLACK_S = 1e-9  # sleeping until t may end a rounding error before t


@dataclass(frozen=True, slots=True)
class Pace:
    first_token_s: float = 0.0
    pace_s: float = 0.0

    def start(self) -> Clock:
        return Clock(self, trio.current_time())


class Clock:
    """The clock of one request."""

    __slots__ = ("_aborted", "_pace", "_started")

    def __init__(self, pace: Pace, started: float) -> None:
        self._pace = pace
        self._started = started
        self._aborted = trio.Event()

    @property
    def aborted(self) -> bool:
        return self._aborted.is_set()

    def abort(self) -> None:
        """Let no more tokens come."""
        self._aborted.set()

    def due(self, asked: int) -> int:
        """How many tokens of a choice exist now; without a pace, as many as are asked for."""
        late = trio.current_time() - self._started - self._pace.first_token_s + _SLACK_S
        if late < 0:
            return 0
        return asked if self._pace.pace_s <= 0 else int(late / self._pace.pace_s) + 1

    async def until(self, count: int) -> None:
        """Wait for token number `count`, or for an abort. Always a checkpoint."""
        at = self._started + self._pace.first_token_s + self._pace.pace_s * max(count - 1, 0)
        if at <= trio.current_time() or self.aborted:
            await trio.lowlevel.checkpoint()
            return
        with trio.move_on_at(at):
            await self._aborted.wait()
