"""How is Render called, and what do its failures mean?

Source: RFC Render 阶段, 故障处理 (rows Render Token In, Render 请求校验).
"""

from __future__ import annotations

from motor_flow.errors import RenderError
from motor_flow.net.http1 import TimedOut, TransportFault
from motor_flow.net.sidecars import Sidecars
from motor_flow.net.verdict import Verdict, complaint, judge
from motor_flow.render.envelope import CHAT_PATH, COMPLETIONS_PATH, Envelope
from motor_flow.render.tokenization import TokenizedRequest, tokenized


class RenderClient:
    """Render on the sidecars.

    Args:
        sidecars: where.
        timeout_s: one call (render_config.timeout_ms).

    """

    def __init__(self, sidecars: Sidecars, timeout_s: float) -> None:
        self._sidecars = sidecars
        self._timeout_s = timeout_s

    async def render(self, request: Envelope, *, headers: bytes = b"") -> TokenizedRequest:
        """Turn a request into tokens.

        Raises:
            RenderError: refused (Render's own status, message, type and param), or Render could not be used.

        """
        path = f"{CHAT_PATH if request.api == 'chat' else COMPLETIONS_PATH}/render"
        try:
            reply = await self._sidecars.post(path, request.encode(), timeout_s=self._timeout_s, headers=headers)
        except TimedOut as exc:
            raise RenderError("the Render sidecar did not answer in time", status=504, detail=str(exc)) from exc
        except TransportFault as exc:
            raise RenderError("the Render sidecar cannot be reached", detail=str(exc)) from exc
        verdict = judge(reply.status, reply.body)
        if verdict is Verdict.OK:
            return tokenized(request.api, reply.body)
        said = complaint(reply)
        match verdict:
            case Verdict.REFUSED | Verdict.UNKNOWN:
                raise RenderError(said.message, status=reply.status, kind=said.kind, param=said.param, quoted=True)
            case Verdict.UNSUPPORTED:
                raise RenderError("the Render sidecar does not offer this endpoint", status=501, detail=said.message)
            case Verdict.UNAUTHORIZED:
                raise RenderError("the Render sidecar refused our key", detail="check upstream_config.api_key")
            case _:
                raise RenderError(f"the Render sidecar failed (HTTP {reply.status})", detail=said.message)
