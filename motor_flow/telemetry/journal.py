"""Which requests are in flight, and where is each?

Held by reference, described when somebody asks: nothing is recorded while a request runs. Counts only: never prompt
text, ids or tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Description = Callable[[], dict[str, Any]]


class Journal:
    """The requests in flight."""

    def __init__(self) -> None:
        self._live: dict[int, Description] = {}
        self._next = 0

    @contextmanager
    def live(self, describe: Description) -> Iterator[None]:
        """A request is in flight for the length of the block."""
        key = self._next
        self._next += 1
        self._live[key] = describe
        try:
            yield
        finally:
            del self._live[key]

    def __len__(self) -> int:
        return len(self._live)

    def describe(self) -> list[dict[str, Any]]:
        """All of them, oldest first."""
        return [describe() for describe in self._live.values()]
