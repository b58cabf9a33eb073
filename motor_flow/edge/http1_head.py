"""May a request with this head be served, and how long is its body?

llhttp has accepted the syntax. What it leaves open is closed here, strictly: two framings, two hosts, unknown transfer
codings and odd request lines are refused rather than guessed, because a guess that differs from a proxy's is request
smuggling.

Source: RFC 9112 sections 3, 6.1, 6.3, 9.6 and 11.2; RFC 9110 sections 7.2 and 10.1.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httptools

from motor_flow.errors import ClientError

if TYPE_CHECKING:
    from motor_flow.edge.asgi import Headers

_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:%\[\]-]*")
_VERSIONED_LINE = re.compile(rb"[^ \r\n]+ [^ \r\n]+ HTTP/(\d\.\d)")
_VERSIONS = {b"HTTP/1.1": "1.1", b"HTTP/1.0": "1.0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """What a request's head says; header names are in lower case."""

    method: str
    raw_path: bytes
    query_string: bytes
    version: str
    headers: Headers
    body_bytes: int | None  # None: chunked
    expects_continue: bool
    keep_alive: bool


def judge(raw: bytes, headers: Headers, body_bytes_max: int) -> RequestHead:
    """Accept or refuse a head.

    Args:
        raw: the head as it came, from its first byte on.
        headers: the same as pairs, names in lower case, values without surrounding blanks.
        body_bytes_max: the longest body that is served.

    Raises:
        ClientError: with the status that the refusal has.

    """
    line = raw[: raw.index(b"\r\n")].split(b" ")
    if len(line) != 3 or line[2] not in _VERSIONS:
        raise malformed(raw, "unexpected request line")
    method, version = line[0].decode("ascii"), _VERSIONS[line[2]]
    if method == "CONNECT":
        raise ClientError("CONNECT is not supported", status=501)
    raw_path, query_string = _split_target(line[1])
    hosts = lengths = codings = body_bytes = 0
    expects_continue = False
    keep_alive = version == "1.1"
    for name, value in headers:
        if name == b"host":
            hosts += 1
            if _HOST.fullmatch(value) is None:
                raise ClientError("malformed Host header")
        elif name == b"content-length":
            lengths += 1
            body_bytes = int(value)
        elif name == b"transfer-encoding":
            codings += 1
            if value.lower() != b"chunked" or version != "1.1":
                raise ClientError("the only transfer encoding understood is chunked, in HTTP/1.1")
        elif name == b"connection":
            keep_alive = keep_alive and not says_close(value)
        elif name == b"expect":
            expects_continue = version == "1.1" and value.lower() == b"100-continue"
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise ClientError("exactly one Host header is required")
    if lengths + codings > 1:  # llhttp refuses this too, unless it is told to be lenient
        raise ClientError("more than one header says where the body ends")
    if body_bytes > body_bytes_max:
        raise too_large(body_bytes_max)
    return RequestHead(
        method=method,
        raw_path=raw_path,
        query_string=query_string,
        version=version,
        headers=headers,
        body_bytes=None if codings else body_bytes,
        expects_continue=expects_continue and (body_bytes > 0 or codings > 0),
        keep_alive=keep_alive,
    )


def says_close(connection: bytes) -> bool:
    """Whether a Connection header ends the connection."""
    return b"close" in [option.strip() for option in connection.lower().split(b",")]


def malformed(raw: bytes, reason: str) -> ClientError:
    """The refusal of a head that is no HTTP/1 request: the version's fault if the request line shows one."""
    line = _VERSIONED_LINE.match(raw)
    if line is not None and line[1] not in {b"1.0", b"1.1"}:
        return ClientError("only HTTP/1.1 and HTTP/1.0 are spoken here", status=505)
    return ClientError(f"malformed HTTP request: {reason}")


def too_large(body_bytes_max: int) -> ClientError:
    return ClientError(f"the request's body exceeds {body_bytes_max} bytes", status=413)


def _split_target(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request target in origin, absolute or asterisk form."""
    if b"#" in target:
        raise ClientError("malformed request target: a fragment is never sent")
    if not target.startswith((b"/", b"*")):
        try:
            url = httptools.parse_url(target)
        except httptools.HttpParserInvalidURLError as exc:
            raise ClientError("malformed request target") from exc
        return url.path or b"/", url.query or b""
    path, _, query = target.partition(b"?")
    return path, query
