"""What has happened lately?

A list that forgets its oldest item instead of growing without end.
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class Recent(list[T]):
    """Compare and index it like any list; put things in with `add`."""

    def __init__(self, size_max: int) -> None:
        super().__init__()
        self._size_max = size_max

    def add(self, item: T) -> T:
        if len(self) >= self._size_max:
            del self[0]
        self.append(item)
        return item
