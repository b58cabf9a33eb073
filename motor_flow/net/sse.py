"""Where does one server-sent event end, and what is its data?

Splits a byte stream into the data of its events by the WHATWG rules: LF, CRLF or CR line ends, comments, several
`data` lines joined by LF, `data:` with or without a space; `event`, `id` and `retry` are ignored. Bytes may arrive cut
anywhere.

The common shape, one `data: ...` line and an empty line, costs one split and no copy beyond it.

Source: WHATWG HTML, section 9.2.6; vLLM 0.33 emits `data: <json>` + LF LF.
"""

from __future__ import annotations

EVENT_BYTES_MAX = 16 << 20  # one engine event: a merged chunk with 20 logprobs a token stays far below


class OversizedEvent(Exception):
    """The peer sent more bytes without ending an event than one event may have."""


class EventSplitter:
    """Feed bytes, get the data of every event they complete.

    Args:
        event_bytes_max: bytes that may be pending in one unfinished event.

    """

    __slots__ = ("_limit", "_rest", "_skip_line_feed")

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._rest = bytearray()
        self._limit = event_bytes_max
        self._skip_line_feed = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that `data` completes.

        Raises:
            OversizedEvent: the unfinished event is longer than `event_bytes_max`.

        """
        events = []
        for block in self._blocks(data):
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append(block[6:])
            else:
                data_of = _data_of(block)
                if data_of is not None:
                    events.append(data_of)
        return events

    def feed_whole(self, data: bytes) -> list[bytes]:
        """All lines of each event that `data` completes, joined by LF, without the empty line.

        Raises:
            OversizedEvent: the unfinished event is longer than `event_bytes_max`.

        """
        return [block for block in self._blocks(data) if _data_of(block) is not None]

    def _blocks(self, data: bytes) -> list[bytes]:
        if self._skip_line_feed or b"\r" in data:
            data = self._without_carriage_returns(data)
        if self._rest:
            seen = len(self._rest)
            self._rest += data
            # Only what is new can end an event: a long one is not searched again for every piece.
            if self._rest.find(b"\n\n", seen - 1) < 0:
                self._check()
                return []
            data = bytes(self._rest)
        *blocks, rest = data.split(b"\n\n")
        self._rest = bytearray(rest)
        self._check()
        return blocks

    def _check(self) -> None:
        if len(self._rest) > self._limit:
            raise OversizedEvent(f"more than {self._limit} bytes without the end of an event")

    def _without_carriage_returns(self, data: bytes) -> bytes:
        """CRLF and CR become LF. A CR at the very end ends its line at once; the LF that may follow it is skipped."""
        if self._skip_line_feed and data[:1] == b"\n":
            data = data[1:]
        self._skip_line_feed = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data_of(block: bytes) -> bytes | None:
    lines = []
    for line in block.split(b"\n"):
        field, colon, value = line.partition(b":")
        if field == b"data":
            lines.append(value.removeprefix(b" ") if colon else b"")
    return b"\n".join(lines) if lines else None
