"""What does a connection look like to the HTTP code above it?

One seam: `Dial` makes a `ByteStream` for an origin. Real sockets, TLS and in-memory streams differ only here, so that
simulators, demo and tests run the real clients in virtual time.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import trio

RECEIVE_BYTES = 65536


class Origin(NamedTuple):
    """Who is at the other end: a TCP address or a Unix socket, with or without TLS."""

    host: str
    port: int
    tls: bool = False
    uds: str = ""

    @property
    def authority(self) -> str:
        """Value of a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"unix:{self.uds}" if self.uds else f"{'https' if self.tls else 'http'}://{self.authority}"


class ByteStream(Protocol):
    """A connected byte stream. `close` never waits, so that a cancelled task can always call it."""

    async def send_all(self, data: bytes) -> None: ...
    async def receive_some(self) -> bytes: ...
    def close(self) -> None: ...
    def stale(self) -> bool:
        """An idle connection that the peer has closed, or that holds bytes nobody asked for."""
        ...


Dial = Callable[[Origin], Awaitable[ByteStream]]


class SocketBytes:
    """A plain socket: no trio stream around it, which is half of the cost of a small exchange."""

    __slots__ = ("_poll", "_socket")

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._socket = sock
        self._poll: select.poll | None = None

    async def send_all(self, data: bytes) -> None:
        sent = await self._socket.send(data)
        if sent < len(data):
            rest = memoryview(data)[sent:]
            while rest:
                rest = rest[await self._socket.send(rest) :]

    async def receive_some(self) -> bytes:
        return await self._socket.recv(RECEIVE_BYTES)

    def close(self) -> None:
        self._socket.close()

    def stale(self) -> bool:
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._socket.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
        return bool(self._poll.poll(0))


class TlsBytes:
    """TLS over a socket. Whether an idle one is stale cannot be seen without reading, so the pool's expiry decides."""

    __slots__ = ("_stream",)

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream

    async def send_all(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def receive_some(self) -> bytes:
        return bytes(await self._stream.receive_some(RECEIVE_BYTES))

    def close(self) -> None:
        self._stream.transport_stream.socket.close()

    def stale(self) -> bool:
        return False


def network(tls: ssl.SSLContext | None = None) -> Dial:
    """Dial over the real network. `tls` is used for https origins; by default the system's trust store."""

    async def dial(origin: Origin) -> ByteStream:
        if origin.uds:
            sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                await sock.connect(origin.uds)
            except BaseException:
                sock.close()
                raise
            return SocketBytes(sock)
        stream = await trio.open_tcp_stream(origin.host, origin.port)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not origin.tls:
            return SocketBytes(stream.socket)
        secure = trio.SSLStream(
            stream, tls or ssl.create_default_context(), server_hostname=origin.host, https_compatible=True
        )
        try:
            await secure.do_handshake()
        except BaseException:
            stream.socket.close()
            raise
        return TlsBytes(secure)

    return dial
