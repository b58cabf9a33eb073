"""What bytes does one response have on the wire?

One `ResponseEncoder` per response, no I/O. The head waits for the first body message, so that both leave in one write
and a response that is whole by then gets a Content-Length instead of chunks.

    new --start()--> held --first body()--> flowing --body(more=False)--> ended

How the end of the body is told, chosen with the first body message:

    HEAD, 204, 304                     none: no body, whatever the application gives
    application gave content-length    counted, and held to it
    whole in one message               counted
    HTTP/1.0                           by closing the connection
    else                               chunked

Source: RFC 9112 sections 6 and 7.1; RFC 9110 sections 5.5, 6.6.1, 8.6 and 15; ASGI HTTP 2.4.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Literal

from motor_flow.edge.asgi import ApplicationError
from motor_flow.edge.http1_head import says_close

_End = Literal["no body", "counted", "chunked", "close"]

LAST_CHUNK = b"0\r\n\r\n"
_TOKEN = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}


class ResponseEncoder:
    """One response.

    Args:
        version: the request's HTTP version.
        head_only: the request's method was HEAD.
        keep_alive: whether the connection may go on after this response; may be withdrawn until the head is encoded.

    Attributes:
        on_wire: the head has been encoded: the status can no longer change.
        ended: the last body message has been encoded.

    """

    __slots__ = (
        "_body_bytes_left",
        "_end",
        "_head_only",
        "_lines",
        "_status",
        "_version",
        "ended",
        "keep_alive",
        "on_wire",
    )

    def __init__(self, *, version: str, head_only: bool, keep_alive: bool) -> None:
        self._version = version
        self._head_only = head_only
        self.keep_alive = keep_alive
        self._lines: list[bytes] | None = None
        self._status = 0
        self._end: _End | None = None
        self._body_bytes_left = -1
        self.on_wire = False
        self.ended = False

    @property
    def ends_by_close(self) -> bool:
        """Only the end of the connection tells the client that the body is whole."""
        return self._end == "close"

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Check and hold the head.

        Raises:
            ApplicationError: the head cannot be put on the wire as it is.

        """
        if self._lines is not None:
            raise ApplicationError("http.response.start was sent twice")
        if not 200 <= status <= 599:
            raise ApplicationError(f"{status} is not a final status")
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        length = -1
        dated = False
        for name, value in headers:
            if _TOKEN.fullmatch(name) is None:
                raise ApplicationError(f"{name!r} is not a header name")
            key = name.lower()
            if key == b"content-length":
                if length >= 0 or not value.isdigit():
                    raise ApplicationError(f"unexpected content-length {value!r}")
                length = int(value)
                if status == HTTPStatus.NO_CONTENT:
                    continue
            elif key == b"transfer-encoding":
                continue  # ours to say
            elif key == b"connection":
                self.keep_alive = self.keep_alive and not says_close(value)
                continue
            elif key == b"date":
                dated = True
            lines.append(b"%b: %b\r\n" % (name, value))
        if not dated:
            lines.append(date_line())
        block = b"".join(lines)
        if block.count(b"\n") != len(lines) or block.count(b"\r") != len(lines) or b"\0" in block:
            raise ApplicationError("a header's value holds CR, LF or NUL")
        self._lines = [block]
        self._status = status
        self._body_bytes_left = length

    def body(self, body: bytes, *, more: bool) -> bytes:
        """The bytes to write for one body message; the first time with the head before them.

        Raises:
            ApplicationError: no such message is due, or it contradicts the content-length.

        """
        if self._lines is None:
            raise ApplicationError("http.response.body was sent before http.response.start")
        if self.ended:
            raise ApplicationError("the response is already complete")
        end = self._end or self._choose_end(len(body), more=more)
        if end == "chunked":
            data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                data += LAST_CHUNK
        elif end == "no body":
            data = b""
        else:
            data = body
            if end == "counted":
                self._body_bytes_left -= len(body)
                if self._body_bytes_left < 0 or (self._body_bytes_left > 0 and not more):
                    raise ApplicationError("the body's length differs from its content-length")
        if self._end is None:
            data = self._head(end) + data
            self._end = end
            self.on_wire = True
        self.ended = not more
        return data

    def _choose_end(self, body_bytes: int, *, more: bool) -> _End:
        assert self._lines is not None
        if self._status in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}:
            return "no body"
        if self._body_bytes_left < 0 and not more:
            self._lines.append(b"content-length: %d\r\n" % body_bytes)
            self._body_bytes_left = body_bytes
        if self._head_only:
            return "no body"
        if self._body_bytes_left >= 0:
            return "counted"
        if self._version == "1.1":
            return "chunked"
        return "close"

    def _head(self, end: _End) -> bytes:
        assert self._lines is not None
        if end == "chunked":
            self._lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            self._lines.append(b"connection: close\r\n")
        self._lines.append(b"\r\n")
        return b"".join(self._lines)


_date = (0, b"")


def date_line() -> bytes:
    """The Date header of this second."""
    global _date  # noqa: PLW0603 - one clock, one cache
    now = int(time.time())
    if _date[0] != now:
        _date = (now, b"date: %b\r\n" % formatdate(now, usegmt=True).encode())
    return _date[1]
