"""Events are split by the WHATWG rules, however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from motor_flow.net.sse import EventSplitter, OversizedEvent

CASES = {
    "one": (b"data: a\n\n", [b"a"]),
    "two": (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    "no space": (b"data:a\n\n", [b"a"]),
    "only one space is removed": (b"data:  a\n\n", [b" a"]),
    "comment": (b": keep-alive\n\ndata: a\n\n", [b"a"]),
    "comment inside": (b": x\ndata: a\n\n", [b"a"]),
    "several lines": (b"data: a\ndata: b\n\n", [b"a\nb"]),
    "other fields": (b"event: x\nid: 1\nretry: 3\ndata: a\n\n", [b"a"]),
    "CRLF": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    "CR": (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    "mixed line ends": (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
    "empty data": (b"data\n\n", [b""]),
    "no data": (b"event: x\n\n", []),
    "unfinished": (b"data: a\n\ndata: b", [b"a"]),
    "done": (b"data: [DONE]\n\n", [b"[DONE]"]),
    "UTF-8": ("data: 你好👋\n\n".encode(), ["你好👋".encode()]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("step", [1, 2, 3, 1000])
def test_split(case, step):
    raw, events = CASES[case]
    splitter = EventSplitter()
    found = [event for at in range(0, len(raw), step) for event in splitter.feed(raw[at : at + step])]
    assert found == events


@given(st.lists(st.binary(max_size=40).filter(lambda b: not set(b) & set(b"\r\n")), max_size=6), st.data())
def test_any_cut_gives_the_same_events(payloads, data):
    raw = b"".join(b"data: %b\n\n" % payload for payload in payloads)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    splitter = EventSplitter()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        found += splitter.feed(raw[start:end])
    assert found == payloads


def test_whole_events_keep_their_fields_and_comments_are_none():
    splitter = EventSplitter()
    assert splitter.feed_whole(b"event: a\ndata: 1\n\n: ping\n\nid: 7\n\nda") == [b"event: a\ndata: 1"]
    assert splitter.feed_whole(b"ta: 2\r\n\r\n") == [b"data: 2"]


def test_a_line_without_an_end_is_bounded():
    splitter = EventSplitter(event_bytes_max=100)
    assert splitter.feed(b"x" * 100) == []
    with pytest.raises(OversizedEvent):
        splitter.feed(b"x")
