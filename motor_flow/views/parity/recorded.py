"""How is Derender compared alone, on tokens that the engine has given once?

`parity --fixed-tokens`, for engines that do not answer twice alike. The native answer names its tokens
(`return_token_ids`); a Coordinator in this process then answers the same request from exactly those, with the real
sidecar and a player in place of the engine:

```
native ── answer with its tokens ──▶ Player ── tokens ──▶ Coordinator ◀──▶ sidecar
             └───────────────── compared ◀────── answer ──────┘
```

A player knows tokens only: requests for log-probabilities, those that hide their reasoning or take the engine's own
API, and those that are refused are left out.

Source: RFC 一致性测试 (the second form: fixed token ids through Derender).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio

from motor_flow.app import App
from motor_flow.config import load_embedded
from motor_flow.edge.server import Server
from motor_flow.net.memory import MemoryNet
from motor_flow.net.stream import ByteStream, Dial, Origin
from motor_flow.render.capability import Capability
from motor_flow.render.envelope import CHAT_PATH, Envelope
from motor_flow.render.route import decide
from motor_flow.sim import exchange
from motor_flow.sim.exchange import Exchange
from motor_flow.views.parity.answers import Answer, Choice
from motor_flow.views.parity.asking import Unreachable
from motor_flow.views.parity.cases import Case

PLAYER, COORDINATOR = Origin("player", 80), Origin("coordinator", 80)
TEXT_PATH = "/v1/completions"
REFUSED = "refused"  # the kind of requests that no engine answers
UNPLAYABLE = ("logprobs", "top_logprobs", "prompt_logprobs", "echo", "use_beam_search")
_prompt_of = re.compile(r"\.p(\d+)\.").search


def unplayable(case: Case) -> str | None:
    """Why its answer cannot be given from tokens alone; None: it can."""
    if case.kind == REFUSED:
        return "they are refused"
    if case.path not in (CHAT_PATH, TEXT_PATH):
        return "their path is no part of the chain"
    if case.body.get("include_reasoning") is False:
        return "native vLLM hides the tokens of their reasoning"
    # 0 asks for something
    if any(case.body.get(key) is not None and case.body[key] is not False for key in UNPLAYABLE):
        return "they want log-probabilities or the prompt's echo, which tokens alone do not hold"
    return None


def goes_native(case: Case, body: bytes, sidecar: Capability) -> bool:
    """It takes the engine's own API."""
    envelope = Envelope.parse("chat" if case.path == CHAT_PATH else "completions", body)
    return decide(envelope, sidecar, stream=envelope.stream).route == "native"


class Player(exchange.App):
    """An engine that says what it is told to say.

    Attributes:
        answer: whose tokens it gives to whoever asks.

    Args:
        version: of the engine that it stands for.
        model: its served name.
        context: tokens.

    """

    def __init__(self, version: str, model: str, context: int) -> None:
        super().__init__(api_key=None)
        self.answer = Answer(200)
        self._version = version
        self._card = {"id": model, "object": "model", "owned_by": "player", "max_model_len": context}
        self.route("GET", "/health", self.alive)
        self.route("GET", "/version", self.version)
        self.route("GET", "/v1/models", self.models)
        self.route("POST", "/inference/v1/generate", self.generate)

    def take(self, answer: Answer) -> None:
        """From here on, give this answer's tokens."""
        self.answer = answer

    async def alive(self, call: Exchange) -> None:
        await call.reply()

    async def version(self, call: Exchange) -> None:
        await call.reply_json({"version": self._version})

    async def models(self, call: Exchange) -> None:
        await call.reply_json({"object": "list", "data": [self._card]})

    async def generate(self, call: Exchange) -> None:
        """The tokens of this request's prompt; in a stream one by one."""
        body = await call.json()
        if "token_ids" not in body:
            await call.reply_json({"detail": [{"type": "missing", "loc": ["body", "token_ids"]}]}, status=422)
            return
        found = _prompt_of(body["request_id"])
        count = body["sampling_params"].get("n", 1)
        first = int(found[1]) * count if found else 0
        choices = [self.answer.choices.get(first + index, Choice()) for index in range(count)]
        if not body.get("stream"):
            whole = [_choice(index, choice.token_ids, choice) for index, choice in enumerate(choices)]
            prompt = body["token_ids"] if body.get("return_token_ids") else None
            await call.reply_json({"request_id": body["request_id"], "prompt_token_ids": prompt, "choices": whole})
            return
        await call.open()
        for step in range(max((len(choice.token_ids) for choice in choices), default=0)):
            for index, choice in enumerate(choices):
                ids = choice.token_ids[step : step + 1]
                if ids:
                    last = choice if step + 1 == len(choice.token_ids) else None
                    event = {"request_id": body["request_id"], "choices": [_choice(index, ids, last)]}
                    await call.event(b"data: %b\n\n" % msgspec.json.encode(event))
        await call.close()


def _choice(index: int, ids: list[int], ended: Choice | None) -> dict[str, Any]:
    finish = ended.finish_reason if ended is not None else None
    return {
        "index": index,
        "token_ids": ids,
        "logprobs": None,
        "finish_reason": "stop" if finish == "tool_calls" else finish,  # an engine knows nothing of tools
        "stop_reason": ended.stop_reason if ended is not None else None,
    }


async def with_recorded(
    dial: Dial, sidecar: Origin, player: Player, model: str, ask: Callable[[Dial, str, Capability], Awaitable[None]]
) -> None:
    """Run a Coordinator before this sidecar and the player.

    `ask` is told how to reach it, its base URL, and what the sidecar can do.

    Raises:
        Unreachable: `ask` did.

    """
    failure: Unreachable | None = None
    async with trio.open_nursery() as nursery:
        net = MemoryNet(nursery)

        async def either(origin: Origin) -> ByteStream:
            return await (net.dial if origin in (PLAYER, COORDINATOR) else dial)(origin)

        net.listen(PLAYER.host, PLAYER.port, Server(player).serve_stream)
        document = {
            "model_config": {"model_name": model},
            "render_config": {"endpoint": {"host": sidecar.host, "port": sidecar.port}},
            "instances": [{"id": 1, "role": "union", "url": f"http://{PLAYER.host}"}],
        }
        app = App(load_embedded(document, {}).config, dial=either)
        net.listen(COORDINATOR.host, COORDINATOR.port, Server(app.inference).serve_stream)
        await nursery.start(app.run)
        try:
            await ask(either, f"http://{COORDINATOR.host}", app.services.capability)
        except Unreachable as exc:
            failure = exc  # raised outside of the nursery, which would wrap it in a group
        nursery.cancel_scope.cancel(reason="everything is asked")
    if failure is not None:
        raise failure
