"""Which application answers which path?

An exact table, checked once per request. Unknown paths and methods get the project's error shape, which is why this
is not a framework's router.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from motor_flow.edge.allowance import request_headers, retry_headers
from motor_flow.edge.asgi import ASGIApp, Headers, Receive, Scope, Send
from motor_flow.errors import ClientError, MotorFlowError
from motor_flow.scheduling.ratelimit import RateLimited

JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")


class NotAllowed(ClientError):
    """The path exists, but does not take this method."""

    default_status = 405

    def __init__(self, path: str, method: str, allowed: str) -> None:
        super().__init__(f"{path} takes {allowed}, not {method}")
        self.allowed = allowed


class Routes:
    """An ASGI application made of others.

    Args:
        table: `{"METHOD /path": app}`; a path that ends in `/*` matches everything below it.

    Raises (when called):
        ClientError: no such path, or not with this method.

    """

    def __init__(self, table: Mapping[str, ASGIApp]) -> None:
        self._exact: dict[str, dict[str, ASGIApp]] = {}
        self._below: dict[str, dict[str, ASGIApp]] = {}
        for key, app in table.items():
            method, path = key.split(" ")
            where = self._below if path.endswith("/*") else self._exact
            where.setdefault(path.removesuffix("*"), {})[method] = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        methods = self._exact.get(path)
        if methods is None:
            methods = next((apps for prefix, apps in self._below.items() if path.startswith(prefix)), None)
        if methods is None:
            raise ClientError(f"there is no {path} here", status=404)
        app = methods.get(scope["method"])
        if app is None:
            raise NotAllowed(path, scope["method"], ", ".join(sorted(methods)))
        await app(scope, receive, send)


async def respond(send: Send, status: int, body: bytes, headers: Headers) -> None:
    """A whole response."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, (b"content-length", b"%d" % len(body))],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, value: object, status: int = 200) -> None:
    """A whole JSON response."""
    await respond(send, status, msgspec.json.encode(value), [JSON])


def error_headers(error: MotorFlowError) -> Headers:
    """Headers that belong to an error, whatever the request was."""
    if isinstance(error, NotAllowed):
        return [(b"allow", error.allowed.encode())]
    if error.status == 401:
        return [(b"www-authenticate", b"Bearer")]
    if error.status in (429, 503):
        headers = retry_headers(error.retry_after_s or 1)
        return headers + request_headers(error.standing) if isinstance(error, RateLimited) else headers
    return []


async def read_body(receive: Receive, bytes_max: float = math.inf) -> bytes:
    """The whole request body; the server bounds it, a route may bound it further.

    Raises:
        ClientError: it is longer than `bytes_max`.

    """
    parts = []
    size = 0
    more = True
    while more:
        message = await receive()
        part: bytes = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > bytes_max:
            raise ClientError(f"the request's body exceeds {bytes_max:.0f} bytes", status=413)
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def headers_of(scope: Scope, name: bytes) -> list[bytes]:
    """All headers of this lower-case name."""
    return [value for key, value in scope["headers"] if key == name]


def header_of(scope: Scope, name: bytes) -> bytes | None:
    """The first header of this lower-case name."""
    return next((value for key, value in scope["headers"] if key == name), None)
