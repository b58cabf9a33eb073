"""How is an engine called, and what do its refusals mean?

What the client is told is in `net.upstream`.

Source: RFC 故障处理 (rows token-only Engine 能力, Engine 执行); contract section 7.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import msgspec
import trio

from machines.faults import Fault
from motor_flow.engine.probe import ask_health, has_tokenizer
from motor_flow.errors import EngineError, Unsupported
from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import Exchange, Reply, TransportFault
from motor_flow.net.upstream import Upstream

ENGINE: Upstream[EngineError] = Upstream(
    EngineError, "the engine", model_accepted=True, kinds={Fault.UNSUPPORTED: Unsupported}
)
ABORT_PATH = "/inference/v1/abort_requests"
ABORT_TIMEOUT_S = 2.0
ERROR_BODY_BYTES_MAX = 65536
ERROR_BODY_TIMEOUT_S = 5.0
_NO_TOKENIZER = "skip_tokenizer_init"
_NO_STOPS = (
    "stop strings are not supported on a --tokens-only server",  # vLLM 0.32 and newer
    "stop strings are only supported when detokenize is True",  # 0.28
)


class EngineClient:
    """Calls to engines.

    Args:
        http: the HTTP client, with our key.
        connect_timeout_s: exception_config.connect_timeout.

    """

    def __init__(self, http: HttpClient, connect_timeout_s: float) -> None:
        self._http = http
        self._connect_timeout_s = connect_timeout_s

    async def abort(self, url: str, engine_ids: Sequence[str]) -> bool:
        """Have requests of ours ended by their names; true when the engine has taken it. Never raises for a failure."""
        body = msgspec.json.encode({"request_ids": engine_ids})
        try:
            reply = await self._http.call("POST", url + ABORT_PATH, body=body, timeout_s=ABORT_TIMEOUT_S)
        except TransportFault:
            return False
        return reply.status == 200

    async def ask(self, url: str, body: bytes) -> bool:
        """One request whose answer nobody reads; true when it was served. Never raises for a failure."""
        try:
            reply = await self._http.call("POST", url, body=body, timeout_s=ABORT_TIMEOUT_S)
        except TransportFault:
            return False
        return reply.status == 200

    async def complaint(self, url: str) -> str | None:
        """Why the instance at this base URL does not seem to live; None when it does."""
        return await ask_health(self._http, url)

    async def has_tokenizer(self, url: str) -> bool | None:
        """The instance at this base URL can read and write text; None when it cannot be asked."""
        return await has_tokenizer(self._http, url)

    @asynccontextmanager
    async def open(
        self, url: str, body: bytes, *, headers: Mapping[str, str], head_timeout_s: float | None = None
    ) -> AsyncIterator[Exchange]:
        """POST and wait for a 2xx head.

        Leaving the block closes the exchange, which is how an engine learns that we have left.

        Raises:
            EngineError: anything but a 2xx.

        """
        try:
            exchange = await self._http.start(
                "POST",
                url,
                body=body,
                headers=headers,
                connect_timeout_s=self._connect_timeout_s,
                head_timeout_s=head_timeout_s,
            )
        except TransportFault as exc:
            raise ENGINE.broken(exc) from exc
        try:
            if not 200 <= exchange.status < 300:
                raise await _refusal(exchange, urlsplit(url).path)
            yield exchange
        finally:
            exchange.close()


def may_miss_tokenizer(error: EngineError) -> bool:
    """Perhaps it was started without one, and asked for what needs it."""
    return error.fault is Fault.FAILED or (error.fault is Fault.REQUEST and _NO_TOKENIZER in error.message)


def refuses_stops(error: EngineError) -> bool:
    """It was started without a tokenizer (`--tokens-only`), and asked to look for stop strings."""
    return error.fault is Fault.REQUEST and error.message.startswith(_NO_STOPS)


async def read_whole(exchange: Exchange) -> bytes:
    """The whole body of an answer.

    Raises:
        EngineError: it was cut.

    """
    try:
        return await exchange.read()
    except TransportFault as exc:
        raise ENGINE.broken(exc) from exc


async def _refusal(exchange: Exchange, path: str) -> EngineError:
    body = b""
    # Whatever happens to the body, the status says enough.
    with trio.move_on_after(ERROR_BODY_TIMEOUT_S), suppress(TransportFault):
        body = await exchange.read(ERROR_BODY_BYTES_MAX)
    return ENGINE.refusal(Reply(exchange.status, exchange.headers, body), path)
