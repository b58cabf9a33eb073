"""Which bytes of a connection are the present request?

One `RequestParser` per connection, no I/O. llhttp (httptools) parses, and never sees a byte beyond its message: `feed`
hands it pieces that end where a message can end, and returns what follows. So pipelined requests stay raw bytes until
their turn, and a fault in one surfaces only after the answers before it.

    idle --first byte--> head --blank line--> body --last byte--> complete --next()--> idle

A message ends with its last counted byte or with a blank line: of a head without a body, the last chunk, the trailers.

Source: RFC 9112 sections 2.2, 5.1, 6.3 and 7.1; RFC 9110 section 7.8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httptools

from motor_flow.edge.http1_head import RequestHead, judge, malformed, too_large
from motor_flow.errors import ClientError

if TYPE_CHECKING:
    from motor_flow.edge.asgi import Headers
    from motor_flow.edge.limits import Limits

BLANK_LINE = b"\r\n\r\n"
FRAMING_PER_BODY_BYTE = 8  # one chunk per byte costs less, even with a leading zero: honest, if wasteful


class RequestParser:
    """The requests of one connection, one at a time.

    Attributes:
        head: the present request's head, once it is complete and accepted.
        complete: the present request has arrived to its last byte.
        buffered: body bytes that nobody has taken yet.

    """

    __slots__ = (
        "_body",
        "_discarding",
        "_head_ended",
        "_headers",
        "_limits",
        "_parser",
        "_raw_head",
        "_received",
        "_tail",
        "_wire",
        "buffered",
        "complete",
        "head",
    )

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self.next()

    def next(self) -> None:
        """Forget the present request: the bytes that come now are the following one's."""
        self.head: RequestHead | None = None
        self.complete = False
        self.buffered = 0
        self._body: list[bytes] = []
        self._discarding = False
        self._head_ended = False
        self._headers: Headers = []
        self._raw_head = bytearray()
        self._tail = b""  # the last three bytes seen: a blank line may straddle two reads
        self._received = 0  # body bytes
        self._wire = 0  # body bytes with their chunked framing

    @property
    def started(self) -> bool:
        """At least one byte of the present request has arrived."""
        return self.head is not None or bool(self._raw_head)

    @property
    def body_begun(self) -> bool:
        return self.complete or self._received > 0

    @property
    def body_left(self) -> int | None:
        """Body bytes that have not arrived; None when only the end will tell."""
        if self.complete:
            return 0
        if self.head is None or self.head.body_bytes is None:
            return None
        return self.head.body_bytes - self._received

    def take_body(self) -> bytes:
        """The body bytes that have arrived and were not taken before."""
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        self.buffered = 0
        return body

    def discard_body(self) -> None:
        """Nobody will take this body: drop what is here and what is still to come."""
        self._discarding = True
        self.take_body()

    def feed(self, data: bytes) -> bytes:
        """Take what belongs to the present request.

        Returns:
            What follows it; empty unless the request is complete.

        Raises:
            ClientError: the request cannot be served, and nothing that follows it can be understood.

        """
        if not self.started:
            data = data.lstrip(b"\r\n")  # some clients end a body with one line end too many
        view = memoryview(data)
        at = 0
        while at < len(data) and not self.complete:
            end = self._piece_end(data, at)
            if self.head is None:
                self._feed_head(view[at:end])
            else:
                self._feed_body(view[at:end])
            at = end
        return data[at:]

    def _piece_end(self, data: bytes, at: int) -> int:
        """How far llhttp may see: to the next place where the message could end."""
        left = self.body_left
        if left is not None:
            return min(at + left, len(data))
        straddling = (self._tail + data[at : at + 3]).find(BLANK_LINE)
        found = data.find(BLANK_LINE, at)
        if straddling >= 0:
            end = at + straddling - len(self._tail) + len(BLANK_LINE)
        elif found >= 0:
            end = found + len(BLANK_LINE)
        else:
            end = len(data)
        self._tail = (self._tail + data[max(at, end - 3) : end])[-3:]
        return end

    def _feed_head(self, piece: memoryview) -> None:
        self._raw_head += piece
        if len(self._raw_head) > self._limits.header_bytes_max:
            raise ClientError(f"the request's head exceeds {self._limits.header_bytes_max} bytes", status=431)
        upgrade = self._feed(piece)
        if self._head_ended:
            self.head = judge(bytes(self._raw_head), self._headers, self._limits.body_bytes_max)
            if upgrade and self.head.body_bytes != 0:
                self._resume_body()

    def _resume_body(self) -> None:
        """An upgrade is declined by going on in HTTP/1.1, where llhttp would stop: a fresh one reads the body."""
        self.complete = False
        self._parser = httptools.HttpRequestParser(self)
        length = self.body_left
        framing = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + BLANK_LINE)

    def _feed_body(self, piece: memoryview) -> None:
        self._wire += len(piece)
        self._feed(piece)
        if self._received > self._limits.body_bytes_max:
            raise too_large(self._limits.body_bytes_max)
        if self._wire - self._received > self._limits.header_bytes_max + FRAMING_PER_BODY_BYTE * self._received:
            raise ClientError("the framing of the chunks is out of proportion to their data")

    def _feed(self, piece: memoryview) -> bool:
        """Returns whether llhttp stops here because the head asks for another protocol."""
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            return True
        except httptools.HttpParserCallbackError:
            raise  # a bug below, not the client's fault
        except httptools.HttpParserError as exc:
            raise malformed(bytes(self._raw_head), str(exc)) from exc
        return False

    # Called by llhttp

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_ended:  # later ones are trailers: counted, not used
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self._head_ended = True

    def on_body(self, data: bytes) -> None:
        self._received += len(data)
        if not self._discarding:
            self._body.append(data)
            self.buffered += len(data)

    def on_message_complete(self) -> None:
        self.complete = True
