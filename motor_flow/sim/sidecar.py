"""A Render/Derender sidecar that speaks vLLM 0.33's protocol.

    POST /v1/chat/completions/render      POST /v1/chat/completions/derender
    POST /v1/completions/render           POST /v1/completions/derender
    GET  /health /version /v1/models /openapi.json     POST /tokenize /detokenize

It is stateless towards its clients: a stream's state is in the client's hands. What it remembers (`seen`, `anomalies`,
`repeats`) is for those who watch it.

Source: vllm/entrypoints/scale_out/{render,derender}/api_router.py (0.33).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from motor_flow.sim import derender, derender_checks, derender_stream, render
from motor_flow.sim.exchange import App
from motor_flow.sim.facts import Facts
from motor_flow.sim.protocol import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
    read,
    read_either,
)
from motor_flow.sim.recent import Recent
from motor_flow.sim.requests import ChatCompletionRequest, CompletionRequest
from motor_flow.sim.seen import CALLS_MAX, Seen, noted
from motor_flow.sim.served import CONTEXT_TOKENS_DEFAULT, Served
from motor_flow.sim.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from motor_flow.sim.exchange import Exchange


class Sidecar(App):
    """An ASGI app.

    Args:
        model_name: the one name that requests may give.
        max_model_len: the context; must equal the engines'.
        parsers: whether reasoning and tool calls are parsed.
        version: what `/version` says; the behaviour is always 0.33's.
        render_s: how long a Render call takes.
        derender_s: how long a Derender call takes.
        api_key: if given, what must be borne on guarded routes.
        witness: who watches the client, if that is shared with other sidecars: a stream may be rendered by one of
            them and derendered by the others.

    """

    def __init__(
        self,
        *,
        model_name: str = "tiny",
        max_model_len: int = CONTEXT_TOKENS_DEFAULT,
        parsers: bool = True,
        version: str = "0.33.0",
        render_s: float = 0.0,
        derender_s: float = 0.0,
        api_key: str | None = None,
        witness: Witness | None = None,
    ) -> None:
        super().__init__(api_key=api_key)
        self.served = Served(model_name=model_name, max_model_len=max_model_len, parsers=parsers)
        self.render_s = render_s
        self.derender_s = derender_s
        self.seen: Recent[Seen] = Recent(CALLS_MAX)
        self._witness = witness if witness is not None else Witness()
        Facts(self, self.served, version)
        self.route("POST", "/v1/chat/completions/render", self.render_chat)
        self.route("POST", "/v1/completions/render", self.render_completion)
        self.route("POST", "/v1/chat/completions/derender", self.derender_chat)
        self.route("POST", "/v1/completions/derender", self.derender_completion)

    @property
    def anomalies(self) -> list[str]:
        """Mistakes of the client: altered states, tokens after a finish, prompts that Render never returned."""
        return self._witness.anomalies

    @property
    def repeats(self) -> list[str]:
        """Calls that came twice with the same state and chunk. Right only after a failure."""
        return self._witness.repeats

    async def render_chat(self, call: Exchange) -> None:
        async def work(body: Any) -> Any:
            await trio.sleep(self.render_s)
            answer = render.chat(self.served, read(ChatCompletionRequest, body), call.headers.get("x-request-id"))
            self._witness.rendered(answer["token_ids"])
            return answer

        await self._serve(call, "render", work)

    async def render_completion(self, call: Exchange) -> None:
        async def work(body: Any) -> Any:
            await trio.sleep(self.render_s)
            return render.completion(self.served, read(CompletionRequest, body), call.headers.get("x-request-id"))

        await self._serve(call, "render", work)

    async def derender_chat(self, call: Exchange) -> None:
        async def work(body: Any) -> Any:
            await trio.sleep(self.derender_s)
            request = read_either(DerenderChatRequest, DerenderChatStreamRequest, body)
            if isinstance(request, DerenderChatRequest):
                return derender.chat(self.served, request)
            derender_checks.check_chat(self.served, request)
            prompt = request.prompt_token_ids if self.served.parsers else None
            state, progress = self._witness.arrived(request.stream_state, request.generate_chunk, prompt=prompt)
            chunk, new = derender_stream.chat(self.served, request, state)
            marked = self._witness.departing(new, request.generate_chunk, progress, parsed=self.served.parsers)
            return {"chunk": chunk, "stream_state": marked}

        await self._serve(call, "derender", work)

    async def derender_completion(self, call: Exchange) -> None:
        async def work(body: Any) -> Any:
            await trio.sleep(self.derender_s)
            request = read_either(DerenderCompletionRequest, DerenderCompletionStreamRequest, body)
            if isinstance(request, DerenderCompletionRequest):
                return derender.completion(self.served, request)
            derender_checks.check_completion(self.served, request)
            state, progress = self._witness.arrived(request.stream_state, request.generate_chunk, prompt=None)
            chunk, new = derender_stream.completion(self.served, request, state)
            marked = self._witness.departing(new, request.generate_chunk, progress, parsed=False)
            return {"chunk": chunk, "stream_state": marked}

        await self._serve(call, "derender", work)

    async def _serve(self, call: Exchange, kind: str, work: Callable[[Any], Awaitable[Any]]) -> None:
        body = await call.json()
        record = self.seen.add(Seen(call.path, body, call.headers, kind))
        self.meet(call, record)
        with noted(record, call):
            await call.reply_json(await work(body))
