"""What the server answers itself: requests that it cannot read, and bodies that turn out bad."""

from __future__ import annotations

import pytest
import trio
from trio.testing import memory_stream_pair

from tests.wire.server_client import CHUNKED, GET, Site, check_error, chunked, post, read_body, reply

TOO_MUCH = b"x" * 101


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (post(b"x", b"transfer-encoding: chunked"), 400),
        (b"GET / HTTP/2.0\r\nhost: test\r\n\r\n", 505),
        (GET[:-2] + b"x: " + b"y" * 70000 + b"\r\n\r\n", 431),
        (post(TOO_MUCH), 413),
        (post(TOO_MUCH)[: -len(TOO_MUCH)], 413),
    ],
)
async def test_refused_before_the_application_is_asked(autojump_clock, request_bytes, status):
    async with Site(body_bytes_max=100) as site:
        client = site.connect()
        await client.send(request_bytes)
        check_error(await client.answer(), status)
        await client.closed()
    assert site.outcomes == []


async def test_a_refusal_comes_after_the_answers_before_it(autojump_clock):
    async def app(scope, receive, send):
        await trio.sleep(1)
        await reply(send, b"ok")

    async with Site(app) as site:
        client = site.connect()
        await client.send(GET + GET + b"nonsense\r\n\r\n" + GET)
        assert (await client.answer()).body == b"ok"
        assert (await client.answer()).body == b"ok"
        check_error(await client.answer(), 400)
        await client.closed()


async def test_refused_client_has_time_to_read_but_not_for_ever(autojump_clock):
    """The write side is shut at once; what the client still sends is read, for `farewell_s`."""
    async with Site(farewell_s=3) as site:
        client = site.connect()
        await client.send(b"nonsense\r\n\r\n")
        await client.answer()
        await client.closed()
        start = trio.current_time()
        with pytest.raises(trio.BrokenResourceError):
            await client.trickle(b"more" * 100, 0.1)
        assert trio.current_time() - start == pytest.approx(3, abs=0.2)


async def test_farewell_ends_when_the_client_leaves(autojump_clock):
    async with Site(farewell_s=100) as site:
        client = site.connect()
        await client.send(b"nonsense\r\n\r\n")
        await client.answer()
        await trio.sleep(1)
        assert site.server.connections == 1
        await client.leave()
        await site.settled()
        assert trio.current_time() < 2


async def test_farewell_is_bounded_when_the_client_reads_nothing(autojump_clock):
    async with Site(farewell_s=3) as site:
        ours, theirs = memory_stream_pair()
        theirs.send_stream.send_all_hook = trio.sleep_forever
        client = site.adopt(ours, theirs)
        await client.send(b"nonsense\r\n\r\n")
        await trio.sleep(4)
        assert site.server.connections == 0


# Bodies that turn out bad while the application reads

BAD_BODIES = pytest.mark.parametrize(
    ("rest", "status"), [(b"65\r\n" + TOO_MUCH + b"\r\n", 413), (b"nonsense", 400), (b"fffffffffffffffff\r\n", 400)]
)


@BAD_BODIES
async def test_application_that_reads_is_cancelled_and_the_client_told(autojump_clock, rest, status):
    async with Site(read_forever, body_bytes_max=100) as site:
        client = site.connect()
        await client.send(CHUNKED + b"1\r\nx\r\n")
        await trio.sleep(1)
        await client.send(rest)
        assert (await client.answer()).status == status
        await client.closed()
    assert len(site.outcomes) == 1
    assert site.outcomes[0].startswith("cancelled: request refused: ")


async def read_forever(scope, receive, send):
    await read_body(receive)
    raise AssertionError("the body never ends well")


@BAD_BODIES
async def test_response_that_has_begun_is_cut(autojump_clock, rest, status):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"partial", "more_body": True})
        await read_forever(scope, receive, send)

    async with Site(app, body_bytes_max=100) as site:
        client = site.connect()
        await client.send(CHUNKED)
        await client.until(b"partial\r\n")
        await client.send(rest)
        await client.closed()
    assert site.outcomes[0].startswith("cancelled: request refused: ")


@BAD_BODIES
async def test_response_that_is_complete_gets_no_second_answer(autojump_clock, rest, status):
    async def app(scope, receive, send):
        await reply(send, b"ok")
        await trio.sleep(5)

    async with Site(app, body_bytes_max=100) as site:
        client = site.connect()
        await client.send(CHUNKED)
        assert (await client.answer()).body == b"ok"
        await client.send(rest)
        await client.closed()
    assert site.outcomes == ["returned"]


async def test_chunked_request_that_is_refused_as_a_whole(autojump_clock):
    async with Site(body_bytes_max=10) as site:
        client = site.connect()
        await client.send(chunked(b"x" * 11) + GET)
        assert (await client.answer()).status == 413
        await client.closed()
    assert site.outcomes == []
