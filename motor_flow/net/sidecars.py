"""Which Render sidecar takes the next call?

Render and Derender keep no state, so any sidecar may take any call, also within one stream: the one with the fewest
calls in flight, in turn where that is equal. One that is known not to answer is left out while there is another, and a
call that never reached its sidecar goes to the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from motor_flow.bell import Bell
from motor_flow.net.http1 import ConnectFailed, PeerClosed, Pool, Reply, TransportFault
from motor_flow.net.stream import Origin


class Sidecar:
    """One sidecar process.

    Attributes:
        in_flight: calls.
        lost: it did not answer when it was last looked at.
        suspected: rung when a call has failed: time for a look.

    """

    __slots__ = ("_authorization", "_heads", "in_flight", "lost", "origin", "suspected")

    def __init__(self, origin: Origin, api_key: str) -> None:
        self.origin = origin
        self.in_flight = 0
        self.lost = False
        self.suspected = Bell()
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

    @property
    def lost(self) -> bool:
        """None of them is known to answer."""
        return all(sidecar.lost for sidecar in self.all)

    def pick(self, tried: Sequence[Sidecar] = ()) -> Sidecar | None:
        """The one with the fewest calls in flight that was not tried; None when all were."""
        if len(self.all) == 1 and not tried:
            return self.all[0]
        self._turn = (self._turn + 1) % len(self.all)
        left = [sidecar for sidecar in self.all[self._turn :] + self.all[: self._turn] if sidecar not in tried]
        return min(left, key=lambda sidecar: (sidecar.lost, sidecar.in_flight), default=None)

    async def post(self, path: str, body: bytes, *, timeout_s: float, headers: bytes = b"") -> Reply:
        """Call one sidecar; another one, within the same time, when the call did not get there.

        A connection that turns out to have been closed as idle is replaced once: the sidecar most likely never saw the
        call, and keeps no state if it did.

        Args:
            path: of the API.
            body: JSON.
            timeout_s: for everything.
            headers: additional header lines, each ended by CRLF.

        Raises:
            TransportFault: any of its kinds.

        """
        deadline = trio.current_time() + timeout_s
        tried: list[Sidecar] = []
        fault: TransportFault | None = None
        while (sidecar := self.pick(tried)) is not None:
            tried.append(sidecar)
            try:
                return await self._call(sidecar, path, body, deadline, headers)
            except ConnectFailed as unreachable:
                fault = unreachable
        assert fault is not None
        raise fault

    async def _call(self, sidecar: Sidecar, path: str, body: bytes, deadline: float, headers: bytes) -> Reply:
        head = b"%b%bcontent-length: " % (sidecar.head(path), headers)
        sidecar.in_flight += 1
        try:
            try:
                return await self._pool.exchange(sidecar.origin, head, body, deadline=deadline)
            except PeerClosed as closed:
                if not closed.untouched:
                    raise
            return await self._pool.exchange(sidecar.origin, head, body, deadline=deadline)
        except TransportFault:
            sidecar.suspected.ring()
            raise
        finally:
            sidecar.in_flight -= 1
