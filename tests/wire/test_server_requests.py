"""One request after another: what the application sees and what the client gets."""

from __future__ import annotations

import contextvars

import pytest
import trio
from trio.testing import memory_stream_pair

from tests.wire.server_client import GET, Client, Site, chunked, post, read_body, reply


async def test_scope_says_what_the_request_says(autojump_clock):
    seen = []

    async def app(scope, receive, send):
        seen.append(scope)
        await reply(send, b"")

    async with Site(app) as site:
        client = site.connect()
        await client.send(
            b"PUT /a%20%C3%A9/b%2Fc?x=%20&y HTTP/1.1\r\nHost: test\r\nX-Two: 1\r\nx-two:  2 \r\nEmpty:\r\n\r\n"
        )
        await client.answer()
    scope = seen[0]
    assert scope["type"] == "http"
    assert scope["asgi"] == {"version": "3.0", "spec_version": "2.4"}
    assert scope["http_version"] == "1.1"
    assert scope["method"] == "PUT"
    assert scope["scheme"] == "http"
    assert scope["path"] == "/a é/b/c"
    assert scope["raw_path"] == b"/a%20%C3%A9/b%2Fc"
    assert scope["query_string"] == b"x=%20&y"
    assert scope["root_path"] == ""
    assert scope["headers"] == [(b"host", b"test"), (b"x-two", b"1"), (b"x-two", b"2"), (b"empty", b"")]
    assert scope["extensions"] == {"http.reset": {}}


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"http://test:80/a/b?c", "/a/b", b"c"),
        (b"http://test", "/", b""),
        (b"*", "*", b""),
        (b"//double?", "//double", b""),
    ],
)
async def test_request_targets(autojump_clock, target, path, query):
    seen = []

    async def app(scope, receive, send):
        seen.append((scope["path"], scope["query_string"]))
        await reply(send, b"")

    async with Site(app) as site:
        client = site.connect()
        await client.send(b"OPTIONS %b HTTP/1.1\r\nhost: test\r\n\r\n" % target)
        await client.answer()
    assert seen == [(path, query)]


async def test_head_has_no_body(autojump_clock):
    async def app(scope, receive, send):
        if scope["path"] == "/stream":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
            await send({"type": "http.response.body", "body": b"two"})
        else:
            await reply(send, b"hello")

    async with Site(app) as site:
        client = site.connect()
        await client.send(b"HEAD / HTTP/1.1\r\nhost: test\r\n\r\nHEAD /stream HTTP/1.1\r\nhost: test\r\n\r\n" + GET)
        assert (await client.answer(head_only=True)).headers[b"content-length"] == b"5"
        assert b"content-length" not in (await client.answer(head_only=True)).headers
        assert (await client.answer()).body == b"hello"


