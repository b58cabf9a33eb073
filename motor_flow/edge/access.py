"""May this client use the API?

Keys are kept as sha256 digests and compared in constant time against all of them. A missing and a wrong key get the
same answer. What is behind the check knows a key by its place in the configuration, never the key.

Source: contract section 2 (api_key_config); vLLM compares the same way.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from motor_flow.edge.asgi import ASGIApp, Receive, Scope, Send
from motor_flow.edge.routes import header_of
from motor_flow.errors import ClientError

CLIENT = "motor_flow.client"


def client_of(scope: Scope) -> str:
    """The name of the key that a request came with; empty: no keys are used."""
    name: str = scope.get(CLIENT, "")
    return name


class KeyCheck:
    """Lets only requests with a known bearer key through.

    Args:
        app: what is protected.
        digests: sha256 of each valid key, hexadecimal.
        free: paths that need no key.

    """

    def __init__(self, app: ASGIApp, digests: Sequence[str], *, free: Sequence[str] = ()) -> None:
        self._app = app
        self._free = frozenset(free)
        self._digests = [bytes.fromhex(digest) for digest in digests]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in self._free:
            number = self._number(header_of(scope, b"authorization") or b"")
            if number is None:
                raise ClientError("a valid API key is needed: Authorization: Bearer <key>", status=401)
            scope[CLIENT] = f"key-{number}"
        await self._app(scope, receive, send)

    def _number(self, authorization: bytes) -> int | None:
        scheme, _, key = authorization.partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        same = [hmac.compare_digest(digest, valid) for valid in self._digests]
        return same.index(True) if any(same) and scheme.lower() == b"bearer" else None
