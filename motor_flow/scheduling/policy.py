"""Which instance serves the next leg?

Pure: candidates in, one of them out. Round robin keeps a counter for each role, so that one role's traffic does not
skew another's.

Source: RFC Router、Scheduler 和 KV Conductor; MindIE Motor's round-robin policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from motor_flow.scheduling.registry import Instance


class RoundRobin:
    """In turn, per role."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def choose(self, role: str, candidates: Sequence[Instance]) -> Instance:
        """One of `candidates`, which are at least one."""
        turn = self._next.get(role, 0)
        self._next[role] = turn + 1
        return candidates[turn % len(candidates)]
