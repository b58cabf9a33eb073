"""With which status does a command end?

Source: contract section 1.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable

import trio

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PROBLEMS = 3
EXIT_CONFIG = 78
EXIT_BY_SIGNAL = {signal.SIGTERM: 143, signal.SIGINT: 130}


async def leave_on_signal(signals: AsyncIterator[int], scope: trio.CancelScope, note: Callable[[int], None]) -> None:
    """Cancel the scope at the first signal, and note the exit status that belongs to it."""
    async for number in signals:
        note(EXIT_BY_SIGNAL[signal.Signals(number)])
        scope.cancel(reason="signal")
        return
