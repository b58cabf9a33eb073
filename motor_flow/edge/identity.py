"""What is a request called, by its client, by us and by the engines?

The client's own x-request-id is echoed and names the response, as with native vLLM. Engines get ids that are unique in
this process, because clients repeat theirs and vLLM does not check.

Source: contract section 3; vLLM 0.33 entrypoints (base request id: header, then body, then random).
"""

from __future__ import annotations

import re
import secrets

from motor_flow.edge.access import client_of
from motor_flow.edge.asgi import Scope
from motor_flow.edge.routes import header_of, headers_of
from motor_flow.effects.context import Identity
from motor_flow.render.envelope import Api, Envelope

_SAFE_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_SAFE_VALUES = {
    b"traceparent": re.compile(rb"[\x21-\x7e]{1,256}"),
    b"tracestate": re.compile(rb"[\x20-\x7e]{1,8192}"),
    b"x-session-id": re.compile(rb"[\x21-\x7e]{1,256}"),
}
_PREFIXES: dict[Api, str] = {"chat": "chatcmpl-", "completions": "cmpl-", "other": ""}


def request_id(scope: Scope) -> str:
    """The client's x-request-id if it is a sane one, else a new one."""
    given = header_of(scope, b"x-request-id")
    if given is not None and _SAFE_ID.fullmatch(given):
        return given.decode("ascii")
    return secrets.token_hex(16)


def identify(scope: Scope, name: str, envelope: Envelope, created: int) -> Identity:
    """All names of one request.

    Args:
        scope: ASGI's.
        name: as `request_id` gave it.
        envelope: the request.
        created: Unix time, seconds.

    """
    base = name
    if header_of(scope, b"x-request-id") is None:
        own = envelope.text("request_id")
        if own is not None and _SAFE_ID.fullmatch(own.encode("utf-8", "replace")):
            base = own
    return Identity(
        request_id=name,
        response_id=_PREFIXES[envelope.api] + base,
        engine_base=f"{base}.{secrets.token_hex(4)}",
        created=created,
        client=client_of(scope),
    )


def forwarded_headers(scope: Scope, envelope: Envelope) -> dict[str, str]:
    """What engines and sidecars get of the client's headers: trace context and session id, nothing else.

    A value that is no plain header text is left out, as every hop may do with trace context.
    """
    session = envelope.text("session_id")
    given = {
        **({b"x-session-id": session.encode("utf-8", "replace")} if session is not None else {}),
        **{name: b", ".join(values) for name in _SAFE_VALUES if (values := headers_of(scope, name))},
    }
    return {name.decode(): value.decode() for name, value in given.items() if _SAFE_VALUES[name].fullmatch(value)}
