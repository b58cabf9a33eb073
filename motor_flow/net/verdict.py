"""What does an upstream's answer mean?

One table for sidecars and engines: vLLM tells a missing capability from a bad request by the shape of the body as
much as by the status.

| answer | verdict |
|---|---|
| 2xx | ok |
| 404 without an error object, 405, 415, 501, 403 | unsupported: the endpoint or capability is missing |
| 401 | unauthorized: our key is wrong, which is no client's fault |
| 404 with an error object | unknown: the model is not known there |
| 3xx, 408, 425, 429, 5xx | unavailable: another one, or later |
| any other 4xx | refused: the request's own fault |

Source: contract section 6; vLLM 0.33 entrypoints (404 of the router is `{"detail"}`; 403 PermissionDeniedError without
--enable-scale-out since 0.32; 401 is `{"error": "Unauthorized"}`).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from motor_flow.errors import UNREADABLE
from motor_flow.net.http1 import Reply


class Verdict(Enum):
    """See the module's table."""

    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    UNSUPPORTED = "unsupported"
    UNAUTHORIZED = "unauthorized"
    UNAVAILABLE = "unavailable"


class Complaint(NamedTuple):
    """An upstream's own words."""

    message: str
    kind: str | None
    param: str | None


class _ErrorObject(msgspec.Struct):
    message: str = ""
    type: str | None = None
    param: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorObject


class _DetailBody(msgspec.Struct):
    detail: str | list[dict[str, object]]


_RETRYABLE = frozenset({408, 425, 429})
_MISSING = frozenset({403, 405, 415, 501})
_error_body = msgspec.json.Decoder(_ErrorBody)
_detail_body = msgspec.json.Decoder(_DetailBody)


def judge(status: int, body: bytes) -> Verdict:
    """The verdict on one response."""
    if 200 <= status < 300:
        return Verdict.OK
    if status == 401:
        return Verdict.UNAUTHORIZED
    if status == 404:
        return Verdict.UNSUPPORTED if _error_object(body) is None else Verdict.UNKNOWN
    if status in _MISSING:
        return Verdict.UNSUPPORTED
    if status in _RETRYABLE or status >= 500 or status < 400:
        return Verdict.UNAVAILABLE
    return Verdict.REFUSED


def complaint(reply: Reply) -> Complaint:
    """The upstream's message, type and param, as far as the body has them."""
    error = _error_object(reply.body)
    if error is not None:
        return Complaint(error.message or f"HTTP {reply.status}", error.type, error.param)
    try:
        detail = _detail_body.decode(reply.body).detail
    except UNREADABLE:
        return Complaint(f"HTTP {reply.status}", None, None)
    return Complaint(detail if isinstance(detail, str) else msgspec.json.encode(detail).decode(), None, None)


def _error_object(body: bytes) -> _ErrorObject | None:
    try:
        return _error_body.decode(body).error
    except UNREADABLE:
        return None
