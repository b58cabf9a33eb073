"""The server as a whole: accepting, draining, being cancelled, and three hundred clients that misbehave."""

from __future__ import annotations

import errno
import math
import random

import pytest
import trio
from trio.testing import memory_stream_pair

from tests.wire.server_client import GET, Client, Site, chunked, post, read_body, reply


class MemoryListener(trio.abc.Listener):
    """Hands out one end of memory streams."""

    def __init__(self, failures=()):
        self.failures = list(failures)
        self.closed = False
        self.accepted = 0
        self.pairs = []
        self._queue, self._arrivals = trio.open_memory_channel(math.inf)

    def connect(self):
        ours, theirs = memory_stream_pair()
        self.pairs.append((ours, theirs))
        self._queue.send_nowait(theirs)
        return Client(ours)

    async def accept(self):
        stream = await self._arrivals.receive()
        if self.failures:
            self._queue.send_nowait(stream)
            raise self.failures.pop(0)
        self.accepted += 1
        return stream

    async def aclose(self):
        self.closed = True
        await trio.lowlevel.checkpoint()


async def slow(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"begin", "more_body": True})
    await trio.sleep(10)
    await send({"type": "http.response.body", "body": b"end"})


async def late(scope, receive, send):
    await trio.sleep(10)
    await reply(send, b"ok")


async def test_serve_accepts_from_every_listener_and_returns_when_drained(autojump_clock):
    async with Site() as site:
        listeners = [MemoryListener(), MemoryListener()]
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: site.server.serve(listeners, task_status=task_status))
            for listener in listeners:
                client = listener.connect()
                await client.send(GET)
                assert (await client.answer()).status == 200
            assert site.server.connections == 2
            site.server.drain()
        assert [listener.closed for listener in listeners] == [True, True]
        assert site.server.connections == 0


async def test_drain_lets_running_requests_finish(autojump_clock):
    async with Site(slow) as site:
        listener = MemoryListener()
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: site.server.serve([listener], task_status=task_status))
            client = listener.connect()
            await client.send(GET + GET)
            await client.until(b"begin\r\n")
            site.server.drain()
            await trio.testing.wait_all_tasks_blocked()
            assert listener.closed
            assert site.server.active == 1
            assert await client.to_the_end() == b"3\r\nend\r\n0\r\n\r\n"
            assert trio.current_time() == pytest.approx(10)
        assert site.outcomes == ["returned"]  # the pipelined one was not begun


async def test_drain_is_said_in_responses_that_begin_after_it(autojump_clock):
    async with Site(late) as site:
        client = site.connect()
        await client.send(GET)
        await trio.sleep(1)
        site.server.drain()
        answer = await client.answer()
        assert answer.headers[b"connection"] == b"close"
        await client.closed()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", GET[:-2]])
async def test_drain_closes_what_has_no_request_running(autojump_clock, sent):
    async with Site() as site:
        client = site.connect()
        await client.send(GET)
        await client.answer()
        await client.send(sent or b"\r\n")
        await trio.sleep(1)
        site.server.drain()
        await client.closed()
        assert trio.current_time() == pytest.approx(1, abs=0.2)


async def test_drain_lets_a_body_that_is_under_way_arrive(autojump_clock):
    async with Site() as site:
        client = site.connect()
        await client.send(post(b"hello")[:-5])
        await trio.sleep(1)
        site.server.drain()
        await client.send(b"hello")
        answer = await client.answer()
        assert answer.body == b"POST / hello"
        assert answer.headers[b"connection"] == b"close"


async def test_streams_that_come_after_the_drain_are_closed(autojump_clock):
    async with Site() as site:
        site.server.drain()
        client = site.connect()
        await client.closed()
        assert trio.current_time() == 0
        assert site.outcomes == []


async def test_serve_returns_at_once_when_drained_before(autojump_clock):
    async with Site() as site:
        listener = MemoryListener()
        site.server.drain()
        await site.server.serve([listener])
        assert listener.closed


async def test_cancelling_serve_is_the_second_stage(autojump_clock):
    cleaned = []

    async def app(scope, receive, send):
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(2, shield=True):
                await trio.sleep(1)
                cleaned.append(trio.current_time())

    async with Site(app) as site:
        listener = MemoryListener()
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: site.server.serve([listener], task_status=task_status))
            client = listener.connect()
            await client.send(GET)
            await trio.sleep(1)
            site.server.drain()
            await trio.sleep(1)
            nursery.cancel_scope.cancel(reason="deadline")
        assert cleaned == [pytest.approx(3, abs=0.2)]
        assert site.outcomes == ["cancelled: deadline"]
        await client.closed()
        assert site.server.active == site.server.connections == 0


