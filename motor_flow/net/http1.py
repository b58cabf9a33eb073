"""How is one HTTP/1.1 exchange done, and when may its connection be used again?

A pool of idle connections per origin, last in first out, over httptools. An exchange that does not end with a fully
read message closes its connection at once, without an await: cancelling a call can never leak a connection or a slot.

`exchange` is the hot path (one derender call per chunk): the request head is built once per stream, the reply is one
bytes object. `start` is for answers that are read as they come.

Keep-alive: idle connections expire before vLLM's uvicorn closes them (5 s, VLLM_HTTP_TIMEOUT_KEEP_ALIVE), and the one
that is leased is polled first. What is left of the race (the peer closes while our request is on the way) shows as
`PeerClosed` with `untouched` set: the caller knows whether its request may be sent again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import httptools
import trio

from motor_flow.net.stream import ByteStream, Dial, Origin

KEEP_ALIVE_EXPIRY_S = 3.0
REPLY_BYTES_MAX = 256 << 20

Headers = list[tuple[bytes, bytes]]


class TransportFault(Exception):
    """The exchange failed below HTTP semantics."""


class ConnectFailed(TransportFault):
    """No connection: refused, unreachable, unknown host."""


class TimedOut(TransportFault):
    """The peer took longer than it was given."""


class PeerClosed(TransportFault):
    """The peer closed or reset the connection before the message was complete.

    Attributes:
        untouched: no response byte had arrived on a connection that was used before, so the peer most likely
            closed it as idle and never saw the request.

    """

    def __init__(self, message: str, *, untouched: bool = False) -> None:
        super().__init__(message)
        self.untouched = untouched


class NotHttp(TransportFault):
    """The peer sent something that is not HTTP/1.1, or more than `REPLY_BYTES_MAX`."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole response."""

    status: int
    headers: Headers
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


