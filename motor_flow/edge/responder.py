"""How does an answer get to the client, and how much of it may wait?

The only writer to a client. A stream goes through a bounded channel that one task empties: a stream reserves room for a
chunk before it asks Derender for it, so that a commit never waits and a slow client slows the engines instead of
filling memory. A cancelled attempt cannot cut a frame, because the writer is not part of it.

`data: [DONE]` and the end of the body leave in one write: clients that get the end late give up the connection.

Source: contract section 3; RFC 有界队列.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from motor_flow.bell import Bell
from motor_flow.edge.allowance import token_headers
from motor_flow.edge.asgi import Headers, Send

WARNING_HEADER = b"x-motor-flow-warning"
ROUTE_HEADER = b"x-motor-flow-route"
KEEP_ALIVE_COMMENT = b": keep-alive\n\n"
STREAM_HEADERS: Headers = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


def _nobody() -> None:
    """Nobody to tell."""


class HttpResponder:
    """The response to one request, over ASGI.

    Args:
        send: ASGI's.
        headers: on every response to this request.
        chunks_max: chunks that may wait for the client (stream_config.queue_chunks_max).

    Attributes:
        on_gone: called when a server that does not cancel us says that the client has left.
        sealed: a streamed 200 is on its way.
        answered: the head of a whole response was sent.

    """

    def __init__(self, send: Send, headers: Headers, *, chunks_max: int) -> None:
        self._send = send
        self._headers = headers
        self.on_gone: Callable[[], None] = _nobody
        self._waiting: list[bytes] = []
        self._slots_waiting = 0
        self._free = chunks_max
        self._room = trio.lowlevel.ParkingLot()
        self._bell = Bell()
        self._ending = False
        self._delivered = trio.Event()
        self._media_type = b""
        self._written_at = 0.0
        self._sealed = trio.Event()
        self.answered = False

    @property
    def sealed(self) -> bool:
        return self._sealed.is_set()

    def warn(self, text: str) -> None:
        """Tell the client something beside the answer."""
        self._headers = [*self._headers, (WARNING_HEADER, text.encode("ascii"))]

    def explain(self, text: str) -> None:
        """Tell the client why its engines were chosen."""
        others = [header for header in self._headers if header[0] != ROUTE_HEADER]
        self._headers = [*others, (ROUTE_HEADER, text.encode("ascii"))]

    def show_tokens(self, limit: int, remaining: int) -> None:
        """Tell the client about flow control."""
        self._headers = [*self._headers, *token_headers(limit, remaining)]

    # --- whole answers ---

    async def answer(self, status: int, body: bytes, media_type: str) -> None:
        """Send a whole good answer."""
        await self.respond(status, body, [(b"content-type", media_type.encode("latin-1"))])

    async def respond(self, status: int, body: bytes, headers: Headers) -> None:
        """Send a whole response with this status."""
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, (b"content-length", b"%d" % len(body)), *self._headers],
            }
        )
        self.answered = True  # between the two no cancellation is seen: both leave, or neither
        await self._send({"type": "http.response.body", "body": body})

    # --- streams ---

    def seal(self, first: bytes, media_type: str) -> None:
        """Commit to a streamed 200 that starts with these bytes."""
        self._media_type = media_type.encode("latin-1")
        self._sealed.set()
        self._written_at = trio.current_time()
        self._waiting.append(first)
        self._bell.ring()

    async def reserve(self) -> None:
        """Wait for room for one chunk."""
        while self._free <= 0:
            await self._room.park()
        self._free -= 1

    def put(self, chunk: bytes) -> None:
        """Put a chunk into reserved room; an empty one gives the room back."""
        if not chunk:
            self.unreserve()
            return
        self._waiting.append(chunk)
        self._slots_waiting += 1
        self._bell.ring()

    def unreserve(self) -> None:
        """Give reserved room back."""
        self._free += 1
        self._room.unpark()

    async def finish(self, tail: bytes) -> None:
        """End the stream with these bytes, and wait until everything has left. The first end is the one that counts."""
        if not self._ending:
            self._waiting.append(tail)
            self._ending = True
            self._bell.ring()
        await self._delivered.wait()

    async def run(self) -> None:
        """Write what is put, until the stream is finished. One task per request."""
        try:
            while not self._waiting:
                await self._bell.wait()
            await self._send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [(b"content-type", self._media_type), *STREAM_HEADERS, *self._headers],
                }
            )
            head_only = True  # the head leaves at once, also when there is nothing to say yet
            while True:
                waiting, self._waiting = self._waiting, []
                slots, self._slots_waiting = self._slots_waiting, 0
                body = waiting[0] if len(waiting) == 1 else b"".join(waiting)
                ending = self._ending
                if body or ending or head_only:
                    head_only = False
                    await self._send({"type": "http.response.body", "body": body, "more_body": not ending})
                self._written_at = trio.current_time()
                if ending:
                    self._delivered.set()
                    return
                self._free += slots
                self._room.unpark(count=max(1, slots))
                while not self._waiting:
                    await self._bell.wait()
        except OSError:  # the server noticed the departure before it cancelled us
            self.on_gone()

    async def keep_alive(self, interval_s: float) -> None:
        """Write a comment whenever nothing was written for `interval_s`. One task per stream."""
        await self._sealed.wait()
        while True:
            due = self._written_at + interval_s  # compared as it is slept to: a difference might round to no sleep
            if trio.current_time() < due:
                await trio.sleep_until(due)
                continue
            if not self._waiting and not self._ending:
                self._waiting.append(KEEP_ALIVE_COMMENT)
                self._bell.ring()
            await trio.sleep(interval_s)
