"""The client leaves, or stops reading: the application is cancelled at once, with the reason, and it is no bug."""

from __future__ import annotations

import pytest
import trio
from trio.testing import memory_stream_pair

from motor_flow.edge.asgi import ClientDisconnectedError
from tests.wire.server_client import GET, Client, Site, chunked, post, read_body, reply

GONE = ["cancelled: client disconnected"]
EVENT = {"type": "http.response.body", "body": b"data: x\n\n", "more_body": True}


async def silent(scope, receive, send):
    """Waits for something else than the client, as while an engine computes."""
    await trio.sleep_forever()


async def silent_after_the_body(scope, receive, send):
    await read_body(receive)
    await trio.sleep_forever()


async def listening(scope, receive, send):
    await read_body(receive)
    await receive()


async def reading(scope, receive, send):
    while True:
        await receive()


async def sending(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send(EVENT)
        await trio.sleep(0.1)


async def answering(scope, receive, send):
    await reply(send, b"ok")


async def sending_without_a_pause(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        await send(EVENT)


async def close(client):
    await client.leave()


async def half_close(client):
    await client.stream.send_eof()


async def pipeline_and_half_close(client):
    await client.send(GET + GET)
    await client.stream.send_eof()


LEAVE = pytest.mark.parametrize("leave", [close, half_close, pipeline_and_half_close])


@LEAVE
@pytest.mark.parametrize("app", [silent, silent_after_the_body, listening, reading, sending, sending_without_a_pause])
async def test_departure_cancels_the_application_at_once(autojump_clock, app, leave):
    async with Site(app) as site:
        client = site.connect()
        await client.send(GET)
        await trio.sleep(0.05 if app is not sending_without_a_pause else 0)
        start = trio.current_time()
        await leave(client)
        await site.settled()
        assert trio.current_time() - start < 0.2
        assert site.outcomes == GONE


@pytest.mark.parametrize("app", [silent, listening, reading])
@pytest.mark.parametrize("request_bytes", [post(b"x" * 100)[:-50], chunked(b"x" * 100)[:-50]])
async def test_departure_while_the_body_is_due(autojump_clock, app, request_bytes):
    async with Site(app) as site:
        client = site.connect()
        await client.send(request_bytes)
        await trio.sleep(1)
        await client.leave()
        await site.settled()
        assert trio.current_time() < 1.3
        assert site.outcomes == GONE


async def test_departure_before_the_application_began(autojump_clock):
    async with Site(silent) as site:
        client = site.connect()
        await client.send(GET)
        await client.leave()
        await site.settled()
        assert site.outcomes in ([], GONE)


@pytest.mark.parametrize("sent", [b"", b"GET", GET[:-2], b"\r\n"])
async def test_departure_without_a_request_is_nothing(autojump_clock, sent):
    async with Site() as site:
        client = site.connect()
        await client.send(sent or b"\r\n")
        await client.leave()
        await site.settled()
        assert site.outcomes == []
        assert trio.current_time() < 0.2


async def test_departure_between_requests_is_nothing(autojump_clock):
    async with Site() as site:
        client = site.connect()
        await client.send(GET)
        await client.answer()
        await client.leave()
        await site.settled()
        assert site.outcomes == ["returned"]


async def test_departure_after_the_last_byte_cancels_nothing(autojump_clock):
    async def app(scope, receive, send):
        await reply(send, b"ok")
        await trio.sleep(5)
        assert await receive() == {"type": "http.disconnect"}

    async with Site(app) as site:
        client = site.connect()
        await client.send(GET)
        await client.answer()
        await client.leave()
        await site.settled()
        assert site.outcomes == ["returned"]
        assert trio.current_time() == pytest.approx(5, abs=0.2)


async def test_client_that_leaves_with_the_last_byte_has_not_left_early(autojump_clock):
    """Where a write does not tell when its bytes are out, the client may read them and leave before it returns."""

    async def hand_over():
        theirs.send_stream.send_all_hook = None
        trio.testing.memory_stream_pump(theirs.send_stream, ours.receive_stream)
        await trio.sleep(1)

    async with Site(answering) as site:
        ours, theirs = memory_stream_pair()
        theirs.send_stream.send_all_hook = hand_over
        client = Client(ours)
        site.adopt(ours, theirs)
        await client.send(GET)
        assert (await client.answer()).body == b"ok"
        await client.leave()
        await site.settled()
        assert site.outcomes == ["returned"]
        assert trio.current_time() == pytest.approx(1, abs=0.2)


async def test_pipelined_requests_of_a_client_that_left_are_not_served(autojump_clock):
    async with Site(silent) as site:
        client = site.connect()
        await client.send(GET + GET + GET)
        await trio.sleep(1)
        await client.leave()
        await site.settled()
        assert site.outcomes == GONE


# What a shielded application sees


async def test_shielded_application_is_told_by_receive_and_send(autojump_clock):
    seen = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send(EVENT)
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(5, shield=True):
                seen.append(await receive())
                try:
                    await send(EVENT)
                except ClientDisconnectedError as exc:
                    seen.append(exc)
                await trio.sleep(1)

    async with Site(app) as site:
        client = site.connect()
        await client.send(GET)
        await client.head()
        await client.leave()
        await site.settled()
        assert seen[0] == {"type": "http.disconnect"}
        assert isinstance(seen[1], OSError)
        assert site.outcomes == GONE
        assert trio.current_time() == pytest.approx(1, abs=0.2)  # clean-up was waited for


async def test_news_of_a_departure_beside_a_cancellation_is_no_bug(autojump_clock):
    async def app(scope, receive, send):
        async def write_shielded():
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
                await reply(send, b"")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(write_shielded)

    async with Site(app) as site:
        client = site.connect()
        await client.send(GET)
        await client.leave()
        await site.settled()
        assert "ClientDisconnectedError" in site.outcomes[0]
        assert "Cancelled" in site.outcomes[0]


async def test_bug_beside_a_departure_is_still_a_bug(autojump_clock):
    async def app(scope, receive, send):
        async def fail_in_clean_up():
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("clean-up")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(fail_in_clean_up)

    async with Site(app) as site:
        client = site.connect()
        await client.send(GET)
        await trio.sleep(1)
        await client.leave()
        await site.settled()
        assert [repr(bug) for bug in site.bugs] == ["ValueError('clean-up')"]
        site.bugs.clear()


# Stalled clients


async def stalled(app, **limits):
    """The outcome of an application whose client reads nothing, and how long it took."""
    async with Site(app, **limits) as site:
        ours, theirs = memory_stream_pair()
        theirs.send_stream.send_all_hook = trio.sleep_forever
        client = site.adopt(ours, theirs)
        await client.send(GET)
        await site.settled()
        return site.outcomes, trio.current_time()


async def test_stalled_client_is_given_up(autojump_clock):
    outcomes, took = await stalled(sending, write_stall_s=60)
    assert outcomes == ["cancelled: client stalled"]
    assert took == pytest.approx(60, abs=0.2)


async def test_client_that_stalls_at_the_last_byte_is_given_up_too(autojump_clock):
    outcomes, took = await stalled(answering, write_stall_s=60)
    assert outcomes == ["cancelled: client stalled"]
    assert took == pytest.approx(60, abs=0.2)


async def test_application_may_give_up_a_stalled_client_itself(autojump_clock):
    async def app(scope, receive, send):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, receive)
            with trio.move_on_after(3):
                await sending(scope, receive, send)
        with pytest.raises(ClientDisconnectedError):  # a message went out by half
            await send(EVENT)

    async def listen(receive):
        await read_body(receive)
        assert await receive() == {"type": "http.disconnect"}

    outcomes, took = await stalled(app)
    assert outcomes == ["returned"]
    assert took == pytest.approx(3, abs=0.2)


async def test_slow_reader_that_makes_progress_is_not_stalled(autojump_clock):
    body = b"x" * 1_000_000

    async def app(scope, receive, send):
        await reply(send, body)

    async with Site(app, write_stall_s=2) as site:
        client = site.adopt(*trio.testing.lockstep_stream_pair())
        await client.send(GET)
        await client.head()
        got = len(client.buffer)
        while got < len(body):
            await trio.sleep(0.1)
            got += len(await client.stream.receive_some(10_000))
        assert trio.current_time() > 8
        await client.leave()
        await site.settled()
        assert site.outcomes == ["returned"]


async def test_departure_while_a_write_is_stuck(autojump_clock):
    async with Site(sending) as site:
        ours, theirs = memory_stream_pair()
        theirs.send_stream.send_all_hook = trio.sleep_forever
        client = site.adopt(ours, theirs)
        await client.send(GET)
        await trio.sleep(1)
        await client.leave()
        await site.settled()
        assert site.outcomes == GONE
        assert trio.current_time() < 1.3
