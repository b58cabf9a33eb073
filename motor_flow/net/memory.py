"""How do the real clients and servers talk without sockets, in virtual time?

`MemoryNet` maps addresses to connection handlers. Dialling makes a pair of in-memory streams and hands one end to the
handler. Latency is zero; backpressure (a bounded window in each direction), half-close, reset and refusal are as on
TCP.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from motor_flow.net.stream import RECEIVE_BYTES, ByteStream, Origin

Handler = Callable[[trio.abc.Stream], Awaitable[None]]

WINDOW_BYTES = 65536  # what one direction holds before its sender waits


class _Pipe:
    """One direction: bounded, closed by its sender (end of file) or broken by either end (reset)."""

    __slots__ = ("broken", "data", "ended", "readable", "writable")

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False
        self.broken = False
        self.readable = trio.lowlevel.ParkingLot()
        self.writable = trio.lowlevel.ParkingLot()

    def wake(self) -> None:
        self.readable.unpark_all()
        self.writable.unpark_all()

    async def send(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        view = memoryview(data)
        while view:
            if self.ended:
                raise trio.ClosedResourceError("this end is closed")
            if self.broken:
                raise trio.BrokenResourceError("the peer has gone")
            room = WINDOW_BYTES - len(self.data)
            if room <= 0:
                await self.writable.park()
                continue
            self.data += view[:room]
            view = view[room:]
            self.readable.unpark_all()

    async def receive(self, bytes_max: int) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self.data:
            if self.broken:
                raise trio.BrokenResourceError("connection reset")
            if self.ended:
                return b""
            await self.readable.park()
        data = bytes(self.data[:bytes_max])
        del self.data[:bytes_max]
        self.writable.unpark_all()
        return data


class MemoryStream(trio.abc.HalfCloseableStream):
    """One end of an in-memory connection; both a trio stream (servers) and a `ByteStream` (our clients)."""

    def __init__(self, outgoing: _Pipe, incoming: _Pipe) -> None:
        self._outgoing = outgoing
        self._incoming = incoming

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._outgoing.send(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._incoming.receive(max_bytes or RECEIVE_BYTES)

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        self._outgoing.ended = True
        self._outgoing.wake()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close this end. What was sent stays readable; the peer's further sends break, as after an RST."""
        self._outgoing.ended = True
        self._incoming.broken = True
        self._incoming.data.clear()
        self._outgoing.wake()
        self._incoming.wake()

    def reset(self) -> None:
        """Tear the connection down: the peer reads nothing more, not even what was sent."""
        self.close()
        self._outgoing.broken = True
        self._outgoing.data.clear()
        self._outgoing.wake()

    def stale(self) -> bool:
        return self._incoming.ended or self._incoming.broken or bool(self._incoming.data)


def memory_pair() -> tuple[MemoryStream, MemoryStream]:
    """Two connected ends."""
    there, back = _Pipe(), _Pipe()
    return MemoryStream(there, back), MemoryStream(back, there)


class MemoryNet:
    """A network inside one trio run.

    Args:
        nursery: where the handlers of accepted connections run.

    Attributes:
        dialled: how many connections were made.

    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._listening: dict[tuple[str, int], Handler] = {}
        self.dialled = 0

    def listen(self, host: str, port: int, handler: Handler) -> None:
        """Accept connections for this address from now on; a second call replaces the handler."""
        self._listening[host, port] = handler

    def refuse(self, host: str, port: int) -> None:
        """Stop accepting; open connections stay."""
        self._listening.pop((host, port), None)

    async def connect(self, host: str, port: int) -> MemoryStream:
        """A client's end of a new connection.

        Raises:
            ConnectionRefusedError: nobody listens there.

        """
        await trio.lowlevel.checkpoint()
        handler = self._listening.get((host, port))
        if handler is None:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        near, far = memory_pair()
        self.dialled += 1
        self._nursery.start_soon(_accept, handler, far)
        return near

    async def dial(self, origin: Origin) -> ByteStream:
        """`Dial` for this network."""
        return await self.connect(origin.host, origin.port)


async def _accept(handler: Handler, stream: MemoryStream) -> None:
    try:
        await handler(stream)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the peer has gone
    finally:
        stream.close()
