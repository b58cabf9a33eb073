"""How is Render called, and what do its failures mean?

Source: RFC Render 阶段, 故障处理 (rows Render Token In, Render 请求校验).
"""

from __future__ import annotations

from collections.abc import Mapping

from machines.faults import Fault
from motor_flow.errors import RenderDown, RenderError
from motor_flow.net.http1 import TransportFault
from motor_flow.net.sidecars import Sidecars
from motor_flow.net.upstream import Upstream
from motor_flow.render.budget import OutputBudget
from motor_flow.render.envelope import CHAT_PATH, COMPLETIONS_PATH, Envelope
from motor_flow.render.tokenization import TokenizedRequest, tokenized

REFUSALS = (Fault.REQUEST, Fault.UNKNOWN_MODEL)
RENDER: Upstream[RenderError] = Upstream(
    RenderError, "the Render sidecar", kinds={fault: RenderDown for fault in Fault if fault not in REFUSALS}
)


class RenderClient:
    """Render on the sidecars.

    Args:
        sidecars: where.
        timeout_s: one call (render_config.timeout_ms).

    """

    def __init__(self, sidecars: Sidecars, timeout_s: float) -> None:
        self._sidecars = sidecars
        self._timeout_s = timeout_s

    async def render(
        self, request: Envelope, *, headers: Mapping[str, str], budget: OutputBudget | None = None
    ) -> TokenizedRequest:
        """Turn a request into tokens.

        Args:
            request: the client's.
            headers: plain ASCII, for the sidecar.
            budget: cuts the output to what the context leaves.

        Raises:
            RenderError: refused, with Render's own status, message, type and param.
            RenderDown: Render could not be used.

        """
        lines = b"".join(b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in headers.items())
        if self._sidecars.lost:
            raise RenderDown("the Render sidecar does not answer", fault=Fault.UNREACHABLE)
        path = f"{CHAT_PATH if request.api == 'chat' else COMPLETIONS_PATH}/render"
        body = request.encode() if budget is None else budget.for_render(request)
        try:
            reply = await self._sidecars.post(path, body, timeout_s=self._timeout_s, headers=lines)
        except TransportFault as exc:
            raise RENDER.broken(exc) from exc
        if not 200 <= reply.status < 300:
            raise RENDER.refusal(reply, path)
        tokens = tokenized(request.api, reply.body)
        if budget is not None:
            budget.write(tokens.prompts)
        return tokens
