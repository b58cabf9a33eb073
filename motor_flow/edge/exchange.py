"""How does an ASGI application serve one request, and what ends it?

One `Exchange` per request; it runs in a task of its own, so that the connection's reader sees the client leave while
the application is silent, computing or sending.

    running --last byte written--> finished            the connection goes on when the application returns
            --client left, stalled, refused--> the application's scope is cancelled, with the reason
            --application failed--> 500 if nothing is on the wire, else a visible cut

After `finished` nothing cancels the application: the client has everything it came for and may leave.
A send either returns having written, or was cancelled before it wrote, unless the client reads too slowly to take the
message at once.

Source: ASGI HTTP 2.4; RFC 9110 sections 9.3.2 and 10.1.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote

import trio

from motor_flow.edge.asgi import ApplicationError, ClientDisconnectedError, Message, Scope
from motor_flow.edge.http1_response import ResponseEncoder
from motor_flow.edge.peer import GONE, StalledError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from motor_flow.edge.connection import Connection
    from motor_flow.edge.http1_head import RequestHead

SENDS_PER_CHECKPOINT = 64  # under a millisecond of one stream
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Exchange:
    """One request and its response.

    Attributes:
        awaits_continue: the client holds its body back until the application asks for it.
        finished: the last byte of the response has been written.

    """

    __slots__ = (
        "_body_given",
        "_changed",
        "_connection",
        "_handing_over",
        "_head",
        "_scope",
        "_sends",
        "_writing",
        "awaits_continue",
        "finished",
        "response",
    )

    def __init__(self, connection: Connection, head: RequestHead) -> None:
        self._connection = connection
        self._head = head
        self._scope = trio.CancelScope()
        self._changed = trio.lowlevel.ParkingLot()
        self._body_given = False
        self._handing_over = False
        self._writing = False
        self._sends = 0
        self.awaits_continue = head.expects_continue
        self.finished = False
        self.response = ResponseEncoder(
            version=head.version, head_only=head.method == "HEAD", keep_alive=head.keep_alive
        )

    # Told by the connection

    def notify(self) -> None:
        """Body bytes have arrived, or the client has left: whoever waits in `receive` looks again."""
        self._changed.unpark_all()

    def abandon(self, reason: str) -> None:
        """Cancel the application, unless the client has, or is about to have, the whole response."""
        if not self.finished and not self._handing_over:
            self._scope.cancel(reason=reason)
        self.notify()

    # The application

    async def run(self) -> None:
        """Serve the request; never raises but for a cancellation from outside."""
        service = self._connection.service
        failed = False
        service.active += 1
        try:
            with self._scope:
                if not self._connection.ending:
                    await service.app(self._asgi_scope(), self.receive, self.send)
        except* Exception as group:  # noqa: BLE001 - the supervisor of the application
            for bug in _bugs(group):
                failed = True
                service.report(bug)
        finally:
            service.active -= 1
        if not self.finished and not failed and not self._connection.ending:
            service.report(ApplicationError("the application returned without finishing its response"))
        self._connection.exchange_over(self)

    def _asgi_scope(self) -> Scope:
        head = self._head
        peer = self._connection.peer
        path = head.raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": head.version,
            "method": head.method,
            "scheme": peer.scheme,
            "path": unquote(path) if "%" in path else path,
            "raw_path": head.raw_path,
            "query_string": head.query_string,
            "root_path": "",
            "headers": head.headers,
            "client": peer.client,
            "server": peer.server,
            "extensions": {"http.reset": {}},
        }

    async def receive(self) -> Message:
        """The ASGI `receive`: the body as it arrives; then nothing until the client has left or has its response."""
        await trio.lowlevel.checkpoint_if_cancelled()
        parser = self._connection.parser
        while not (self._connection.ending or self.finished):
            if parser.buffered or (parser.complete and not self._body_given):
                self._body_given = parser.complete
                body = parser.take_body()
                self._connection.made_room()
                return {"type": "http.request", "body": body, "more_body": not parser.complete}
            if self.awaits_continue and not parser.complete:
                self.awaits_continue = False
                if not parser.body_begun and not self.response.on_wire:
                    await self._write_slowly(memoryview(CONTINUE)[self._write_now(CONTINUE) :], final=False)
                self._connection.rearm()
                continue
            await self._changed.park()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """The ASGI `send`.

        The extension `http.reset` ends the connection at once, whatever was sent.

        Raises:
            ApplicationError: the message is not due.
            ClientDisconnectedError: the client is gone (and the caller is shielded from being cancelled for it).

        """
        self._sends += 1
        if self._sends % SENDS_PER_CHECKPOINT:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()  # a stream that never waits must not starve the others
        kind = message["type"]
        if kind == "http.response.body":
            more = message.get("more_body", False)
            if not self.response.on_wire and self.response.keep_alive:
                self.response.keep_alive = self._connection.may_go_on(self)
            data = self.response.body(message.get("body", b""), more=more)
            if data:
                sent = self._write_now(data)
                if sent < len(data):
                    await self._write_slowly(memoryview(data)[sent:], final=not more)
            if not more:
                self.finished = True
                self.notify()
        elif kind == "http.response.start":
            self.response.start(message["status"], message.get("headers", ()))
        elif kind == "http.reset":
            self._connection.cut(reset=True)
        else:
            raise ApplicationError(f"unexpected ASGI message {kind!r}")

    def _write_now(self, data: bytes) -> int:
        if self._connection.ending:
            raise ClientDisconnectedError("client disconnected")
        if self._writing:
            raise ApplicationError("two tasks send at once")
        return self._connection.peer.write_nowait(data)

    async def _write_slowly(self, data: memoryview, *, final: bool) -> None:
        connection = self._connection
        self._handing_over = final and not connection.peer.writes_now
        self._writing = True
        try:
            await connection.peer.write_all(data)
            self._writing = False
        except StalledError:
            connection.peer.reset_on_close()
            await self._left("client stalled")
        except GONE:
            await self._left("client disconnected")
        finally:
            if self._writing:  # a message went out by half: nothing that follows it would be understood
                connection.cut()

    async def _left(self, reason: str) -> NoReturn:
        self._handing_over = False
        self._connection.depart(reason)
        await trio.lowlevel.checkpoint()  # where the cancellation is raised, unless the caller is shielded
        raise ClientDisconnectedError(reason)


def _bugs(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    """What is left of a group without the news that the client is gone."""
    for exc in group.exceptions:
        if isinstance(exc, BaseExceptionGroup):
            yield from _bugs(exc)
        elif not isinstance(exc, ClientDisconnectedError):
            yield exc
