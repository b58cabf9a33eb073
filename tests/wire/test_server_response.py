"""The response encoder alone: every way a body can end, and what an application must not do."""

from __future__ import annotations

import email.utils
import time

import pytest

from motor_flow.edge import http1_response
from motor_flow.edge.asgi import ApplicationError
from motor_flow.edge.http1_response import ResponseEncoder

DATE = (b"Date", b"today")


def encoder(version="1.1", *, head_only=False, keep_alive=True):
    return ResponseEncoder(version=version, head_only=head_only, keep_alive=keep_alive)


def encode(status, headers, bodies, **request):
    response = encoder(**request)
    response.start(status, [DATE, *headers])
    writes = [response.body(body, more=at < len(bodies) - 1) for at, body in enumerate(bodies)]
    assert response.ended
    return writes


def lines(*fields):
    return b"".join(field + b"\r\n" for field in fields) + b"\r\n"


def test_whole_response_gets_a_length():
    assert encode(200, [], [b"hello"]) == [lines(b"HTTP/1.1 200 OK", b"Date: today", b"content-length: 5") + b"hello"]


def test_empty_response_gets_a_length():
    assert encode(404, [], [b""]) == [lines(b"HTTP/1.1 404 Not Found", b"Date: today", b"content-length: 0")]


def test_streamed_response_is_chunked_and_its_end_is_one_write():
    assert encode(200, [], [b"", b"hello", b"", b"x" * 17]) == [
        lines(b"HTTP/1.1 200 OK", b"Date: today", b"transfer-encoding: chunked"),
        b"5\r\nhello\r\n",
        b"",
        b"11\r\n" + b"x" * 17 + b"\r\n0\r\n\r\n",
    ]


def test_given_length_is_kept():
    head = lines(b"HTTP/1.1 200 OK", b"Date: today", b"Content-Length: 5")
    assert encode(200, [(b"Content-Length", b"5")], [b"hel", b"lo"]) == [head + b"hel", b"lo"]


@pytest.mark.parametrize("bodies", [[b"hell"], [b"hell", b""], [b"hello!"], [b"hello", b"!"]])
def test_given_length_is_held_to(bodies):
    with pytest.raises(ApplicationError, match="length"):
        encode(200, [(b"content-length", b"5")], bodies)


def test_http_1_0_ends_by_close():
    response = encoder("1.0", keep_alive=False)
    response.start(200, [DATE])
    assert response.body(b"a", more=True) == lines(b"HTTP/1.1 200 OK", b"Date: today", b"connection: close") + b"a"
    assert response.ends_by_close
    assert response.body(b"", more=False) == b""


def test_head_says_what_get_would_say():
    head = lines(b"HTTP/1.1 200 OK", b"Date: today", b"content-length: 5")
    assert encode(200, [], [b"hello"], head_only=True) == [head]
    given = lines(b"HTTP/1.1 200 OK", b"Date: today", b"content-length: 9")
    assert encode(200, [(b"content-length", b"9")], [b""], head_only=True) == [given]
    assert encode(200, [], [b"a", b"b"], head_only=True) == [lines(b"HTTP/1.1 200 OK", b"Date: today"), b""]


def test_statuses_without_a_body():
    assert encode(204, [(b"content-length", b"0")], [b""]) == [lines(b"HTTP/1.1 204 No Content", b"Date: today")]
    given = lines(b"HTTP/1.1 304 Not Modified", b"Date: today", b"content-length: 9")
    assert encode(304, [(b"content-length", b"9")], [b"ignored"]) == [given]


def test_framing_and_connection_are_ours_to_say():
    headers = [(b"Transfer-Encoding", b"gzip"), (b"Connection", b"keep-alive")]
    assert encode(200, headers, [b""]) == [lines(b"HTTP/1.1 200 OK", b"Date: today", b"content-length: 0")]
    closed = lines(b"HTTP/1.1 200 OK", b"Date: today", b"content-length: 0", b"connection: close")
    assert encode(200, [(b"Connection", b"Close")], [b""]) == [closed]


def test_unknown_status_has_no_phrase():
    assert encode(299, [], [b""])[0].startswith(b"HTTP/1.1 299 \r\n")


def test_date_is_added_once_per_response_and_follows_the_clock(monkeypatch):
    for now in (1_000_000_000, 1_000_000_000.9, 1_000_000_061):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        response = encoder()
        response.start(200, [])
        expected = b"date: " + email.utils.formatdate(int(now), usegmt=True).encode() + b"\r\n"
        written = response.body(b"", more=False)
        assert written.count(b"date: ") == 1
        assert expected in written
        assert b"server:" not in written
    assert http1_response.date_line() == b"date: Sun, 09 Sep 2001 01:47:41 GMT\r\n"


@pytest.mark.parametrize(
    "header",
    [
        (b"x", b"a\r\nset-cookie: b"),
        (b"x", b"a\nb"),
        (b"x", b"a\rb"),
        (b"x", b"a\0b"),
        (b"x\r\ny", b"a"),
        (b"x\0", b"a"),
        (b"x: y", b"a"),
        (b"x ", b"a"),
        (b"", b"a"),
        (b"content-length", b"-1"),
        (b"content-length", b"1, 1"),
        (b"content-length", b""),
    ],
)
def test_headers_that_never_reach_the_wire(header):
    response = encoder()
    with pytest.raises(ApplicationError):
        response.start(200, [header])
    assert not response.on_wire


def test_two_lengths_never_reach_the_wire():
    with pytest.raises(ApplicationError):
        encoder().start(200, [(b"content-length", b"1"), (b"Content-Length", b"1")])


@pytest.mark.parametrize("status", [100, 101, 199, 600, 0])
def test_statuses_that_are_no_answer(status):
    with pytest.raises(ApplicationError):
        encoder().start(status, [])


def test_messages_out_of_order():
    response = encoder()
    with pytest.raises(ApplicationError):
        response.body(b"", more=False)
    response.start(200, [])
    with pytest.raises(ApplicationError):
        response.start(200, [])
    response.body(b"", more=False)
    with pytest.raises(ApplicationError):
        response.body(b"", more=False)
