"""Which Render sidecar takes the next call?

Render and Derender keep no state, so any sidecar may take any call, also within one stream: the one with the fewest
calls in flight, in turn where that is equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from motor_flow.net.http1 import PeerClosed, Pool, Reply
from motor_flow.net.stream import Origin


class Sidecar:
    """One sidecar process."""

    __slots__ = ("_authorization", "_heads", "in_flight", "origin")

    def __init__(self, origin: Origin, api_key: str) -> None:
        self.origin = origin
        self.in_flight = 0
        self._heads: dict[str, bytes] = {}
        self._authorization = f"authorization: Bearer {api_key}\r\n".encode("latin-1") if api_key else b""

    def head(self, path: str) -> bytes:
        """Request line and constant headers of a POST, without the last header's value."""
        head = self._heads.get(path)
        if head is None:
            head = self._heads[path] = (
                f"POST {path} HTTP/1.1\r\nhost: {self.origin.authority}\r\ncontent-type: application/json\r\n"
            ).encode("ascii") + self._authorization
        return head


class Sidecars:
    """All of them.

    Args:
        pool: connections.
        origins: at least one.
        api_key: bearer for all of them, or empty.

    """

    def __init__(self, pool: Pool, origins: Sequence[Origin], api_key: str = "") -> None:
        self._pool = pool
        self.all = [Sidecar(origin, api_key) for origin in origins]
        self._turn = 0

    def pick(self) -> Sidecar:
        """The one with the fewest calls in flight."""
        if len(self.all) == 1:
            return self.all[0]
        self._turn = (self._turn + 1) % len(self.all)
        return min(self.all[self._turn :] + self.all[: self._turn], key=lambda sidecar: sidecar.in_flight)

    async def post(self, path: str, body: bytes, *, timeout_s: float, headers: bytes = b"") -> Reply:
        """Call one sidecar.

        A connection that turns out to have been closed as idle is replaced once, within the same time: the sidecar most
        likely never saw the call, and keeps no state if it did.

        Args:
            path: of the API.
            body: JSON.
            timeout_s: for the whole call.
            headers: additional header lines, each ended by CRLF.

        Raises:
            TransportFault: any of its kinds.

        """
        sidecar = self.pick()
        head = b"%b%bcontent-length: " % (sidecar.head(path), headers)
        sidecar.in_flight += 1
        started = trio.current_time()
        try:
            try:
                return await self._pool.exchange(sidecar.origin, head, body, timeout_s=timeout_s)
            except PeerClosed as closed:
                if not closed.untouched:
                    raise
            left_s = started + timeout_s - trio.current_time()
            return await self._pool.exchange(sidecar.origin, head, body, timeout_s=left_s)
        finally:
            sidecar.in_flight -= 1
