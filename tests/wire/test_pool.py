"""Exchanges: what is kept, what is closed, and what a failure says."""

from __future__ import annotations

import pytest
import trio

from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import ConnectFailed, NotHttp, PeerClosed, Pool, TimedOut
from motor_flow.net.memory import MemoryNet
from motor_flow.net.stream import Origin

ORIGIN = Origin("server", 80)
HEAD = b"POST /x HTTP/1.1\r\nhost: server\r\ncontent-length: "
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Answers each connection by a script: bytes to send, seconds to sleep, or "cut"; one list per request."""

    def __init__(self, *scripts):
        self.scripts = list(scripts)
        self.connections = 0
        self.closed = 0
        self.requests = []

    async def __call__(self, stream):
        self.connections += 1
        try:
            while True:
                request = await stream.receive_some()
                if not request:
                    return
                self.requests.append(request)
                for step in self.scripts.pop(0) if self.scripts else [OK]:
                    if step == "cut":
                        stream.reset()
                        return
                    if isinstance(step, bytes):
                        await stream.send_all(step)
                    else:
                        await trio.sleep(step)
        finally:
            self.closed += 1


@pytest.fixture
async def world(nursery):
    net = MemoryNet(nursery)

    def start(*scripts):
        server = Server(*scripts)
        net.listen("server", 80, server)
        return server, Pool(net.dial)

    return start


async def ask(pool, timeout_s=5.0):
    return await pool.exchange(ORIGIN, HEAD, b"{}", deadline=trio.current_time() + timeout_s)


async def test_a_complete_exchange_keeps_its_connection(world, autojump_clock):
    server, pool = world()
    replies = [await ask(pool) for _ in range(3)]
    assert [(r.status, r.body, r.header(b"content-length")) for r in replies] == [(200, b"ok", b"2")] * 3
    assert (server.connections, pool.open) == (1, 1)
    assert server.requests[0] == HEAD + b"2\r\n\r\n{}"


async def test_an_idle_connection_expires_before_the_server_closes_it(world, autojump_clock):
    server, pool = world()
    await ask(pool)
    await trio.sleep(3.5)
    await ask(pool)
    assert server.connections == 2


async def test_reaping_closes_what_has_expired(world, autojump_clock):
    server, pool = world()
    await ask(pool)
    pool.reap()
    assert pool.open == 1
    await trio.sleep(3.5)
    pool.reap()
    await trio.testing.wait_all_tasks_blocked()
    assert (pool.open, server.closed) == (0, 1)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (["cut"], PeerClosed),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok", "cut"], PeerClosed),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n", "cut"], PeerClosed),
        ([b"<html>"], NotHttp),
        ([100.0], TimedOut),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok", 100.0], TimedOut),
    ],
)
async def test_a_failed_exchange_leaves_nothing(world, autojump_clock, script, error):
    server, pool = world(script)
    with pytest.raises(error):
        await ask(pool)
    await trio.sleep(200)
    assert (pool.open, server.closed) == (0, 1)


async def test_nobody_listens(nursery, autojump_clock):
    pool = Pool(MemoryNet(nursery).dial)
    with pytest.raises(ConnectFailed, match=r"http://server:80: cannot connect"):
        await ask(pool)
    assert pool.open == 0


async def test_cancelling_an_exchange_closes_its_connection(world, autojump_clock):
    _server, pool = world([100.0])
    with trio.move_on_after(1):
        await ask(pool)
    assert pool.open == 0
    assert (await ask(pool)).body == b"ok"


async def test_churn_of_cancelled_calls_leaks_no_connection(world, autojump_clock):
    _, pool = world(*[[0.003, OK] for _ in range(200)])

    async def impatient(after_s):
        with trio.move_on_after(after_s):
            await ask(pool)

    for round_ in range(10):
        async with trio.open_nursery() as calls:
            for i in range(20):
                calls.start_soon(impatient, (i % 7) / 1e3)
        assert pool.open <= 20, round_
    await trio.sleep(5)
    pool.reap()
    assert pool.open == 0
    assert (await ask(pool)).body == b"ok"


async def test_a_connection_closed_as_idle_is_told_apart(world, autojump_clock):
    """Only on a connection that was used before, and only before the first response byte."""
    _, pool = world([OK], ["cut"])
    await ask(pool)
    with pytest.raises(PeerClosed) as caught:
        await ask(pool)
    assert caught.value.untouched
    _, pool = world(["cut"])
    with pytest.raises(PeerClosed) as caught:
        await ask(pool)
    assert not caught.value.untouched


async def test_bytes_after_a_response_poison_the_connection(world, autojump_clock):
    server, pool = world([OK + OK])
    with pytest.raises(NotHttp):
        await ask(pool)
    assert (await ask(pool)).body == b"ok"
    assert server.connections == 2


async def test_connection_close_is_obeyed(world, autojump_clock):
    server, pool = world([b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"])
    await ask(pool)
    await ask(pool)
    assert server.connections == 2


async def test_a_body_may_end_with_the_connection(world, autojump_clock):
    async def handler(stream):
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    _, pool = world()
    pool._dial.__self__.listen("server", 80, handler)
    assert (await ask(pool)).body == b"all of it"
    assert pool.open == 0


async def test_a_streamed_body_comes_as_it_is_sent(world, autojump_clock):
    _, pool = world(
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", 1.0, b"2\r\nab\r\n", 1.0, b"1\r\nc\r\n0\r\n\r\n"]
    )
    exchange = await pool.start(ORIGIN, HEAD + b"0\r\n\r\n")
    parts = []
    while data := await exchange.receive():
        parts.append((trio.current_time(), data))
    exchange.close()
    start = parts[0][0]
    assert [(at - start, data) for at, data in parts] == [(0, b"ab"), (1, b"c")]
    assert pool.open == 1


async def test_leaving_a_streamed_body_closes_the_connection_at_once(world, autojump_clock):
    _server, pool = world([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n", 100.0])
    exchange = await pool.start(ORIGIN, HEAD + b"0\r\n\r\n")
    assert await exchange.receive() == b"ab"
    exchange.close()
    exchange.close()
    assert pool.open == 0


async def test_httpx_over_the_pool(world, autojump_clock):
    server, pool = world([b"HTTP/1.1 404 Not Found\r\nx-a: b\r\ncontent-length: 4\r\n\r\nnope"])
    reply = await HttpClient(pool, headers={"authorization": "Bearer k"}).call(
        "POST", "http://server/path?q=1", body=b"{}", headers={"x-request-id": "r"}, timeout_s=5
    )
    assert (reply.status, reply.header(b"x-a"), reply.body) == (404, b"b", b"nope")
    request = server.requests[0].lower()
    assert request.startswith(b"post /path?q=1 http/1.1\r\n")
    for line in (b"authorization: bearer k", b"content-type: application/json", b"accept-encoding: identity"):
        assert line in request


async def test_httpx_deadline_covers_the_body(world, autojump_clock):
    _, pool = world([b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nok", 100.0])
    with pytest.raises(TimedOut):
        await HttpClient(pool).call("GET", "http://server/", timeout_s=2)
    assert pool.open == 0


async def test_a_header_with_a_line_break_is_refused(world, autojump_clock):
    server, pool = world()
    with pytest.raises(ValueError, match=r"line break|Invalid|Illegal"):
        await HttpClient(pool).call("GET", "http://server/", headers={"x": "a\r\nb: c"}, timeout_s=2)
    assert server.requests == []
