"""Every wait for the client has an end: heads, bodies, idle connections."""

from __future__ import annotations

import pytest
import trio

from tests.wire.server_client import CHUNKED, GET, Site, check_error, post, read_body, reply


async def test_silent_connection_is_closed_without_a_word(autojump_clock):
    async with Site(header_timeout_s=10) as site:
        client = site.connect()
        await client.closed()
        assert trio.current_time() == pytest.approx(10)


async def test_a_trickled_head_is_not_waited_for(autojump_clock):
    async with Site(header_timeout_s=10) as site, trio.open_nursery() as nursery:
        client = site.connect()
        nursery.start_soon(client.trickle, GET[:-2] + b"x: y\r\n" * 1000, 1)
        check_error(await client.answer(), 408)
        assert trio.current_time() == pytest.approx(10)
        nursery.cancel_scope.cancel()


async def test_a_trickled_head_that_is_in_time_is_served(autojump_clock):
    async with Site(header_timeout_s=100) as site:
        client = site.connect()
        await client.trickle(GET, 1)
        assert (await client.answer()).status == 200


async def test_the_next_head_has_its_own_time(autojump_clock):
    async with Site(header_timeout_s=10, keep_alive_s=75) as site:
        client = site.connect()
        await client.send(GET)
        await client.answer()
        await trio.sleep(74)
        await client.send(GET[:5])
        await trio.sleep(9)
        await client.send(GET[5:])
        assert (await client.answer()).status == 200
        await client.send(GET[:5])
        start = trio.current_time()
        check_error(await client.answer(), 408)
        assert trio.current_time() - start == pytest.approx(10)


async def test_idle_connection_is_closed_without_a_word(autojump_clock):
    async with Site(keep_alive_s=75) as site:
        client = site.connect()
        await client.send(GET)
        await client.answer()
        start = trio.current_time()
        await client.closed()
        assert trio.current_time() - start == pytest.approx(75)


async def test_line_ends_do_not_keep_an_idle_connection(autojump_clock):
    async with Site(keep_alive_s=75) as site, trio.open_nursery() as nursery:
        client = site.connect()
        await client.send(GET)
        await client.answer()
        start = trio.current_time()
        nursery.start_soon(client.trickle, b"\r\n" * 36, 1)
        await client.closed()
        assert trio.current_time() - start == pytest.approx(75)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("request_bytes", [post(b"x" * 10)[:-5], CHUNKED + b"5\r\nxx"])
async def test_silence_while_a_body_is_due(autojump_clock, request_bytes):
    async with Site(body_timeout_s=30) as site:
        client = site.connect()
        await client.send(request_bytes)
        await trio.sleep(29)
        await client.send(b"x")
        check_error(await client.answer(), 408)
        assert trio.current_time() == pytest.approx(29 + 30)
    assert site.outcomes == ["cancelled: request refused: the request's body did not arrive in time"]


async def test_silence_after_a_continue(autojump_clock):
    async with Site(body_timeout_s=30) as site:
        client = site.connect()
        await client.send(post(b"x", b"expect: 100-continue")[:-1])
        await client.until(b"100 Continue\r\n\r\n")
        assert (await client.answer()).status == 408
        assert trio.current_time() == pytest.approx(30)


async def test_a_trickled_body_is_not_waited_for_for_ever(autojump_clock):
    async with Site(body_timeout_s=30, body_total_s=100) as site, trio.open_nursery() as nursery:
        client = site.connect()
        await client.send(post(b"x" * 1000)[:-1000])
        nursery.start_soon(client.trickle, b"x" * 1000, 1)
        check_error(await client.answer(), 408)
        assert trio.current_time() == pytest.approx(100)
        nursery.cancel_scope.cancel()


async def test_a_slow_application_is_not_held_against_the_client(autojump_clock):
    async def app(scope, receive, send):
        await trio.sleep(1000)
        await reply(send, await read_body(receive))

    body = b"x" * 5000
    async with Site(app, pipeline_bytes_max=1000) as site, trio.open_nursery() as nursery:
        client = site.adopt(*trio.testing.lockstep_stream_pair())

        async def upload():
            await client.send(post(body)[:-5000])
            for _ in range(10):
                await client.send(b"x" * 500)

        nursery.start_soon(upload)
        assert (await client.answer()).body == body


async def test_silence_after_an_early_answer_ends_the_connection(autojump_clock):
    async def app(scope, receive, send):
        await reply(send, b"ok")

    async with Site(app, body_timeout_s=30) as site:
        client = site.connect()
        await client.send(post(b"x" * 10)[:-5])
        assert (await client.answer()).body == b"ok"
        await client.closed()
        assert trio.current_time() == pytest.approx(30)
