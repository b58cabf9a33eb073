"""How does everything but the hot path call an upstream?

httpx's interface over our own trio transport. This is the only module that imports httpx: its maintained successor is
one line away, and no httpx type leaves it. Redirects are not followed, and the proxy environment is not trusted.

Source: httpx transport API; measured reasons for the own transport in diagrams/decisions/0003-http-stack.md.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping

import httpx
import trio

from motor_flow.net.http1 import Exchange, Pool, Reply, TimedOut
from motor_flow.net.stream import Origin

_EXCHANGE = "motor_flow.exchange"


def origin_of(url: str, *, uds: str = "") -> Origin:
    """The origin of an http or https URL.

    Args:
        url: base URL.
        uds: a Unix socket behind it.

    Raises:
        ValueError: not such a URL.

    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as exc:
        raise ValueError(f"not an http or https URL: {url!r} ({exc})") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"not an http or https URL: {url!r}")
    return _origin(parsed, uds)


def _origin(url: httpx.URL, uds: str) -> Origin:
    tls = url.scheme == "https"
    return Origin(url.host, url.port or (443 if tls else 80), tls, uds)


class _Body(httpx.AsyncByteStream):
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self._exchange.receive():
            yield data

    async def aclose(self) -> None:
        self._exchange.close()


class Transport(httpx.AsyncBaseTransport):
    """httpx over a `Pool`."""

    def __init__(self, pool: Pool, uds: str = "") -> None:
        self._pool = pool
        self._uds = uds

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        origin = _origin(url, self._uds)
        body = request.content if hasattr(request, "_content") else await request.aread()
        head = [b"%b %b HTTP/1.1\r\n" % (request.method.encode("ascii"), url.raw_path)]
        for name, value in request.headers.raw:
            if b"\r" in value or b"\n" in value:
                raise ValueError(f"line break in the value of header {name!r}")
            head.append(b"%b: %b\r\n" % (name, value))
        timeouts: Mapping[str, float | None] = request.extensions.get("timeout") or {}
        exchange = await self._pool.start(
            origin,
            b"%b\r\n%b" % (b"".join(head), body),
            connect_timeout_s=_seconds(timeouts.get("connect")),
            head_timeout_s=_seconds(timeouts.get("read")),
        )
        return httpx.Response(
            exchange.status, headers=exchange.headers, stream=_Body(exchange), extensions={_EXCHANGE: exchange}
        )


def _seconds(value: float | None) -> float:
    return math.inf if value is None else value


class HttpClient:
    """Calls to one kind of upstream.

    Args:
        pool: connections, shared between clients.
        headers: sent with every request (authorization).
        uds: a Unix socket that all requests go through.

    """

    def __init__(self, pool: Pool, *, headers: Mapping[str, str] | None = None, uds: str = "") -> None:
        self._transport = Transport(pool, uds)
        self._client = httpx.AsyncClient(
            transport=self._transport,
            # Bodies are read raw, so nothing may come compressed.
            headers={"accept-encoding": "identity", "user-agent": "motor-flow", **(headers or {})},
            trust_env=False,
            timeout=httpx.Timeout(None),  # every call names its own limits
        )

    async def call(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> Reply:
        """Send a request and read the whole response within `timeout_s`.

        Raises:
            TransportFault: any of its kinds.

        """
        with trio.CancelScope(deadline=trio.current_time() + timeout_s):
            exchange = await self.start(method, url, body=body, headers=headers)
            try:
                return Reply(exchange.status, exchange.headers, await exchange.read())
            finally:
                exchange.close()
        raise TimedOut(f"{url}: no complete response within {timeout_s:g} s")

    async def start(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        connect_timeout_s: float | None = None,
        head_timeout_s: float | None = None,
    ) -> Exchange:
        """Send a request and wait for the head of the response; the caller reads the body and closes the exchange.

        Raises:
            TransportFault: any of its kinds.

        """
        request = self._client.build_request(
            method,
            url,
            content=body,
            headers={"content-type": "application/json", **(headers or {})} if body is not None else headers,
            timeout=httpx.Timeout(None, connect=connect_timeout_s, read=head_timeout_s),
        )
        # Not `send`: it keeps one peer's cookies for everybody, and looks into redirects nobody follows.
        response = await self._transport.handle_async_request(request)
        exchange: Exchange = response.extensions[_EXCHANGE]
        return exchange