class _Connection:
    """One connection and the parser of its current response. The parser calls the `on_*` methods."""

    __slots__ = (
        "_framed",
        "_parser",
        "complete",
        "headers",
        "idle_since",
        "keep_alive",
        "origin",
        "parts",
        "reused",
        "seen",
        "size",
        "status",
        "stream",
    )

    def __init__(self, origin: Origin, stream: ByteStream) -> None:
        self.origin = origin
        self.stream = stream
        self.idle_since = 0.0
        self.reused = False
        self._parser = httptools.HttpResponseParser(self)
        self.prepare()

    def prepare(self) -> None:
        self.parts: list[bytes] = []
        self.headers: Headers = []
        self.size = 0
        self.status = 0
        self.complete = False
        self.keep_alive = False
        self.seen = False
        self._framed = False

    def on_message_begin(self) -> None:
        if self.complete:
            raise RuntimeError("bytes after the response")  # becomes an HttpParserError: never use such a connection

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
        else:
            self.headers = []  # 100 Continue and friends

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)
        self.size += len(body)

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()  # later it would always say no

    async def advance(self) -> None:
        """Read once and parse. Raises what the exchange is to fail with."""
        try:
            data = await self.stream.receive_some()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise PeerClosed(f"{self.origin}: connection lost ({exc})", untouched=self._untouched()) from exc
        if not data:
            if self.status and not self._framed:
                self.complete = True  # a body that the end of the connection ends
                return
            raise PeerClosed(f"{self.origin}: closed the connection too early", untouched=self._untouched())
        self.seen = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self.complete = False  # whatever came before it, this connection is not to be used again
            raise NotHttp(f"{self.origin}: not an HTTP response ({exc})") from exc

    def _untouched(self) -> bool:
        return self.reused and not self.seen

    async def send(self, data: bytes) -> None:
        try:
            await self.stream.send_all(data)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as exc:
            raise PeerClosed(f"{self.origin}: connection lost while sending ({exc})", untouched=self.reused) from exc

    def taken(self) -> bytes:
        """The body bytes that have arrived since the last call."""
        parts = self.parts
        if not parts:
            return b""
        self.parts = []
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Exchange:
    """A response that is read as it comes. Close it always; closing never waits.

    Attributes:
        status: HTTP status.
        headers: as received.

    """

    __slots__ = ("_connection", "_fault", "_pool", "headers", "status")

    def __init__(self, pool: Pool, connection: _Connection) -> None:
        self._pool = pool
        self._connection: _Connection | None = connection
        self._fault: TransportFault | None = None
        self.status = connection.status
        self.headers = connection.headers

    async def receive(self) -> bytes:
        """The next body bytes; empty at the end of a complete body.

        Raises:
            PeerClosed: the body was cut.
            NotHttp: it could not be parsed.

        """
        connection = self._connection
        if connection is None:
            raise trio.ClosedResourceError("this exchange is closed")
        while True:
            if data := connection.taken():
                return data
            if self._fault is not None:
                raise self._fault
            if connection.complete:
                return b""
            try:
                await connection.advance()
            except TransportFault as fault:
                self._fault = fault  # what came before it is delivered first

    async def read(self, bytes_max: int = REPLY_BYTES_MAX) -> bytes:
        """The whole body.

        Raises:
            NotHttp: it is longer than `bytes_max`.

        """
        parts = []
        size = 0
        while data := await self.receive():
            parts.append(data)
            size += len(data)
            if size > bytes_max:
                raise NotHttp(f"a response of more than {bytes_max} bytes")
        return b"".join(parts)

    def close(self) -> None:
        """Give the connection back when the message was read to its end, else cut it: the peer sees that we left."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.put_back(connection)


class Pool:
    """Connections to every origin this process talks to.

    Args:
        dial: makes connections.
        keep_alive_expiry_s: idle connections older than this are not used again.

    Attributes:
        open: connections that exist, idle ones included.

    """

    def __init__(self, dial: Dial, *, keep_alive_expiry_s: float = KEEP_ALIVE_EXPIRY_S) -> None:
        self._dial = dial
        self._expiry_s = keep_alive_expiry_s
        self._idle: dict[Origin, list[_Connection]] = {}
        self.open = 0

    async def exchange(self, origin: Origin, head: bytes, body: bytes, *, deadline: float) -> Reply:
        """Send one request and read the whole response.

        Args:
            origin: the peer.
            head: request line and headers, up to and including `content-length: `.
            body: request body.
            deadline: for everything, the connection included; trio clock, seconds.

        Raises:
            ConnectFailed, TimedOut, PeerClosed, NotHttp

        """
        connection: _Connection | None = None
        done = False
        try:
            with trio.CancelScope(deadline=deadline):
                connection = await self._lease(origin)
                await connection.send(b"%b%d\r\n\r\n%b" % (head, len(body), body))
                while not connection.complete:
                    await connection.advance()
                    if connection.size > REPLY_BYTES_MAX:
                        raise NotHttp(f"{origin}: a response of more than {REPLY_BYTES_MAX} bytes")
                done = True
        finally:
            if connection is not None:
                self.put_back(connection)
        if not done:
            raise TimedOut(f"{origin}: no complete response in time")
        assert connection is not None
        return Reply(connection.status, connection.headers, connection.taken())

    async def start(
        self,
        origin: Origin,
        request: bytes,
        *,
        connect_timeout_s: float = math.inf,
        head_timeout_s: float = math.inf,
    ) -> Exchange:
        """Send one request and return once the response head has arrived.

        Raises:
            ConnectFailed, TimedOut, PeerClosed, NotHttp

        """
        connection: _Connection | None = None
        done = False
        try:
            with trio.CancelScope(deadline=trio.current_time() + connect_timeout_s):
                connection = await self._lease(origin)
            if connection is None:
                raise TimedOut(f"{origin}: no connection within {connect_timeout_s:g} s")
            with trio.CancelScope(deadline=trio.current_time() + head_timeout_s):
                await connection.send(request)
                while not connection.status:
                    await connection.advance()
                done = True
            if not done:
                raise TimedOut(f"{origin}: no response head within {head_timeout_s:g} s")
        finally:
            if connection is not None and not done:
                self._discard(connection)
        return Exchange(self, connection)

    def put_back(self, connection: _Connection) -> None:
        """Keep the connection for the next exchange if its message is complete, else close it."""
        if connection.complete and connection.keep_alive:
            connection.idle_since = trio.current_time()
            self._idle.setdefault(connection.origin, []).append(connection)
        else:
            self._discard(connection)

    def reap(self) -> None:
        """Close idle connections that have expired; called now and then."""
        oldest = trio.current_time() - self._expiry_s
        for origin, idle in list(self._idle.items()):
            fresh = [connection for connection in idle if connection.idle_since > oldest]
            for connection in idle:
                if connection.idle_since <= oldest:
                    self._discard(connection)
            if fresh:
                self._idle[origin] = fresh
            else:
                del self._idle[origin]

    def close(self) -> None:
        """Close every idle connection."""
        for idle in self._idle.values():
            for connection in idle:
                self._discard(connection)
        self._idle.clear()

    def forget(self, origin: Origin) -> None:
        """Close the idle connections to one peer: it has gone."""
        for connection in self._idle.pop(origin, ()):
            self._discard(connection)

    def _discard(self, connection: _Connection) -> None:
        self.open -= 1
        connection.stream.close()

    async def _lease(self, origin: Origin) -> _Connection:
        idle = self._idle.get(origin)
        oldest = trio.current_time() - self._expiry_s
        while idle:
            connection = idle.pop()
            if connection.idle_since > oldest and not connection.stream.stale():
                connection.prepare()
                connection.reused = True
                return connection
            self._discard(connection)
        try:
            stream = await self._dial(origin)
        except (OSError, trio.BrokenResourceError) as exc:
            raise ConnectFailed(f"{origin}: cannot connect ({_innermost(exc)})") from exc
        self.open += 1
        return _Connection(origin, stream)


def _innermost(exc: BaseException) -> str:
    """trio wraps the attempts of a dial in a group; a person wants the reason."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    if isinstance(exc.__cause__, BaseException):
        return _innermost(exc.__cause__)
    return str(exc)
