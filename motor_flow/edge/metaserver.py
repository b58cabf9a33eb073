"""Where do the decode engines of Trigger call back?

One route on a port of its own, without keys or TLS: engines can neither bear one nor check the other. The answer is the
prefill engine's. vllm-ascend takes any status for success, so a refused callback also ends its decode leg elsewhere.

Source: MindIE Motor's metaserver; vllm-ascend mooncake_layerwise_connector.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs

import msgspec

from motor_flow.edge.asgi import ASGIApp, Receive, Scope, Send
from motor_flow.edge.routes import JSON, Routes, read_body, respond
from motor_flow.errors import UNREADABLE, ClientError
from motor_flow.scheduling.callbacks import PATH, Callbacks, Expected, Stale, Unknown

_NUMBER = re.compile(r"[0-9]{1,9}")
_object = msgspec.json.Decoder(dict[str, Any]).decode


def metaserver_routes(callbacks: Callbacks) -> ASGIApp:
    """The callback listener's only application."""

    async def called_back(scope: Scope, receive: Receive, send: Send) -> None:
        params = _params(await read_body(receive))
        request_id = params.get("request_id")
        if not isinstance(request_id, str) or not request_id:
            raise ClientError("a callback needs a request_id", param="request_id")
        try:
            expected = callbacks.find(request_id, _attempt(scope))
        except Unknown:
            raise ClientError("no request waits for this callback", status=404) from None
        except Stale:
            raise ClientError("this callback is for another attempt", status=409) from None
        if expected.answer is not None:
            await respond(send, 200, b"{}", [JSON])  # it was served already
            return
        if expected.params is None:
            expected.params = params
            expected.called.set()
        await respond(send, 200, await _settled(expected), [JSON])

    return Routes({f"POST {PATH}": called_back})


async def _settled(expected: Expected) -> bytes:
    await expected.settled.wait()
    if expected.answer is None:
        raise ClientError("the attempt has ended", status=409)
    return expected.answer


def _params(body: bytes) -> dict[str, Any]:
    try:
        return _object(body)
    except UNREADABLE as exc:
        raise ClientError(f"a callback is a JSON object: {exc}") from None


def _attempt(scope: Scope) -> int:
    values = parse_qs(scope["query_string"].decode("latin-1")).get("attempt", [])
    if len(values) != 1 or not _NUMBER.fullmatch(values[0]):
        raise ClientError("a callback's URL names one attempt", param="attempt")
    return int(values[0])
