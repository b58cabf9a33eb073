"""How is Derender called, and what do its failures mean?

The client is told what `net.upstream` says. No failure touches an engine: inference is never run again, and no
breaker counts it. A call whose connection broke may be repeated, which does no harm: the sidecar keeps nothing, the
same chunk and state give the same text, and neither state nor bytes move before an answer is here.

Source: RFC 故障处理 (rows Derender); contract section 7.
"""

from __future__ import annotations

from collections.abc import Callable

from motor_flow.derender.codec import ChatChoice, Choice, StreamAnswer, TextChoice, decode_chat, decode_text
from motor_flow.errors import UNREADABLE, DerenderError
from motor_flow.net.http1 import ConnectFailed, PeerClosed, Reply, TransportFault
from motor_flow.net.sidecars import Sidecars
from motor_flow.net.upstream import Upstream

CHAT_PATH = "/v1/chat/completions/derender"
TEXT_PATH = "/v1/completions/derender"
DERENDER = Upstream(DerenderError, "the Derender sidecar")
STATE_BYTES_MAX = 16 << 20  # it grows with the output when parsers are on; beyond this it is nonsense


class DerenderClient:
    """Derender on the sidecars.

    Args:
        sidecars: where.
        timeout_s: one call; in a stream, each chunk's call (render_config.timeout_ms).
        retries: repeats of a call whose connection broke (render_config.derender_retries).

    """

    def __init__(self, sidecars: Sidecars, timeout_s: float, retries: int) -> None:
        self._sidecars = sidecars
        self._timeout_s = timeout_s
        self._retries = retries

    async def chat_chunk(self, body: bytes) -> StreamAnswer[ChatChoice]:
        """One chunk of one choice."""
        return _decoded(decode_chat, await self._post(CHAT_PATH, body))

    async def text_chunk(self, body: bytes) -> StreamAnswer[TextChoice]:
        """One chunk of one choice."""
        return _decoded(decode_text, await self._post(TEXT_PATH, body))

    async def whole(self, path: str, body: bytes) -> bytes:
        """A whole answer: the response body as it is."""
        return (await self._post(path, body)).body

    async def _post(self, path: str, body: bytes) -> Reply:
        reply = await self._asked(path, body)
        if reply.status != 200:
            raise DERENDER.refusal(reply, path)
        return reply

    async def _asked(self, path: str, body: bytes) -> Reply:
        for left in range(self._retries, -1, -1):
            try:
                return await self._sidecars.post(path, body, timeout_s=self._timeout_s)
            except (ConnectFailed, PeerClosed) as broken:
                if not left:
                    raise DERENDER.broken(broken) from broken
            except TransportFault as fault:
                raise DERENDER.broken(fault) from fault
        raise AssertionError("the last try returns or raises")


def _decoded(decode: Callable[[bytes], StreamAnswer[Choice]], reply: Reply) -> StreamAnswer[Choice]:
    try:
        answer = decode(reply.body)
    except UNREADABLE as exc:
        raise DerenderError("the sidecar gave an invalid derender answer", detail=str(exc)) from None
    if len(bytes(answer.stream_state)) > STATE_BYTES_MAX:
        raise DerenderError("the sidecar gave a stream_state of an impossible size")
    return answer
