"""Who accepts connections, how many at a time, and when is the server done?

`serve` runs until `drain` has been called and the last request is answered, or until it is cancelled:

    serving --drain()--> draining: listeners closed, idle connections closed, running requests finish --> returns
            --cancelled--> everything running is cancelled and closed

A server is used once. It parses with httptools, and every connection is a task: see `connection.py`.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from typing import Any

import trio

from motor_flow.edge.asgi import ASGIApp
from motor_flow.edge.connection import Connection, Service
from motor_flow.edge.limits import Limits

__all__ = ["Limits", "Server"]

_OVERLOADED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
ACCEPT_RETRY_S = 0.1
_DEFAULTS = Limits()
_log = logging.getLogger(__name__)


class Server:
    """An HTTP/1.1 server for one ASGI application.

    Args:
        app: an ASGI 3 application; only `http` scopes are sent to it.
        limits: time, memory and connections that clients may take.
        on_bug: told of every exception that is nobody's expected failure; by default it is logged.

    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits = _DEFAULTS,
        *,
        on_bug: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.limits = limits
        self._on_bug = on_bug
        self._service = Service(app, self.limits, self._report)
        self._connections: set[Connection] = set()
        self._accepting = trio.CancelScope()
        self._vacancy = trio.lowlevel.ParkingLot()

    @property
    def active(self) -> int:
        """Requests being served."""
        return self._service.active

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    async def serve(
        self,
        listeners: Sequence[trio.abc.Listener[Any]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept and serve until drained or cancelled; closes the listeners."""
        async with trio.open_nursery() as handlers:
            with self._accepting:
                async with trio.open_nursery() as acceptors:
                    for listener in listeners:
                        acceptors.start_soon(self._accept, listener, handlers)
                    task_status.started()

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve one connection and close it; raises nothing but a cancellation."""
        await self._run(self._admit(stream))

    def drain(self) -> None:
        """Accept no more, close what is idle, let running requests finish; `serve` returns when the last is done."""
        self._service.draining = True
        self._accepting.cancel(reason="draining")
        for connection in self._connections:
            connection.stop()

    async def _accept(self, listener: trio.abc.Listener[Any], handlers: trio.Nursery) -> None:
        async with listener:
            while True:
                while self.connections >= self.limits.connections_max:
                    await self._vacancy.park()  # meanwhile the kernel queues, up to its backlog
                try:
                    stream = await listener.accept()
                except OSError as exc:
                    if exc.errno not in _OVERLOADED:
                        raise
                    _log.warning("cannot accept: %s; trying again in %s s", exc, ACCEPT_RETRY_S)
                    await trio.sleep(ACCEPT_RETRY_S)
                else:
                    handlers.start_soon(self._run, self._admit(stream))

    def _admit(self, stream: trio.abc.Stream) -> Connection:
        connection = Connection(self._service, stream)
        self._connections.add(connection)
        if self._service.draining:
            connection.stop()
        return connection

    async def _run(self, connection: Connection) -> None:
        try:
            await connection.run()
        except* Exception as group:  # noqa: BLE001 - one connection's bug is not the others' end
            self._report(group)
        finally:
            self._connections.discard(connection)
            self._vacancy.unpark()
            await trio.aclose_forcefully(connection.peer.stream)

    def _report(self, bug: BaseException) -> None:
        try:
            if self._on_bug is not None:
                self._on_bug(bug)
                return
        except Exception:  # noqa: BLE001 - a broken reporter must not take the server with it
            _log.exception("on_bug failed")
        _log.error("bug while serving a request", exc_info=bug)
