"""How does one task wake another without allocating anything?

A `trio.Event` is made anew for every wait; on the hot path there are two waits for each chunk. A bell has one
waiter at a time and is rung synchronously; ringing when nobody waits does nothing, so the waiter checks its
condition in a loop.
"""

from __future__ import annotations

import trio


class Bell:
    """Wakes its one waiter."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: trio.lowlevel.Task | None = None

    def ring(self) -> None:
        """Wake the waiter, if there is one."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            trio.lowlevel.reschedule(waiter)

    async def wait(self) -> None:
        """Sleep until the next ring."""
        if self._waiter is not None:
            raise RuntimeError("a bell has one waiter")
        self._waiter = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._waiter = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
