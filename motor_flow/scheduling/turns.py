"""Who is next, when several clients wait in line?

Each client has a line of its own, first come first served, and the lines take turns: whoever has many requests waiting
makes itself wait, nobody else.

```
a: a1 a2 a3 ┐
b: b1       ├─► a1 b1 c1 a2 c2 a3
c: c1 c2    ┘
```

The head stays the head until it is taken or leaves, so that nothing overtakes it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Turns(Generic[Item]):
    """Waiting items, by client. Its length is how many wait."""

    __slots__ = ("_lines", "_size")

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Item]] = OrderedDict()  # the first one has the turn; none is empty
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def head(self) -> Item | None:
        """Whose turn it is."""
        return next(iter(self._lines.values()))[0] if self._lines else None

    def add(self, client: str, item: Item) -> None:
        """Join the end of the client's line."""
        self._lines.setdefault(client, deque()).append(item)
        self._size += 1

    def take(self) -> Item:
        """Remove the head; the turn passes on."""
        client, line = next(iter(self._lines.items()))
        item = line.popleft()
        self._size -= 1
        if line:
            self._lines.move_to_end(client)
        else:
            del self._lines[client]
        return item

    def remove(self, client: str, item: Item) -> None:
        """Leave the line."""
        line = self._lines[client]
        line.remove(item)
        self._size -= 1
        if not line:
            del self._lines[client]

    def crowd_out(self, client: str) -> Item | None:
        """Remove the newest item of the longest line, if that makes room fairly; None: this client has its share.

        Fairly: the longest line is still not shorter than this client's, once both have changed.
        """
        if not self._lines:
            return None
        longest = max(self._lines, key=lambda name: len(self._lines[name]))
        if len(self._lines[longest]) < len(self._lines.get(client, ())) + 2:
            return None
        self._size -= 1
        return self._lines[longest].pop()  # two at least were in it
