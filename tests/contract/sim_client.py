"""How the simulators' tests speak to an ASGI app: in memory, without a server.

`Client.call` has the signature that the conformance checks want. `Client.open` starts a call in a nursery and hands
back an `Ongoing`, which takes the answer message by message: the app cannot run ahead of a reader that does not read,
and `leave` is what a server does when its client has gone.
"""

from __future__ import annotations

import json
from typing import Any

import trio

SSE = "text/event-stream"


def decoded(headers: dict[str, str], body: bytes) -> Any:
    """The events of a stream, JSON, text, or "" for no body."""
    if headers.get("content-type", "").startswith(SSE):
        return events(body.decode())
    if headers.get("content-type", "").startswith("application/json"):
        return json.loads(body)
    return body.decode()


def events(text: str) -> list[Any]:
    """What each event says: JSON, or the text of one that is none, such as `[DONE]`."""
    if text and not text.endswith("\n\n"):
        raise AssertionError(f"a stream ends inside an event: {text[-80:]!r}")
    said = []
    for event in text.split("\n\n")[:-1]:
        assert event.startswith("data: "), event
        data = event.removeprefix("data: ")
        said.append(json.loads(data) if data.startswith("{") else data)
    return said


def scope(method: str, path: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    names = {"content-type": "application/json", "host": "test"} | {k.lower(): v for k, v in (headers or {}).items()}
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in names.items()],
    }


def payload(body: Any) -> bytes:
    return body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()


class Ongoing:
    """One call and its answer so far."""

    def __init__(self, app: Any, scope: dict[str, Any], body: bytes) -> None:
        self._app, self._scope = app, scope
        self._requests = [{"type": "http.request", "body": body, "more_body": False}]
        self._outbox, self._inbox = trio.open_memory_channel[dict[str, Any]](0)
        self._cancel = trio.CancelScope()
        self.over = trio.Event()
        self.status = 0
        self.headers: dict[str, str] = {}

    async def run(self) -> None:
        try:
            with self._cancel:
                async with self._outbox:
                    await self._app(self._scope, self._receive, self._send)
        finally:
            self.over.set()

    async def head(self) -> None:
        message = await self._inbox.receive()
        assert message["type"] == "http.response.start"
        self.status = message["status"]
        self.headers = {name.decode(): value.decode() for name, value in message["headers"]}

    async def body(self) -> bytes:
        parts = [message["body"] async for message in self._inbox]
        await self.over.wait()
        return b"".join(parts)

    async def event(self) -> Any:
        """The next event. Each is one message of its own."""
        message = await self._inbox.receive()
        (event,) = events(message["body"].decode())
        return event

    async def rest(self) -> list[Any]:
        return events((await self.body()).decode())

    async def leave(self) -> None:
        """Be gone: what a server does to the app when its client hangs up."""
        self._cancel.cancel()
        await self.over.wait()

    async def _send(self, message: dict[str, Any]) -> None:
        if message.get("more_body") and not message["body"]:
            await trio.lowlevel.checkpoint()  # it only lets the head leave
        else:
            await self._outbox.send(message)

    async def _receive(self) -> dict[str, Any]:
        if self._requests:
            return self._requests.pop()
        await trio.sleep_forever()
        raise AssertionError


class Client:
    def __init__(self, app: Any) -> None:
        self.app = app

    async def call(self, method: str, path: str, body: Any = None, headers: Any = None) -> tuple[int, Any, Any]:
        """(status, headers, what the body says). A body that is bytes is sent as it is."""
        async with trio.open_nursery() as nursery:
            ongoing = Ongoing(self.app, scope(method, path, headers), payload(body))
            nursery.start_soon(ongoing.run)
            await ongoing.head()
            said = await ongoing.body()
        return ongoing.status, ongoing.headers, decoded(ongoing.headers, said)

    async def ask(self, path: str, body: Any, headers: Any = None) -> Any:
        """What a POST that succeeds says."""
        status, _, said = await self.call("POST", path, body, headers)
        assert status == 200, said
        return said

    async def open(self, nursery: trio.Nursery, path: str, body: Any, headers: Any = None) -> Ongoing:
        """A POST whose answer is read by the test; its head has come when this returns."""
        ongoing = self.start(nursery, path, body, headers)
        await ongoing.head()
        return ongoing

    def start(self, nursery: trio.Nursery, path: str, body: Any, headers: Any = None) -> Ongoing:
        ongoing = Ongoing(self.app, scope("POST", path, headers), payload(body))
        nursery.start_soon(ongoing.run)
        return ongoing
