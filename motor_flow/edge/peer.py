"""What can be done to the other end of one stream: write, find out whether it left, part with it?

A stream is a socket (TCP, unix), TLS over one, or anything else that is a `trio.abc.Stream`. Only a bare socket takes
the fast path: one non-blocking write(2), no cancel scope, no lock, no checkpoint; nearly every write of a response is
done then. The rest of a write waits, each time at most `write_stall_s` for the client to take something.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from typing import TYPE_CHECKING

import trio

from motor_flow.net.memory import MemoryStream

if TYPE_CHECKING:
    from motor_flow.edge.limits import Limits

GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
SLICE_BYTES = 65536  # of a write to a stream that does not tell its progress
PROBES = 4  # unanswered ones before TCP gives a silent client up
_SILENCE_BEFORE_PROBES: int = getattr(socket, "TCP_KEEPALIVE", None) or socket.TCP_KEEPIDLE  # macOS, Linux
_HANG_UP = getattr(select, "POLLRDHUP", 0)  # hang-ups and errors are reported unasked
_LINGER_NOT = struct.pack("ii", 1, 0)


class StalledError(Exception):
    """The client took nothing of a write for `write_stall_s`."""


class Peer:
    """The client's end of one stream."""

    __slots__ = ("_bare", "_limits", "_socket", "client", "scheme", "server", "stream")

    def __init__(self, stream: trio.abc.Stream, limits: Limits) -> None:
        self.stream = stream
        self._limits = limits
        below = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
        self.scheme = "http" if below is stream else "https"
        self._socket = below.socket if isinstance(below, trio.SocketStream) else None
        self._bare = self._socket if stream is below else None
        self.client, self.server = self._addresses()

    def configure(self) -> None:
        """Bound what the kernel holds for a client that does not read, and probe one that says nothing.

        TCP_NODELAY is set by trio already.
        """
        if self._socket is None:
            return
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._limits.send_buffer_bytes)
        if self._socket.family == socket.AF_UNIX:
            return
        silence_s = max(1, round(self._limits.vanish_s / 2))
        interval_s = max(1, round(self._limits.vanish_s / 2 / PROBES))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket.setsockopt(socket.IPPROTO_TCP, _SILENCE_BEFORE_PROBES, silence_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)

    def _addresses(self) -> tuple[tuple[str, int] | None, tuple[str, int | None] | None]:
        """Client and server as ASGI names them."""
        if self._socket is None:
            return None, None
        try:
            client, server = self._socket.getpeername(), self._socket.getsockname()
        except OSError:  # gone already; the first read will say so
            return None, None
        if self._socket.family == socket.AF_UNIX:
            return None, (os.fsdecode(server), None)
        return client[:2], server[:2]

    def write_nowait(self, data: bytes) -> int:
        """Write what a socket takes at once; 0 when it takes nothing, and then `write_all` finds out why."""
        if self._bare is None:
            return 0
        try:
            return os.write(self._bare.fileno(), data)
        except OSError:
            return 0

    async def write_all(self, data: memoryview) -> None:
        """Write everything, as slowly as the client takes it.

        Raises:
            StalledError: it takes nothing any more.
            OSError, trio.BrokenResourceError, trio.ClosedResourceError: it is gone.

        """
        while data:
            with trio.move_on_after(self._limits.write_stall_s) as patience:
                if self._bare is None:
                    await self.stream.send_all(data[:SLICE_BYTES])
                    data = data[SLICE_BYTES:]
                else:
                    await self.stream.wait_send_all_might_not_block()
                    with contextlib.suppress(BlockingIOError):
                        data = data[os.write(self._bare.fileno(), data) :]
            if patience.cancelled_caught:
                raise StalledError

    @property
    def writes_now(self) -> bool:
        """A write is seen to the last byte, so that the client cannot have it all before we know."""
        return self._bare is not None

    @property
    def tells_hang_up(self) -> bool:
        return self._socket is not None

    def hung_up(self) -> bool:
        """Whether the client has closed its side, even behind bytes that were not read; False where nobody can tell."""
        if self._socket is None:
            return False
        if self._socket.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._socket.fileno(), _HANG_UP)
        return bool(poll.poll(0))

    def reset_on_close(self) -> None:
        """Make the close abrupt (RST), for a client that must not take what it got for a whole answer."""
        if isinstance(self.stream, MemoryStream):
            self.stream.reset()
        elif self._socket is not None and self._socket.fileno() >= 0:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)

    async def part(self, answer: bytes, *, unread: bool) -> None:
        """Say the last word and close, so that the client can read it.

        Closing a socket with unread bytes in it sends RST, which makes the client's kernel drop an answer that was not
        read yet; so the client's bytes are thrown away until it closes too.

        Args:
            answer: a last response.
            unread: the client may still be sending.

        """
        try:
            with trio.move_on_after(self._limits.farewell_s):
                if answer:
                    await self.stream.send_all(answer)
                if unread:
                    if isinstance(self.stream, trio.abc.HalfCloseableStream):
                        await self.stream.send_eof()
                    while await self.stream.receive_some(SLICE_BYTES):
                        pass
                await self.stream.aclose()
        except GONE:
            pass
