"""What does an upstream's answer mean?

One table for sidecars and engines: vLLM tells a missing capability from a bad request by the shape of the body as
much as by the status.

| answer | fault |
|---|---|
| 2xx | none |
| 404 without an error object, 403, 405, 415, 501 | UNSUPPORTED: the endpoint or capability is missing |
| 401 | UNAUTHORIZED: our key is wrong, which is no client's fault |
| 404 with an error object | UNKNOWN_MODEL |
| 408, 425, 429 | BUSY |
| 3xx, any other 5xx | FAILED |
| any other 4xx | REQUEST: the request's own fault |

Source: contract section 6; vLLM 0.33 entrypoints (404 of the router is `{"detail"}`; 403 PermissionDeniedError without
--enable-scale-out since 0.32; 401 is `{"error": "Unauthorized"}`).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from machines.faults import Fault
from motor_flow.errors import UNREADABLE
from motor_flow.net.http1 import Reply


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


_BUSY = frozenset({408, 425, 429})
_MISSING = frozenset({403, 405, 415, 501})
_error_body = msgspec.json.Decoder(_ErrorBody)
_detail_body = msgspec.json.Decoder(_DetailBody)


def judge(status: int, body: bytes) -> Fault | None:
    """What is wrong with one response; None: nothing."""
    if 200 <= status < 300:
        return None
    if status == 401:
        return Fault.UNAUTHORIZED
    if status == 404:
        return Fault.UNSUPPORTED if _error_object(body) is None else Fault.UNKNOWN_MODEL
    if status in _MISSING:
        return Fault.UNSUPPORTED
    if status in _BUSY:
        return Fault.BUSY
    return Fault.FAILED if status >= 500 or status < 400 else Fault.REQUEST


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