async def test_cancelled_application_may_still_end_its_stream(autojump_clock):
    """So that a forced stop can tell the clients of open streams, instead of cutting them."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begin", "more_body": True})
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(1, shield=True):
                await send({"type": "http.response.body", "body": b"stopped"})

    async with Site(app) as site:
        listener = MemoryListener()
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: site.server.serve([listener], task_status=task_status))
            client = listener.connect()
            await client.send(GET)
            await client.until(b"begin\r\n")
            nursery.cancel_scope.cancel(reason="deadline")
        assert await client.to_the_end() == b"7\r\nstopped\r\n0\r\n\r\n"
        assert site.outcomes == ["cancelled: deadline"]


async def test_connections_beyond_the_limit_wait(autojump_clock):
    async with Site(connections_max=2) as site:
        listener = MemoryListener()
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: site.server.serve([listener], task_status=task_status))
            clients = [listener.connect() for _ in range(5)]
            for client in clients:
                await client.send(GET)
            await trio.sleep(1)
            assert site.server.connections == listener.accepted == 2
            for served, client in enumerate(clients, 1):
                assert (await client.answer()).status == 200
                await client.leave()
                await trio.sleep(1)
                assert listener.accepted == min(served + 2, 5)
            site.server.drain()


async def test_idle_connections_make_room_in_time(autojump_clock):
    async with Site(connections_max=1, keep_alive_s=75) as site:
        listener = MemoryListener()
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: site.server.serve([listener], task_status=task_status))
            first, second = listener.connect(), listener.connect()
            await first.send(GET)
            await second.send(GET)
            assert (await second.answer()).status == 200
            assert trio.current_time() == pytest.approx(75, abs=0.2)
            site.server.drain()


async def test_accepting_survives_an_exhausted_system(autojump_clock, caplog):
    async with Site() as site:
        listener = MemoryListener([OSError(errno.EMFILE, "too many open files"), OSError(errno.ENOBUFS, "no buffers")])
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: site.server.serve([listener], task_status=task_status))
            client = listener.connect()
            await client.send(GET)
            assert (await client.answer()).status == 200
            site.server.drain()
    assert "too many open files" in caplog.text


async def test_a_broken_listener_is_not_hidden(autojump_clock):
    async with Site() as site:
        listener = MemoryListener([OSError(errno.EBADF, "bad descriptor")])
        listener.connect()
        with pytest.RaisesGroup(pytest.RaisesGroup(OSError)):
            await site.server.serve([listener])
        assert listener.closed


async def mixed(scope, receive, send):
    """Reads or not, streams or not, slowly or not, as the path says."""
    choice = random.Random(scope["raw_path"])
    if choice.random() < 0.8:
        await read_body(receive)
    await trio.sleep(choice.choice([0, 0, 0.5, 3]))
    if choice.random() < 0.5:
        await reply(send, b"x" * choice.randrange(1000))
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(choice.randrange(50)):
        await send({"type": "http.response.body", "body": b"data: x\n\n", "more_body": True})
        await trio.sleep(choice.choice([0, 0, 0.1]))
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def misbehave(client, choice):
    """One client's life: a few requests, whole or torn, and an end at a random moment."""
    with trio.move_on_after(choice.choice([0, 1, 5, 60, 60])):
        for number in range(choice.randrange(1, 5)):
            path = b"/%d/%d" % (choice.randrange(1000), number)
            request = choice.choice([post(b"y" * 500, path=path), chunked(b"y" * 300, b"z" * 300), GET])
            kind = choice.choice(["whole", "whole", "pipelined", "torn", "broken", "slow"])
            if kind == "whole":
                await client.send(request)
                await client.answer()
            elif kind == "pipelined":
                await client.send(request * 3)
                for _ in range(3):
                    await client.answer()
            elif kind == "torn":
                await client.send(request[: choice.randrange(len(request))])
                await trio.sleep(choice.choice([0, 1]))
                return
            elif kind == "broken":
                await client.send(request.replace(b"\r\n", b"\n", 1) + request)
                await client.to_the_end()
                return
            else:
                await client.trickle(request[:50], 0.1)
                await client.send(request[50:])
                await client.answer()
    if choice.random() < 0.3:
        await client.stream.send_eof()
        await trio.sleep(choice.choice([0, 1, 10]))


@pytest.mark.parametrize("seed", range(2))
async def test_soak(autojump_clock, seed):
    """300 clients, random departures: afterwards nothing is left, and none of it was a bug."""

    async def live(client, choice):
        await trio.sleep(choice.random() * 20)
        try:
            await misbehave(client, choice)
        except trio.BrokenResourceError:
            pass  # the server was quicker
        finally:
            await client.leave()

    async with Site(mixed) as site:
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(live, site.connect(), random.Random(f"{seed}/{number}"))
        await site.settled()
        assert set(site.outcomes) == {"returned", "cancelled: client disconnected"}
        assert len(site.outcomes) > 100
