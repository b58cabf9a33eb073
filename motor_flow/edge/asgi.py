"""What types does an ASGI application have here?

The same shapes as Starlette's own aliases, so that its applications fit without the server knowing Starlette.

Source: ASGI 3.0, HTTP message format 2.4.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]


class ClientDisconnectedError(OSError):
    """Raised by `send` when the client is gone and the caller is shielded from the cancellation that says so."""


class ApplicationError(RuntimeError):
    """The application broke the ASGI protocol: a bug of ours, never the client's fault."""
