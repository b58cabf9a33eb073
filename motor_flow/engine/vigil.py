"""When is an engine judged dead that has to be silent until its whole answer is there?

A stream that says nothing has stalled; a whole answer may take as long as it likes. So the instance is asked beside
it: one that twice does not answer its health route serves nobody any more, whatever its kernel still accepts.

Source: contract section 7 (stall_timeout); SIGSTOP of a real vLLM 0.33 keeps its connections open for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from machines.faults import Fault
from motor_flow.engine.client import EngineClient
from motor_flow.errors import EngineError

AGAIN_S = 1.0  # between a first complaint and the question that confirms it


async def while_alive(engines: EngineClient, url: str, every_s: float, answer: Callable[[], Awaitable[None]]) -> None:
    """Run `answer` to its end, or until its instance is dead.

    Args:
        engines: asks.
        url: base URL of the instance.
        every_s: seconds between two questions.
        answer: the call that waits for a whole answer.

    Raises:
        EngineError: `answer` did, or the instance is silent.

    """
    failure: EngineError | None = None
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            nonlocal failure
            failure = await _death(engines, url, every_s)
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        try:
            await answer()
            failure = None  # it came just in time
        except EngineError as exc:
            failure = exc
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _death(engines: EngineClient, url: str, every_s: float) -> EngineError:
    while True:
        await trio.sleep(every_s)
        if await engines.complaint(url) is None:
            continue
        await trio.sleep(AGAIN_S)
        complaint = await engines.complaint(url)
        if complaint is not None:
            return EngineError("the engine has stopped answering", fault=Fault.SILENT, status=504, detail=complaint)
