"""What is still to be said to engines when the request that owes it has ended?

Nobody waits for it: neither the client, nor a later attempt, nor what the request holds. Each errand is bounded by
itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

MOST = 256
"""At once; engines that do not answer must not pile them up. One that is left out costs a lease's time."""


class Errands:
    """The process's."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Until it is cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await trio.sleep_forever()

    def send(self, errand: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Begin one; it must not raise."""
        if self._nursery is not None and len(self._nursery.child_tasks) < MOST:
            self._nursery.start_soon(errand, *args)
