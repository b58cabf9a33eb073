"""What is asked in one call, and what is answered?

Everything that a simulator writes goes through an `Exchange`: the whole answer in `reply`, or a stream as `open`,
`event`…, `close`. Whatever is to go wrong with a call (before the head, after it, after some events, instead of a
body) can therefore be decided in one place.

An `App` finds the handler of a call, refuses calls without a key, and turns a `Refusal` into its answer. It needs no
lifespan and starts no task: the server cancels it when the client goes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from motor_flow.sim.refusal import Refusal, unreadable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from motor_flow.edge.asgi import Receive, Scope, Send

    Handler = Callable[["Exchange"], Awaitable[None]]

GUARDED = ("/v1", "/v2", "/inference", "/cohere")
DONE = b"data: [DONE]\n\n"
_SERVER = (b"server", b"uvicorn")


class ClientGone(Exception):
    """The client went before its request was complete."""


class Exchange:
    """One call."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self.status: int | None = None
        self._receive = receive
        self._send = send

    async def body(self) -> bytes:
        parts: list[bytes] = []
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientGone
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(parts)

    async def json(self, *, checked: bool = True) -> Any:
        """The body as JSON.

        Args:
            checked: refuse other content types and an empty body, as every route with a model does.

        Raises:
            Refusal: not JSON.

        """
        media_type = self.headers.get("content-type", "").lower().partition(";")[0]
        if checked and media_type != "application/json":
            raise unreadable(["Unsupported Media Type: Only 'application/json' is allowed"])
        raw = await self.body()
        value = _decode(raw, checked=checked) if raw or not checked else None
        if value is None and checked:
            raise unreadable([{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}])
        return value

    async def reply(
        self,
        body: bytes = b"",
        *,
        status: int = 200,
        media_type: str = "application/json",
        extra: Mapping[str, str] = {},
    ) -> None:
        """The whole answer."""
        headers = [_SERVER, (b"content-length", str(len(body)).encode())]
        if body:
            headers.append((b"content-type", media_type.encode()))
        headers += [(name.encode(), value.encode()) for name, value in extra.items()]
        await self._head(status, headers)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def reply_json(self, value: Any, *, status: int = 200) -> None:
        await self.reply(msgspec.json.encode(value), status=status)

    async def open(self) -> None:
        """The head of an event stream. It leaves at once, as uvicorn sends it."""
        await self._head(200, [_SERVER, (b"content-type", b"text/event-stream; charset=utf-8")])
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})

    async def event(self, data: bytes) -> None:
        """One event, as bytes with its `data: ` and its empty line."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def close(self) -> None:
        """`[DONE]` and the end of the stream."""
        await self._send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def fail(self, refusal: Refusal) -> None:
        """An error found after the head has gone: an event, then the end."""
        await self.event(b"data: " + json.dumps(refusal.body).encode() + b"\n\n")
        await self.close()

    async def _head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


class App:
    """An ASGI app from a table of routes."""

    def __init__(self, *, api_key: str | None) -> None:
        self._routes: dict[str, dict[str, Handler]] = {}
        self._bearer = f"Bearer {api_key}" if api_key is not None else None

    def route(self, method: str, path: str, handler: Handler) -> None:
        self._routes.setdefault(path, {})[method] = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"a simulator speaks HTTP only, not {scope['type']}")
        call = Exchange(scope, receive, send)
        try:
            await self._dispatch(call)
        except Refusal as refusal:
            await call.reply(refusal.encode(), status=refusal.status)
        except ClientGone:
            return

    def paths(self) -> dict[str, dict[str, Any]]:
        """What `/openapi.json` lists."""
        return {path: {method.lower(): {} for method in handlers} for path, handlers in self._routes.items()}

    async def _dispatch(self, call: Exchange) -> None:
        if (
            self._bearer is not None
            and call.path.startswith(GUARDED)
            and call.headers.get("authorization") != self._bearer
        ):
            await call.reply_json({"error": "Unauthorized"}, status=401)
            return
        handlers = self._routes.get(call.path)
        if handlers is None:
            await call.reply_json({"detail": "Not Found"}, status=404)
            return
        handler = handlers.get(call.method)
        if handler is None:
            body = msgspec.json.encode({"detail": "Method Not Allowed"})
            await call.reply(body, status=405, extra={"allow": ", ".join(handlers)})
            return
        await handler(call)


def _decode(raw: bytes, *, checked: bool) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        pass
    try:
        return json.loads(raw)  # takes NaN and infinities, as the real one does, and words its faults the same way
    except ValueError as error:
        if not isinstance(error, json.JSONDecodeError):
            raise Refusal("There was an error parsing the body", kind="Bad Request") from None
        if not checked:
            raise Refusal(f"JSON decode error: {error}", kind="Bad Request") from None
        fault = {
            "type": "json_invalid",
            "loc": ("body", error.pos),
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": error.msg},
        }
        raise unreadable([fault]) from None
