"""What is asked in a campaign, and what goes wrong with it?

A scene is one request with its own faults: they follow it over all engines, because engines' ids begin with the
client's id. Everything is drawn from one generator, so a seed tells the whole story.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from motor_flow.render.envelope import CHAT_PATH, COMPLETIONS_PATH
from motor_flow.sim.faults import Fault, Kind
from motor_flow.sim.seen import Seen

ENGINE_FAULTS: tuple[Kind, ...] = (
    *("reset", "status", "late", "cut", "bytes", "eof", "done", "lost", "stall", "error", "garbage"),
    *("abort", "recomputed", "slow"),
)
RENDER_FAULTS: tuple[Kind, ...] = ("reset", "status", "stall", "garbage", "cut", "late")
DERENDER_FAULTS: tuple[Kind, ...] = ("reset", "status", "stall", "garbage", "cut", "late")
WORDS = ("Hello!", "Count.", "Say hello in Chinese.", "Weather in Paris?", "Weather in Paris and 北京?", "你好 🎉🚀")
TEXTS = ("Once upon a ", "从前有座山", "Numbers: 1 2", "x", "The end, 🏯 ", "def f():\n    ")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
ENGINE_FAULTS_MAX = 3


@dataclass(slots=True)
class Scene:
    """One request of a campaign.

    Attributes:
        name: the client's x-request-id.
        starts_s: after the world's beginning.
        faults: on engines and sidecar, for this request only.
        leaves_s: after its start the client is gone; None: it stays.
        read_pause_s: the client waits so long before it reads on.
        send_pause_s: between two pieces of its request.

    """

    name: str
    path: str
    body: dict[str, Any]
    starts_s: float
    faults: list[Fault] = field(default_factory=list)
    leaves_s: float | None = None
    read_pause_s: float = 0.0
    send_pause_s: float = 0.0

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def prompts(self) -> int:
        prompt = self.body.get("prompt")
        return len(prompt) if isinstance(prompt, list) else 1

    def must_succeed(self, *, deaths: bool) -> bool:
        """Nothing that goes wrong with it is beyond what retries, relay and fallbacks can hide.

        Args:
            deaths: engines die under it.

        """
        harm = [fault for fault in self.faults if fault.kind not in ("late", "slow")]
        engines = [fault.kind for fault in harm if fault.on == "any"]
        if any(fault.on == "derender" for fault in harm) or (not self.stream and "stall" in engines):
            return False
        if not engines and not deaths:
            return True
        # On the native route, and where choices share an engine stream, what is visible cannot go on elsewhere.
        return not (self.stream and (self.native or self.body.get("n", 1) > 1))

    @property
    def native(self) -> bool:
        """It is answered by the engine's own API."""
        return "echo" in self.body or any(fault.on == "render" and fault.kind != "late" for fault in self.faults)


def scene(random: Random, name: str) -> Scene:
    """Draw one."""
    stream = random.random() < 0.7
    path, body = _chat(random) if random.random() < 0.5 else _completion(random)
    body |= {"model": "tiny", "temperature": 0, "max_tokens": random.randint(1, 60)}
    if stream:
        body["stream"] = True
        if random.random() < 0.6:
            body["stream_options"] = {"include_usage": True}
    if random.random() < 0.5:
        body["ignore_eos"] = True
    elif random.random() < 0.2:
        body["min_tokens"] = random.randint(0, body["max_tokens"])
    if "n" in body:
        body |= {"temperature": 0.5, "seed": random.randint(0, 99)}
    drawn = Scene(name, path, body, starts_s=random.uniform(0, 2))
    drawn.faults = _faults(random, drawn)
    if random.random() < 0.15:
        drawn.leaves_s = random.choice((0.0, random.uniform(0, 0.1), random.uniform(0, 2)))
    if random.random() < 0.1:
        drawn.read_pause_s = random.uniform(0, 0.3)
    if random.random() < 0.05:
        drawn.send_pause_s = random.uniform(0, 0.05)
    return drawn


def _chat(random: Random) -> tuple[str, dict[str, Any]]:
    word = random.choice(WORDS)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": word}]}
    if word.startswith("Weather") or random.random() < 0.1:
        body["tools"] = TOOLS
    if random.random() < 0.1:
        body |= {"logprobs": True, "top_logprobs": random.randint(0, 3)}
    if random.random() < 0.1:
        body["n"] = 2
    if random.random() < 0.2:
        body["chat_template_kwargs"] = {"enable_thinking": False}
    return CHAT_PATH, body


def _completion(random: Random) -> tuple[str, dict[str, Any]]:
    count = random.choice((1, 1, 1, 2, 3, 4))
    prompts = [random.choice(TEXTS) for _ in range(count)]
    body: dict[str, Any] = {"prompt": prompts[0] if count == 1 else prompts}
    if random.random() < 0.1:
        body["logprobs"] = random.randint(0, 3)
    if random.random() < 0.1:
        body["n"] = 2
    if random.random() < 0.05:
        body["echo"] = True
    return COMPLETIONS_PATH, body


def _faults(random: Random, drawn: Scene) -> list[Fault]:
    mine = _of(drawn.name)
    count = random.choices(range(ENGINE_FAULTS_MAX + 1), (40, 35, 15, 10))[0]
    faults = [
        _fault(random, random.choice(ENGINE_FAULTS), "any", mine, events=drawn.body["max_tokens"]) for _ in range(count)
    ]
    if random.random() < 0.1:
        faults.append(_fault(random, random.choice(RENDER_FAULTS), "render", mine))
    if random.random() < 0.1:
        faults.append(_fault(random, random.choice(DERENDER_FAULTS), "derender", mine, skip=random.randint(0, 20)))
    return faults


def _fault(
    random: Random, kind: Kind, on: str, only: Callable[[Seen], bool], *, events: int = 0, skip: int = 0
) -> Fault:
    after = random.randint(0, events) if kind != "bytes" else random.randint(0, 4000)
    status = random.choice((500, 502, 503, 429))
    seconds = random.uniform(0, 0.004) if kind == "slow" else random.uniform(0.001, 0.2)
    return Fault(kind, after=after, seconds=seconds, status=status, on=on, only=only, skip=skip)


def _of(name: str) -> Callable[[Seen], bool]:
    """Calls that belong to this request: its name is in the ids that engines and sidecars get."""
    mark = f"{name}."

    def only(call: Seen) -> bool:
        if call.kind == "derender":
            return any(mark in chunk.get("request_id", "") for chunk in _chunks(call.body))
        return mark in call.headers.get("x-request-id", "")

    return only


def _chunks(body: Any) -> list[dict[str, Any]]:
    one = body.get("generate_chunk") or body.get("generate_response")
    found = [one] if one else body.get("generate_responses") or []
    return [each for each in found if isinstance(each, dict)]
