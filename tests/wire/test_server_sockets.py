"""What only real sockets and TLS show: options, resets, full kernel buffers, unread bytes at the close."""

from __future__ import annotations

import os
import socket
import ssl
import struct
from pathlib import Path

import pytest
import trio
import trustme
from server_client import GET, Client, Site, post, read_body, reply

GONE = ["cancelled: client disconnected"]
SOON_S = 5  # never waited for in a passing test


class SocketSite(Site):
    """The same server behind a listener; leaving it drains."""

    def __init__(self, app, *, context=None, path=None, **limits):
        super().__init__(app, **limits)
        self._context = context
        self._path = path
        self.settle_s = SOON_S
        self.poll_s = 0.002

    async def __aenter__(self):
        await super().__aenter__()
        if self._path is None:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=self.server.limits.backlog)
        else:
            sock = trio.socket.socket(socket.AF_UNIX)
            await sock.bind(os.fspath(self._path))
            sock.listen(self.server.limits.backlog)
            listeners = [trio.SocketListener(sock)]
        self.address = listeners[0].socket.getsockname()
        if self._context is not None:
            listeners = [trio.SSLListener(listener, self._context) for listener in listeners]
        await self.nursery.start(lambda task_status: self.server.serve(listeners, task_status=task_status))
        self._streams = []
        return self

    async def __aexit__(self, kind, exc, traceback):
        for stream in self._streams:
            await trio.aclose_forcefully(stream)
        self.server.drain()
        return await super().__aexit__(kind, exc, traceback)

    async def open(self, receive_buffer_bytes=None):
        sock = trio.socket.socket(socket.AF_INET if self._path is None else socket.AF_UNIX)
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        await sock.connect(self.address)
        stream = trio.SocketStream(sock)
        self._streams.append(stream)
        return Client(stream)

    async def outcome(self):
        """The outcomes, once there is one and every connection has ended."""
        with trio.fail_after(SOON_S):
            while not self.outcomes or self.server.connections:  # noqa: ASYNC110 - the server has no one to tell
                await trio.sleep(self.poll_s)
        return self.outcomes

    def accepted(self):
        (connection,) = self.server._connections
        return connection.peer.stream


def reset(client):
    client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.stream.socket.close()


def finish(client):
    client.stream.socket.close()


def half_close(client):
    client.stream.socket.shutdown(socket.SHUT_WR)


class Gate:
    """An application that says when it runs and then waits for something else than the client."""

    def __init__(self, before=None):
        self.before = before
        self.entered = trio.Event()

    async def __call__(self, scope, receive, send):
        self.scope = scope
        if self.before is not None:
            await self.before(receive, send)
        self.entered.set()
        await trio.sleep_forever()


async def read_it(receive, send):
    await read_body(receive)


async def begin_a_stream(receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x", "more_body": True})


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


async def test_a_fast_stream_lets_others_run():
    turns = 0

    async def app(scope, receive, send):
        nonlocal turns
        if scope["path"] == "/":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while turns < 10:
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await send({"type": "http.response.body"})
        else:
            while turns < 10:
                turns += 1
                await trio.lowlevel.checkpoint()
            await reply(send, b"ok")

    async with SocketSite(app) as site:
        stream, other = await site.open(), await site.open()
        await stream.send(GET)
        await stream.head()
        await other.send(post(b"", path=b"/other"))
        with trio.fail_after(SOON_S):
            assert (await other.answer()).body == b"ok"
            await stream.until(b"0\r\n\r\n")


async def test_socket_options():
    gate = Gate()
    async with SocketSite(gate, send_buffer_bytes=20_000) as site:
        client = await site.open()
        await client.send(GET)
        await gate.entered.wait()
        accepted = site.accepted()
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in {20_000, 40_000}  # Linux doubles
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


async def test_departure_while_the_kernels_buffer_is_full():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 10_000_000})

    async with SocketSite(app) as site:
        client = await site.open()
        await client.send(GET)
        await client.head()
        finish(client)
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


# TLS


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture
def server_context(authority):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("server.test").configure_cert(context)
    return context


@pytest.fixture
def client_context(authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def over_tls(client, context):
    return Client(trio.SSLStream(client.stream, context, server_hostname="server.test"))


async def test_tls(server_context, client_context):
    scopes = []

    async def app(scope, receive, send):
        scopes.append(scope)
        await reply(send, await read_body(receive))

    async with SocketSite(app, context=server_context) as site:
        client = over_tls(await site.open(), client_context)
        for _ in range(2):
            await client.send(post(b"x" * 300_000))
            assert (await client.answer()).body == b"x" * 300_000
        await client.send(GET[:-2] + b"connection: close\r\n\r\n")
        assert (await client.answer()).status == 200
        await client.closed()  # with close_notify, else the client's TLS complains
    assert scopes[0]["scheme"] == "https"
    assert scopes[0]["server"] == site.address


async def notify_and_close(client):
    with trio.move_on_after(SOON_S):
        await client.stream.aclose()


async def tear(client):
    client.stream.transport_stream.socket.close()


@pytest.mark.parametrize("leave", [notify_and_close, tear])
@pytest.mark.parametrize("before", [None, read_it, begin_a_stream])
async def test_departure_over_tls(server_context, client_context, leave, before):
    gate = Gate(before)
    async with SocketSite(gate, context=server_context) as site:
        client = over_tls(await site.open(), client_context)
        await client.send(GET + GET)
        await gate.entered.wait()
        await leave(client)
        assert await site.outcome() == GONE


async def test_cut_over_tls_is_not_a_clean_end(server_context, client_context):
    async def app(scope, receive, send):
        await begin_a_stream(receive, send)

    async with SocketSite(app, context=server_context) as site:
        client = over_tls(await site.open(), client_context)
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        assert (await client.to_the_end()).endswith(b"x<reset>")
        site.bugs.clear()


async def test_refusal_over_tls(server_context, client_context):
    async with SocketSite(Gate(), context=server_context, body_bytes_max=100) as site:
        client = over_tls(await site.open(), client_context)
        await client.send(post(b"x" * 100_000))
        assert (await client.answer()).status == 413
        await client.leave()


async def test_handshake_that_never_comes_is_bounded(server_context):
    async with SocketSite(Gate(), context=server_context, header_timeout_s=0.03) as site:
        client = await site.open()
        assert await client.to_the_end() in {b"", b"<reset>"}
        await site.settled()


async def test_handshake_with_plain_http_is_nothing(server_context):
    async with SocketSite(Gate(), context=server_context) as site:
        client = await site.open()
        await client.send(GET)
        await client.to_the_end()
        await site.settled()
