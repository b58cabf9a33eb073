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
import trio

from motor_flow.sim.faults import OVERSIZED_LINE_BYTES_MAX, Fault, Plan, ended, has_finish
from motor_flow.sim.refusal import Refusal, unreadable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from motor_flow.edge.asgi import Receive, Scope, Send
    from motor_flow.sim.seen import Seen

    Handler = Callable[["Exchange"], Awaitable[None]]

GUARDED = ("/v1", "/v2", "/inference", "/cohere")
SLOW_PIECE_BYTES = 16
DELIVERY_S = 0.001  # a reset takes along what the peer has not read yet
DONE = b"data: [DONE]\n\n"
_SERVER = (b"server", b"uvicorn")


class ClientGone(Exception):
    """The client went before its request was complete."""


class Played(Exception):
    """A planned fault has ended the call."""


class Exchange:
    """One call.

    Attributes:
        fault: what goes wrong with it.
        record: what is noted of it.
        dies: called when the fault takes the whole process along.
        translated: what answers and events become before they leave.

    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self.status: int | None = None
        self.fault: Fault | None = None
        self.record: Seen | None = None
        self.dies: Callable[[float], None] | None = None
        self.translated: Callable[[Any], Any] | None = None
        self._events = 0
        self._bytes = 0
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
        await self._before_head()
        body = await self._spoiled(body)
        headers = [_SERVER, (b"content-length", str(len(body)).encode())]
        if body:
            headers.append((b"content-type", media_type.encode()))
        headers += [(name.encode(), value.encode()) for name, value in extra.items()]
        await self._head(status, headers)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def reply_json(self, value: Any, *, status: int = 200) -> None:
        if self.translated is not None:
            value = self.translated(value)
        await self.reply(msgspec.json.encode(value), status=status)

    async def open(self) -> None:
        """The head of an event stream. It leaves at once, as uvicorn sends it."""
        await self._before_head()
        await self._head(200, [_SERVER, (b"content-type", b"text/event-stream; charset=utf-8")])
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})

    async def event(self, data: bytes) -> None:
        """One event, as bytes with its `data: ` and its empty line."""
        if self.translated is not None:
            data = b"data: %b\n\n" % msgspec.json.encode(self.translated(msgspec.json.decode(data[6:])))
        if self.fault is not None and self.fault.kind == "slow":
            for at in range(0, len(data), SLOW_PIECE_BYTES):
                await self._write(data[at : at + SLOW_PIECE_BYTES])
                await trio.sleep(self.fault.seconds)
            return
        if self.fault is not None:
            await self._play(self.fault, data)
        await self._write(data)

    async def _write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def close(self) -> None:
        """`[DONE]` and the end of the stream."""
        fault = self.fault
        if fault is not None and fault.kind not in ("slow", "late", "status", "reset"):
            # The stream was shorter than the plan thought: what was to happen later happens at its end.
            self._events = max(self._events, fault.after)
            await self._play(fault, b"")
        await self._send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def fail(self, refusal: Refusal) -> None:
        """An error found after the head has gone: an event, then the end."""
        await self.event(b"data: " + json.dumps(refusal.body).encode() + b"\n\n")
        await self.close()

    # --- what goes wrong ---

    async def reset(self) -> None:
        """The connection is gone, and what was not read with it."""
        await self._send({"type": "http.reset"})

    async def _before_head(self) -> None:
        fault = self.fault
        if fault is None:
            return
        match fault.kind:
            case "reset":
                await self.reset()
                raise Played
            case "late":
                await trio.sleep(fault.seconds)
            case "status":
                self.fault = None
                error = {"message": "it was planned", "type": "InternalServerError", "param": None}
                await self.reply_json({"error": error | {"code": fault.status}}, status=fault.status)
                raise Played
            case "stall" if not (fault.after or fault.tokens):
                await trio.sleep_forever()
            case "die" if not (fault.after or fault.tokens):
                await self._die(fault)
            case _:
                pass

    async def _spoiled(self, body: bytes) -> bytes:
        """What becomes of a whole answer."""
        fault, self.fault = self.fault, None
        if fault is None:
            return body
        match fault.kind:
            case "garbage" | "oversized":
                return b"<html>it was planned</html>"
            case "abort":
                return ended(body, "abort", None)
            case "recomputed":
                return ended(body, "stop", "recomputed")
            case "stall":
                await trio.sleep_forever()
            case "die":
                await self._die(fault)
            case "cut" | "bytes" | "eof" | "done" | "lost" | "error":
                await self._head(200, [_SERVER, (b"content-length", str(len(body)).encode())])
                await self._write(body[: len(body) // 2])
                await trio.sleep(DELIVERY_S)
                await self.reset()
                raise Played
            case _:
                pass
        return body

    async def _play(self, fault: Fault, data: bytes) -> None:
        """What goes wrong instead of the next event, when it is due."""
        if fault.kind == "bytes":
            await self._cut_in_bytes(fault, data)
            return
        if fault.kind == "lost":
            if not data or has_finish(data):
                await self.reset()
                raise Played
            return
        self._events += 1
        if self._events <= fault.after:
            return
        if data and fault.tokens and self.record is not None and self.record.tokens <= fault.tokens:
            return
        match fault.kind:
            case "cut":
                await self.reset()
            case "eof":
                await self._end()
            case "done":
                await self._write(DONE)
                await self._end()
            case "stall":
                await trio.sleep_forever()
            case "error":
                error = {"message": "it was planned", "type": "InternalServerError", "param": None, "code": 500}
                await self._write(b"data: " + msgspec.json.encode({"error": error}) + b"\n\n" + DONE)
                await self._end()
            case "garbage":
                await self._write(b"data: {it was planned\n\n")
                await self._end()
            case "oversized":
                for _ in range(OVERSIZED_LINE_BYTES_MAX >> 16):
                    await self._write(b"x" * 65536)
                await self._end()
            case "abort" | "recomputed":
                finish, reason = ("abort", None) if fault.kind == "abort" else ("stop", "recomputed")
                await self._write((ended(data, finish, reason) if data else b"") + DONE)
                await self._end()
            case "die":
                await self._die(fault)
            case _:
                return
        raise Played

    async def _cut_in_bytes(self, fault: Fault, data: bytes) -> None:
        left = fault.after - self._bytes
        self._bytes += len(data)
        if data and self._bytes <= fault.after:
            return
        await self._write(data[:left])
        await trio.sleep(DELIVERY_S)
        await self.reset()
        raise Played

    async def _die(self, fault: Fault) -> None:
        assert self.dies is not None
        self.dies(fault.seconds)
        await trio.sleep_forever()  # we are one of those that are ended by it

    async def _end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


class App:
    """An ASGI app from a table of routes.

    Attributes:
        faults: what is to go wrong with its calls.
        dead_until: the process is gone until then (trio clock, seconds).

    """

    def __init__(self, *, api_key: str | None) -> None:
        self.faults = Plan()
        self.dead_until = 0.0
        self._lives: set[trio.CancelScope] = set()
        self._routes: dict[str, dict[str, Handler]] = {}
        self._bearer = f"Bearer {api_key}" if api_key is not None else None

    def route(self, method: str, path: str, handler: Handler) -> None:
        self._routes.setdefault(path, {})[method] = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"a simulator speaks HTTP only, not {scope['type']}")
        call = Exchange(scope, receive, send)
        call.dies = self.die
        if trio.current_time() < self.dead_until:
            await call.reset()
            return
        with trio.CancelScope() as life:
            self._lives.add(life)
            try:
                try:
                    await self._dispatch(call)
                except Refusal as refusal:
                    await call.reply(refusal.encode(), status=refusal.status)
            except (ClientGone, Played):
                return
            finally:
                self._lives.discard(life)
        if life.cancelled_caught:
            await call.reset()

    def meet(self, call: Exchange, record: Seen) -> None:
        """A call has been read: is something to go wrong with it?"""
        fault = self.faults.take(record)
        if fault is not None:
            call.fault, call.record, record.fault = fault, record, fault.kind

    def die(self, seconds: float) -> None:
        """As if the process were killed now, and started again after this time."""
        self.dead_until = trio.current_time() + seconds
        for life in self._lives:
            life.cancel(reason="killed")

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
