"""Can the chain answer this request, or does it take the engine's own OpenAI API from the start?

One table. A row names what the chain's own endpoints cannot do, so that the choice is made before anything is
committed. `skips_render` marks the rows where Render itself refuses what an engine accepts; all others are rendered
first, because Render validates the request and its token ids serve admission and scheduling on either route.

Source: contract sections 6 and 7; vllm 0.33: entrypoints/scale_out/{render,derender}/serving.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from machines.context import Route
from motor_flow.render.capability import EXACT_SINCE, WHOLE_SINCE, Capability
from motor_flow.render.envelope import Api, Envelope


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and whether it is streamed: Render's reading of it wins over ours."""

    envelope: Envelope
    stream: bool

    @property
    def api(self) -> Api:
        return self.envelope.api

    def given(self, key: str) -> bool:
        return self.envelope.given(key)

    def flag(self, key: str) -> bool:
        return self.envelope.flag(key)


@dataclass(frozen=True, slots=True)
class Rule:
    """Requests that the chain cannot answer as native vLLM would."""

    reason: str
    holds: Callable[[Asked, Capability], bool]
    skips_render: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The route of a request's first attempt, and why."""

    route: Route
    render: bool
    reason: str = ""


def cuts_markup(request: Asked, sidecar: Capability) -> bool:
    """Native vLLM cuts the text before it is parsed; here it is parsed first, so markup must not hold a stop string."""
    if not (request.stream and request.api == "chat" and request.given("stop") and sidecar.parser is not False):
        return False
    calls = request.given("tools") and request.envelope.text("tool_choice") != "none"
    return calls or any(touches(stop, sidecar.marker_texts) for stop in request.envelope.strings("stop"))


def touches(stop: str, markers: Iterable[str]) -> bool:
    """It could begin, end or stand in what a parser takes out of the text."""
    return any(
        stop in marker
        or marker in stop
        or any(marker.startswith(stop[-size:]) or marker.endswith(stop[:size]) for size in range(1, len(stop)))
        for marker in markers
    )


RULES = (
    Rule("a path that is passed through as it is", lambda request, _: request.api == "other", skips_render=True),
    Rule("render is switched off", lambda _, sidecar: not sidecar.enabled, skips_render=True),
    Rule("beam search", lambda request, _: request.flag("use_beam_search"), skips_render=True),
    Rule("return_tokens_as_token_ids", lambda request, _: request.flag("return_tokens_as_token_ids")),
    Rule("echo", lambda request, _: request.flag("echo")),
    Rule(
        "prompt_logprobs of completions",
        lambda request, _: request.api == "completions" and request.given("prompt_logprobs"),
    ),
    Rule("a stop string that may cut a tool call or a marker, in a stream", cuts_markup),
    Rule(
        "streaming through the chain is switched off", lambda request, sidecar: request.stream and not sidecar.streaming
    ),
    Rule(
        "the sidecar cannot derender chat streams",
        lambda request, sidecar: request.stream and request.api == "chat" and not sidecar.streams_chat,
    ),
    Rule(
        "the sidecar cannot derender streams",
        lambda request, sidecar: request.stream and not sidecar.streams,
    ),
    Rule("the sidecar cannot derender", lambda _, sidecar: not sidecar.derenders),
    Rule(
        "the sidecar is too old for whole answers (halves of characters)",
        lambda request, sidecar: not request.stream and sidecar.before(WHOLE_SINCE),
    ),
    Rule(
        "engines of the sidecar's age break streams with n > 1",
        lambda request, sidecar: request.stream and request.envelope.n > 1 and sidecar.before(WHOLE_SINCE),
    ),
    Rule(
        "the sidecar is too old for stop strings (which one it was)",
        lambda request, sidecar: request.given("stop") and sidecar.before(WHOLE_SINCE),
    ),
    Rule(
        "the sidecar is too old for log-probabilities in streams",
        lambda request, sidecar: request.given("logprobs") and sidecar.before(WHOLE_SINCE),
    ),
    Rule(
        "the sidecar is too old for stop strings in whole answers",
        lambda request, sidecar: not request.stream and request.given("stop") and sidecar.before(EXACT_SINCE),
    ),
    Rule(
        "the sidecar is too old for whole chats (stop tokens in the text, finish reason and ids of tool calls)",
        lambda request, sidecar: not request.stream and request.api == "chat" and sidecar.before(EXACT_SINCE),
    ),
    Rule(
        "the sidecar is too old for return_token_ids",
        lambda request, sidecar: request.flag("return_token_ids") and sidecar.before(EXACT_SINCE),
    ),
)


def decide(envelope: Envelope, sidecar: Capability, *, stream: bool) -> Decision:
    """The route of the first attempt."""
    request = Asked(envelope, stream)
    for rule in RULES:
        if rule.holds(request, sidecar):
            return Decision("native", not rule.skips_render, rule.reason)
    return Decision("token_only", render=True)
