"""The same server over TLS: requests, departures, visible cuts, handshakes that fail."""

from __future__ import annotations

import ssl

import pytest
import trio
import trustme

from tests.wire.server_client import GET, Client, post, read_body, reply
from tests.wire.server_sockets import SOON_S, Gate, SocketSite, begin_a_stream, read_it

GONE = ["cancelled: client disconnected"]


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
