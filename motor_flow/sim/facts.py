"""What can be learned about a simulator without asking it for work?

The routes that both simulators have: health, version, the model, and the list of routes. A client probes capabilities
with these.

Source: vllm/entrypoints/serve/instrumentator, vllm/entrypoints/openai/models (0.33).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from motor_flow.sim import shapes
from motor_flow.sim.protocol import read, read_either
from motor_flow.sim.requests import DetokenizeRequest, TokenizeChatRequest, TokenizeCompletionRequest

if TYPE_CHECKING:
    from motor_flow.sim.exchange import App, Exchange
    from motor_flow.sim.served import Served


class Facts:
    def __init__(self, app: App, served: Served, version: str) -> None:
        self._app = app
        self._served = served
        self._version = version
        self._started = shapes.now()
        for path in ("/health", "/ping"):
            app.route("GET", path, self.alive)
        app.route("POST", "/ping", self.alive)
        app.route("GET", "/version", self.version)
        app.route("GET", "/v1/models", self.models)
        app.route("GET", "/openapi.json", self.openapi)
        app.route("POST", "/tokenize", self.tokenize)
        app.route("POST", "/detokenize", self.detokenize)

    async def alive(self, call: Exchange) -> None:
        await call.reply()

    async def version(self, call: Exchange) -> None:
        await call.reply_json({"version": self._version})

    async def models(self, call: Exchange) -> None:
        await call.reply_json({"object": "list", "data": [self._card()]})

    async def openapi(self, call: Exchange) -> None:
        info = {"title": "FastAPI", "version": "0.1.0"}
        await call.reply_json({"openapi": "3.1.0", "info": info, "paths": self._app.paths(), "components": {}})

    async def tokenize(self, call: Exchange) -> None:
        served = self._served
        body = read_either(TokenizeCompletionRequest, TokenizeChatRequest, await call.json())
        served.check_model(body.model)
        served.check_tokenizer()
        if isinstance(body, TokenizeChatRequest):
            text = served.template.render(
                [message.model_dump(exclude_none=True) for message in body.messages],
                tools=[tool.plain() for tool in body.tools] if body.tools is not None else None,
                variables={
                    **(body.chat_template_kwargs or {}),
                    "add_generation_prompt": body.add_generation_prompt,
                    "continue_final_message": body.continue_final_message,
                },
                model=served.model_name,
            )
        else:
            text = body.prompt
        ids = served.tokenizer.encode(text)
        strings = [served.tokenizer.piece(token) for token in ids] if body.return_token_strs else None
        await call.reply_json(
            {"count": len(ids), "max_model_len": served.max_model_len, "tokens": ids, "token_strs": strings}
        )

    async def detokenize(self, call: Exchange) -> None:
        body = read(DetokenizeRequest, await call.json())
        self._served.check_model(body.model)
        await call.reply_json({"prompt": self._served.tokenizer.decode(body.tokens)})

    def _card(self) -> dict[str, Any]:
        permission = {
            "id": f"modelperm-{secrets.token_hex(8)}",
            "object": "model_permission",
            "created": self._started,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        name = self._served.model_name
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "vllm",
            "root": name,
            "parent": None,
            "max_model_len": self._served.max_model_len,
            "permission": [permission],
        }
