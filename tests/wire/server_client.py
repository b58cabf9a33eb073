"""What the server's tests share: a place that serves an application in memory, and a client that speaks raw bytes.

Leaving a `Site` is itself a test: every client's stream is closed, and then no connection, request or open stream may
be left, and no bug may have been reported that the test did not take out of `bugs`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pytest
import trio
from trio.testing import memory_stream_pair

from motor_flow.edge.server import Limits, Server
from motor_flow.errors import openai_type

CHUNKED = b"POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n"
GET = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n"
App = Callable[[Any, Any, Any], Awaitable[None]]


def post(body: bytes, *extra: bytes, path: bytes = b"/") -> bytes:
    lines = [b"POST %b HTTP/1.1" % path, b"host: test", b"content-length: %d" % len(body), *extra]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(*chunks: bytes) -> bytes:
    return CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


async def read_body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        assert message["type"] == "http.request"
        body += message["body"]
        if not message["more_body"]:
            return body


async def reply(send: Any, body: bytes, status: int = 200, headers: Any = ()) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body = await read_body(receive)
    await reply(send, b"%b %b %b" % (scope["method"].encode(), scope["raw_path"], body))


@dataclass
class Answer:
    status: int
    headers: dict[bytes, bytes]
    body: bytes
    chunks: list[bytes] | None = None

    @property
    def error(self) -> Any:
        return json.loads(self.body)["error"]


def check_error(answer: Answer, status: int) -> None:
    """The answer is an error of the project's shape, and the last one of its connection."""
    assert answer.status == status
    assert answer.headers[b"content-type"] == b"application/json"
    assert answer.headers[b"connection"] == b"close"
    assert b"date" in answer.headers
    assert answer.error["message"]
    assert {**answer.error, "message": ""} == {
        "message": "",
        "type": openai_type(status),
        "param": None,
        "code": status,
        "stage": "client",
    }


class Client:
    """One connection, raw."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.buffer = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def trickle(self, data: bytes, pause_s: float = 0) -> None:
        for at in range(len(data)):
            await self.stream.send_all(data[at : at + 1])
            if pause_s:
                await trio.sleep(pause_s)
            else:
                await trio.testing.wait_all_tasks_blocked()

    async def more(self) -> bool:
        data = await self.stream.receive_some(65536)
        self.buffer += data
        return bool(data)

    async def until(self, mark: bytes) -> bytes:
        while mark not in self.buffer:
            assert await self.more(), f"closed before {mark!r}; got {self.buffer!r}"
        before, _, self.buffer = self.buffer.partition(mark)
        return before + mark

    async def exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            assert await self.more(), f"closed after {self.buffer!r}"
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    async def to_the_end(self) -> bytes:
        """Everything until the server closes, as far as a reset lets it come."""
        try:
            while await self.more():
                pass
        except trio.BrokenResourceError:
            self.buffer += b"<reset>"
        data, self.buffer = self.buffer, b""
        return data

    async def head(self) -> tuple[int, dict[bytes, bytes]]:
        line, *fields = (await self.until(b"\r\n\r\n"))[:-4].split(b"\r\n")
        version, status, _ = line.split(b" ", 2)
        assert version == b"HTTP/1.1"
        pairs = [tuple(field.split(b": ", 1)) for field in fields]
        headers = dict(pairs)
        assert len(headers) == len(pairs), f"a header twice in {pairs}"
        return int(status), headers

    async def answer(self, *, head_only: bool = False) -> Answer:
        status, headers = await self.head()
        if head_only or status in {204, 304}:
            return Answer(status, headers, b"")
        if headers.get(b"transfer-encoding") == b"chunked":
            assert b"content-length" not in headers
            chunks = []
            while True:
                size = int(await self.until(b"\r\n"), 16)
                chunk = await self.exactly(size + 2)
                assert chunk.endswith(b"\r\n")
                if not size:
                    return Answer(status, headers, b"".join(chunks), chunks)
                chunks.append(chunk[:-2])
        return Answer(status, headers, await self.exactly(int(headers[b"content-length"])))

    async def closed(self) -> None:
        """The server has closed, and said nothing more."""
        assert await self.to_the_end() == b""

    async def leave(self) -> None:
        await trio.aclose_forcefully(self.stream)


class Site:
    """A server of one application, in memory.

    Attributes:
        outcomes: how each call of the application ended: "returned", "cancelled: REASON" or the exception.
        bugs: what the server reported.

    """

    def __init__(self, app: App = echo, **limits: Any) -> None:
        self.app = app
        self.outcomes: list[str] = []
        self.bugs: list[BaseException] = []
        self.settle_s = 1000.0
        self.poll_s = 0.1
        self.server = Server(self._watched, Limits(**limits), on_bug=self.bugs.append)
        self._manager = trio.open_nursery()
        self._ends: list[tuple[Any, Any]] = []

    async def _watched(self, scope: Any, receive: Any, send: Any) -> None:
        outcome = "returned"
        try:
            await self.app(scope, receive, send)
        except trio.Cancelled as cancelled:
            outcome = f"cancelled: {cancelled.reason}"
            raise
        except BaseException as exc:
            outcome = repr(exc)
            raise
        finally:
            self.outcomes.append(outcome)

    def connect(self) -> Client:
        ours, theirs = memory_stream_pair()
        return self.adopt(ours, theirs)

    def adopt(self, ours: Any, theirs: Any) -> Client:
        """Serve `theirs`; the client is at `ours`."""
        self._ends.append((ours, theirs))
        self.nursery.start_soon(self.server.serve_stream, theirs)
        return Client(ours)

    async def settled(self) -> None:
        """Wait until every connection has ended."""
        with trio.fail_after(self.settle_s):
            while self.server.connections:  # noqa: ASYNC110 - the server has no one to tell
                await trio.sleep(self.poll_s)

    async def __aenter__(self) -> Self:
        self.nursery = await self._manager.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if exc is not None:
            self.nursery.cancel_scope.cancel()
            return await self._manager.__aexit__(kind, exc, traceback)
        for ours, _ in self._ends:
            await trio.aclose_forcefully(ours)
        await self.settled()
        await trio.testing.wait_all_tasks_blocked()
        left = [task.name for task in self.nursery.child_tasks]
        await self._manager.__aexit__(None, None, None)
        assert left == []
        assert self.server.active == 0
        assert self.bugs == []
        for _, theirs in self._ends:
            with pytest.raises(trio.ClosedResourceError):
                await theirs.send_all(b"x")
        return None