async def test_http_1_0_gets_no_chunks_and_a_close(autojump_clock):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["http_version"].encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"end"})

    async with Site(app) as site:
        client = site.connect()
        await client.send(b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        status, headers = await client.head()
        assert status == 200
        assert headers[b"connection"] == b"close"
        assert b"transfer-encoding" not in headers
        assert await client.to_the_end() == b"1.0end"


@pytest.mark.parametrize("close", [b"close", b"Close", b"te, close"])
async def test_client_may_ask_for_a_close(autojump_clock, close):
    async with Site() as site:
        client = site.connect()
        await client.send(b"GET / HTTP/1.1\r\nhost: test\r\nconnection: %b\r\n\r\n" % close)
        assert (await client.answer()).headers[b"connection"] == b"close"
        await client.closed()


async def test_application_may_ask_for_a_close(autojump_clock):
    async def app(scope, receive, send):
        await reply(send, b"bye", headers=[(b"Connection", b"close")])

    async with Site(app) as site:
        client = site.connect()
        await client.send(GET)
        assert (await client.answer()).headers[b"connection"] == b"close"
        await client.closed()


async def test_pipelined_requests_are_answered_in_order_one_at_a_time(autojump_clock):
    running = []

    async def app(scope, receive, send):
        running.append(scope["path"])
        assert site.server.active == 1
        body = await read_body(receive)
        await trio.sleep(1)
        await reply(send, scope["raw_path"] + body)

    requests = [post(b"a", path=b"/1"), chunked(b"b", b"c").replace(b"POST /", b"POST /2"), GET, post(b"", path=b"/4")]
    async with Site(app) as site:
        client = site.connect()
        await client.send(b"".join(requests))
        await trio.sleep(0.5)
        assert running == ["/1"]
        assert [(await client.answer()).body for _ in requests] == [b"/1a", b"/2bc", b"/", b"/4"]
    assert trio.current_time() >= 4


async def test_pipelined_bytes_are_bounded(autojump_clock):
    async def app(scope, receive, send):
        await trio.sleep(10)
        await reply(send, b"ok")

    async with Site(app, pipeline_bytes_max=1000) as site:
        ours, theirs = trio.testing.lockstep_stream_pair()
        client = site.adopt(ours, theirs)
        await client.send(GET)
        accepted = 0
        with trio.move_on_after(5):
            while True:
                await client.send(b"x" * 500)
                accepted += 500
        assert 1000 <= accepted <= 1500


async def test_more_pipelined_requests_than_are_read_ahead(autojump_clock):
    async def app(scope, receive, send):
        await reply(send, scope["raw_path"])

    async with Site(app, pipeline_bytes_max=200) as site, trio.open_nursery() as nursery:
        client = site.adopt(*trio.testing.lockstep_stream_pair())

        async def ask():
            for number in range(100):
                await client.send(post(b"x", path=b"/%d" % number))

        nursery.start_soon(ask)
        for number in range(100):
            assert (await client.answer()).body == b"/%d" % number


async def test_next_request_waits_until_the_application_has_returned(autojump_clock):
    async def app(scope, receive, send):
        await reply(send, b"%f" % trio.current_time())
        await trio.sleep(2)

    async with Site(app) as site:
        client = site.connect()
        await client.send(GET)
        first = float((await client.answer()).body)
        await client.send(GET)
        assert float((await client.answer()).body) - first == pytest.approx(2)
    assert site.outcomes == ["returned", "returned"]


async def test_context_variables_do_not_leak_into_the_next_request(autojump_clock):
    variable = contextvars.ContextVar("variable", default="fresh")

    async def app(scope, receive, send):
        before = variable.get()
        variable.set("used")
        await reply(send, before.encode())

    async with Site(app) as site:
        client = site.connect()
        await client.send(GET + GET)
        assert [(await client.answer()).body for _ in range(2)] == [b"fresh", b"fresh"]
        await client.send(GET)
        assert (await client.answer()).body == b"fresh"


async def test_line_ends_between_requests_are_forgiven(autojump_clock):
    async with Site() as site:
        client = site.connect()
        for _ in range(2):
            await client.send(b"\r\n" + post(b"x"))
            await client.send(b"\r\n")
            assert (await client.answer()).body == b"POST / x"


@pytest.mark.parametrize(
    "request_bytes",
    [
        GET[:-2] + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n\r\n",
        post(b"hello", b"connection: upgrade", b"upgrade: h2c"),
        chunked(b"hello").replace(b"\r\n\r\n", b"\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n", 1),
    ],
)
@pytest.mark.parametrize("trickled", [False, True])
async def test_upgrades_are_declined_by_answering_in_http_1_1(autojump_clock, request_bytes, trickled):
    async with Site() as site:
        client = site.connect()
        for _ in range(2):
            await (client.trickle(request_bytes) if trickled else client.send(request_bytes))
            answer = await client.answer()
            assert answer.status == 200
            assert answer.body.endswith(b" / hello" if b"POST" in request_bytes else b"GET / ")


async def test_receive_after_the_body_returns_when_the_response_is_complete(autojump_clock):
    messages = []

    async def app(scope, receive, send):
        await read_body(receive)

        async def listen():
            messages.append(await receive())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await trio.sleep(5)
            assert messages == []
            await reply(send, b"ok")

    async with Site(app) as site:
        client = site.connect()
        for _ in range(2):
            messages.clear()
            await client.send(post(b"x"))
            await client.answer()
            await trio.testing.wait_all_tasks_blocked()
            assert messages == [{"type": "http.disconnect"}]
        assert site.outcomes == ["returned", "returned"]


class Counted(trio.abc.Stream):
    """Notes every write."""

    def __init__(self, stream):
        self.stream = stream
        self.writes = []

    async def send_all(self, data):
        self.writes.append(bytes(data))
        await self.stream.send_all(data)

    async def wait_send_all_might_not_block(self):
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes=None):
        return await self.stream.receive_some(max_bytes)

    async def aclose(self):
        await self.stream.aclose()


async def test_writes_are_as_few_as_can_be(autojump_clock):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await send({"type": "http.response.body", "body": b"data: 2\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    async with Site(app) as site:
        ours, theirs = memory_stream_pair()
        counted = Counted(theirs)
        site.adopt(ours, counted)
        client = Client(ours)
        await client.send(GET)
        assert (await client.answer()).chunks == [b"data: 1\n\n", b"data: 2\n\n", b"data: [DONE]\n\n"]
        first, second, last = counted.writes
        assert first.startswith(b"HTTP/1.1 200 OK\r\n")
        assert first.endswith(b"\r\n\r\n9\r\ndata: 1\n\n\r\n")
        assert second == b"9\r\ndata: 2\n\n\r\n"
        assert last == b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
