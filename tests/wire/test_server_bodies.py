"""Request bodies: counted, chunked, large, expected, unread; and large responses."""

from __future__ import annotations

import pytest
import trio

from tests.wire.server_client import GET, Site, chunked, post, read_body, reply


@pytest.mark.parametrize(
    "request_bytes", [post(b"hello"), chunked(b"hel", b"lo"), chunked(b"h", b"e", b"l", b"l", b"o")]
)
@pytest.mark.parametrize("trickled", [False, True])
async def test_body_arrives(autojump_clock, request_bytes, trickled):
    async with Site() as site:
        client = site.connect()
        for _ in range(2):  # and the connection goes on
            if trickled:
                await client.trickle(request_bytes)
            else:
                await client.send(request_bytes)
            answer = await client.answer()
            assert (answer.status, answer.body) == (200, b"POST / hello")
            assert b"connection" not in answer.headers


async def test_chunk_extensions_and_trailers_are_dropped(autojump_clock):
    async def app(scope, receive, send):
        body = await read_body(receive)
        assert b"x-trailer" not in dict(scope["headers"])
        await reply(send, body)

    head = b"POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: Chunked\r\n\r\n"
    request = head + b'3;name="a;b"\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n'
    async with Site(app) as site:
        client = site.connect()
        await client.send(request + request + GET)
        assert [(await client.answer()).body for _ in range(3)] == [b"abc", b"abc", b""]


async def test_large_body_waits_for_the_application(autojump_clock):
    """What the application does not read is not read from the client either, beyond the limit."""
    go_on = trio.Event()

    async def app(scope, receive, send):
        await go_on.wait()
        await reply(send, b"ok" if await read_body(receive) == body else b"damaged")

    body = bytes(range(256)) * 4096
    sent = 0
    async with Site(app, pipeline_bytes_max=10_000) as site, trio.open_nursery() as nursery:
        client = site.adopt(*trio.testing.lockstep_stream_pair())

        async def upload():
            nonlocal sent
            await client.send(post(body)[: -len(body)])
            while sent < len(body):
                await client.send(body[sent : sent + 1024])
                sent += 1024

        nursery.start_soon(upload)
        await trio.sleep(5)
        assert 10_000 <= sent <= 12_000
        go_on.set()
        assert (await client.answer()).body == b"ok"


@pytest.mark.parametrize("trickled", [False, True])
async def test_expect_100_continue(autojump_clock, trickled):
    async def app(scope, receive, send):
        await trio.sleep(100)  # longer than a body may be silent: it is not due yet
        assert await read_body(receive) == b"hello"
        await reply(send, b"ok")

    request = post(b"hello", b"Expect: 100-Continue")
    async with Site(app) as site:
        client = site.connect()
        for _ in range(2):
            await client.send(request[:-5])
            assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            if trickled:
                await client.trickle(b"hello")
            else:
                await client.send(b"hello")
            assert (await client.answer()).body == b"ok"


async def test_no_continue_when_the_body_is_here_already(autojump_clock):
    async with Site() as site:
        client = site.connect()
        await client.send(post(b"hello", b"expect: 100-continue"))
        assert (await client.answer()).status == 200


async def test_no_continue_when_the_body_has_begun(autojump_clock):
    async with Site() as site:
        client = site.connect()
        await client.send(post(b"hello", b"expect: 100-continue")[:-3])
        await trio.sleep(1)
        await client.send(b"llo")
        assert (await client.answer()).body == b"POST / hello"


async def test_no_continue_when_the_application_answers_without_reading(autojump_clock):
    async def app(scope, receive, send):
        await reply(send, b"no", status=403)

    async with Site(app) as site:
        client = site.connect()
        await client.send(post(b"hello", b"expect: 100-continue")[:-5])
        answer = await client.answer()
        assert answer.status == 403
        assert answer.headers[b"connection"] == b"close"  # whether the body comes is anyone's guess
        await client.closed()


async def test_unread_small_body_does_not_cost_the_connection(autojump_clock):
    async def app(scope, receive, send):
        await reply(send, scope["raw_path"])

    async with Site(app) as site:
        client = site.connect()
        request = post(b"late body", path=b"/1")
        await client.send(request[:-9])
        assert (await client.answer()).body == b"/1"
        await client.trickle(b"late body")
        await client.send(GET)
        assert (await client.answer()).body == b"/"


async def test_unread_large_body_costs_the_connection_but_not_the_answer(autojump_clock):
    async def app(scope, receive, send):
        await reply(send, b"too busy", status=429)

    async with Site(app) as site:
        client = site.connect()
        await client.send(post(b"x" * 1_000_000)[:500_000])
        answer = await client.answer()
        assert (answer.status, answer.body) == (429, b"too busy")
        assert answer.headers[b"connection"] == b"close"
        await client.send(b"x" * 100_000)  # read and dropped
        await client.closed()


async def test_large_response_arrives_whole(autojump_clock):
    body = bytes(range(256)) * 4000

    async def app(scope, receive, send):
        await reply(send, body)

    async with Site(app) as site:
        client = site.connect()
        await client.send(GET)
        assert (await client.answer()).body == body
