"""The request parser alone: whole, byte at a time, cut anywhere, mutated, and the smuggling corpus."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given, settings, strategies as st

from motor_flow.edge.http1_head import judge
from motor_flow.edge.http1_request import RequestParser
from motor_flow.edge.limits import Limits
from motor_flow.errors import ClientError
from tests.wire.server_client import GET, chunked, post

LIMITS = Limits(header_bytes_max=2000, body_bytes_max=1000)
HEAD = b"POST / HTTP/1.1\r\nhost: test\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


def parse(data, sizes=None):
    """Every request in `data`, or up to the refusal; fed in pieces of the given sizes."""
    parser = RequestParser(LIMITS)
    found = []
    pieces = []
    for size in sizes or ():
        pieces.append(data[:size])
        data = data[size:]
    pieces.append(data)
    try:
        for piece in pieces:
            rest = piece
            while rest:
                rest = parser.feed(rest)
                if parser.complete:
                    head = parser.head
                    found.append((head.method, head.raw_path, head.query_string, head.headers, parser.take_body()))
                    if not head.keep_alive:
                        return [*found, "closed"]
                    parser.next()
    except ClientError as refusal:
        return [*found, refusal.status]
    return [*found, "more" if parser.started else "idle"]


def status(data):
    *before, last = parse(data)
    assert before == []
    return last


GOOD = {
    "get": GET,
    "post": post(b"hello"),
    "empty body": post(b""),
    "chunked": chunked(b"hello", b" ", b"world"),
    "no chunks": chunked(),
    "blank lines in chunks": chunked(b"\r\n\r\n", b"0\r\n\r\n", b"\r\n"),
    "trailers": CHUNKED + b"1\r\nx\r\n0\r\nA: b\r\nC: d\r\n\r\n",
    "extensions": CHUNKED + b'0001;a="b"\r\nx\r\n00\r\n\r\n',
    "length with blanks": HEAD + b"content-length:  1 \t\r\n\r\nx",
    "length with zeros": HEAD + b"content-length: 001\r\n\r\nx",
    "upgrade": HEAD + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 1\r\n\r\nx",
    "upgrade, chunked": HEAD
    + b"connection: upgrade\r\nupgrade: h2c\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
    "line ends first": b"\r\n\r\n\r\n" + GET,
    "empty host": b"GET / HTTP/1.1\r\nhost:\r\n\r\n",
    "ipv6 host": b"GET / HTTP/1.1\r\nhost: [::1]:80\r\n\r\n",
    "high bytes in a value": b"GET / HTTP/1.1\r\nhost: test\r\nx: \xc3\xa9\r\n\r\n",
}


@pytest.mark.parametrize("name", GOOD)
def test_one_request_then_another_in_any_two_pieces(name):
    data = GOOD[name] + post(b"next", path=b"/next")
    whole = parse(data)
    assert len(whole) == 3
    assert whole[1][1::3] == (b"/next", b"next")
    assert whole[-1] == "idle"
    assert parse(data, [1] * len(data)) == whole
    for cut in range(len(data)):
        assert parse(data, [cut]) == whole


BAD = {
    "nothing like HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "lower case method": (b"get / HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "unknown method": (b"BREW / HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "very long method": (b"A" * 1500 + b" / HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "method with NUL": (b"GET\0 / HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "no version": (b"GET /\r\n\r\n", 400),
    "no target": (b"GET HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "space before the line": (b" GET / HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "two spaces before the target": (b"GET  / HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "two spaces after the target": (b"GET /  HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "space in the target": (b"GET /a b HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "tab in the line": (b"GET /a\tHTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "space after the version": (b"GET / HTTP/1.1 \r\nhost: test\r\n\r\n", 400),
    "control character in the target": (b"GET /\x01 HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "high byte in the target": (b"GET /\xff HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "fragment in the target": (b"GET /a#b HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "relative target": (b"GET a HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "malformed absolute target": (b"GET http://a:b:c/ HTTP/1.1\r\nhost: test\r\n\r\n", 400),
    "connect": (b"CONNECT test:80 HTTP/1.1\r\nhost: test\r\n\r\n", 501),
    "another protocol": (b"GET / HTTX/1.1\r\nhost: test\r\n\r\n", 400),
    "rtsp": (b"OPTIONS * RTSP/1.0\r\nhost: test\r\n\r\n", 400),
    "ice": (b"SOURCE / ICE/1.0\r\nhost: test\r\n\r\n", 400),
    "version 0.9": (b"GET / HTTP/0.9\r\nhost: test\r\n\r\n", 505),
    "version 1.2": (b"GET / HTTP/1.2\r\nhost: test\r\n\r\n", 505),
    "version 2.0": (b"GET / HTTP/2.0\r\nhost: test\r\n\r\n", 505),
    "version 3.0": (b"GET / HTTP/3.0\r\nhost: test\r\n\r\n", 505),
    "version 1.10": (b"GET / HTTP/1.10\r\nhost: test\r\n\r\n", 400),
    "http/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nhost: test\r\nhost: test\r\n\r\n", 400),
    "host with a space": (b"GET / HTTP/1.1\r\nhost: a b\r\n\r\n", 400),
    "host with a path": (b"GET / HTTP/1.1\r\nhost: a/b\r\n\r\n", 400),
    "obs-fold": (b"GET / HTTP/1.1\r\nhost: test\r\nx: a\r\n b\r\n\r\n", 400),
    "obs-fold with a tab": (b"GET / HTTP/1.1\r\nhost: test\r\nx: a\r\n\tb\r\n\r\n", 400),
    "folded first line": (b"GET / HTTP/1.1\r\n host: test\r\n\r\n", 400),
    "bare LF everywhere": (b"GET / HTTP/1.1\nhost: test\n\n", 400),
    "bare LF after a header": (b"GET / HTTP/1.1\r\nhost: test\nx: a\r\n\r\n", 400),
    "bare LF at the end": (b"GET / HTTP/1.1\r\nhost: test\r\n\n", 400),
    "bare CR in a value": (b"GET / HTTP/1.1\r\nhost: test\r\nx: a\rb\r\n\r\n", 400),
    "space before the colon": (b"GET / HTTP/1.1\r\nhost : test\r\n\r\n", 400),
    "no colon": (b"GET / HTTP/1.1\r\nhost: test\r\nx\r\n\r\n", 400),
    "no name": (b"GET / HTTP/1.1\r\nhost: test\r\n: x\r\n\r\n", 400),
    "odd name": (b"GET / HTTP/1.1\r\nhost: test\r\nx(y): z\r\n\r\n", 400),
    "NUL in a name": (b"GET / HTTP/1.1\r\nhost: test\r\nx\0: z\r\n\r\n", 400),
    "NUL in a value": (b"GET / HTTP/1.1\r\nhost: test\r\nx: y\0z\r\n\r\n", 400),
    "control character in a value": (b"GET / HTTP/1.1\r\nhost: test\r\nx: y\x01z\r\n\r\n", 400),
    "length and chunked": (HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunked and length": (HEAD + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n", 400),
    "two equal lengths": (HEAD + b"content-length: 5\r\ncontent-length: 5\r\n\r\nhello", 400),
    "two different lengths": (HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello", 400),
    "list of lengths": (HEAD + b"content-length: 5, 5\r\n\r\nhello", 400),
    "negative length": (HEAD + b"content-length: -5\r\n\r\nhello", 400),
    "positive length": (HEAD + b"content-length: +5\r\n\r\nhello", 400),
    "hexadecimal length": (HEAD + b"content-length: 0x5\r\n\r\nhello", 400),
    "empty length": (HEAD + b"content-length:\r\n\r\nhello", 400),
    "length with a gap": (HEAD + b"content-length: 5 5\r\n\r\nhello", 400),
    "length overflow": (HEAD + b"content-length: 18446744073709551617\r\n\r\nx", 400),
    "length too large": (HEAD + b"content-length: 1001\r\n\r\n", 413),
    "xchunked": (HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    "identity": (HEAD + b"transfer-encoding: identity\r\n\r\n", 400),
    "gzip, chunked": (HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    "chunked, identity": (HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
    "chunked with a parameter": (HEAD + b"transfer-encoding: chunked;q=1\r\n\r\n0\r\n\r\n", 400),
    "chunked with a vertical tab": (HEAD + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "chunked twice": (HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunked, then identity": (
        HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
        400,
    ),
    "empty transfer encoding": (HEAD + b"transfer-encoding:\r\n\r\n", 400),
    "chunked in HTTP/1.0": (b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunk size overflow": (CHUNKED + b"fffffffffffffffff\r\nx", 400),
    "negative chunk size": (CHUNKED + b"-1\r\nx", 400),
    "chunk size with a prefix": (CHUNKED + b"0x1\r\nx\r\n0\r\n\r\n", 400),
    "chunk size with a space": (CHUNKED + b"1 \r\nx\r\n0\r\n\r\n", 400),
    "no chunk size": (CHUNKED + b"\r\nx\r\n0\r\n\r\n", 400),
    "bare LF after a chunk size": (CHUNKED + b"1\nx\r\n0\r\n\r\n", 400),
    "chunk longer than its size": (CHUNKED + b"1\r\nxy\r\n0\r\n\r\n", 400),
    "length in a trailer": (CHUNKED + b"0\r\ncontent-length: 5\r\n\r\n", 400),
    "chunked in a trailer": (CHUNKED + b"0\r\ntransfer-encoding: chunked\r\n\r\n", 400),
    "chunks too large": (chunked(*[b"x" * 100] * 11), 413),
    "head too large": (GET[:-2] + b"x: " + b"y" * 2000 + b"\r\n\r\n", 431),
    "too many headers": (GET[:-2] + b"x: y\r\n" * 400 + b"\r\n", 431),
    "target too large": (b"GET /" + b"x" * 2000 + b" HTTP/1.1\r\nhost: test\r\n\r\n", 431),
    "trailers too large": (CHUNKED + b"0\r\n" + b"x: y\r\n" * 400 + b"\r\n", 400),
    "chunk extensions too large": (CHUNKED + (b"1;" + b"x" * 100 + b"\r\ny\r\n") * 30, 400),
}


@pytest.mark.parametrize("name", BAD)
def test_refused_whole_and_byte_at_a_time(name):
    data, expected = BAD[name]
    assert status(data) == expected
    assert parse(data, [1] * len(data)) == [expected]


def test_chunks_of_one_byte_are_honest():
    assert parse(chunked(*[b"x"] * 1000))[0][-1] == b"x" * 1000


def test_limits_are_inclusive():
    assert status(post(b"x" * 1001)) == 413
    assert parse(post(b"x" * 1000))[0][-1] == b"x" * 1000
    assert parse(chunked(b"x" * 1000))[0][-1] == b"x" * 1000
    padding = b"y" * (2000 - len(GET) - len(b"x: \r\n"))
    assert parse(GET[:-2] + b"x: " + padding + b"\r\n\r\n")[-1] == "idle"
    assert status(GET[:-2] + b"x: " + padding + b"y\r\n\r\n") == 431


def test_a_large_body_is_refused_before_it_is_read():
    assert status(post(b"x" * 1001)[:-1001]) == 413


def test_a_fault_does_not_hide_the_request_before_it():
    first, last = parse(GET + b"GET / HTTP/9.9\r\n\r\n")
    assert first[0] == "GET"
    assert last == 505


def test_no_byte_is_parsed_before_its_turn():
    parser = RequestParser(LIMITS)
    following = b"nonsense that would be refused\r\n\r\n"
    assert parser.feed(post(b"hello") + following) == following
    assert parser.complete
    assert parser.take_body() == b"hello"


@pytest.mark.parametrize(
    ("connection", "version", "expected"),
    [
        (b"keep-alive", b"1.1", True),
        (b"close", b"1.1", False),
        (b"keep-alive, Close", b"1.1", False),
        (b"closed", b"1.1", True),
        (b"keep-alive", b"1.0", False),
    ],
)
def test_keep_alive(connection, version, expected):
    parser = RequestParser(LIMITS)
    parser.feed(b"GET / HTTP/%b\r\nhost: test\r\nconnection: %b\r\n\r\n" % (version, connection))
    assert parser.head.keep_alive is expected


@pytest.mark.parametrize("second", [(b"content-length", b"1"), (b"transfer-encoding", b"chunked")])
def test_two_framings_are_refused_whatever_llhttp_thinks_of_them(second):
    with pytest.raises(ClientError, match="where the body ends"):
        judge(b"POST / HTTP/1.1\r\n", [(b"host", b"test"), (b"content-length", b"1"), second], 1000)


def test_a_bug_of_ours_is_not_the_clients_fault():
    class Buggy(RequestParser):
        def on_body(self, data):
            raise ZeroDivisionError(data)

    with pytest.raises(httptools.HttpParserCallbackError):
        Buggy(LIMITS).feed(post(b"x"))


def test_discarded_bodies_are_not_kept():
    parser = RequestParser(LIMITS)
    parser.feed(post(b"x" * 1000)[:-500])
    assert parser.buffered == 500
    parser.discard_body()
    parser.feed(b"x" * 500)
    assert parser.complete
    assert parser.buffered == 0
    assert parser.take_body() == b""


SEEDS = [*GOOD.values(), *(data for data, _ in BAD.values())]
BITS = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b":",
    b"0",
    b"chunked",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
]


def outcome(data, sizes=None):
    """Which of two faults of one message is found first may depend on the pieces; whether it is refused may not."""
    *requests, last = parse(data, sizes)
    return requests, "refused" if isinstance(last, int) else last


@settings(deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_mutated_bytes_are_parsed_or_refused_and_the_pieces_do_not_matter(data):
    message = bytearray(data.draw(st.sampled_from(SEEDS)) + data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(message)))
        cut = data.draw(st.integers(0, 3))
        message[at : at + cut] = data.draw(st.sampled_from(BITS) | st.binary(max_size=3))
    whole = outcome(bytes(message))  # nothing but ClientError is caught in there
    sizes = data.draw(st.lists(st.integers(1, 40), max_size=20))
    assert outcome(bytes(message), sizes) == whole
    assert outcome(bytes(message), [1] * len(message)) == whole
