"""What only real sockets show: options, resets, full kernel buffers, unread bytes at the close."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest
import trio

from motor_flow.edge.exchange import SENDS_PER_CHECKPOINT
from tests.wire.server_client import GET, Site, post, read_body, reply
from tests.wire.server_sockets import SOON_S, Gate, SocketSite, begin_a_stream, read_it

GONE = ["cancelled: client disconnected"]


def reset(client):
    client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.stream.socket.close()


def finish(client):
    client.stream.socket.close()


def half_close(client):
    client.stream.socket.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("leave", [finish, reset, half_close])
@pytest.mark.parametrize("before", [None, read_it, begin_a_stream])
@pytest.mark.parametrize("request_bytes", [GET, GET + GET, post(b"x" * 10)[:-5], post(b"x" * 10_000_000)[:50_000]])
async def test_departure_is_seen_in_the_kernel(leave, before, request_bytes):
    """Also behind pipelined requests, and behind a body that nobody reads."""
    gate = Gate(before if b"POST" not in request_bytes or before is begin_a_stream else None)
    async with SocketSite(gate, pipeline_bytes_max=1000) as site:
        client = await site.open()
        await client.send(request_bytes)
        await gate.entered.wait()
        leave(client)
        assert await site.outcome() == GONE


@pytest.mark.parametrize("leave", [finish, reset, half_close])
async def test_departure_behind_more_pipelined_bytes_than_are_read(leave):
    gate = Gate()
    async with SocketSite(gate, pipeline_bytes_max=1000) as site:
        client = await site.open()
        await client.send(GET)
        await gate.entered.wait()
        await client.send(GET * 3000)
        leave(client)
        assert await site.outcome() == GONE


@pytest.mark.parametrize("leave", [finish, reset, half_close])
async def test_departure_while_sending_without_a_pause(leave):
    started = trio.Event()

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            started.set()

    async with SocketSite(app) as site:
        client = await site.open()
        await client.send(GET)
        await started.wait()
        leave(client)
        assert await site.outcome() == GONE


async def test_client_that_leaves_with_its_answer_cancels_nothing():
    async def app(scope, receive, send):
        await reply(send, b"ok")
        await left.wait()
        for _ in range(10):
            await trio.lowlevel.checkpoint()

    left = trio.Event()
    async with SocketSite(app) as site:
        client = await site.open()
        await client.send(GET)
        await client.answer()
        finish(client)
        left.set()
        assert await site.outcome() == ["returned"]


async def test_sends_do_not_wait_but_let_others_run_now_and_then():
    """A send is one write that never gives way, except every so often, so that no stream starves the others."""
    turns = 0

    async def app(scope, receive, send):
        async def count():
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        await send({"type": "http.response.start", "status": 200, "headers": []})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await trio.lowlevel.checkpoint()
            before = turns
            for _ in range(10 * SENDS_PER_CHECKPOINT):
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
            assert turns - before in {9, 10, 11}
            nursery.cancel_scope.cancel()
        await send({"type": "http.response.body"})

    async with SocketSite(app) as site:
        client = await site.open()
        await client.send(GET)
        assert (await client.answer()).body == b"x" * 10 * SENDS_PER_CHECKPOINT


async def test_socket_options():
    gate = Gate()
    async with SocketSite(gate, send_buffer_bytes=20_000, vanish_s=80) as site:
        client = await site.open()
        await client.send(GET)
        await gate.entered.wait()
        accepted = site.accepted()
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in {20_000, 40_000}  # Linux doubles
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 10
        assert gate.scope["client"] == client.stream.socket.getsockname()
        assert gate.scope["server"] == site.address
        finish(client)
        assert await site.outcome() == GONE


@pytest.mark.parametrize("last", [False, True])
async def test_stalled_client_is_given_up_and_little_was_buffered_for_it(last):
    sent = 0

    async def app(scope, receive, send):
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not last:
            await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
            sent += 1000
        await send({"type": "http.response.body", "body": b"x" * 10_000_000})

    async with SocketSite(app, write_stall_s=0.05, send_buffer_bytes=10_000) as site:
        client = await site.open(receive_buffer_bytes=5_000)
        await client.send(GET)
        assert await site.outcome() == ["cancelled: client stalled"]
        assert sent < 200_000
        assert (await client.to_the_end()).endswith(b"<reset>")


@pytest.mark.parametrize("leave", [finish, reset, half_close])
async def test_departure_while_the_kernels_buffer_is_full(leave):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 10_000_000})

    async with SocketSite(app) as site:
        client = await site.open()
        await client.send(GET)
        await client.head()
        leave(client)
        assert await site.outcome() == GONE


async def test_large_response_to_a_slow_reader_is_whole():
    body = bytes(range(256)) * 8000

    async def app(scope, receive, send):
        await reply(send, body)

    async with SocketSite(app, send_buffer_bytes=10_000) as site:
        client = await site.open(receive_buffer_bytes=5_000)
        await client.send(GET)
        assert (await client.answer()).body == body


@pytest.mark.parametrize("declared", [True, False])
async def test_refused_upload_can_read_why(declared):
    """The refusal is not lost to a reset although most of the upload was never read."""
    async with SocketSite(Gate(read_it), body_bytes_max=100_000) as site:
        client = await site.open()
        body = b"x" * 3_000_000
        upload = post(body)
        if not declared:
            head = b"POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n"
            upload = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        with trio.fail_after(SOON_S):
            await client.send(upload)
            answer = await client.answer()
            assert answer.status == 413
            await client.closed()


async def test_cut_of_a_body_that_ends_with_the_connection_is_a_reset():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"partial", "more_body": True})
        await trio.sleep(0.01)
        raise ValueError("bug")

    async with SocketSite(app) as site:
        client = await site.open()
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        await client.until(b"partial")
        assert await client.to_the_end() == b"<reset>"
        site.bugs.clear()


async def test_unix_socket(tmp_path):
    scopes = []

    async def app(scope, receive, send):
        scopes.append(scope)
        await reply(send, await read_body(receive))

    path = tmp_path / "server.sock"
    async with SocketSite(app, path=path) as site:
        client = await site.open()
        await client.send(post(b"hello"))
        assert (await client.answer()).body == b"hello"
    assert scopes[0]["client"] is None
    assert scopes[0]["server"] == (str(path), None)


async def test_client_that_is_gone_before_it_was_accepted():
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with Site() as site:
        with socket.create_connection(listeners[0].socket.getsockname()) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        async with listeners[0]:
            await site.server.serve_stream(await listeners[0].accept())
        assert site.outcomes == []


async def test_departure_while_a_shielded_write_is_stuck():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        with trio.CancelScope(shield=True):
            await send({"type": "http.response.body", "body": b"x" * 10_000_000, "more_body": True})

    async with SocketSite(app) as site:
        client = await site.open()
        await client.send(GET)
        await client.head()
        reset(client)
        assert await site.outcome() == ["ClientDisconnectedError('client disconnected')"]


async def test_stream_that_is_closed_while_more_is_pipelined_than_is_read():
    gate = Gate()
    async with SocketSite(gate, pipeline_bytes_max=100) as site:
        client = await site.open()
        await client.send(GET * 100)
        await gate.entered.wait()
        site.accepted().socket.close()
        assert await site.outcome() == GONE


async def test_stream_that_is_closed_under_the_server():
    """Whoever owns the stream may close it: the descriptor, perhaps another connection's by now, is not written to."""
    go_on = trio.Event()

    async def app(scope, receive, send):
        await begin_a_stream(receive, send)
        with trio.CancelScope(shield=True):
            await go_on.wait()
            with pytest.raises(OSError, match="client disconnected"):
                await send({"type": "http.response.body", "body": b"to a stranger"})

    async with SocketSite(app) as site:
        client = await site.open()
        await client.send(GET)
        await client.until(b"x\r\n")
        stream = site.accepted()
        descriptor = stream.socket.fileno()
        stream.socket.close()
        with Path(os.devnull).open("rb") as stranger:  # noqa: ASYNC230 - only for its descriptor
            assert stranger.fileno() == descriptor
            go_on.set()
            assert await site.outcome() == ["returned"]
