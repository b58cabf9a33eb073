"""Where do two answers to the same request differ?

Field by field. What is random by nature (response ids, tool call ids, time) is compared by shape.

Source: RFC 一致性测试.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from motor_flow.views.parity.answers import Answer, Choice, joined_logprobs, without_nulls

LOGPROB_DIGITS = 4  # the same forward pass in another batch may differ in the last bits


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs."""

    field: str
    native: Any
    chain: Any

    def __str__(self) -> str:
        return f"{self.field}: native {_short(self.native)}, chain {_short(self.chain)}"


def differences(native: Answer, chain: Answer) -> list[Difference]:
    """Every field of what is said that differs, in a fixed order."""
    return _different(_fields(native, chain), _fields(chain, native))


def envelope_differences(native: Answer, chain: Answer) -> list[Difference]:
    """What differs around it: which members the bodies have at all, and whose they are."""
    return _different(_envelope(native), _envelope(chain))


def _different(native: Iterator[tuple[str, Any]], chain: Iterator[tuple[str, Any]]) -> list[Difference]:
    return [
        Difference(field, left, right) for (field, left), (_, right) in zip(native, chain, strict=True) if left != right
    ]


def _envelope(answer: Answer) -> Iterator[tuple[str, Any]]:
    yield "created", [type(time).__name__ for time in answer.created]
    yield "system_fingerprint", answer.system_fingerprint and _without_random(answer.system_fingerprint)
    yield "members", sorted(answer.members - {"system_fingerprint"})


def _fields(answer: Answer, other: Answer) -> Iterator[tuple[str, Any]]:
    yield "status", answer.status
    yield "error", _error(answer)
    yield "object", answer.object
    yield "model", answer.model
    yield "id", (answer.id_prefix, len(answer.ids))
    yield "usage", _usage(answer)
    yield "reasoning_tokens", (answer.usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    yield "prompt_token_ids", answer.prompt_token_ids
    yield "prompt_logprobs", _rounded(without_nulls(answer.prompt_logprobs))
    yield "kinds", _kinds(answer)
    yield "oddities", answer.oddities
    yield "role", sorted(answer.roles)
    yield "running usage", _running(answer, other)
    for index in sorted(set(answer.choices) | set(other.choices)):
        choice = answer.choices.get(index)
        for field, value in _choice_fields(choice):
            yield f"choices[{index}].{field}", value


def _choice_fields(choice: Choice | None) -> Iterator[tuple[str, Any]]:
    blank = choice or Choice()
    yield "present", choice is not None
    yield "content", blank.content
    yield "reasoning", blank.reasoning
    yield "tool_calls", [_tool_call(call) for _, call in sorted(blank.tool_calls.items())]
    yield "tool_indices", sorted(blank.tool_calls)
    yield "finish_reason", blank.finish_reason
    yield "stop_reason", blank.stop_reason
    yield "token_ids", blank.token_ids
    yield "prompt_token_ids", blank.prompt_token_ids
    yield "prompt_logprobs", _rounded(without_nulls(blank.prompt_logprobs))
    yield "logprobs", _rounded(without_nulls(joined_logprobs(blank.logprobs)))


def _error(answer: Answer) -> dict[str, Any] | None:
    if answer.error is None:
        return None
    return {key: answer.error.get(key) for key in ("message", "type", "param", "code")}


def _usage(answer: Answer) -> dict[str, Any]:
    return {key: value for key, value in answer.usage.items() if key != "completion_tokens_details"}


def _running(answer: Answer, other: Answer) -> dict[str, Any]:
    """What the usages of a stream say, however it was cut: which fields, and the tokens of the prompts."""
    if len(answer.usages) <= 1 or len(other.usages) <= 1:
        return {}
    fields = sorted({key for usage in answer.usages for key in usage})
    return {"fields": fields, "prompt_tokens": sorted({usage.get("prompt_tokens", 0) for usage in answer.usages})}


def _kinds(answer: Answer) -> list[str]:
    """The order of chunk kinds: what comes once, in which order; deltas and finishes of several choices interleave."""
    ordered: list[str] = []
    for kind in answer.kinds:
        shown = "delta" if kind == "finish" and len(answer.choices) > 1 else kind
        if not ordered or ordered[-1] != shown:
            ordered.append(shown)
    # An answer of one token may be all finish in one server and delta, finish in another.
    return [kind for kind in ordered if kind != "delta"]


def _tool_call(call: dict[str, str]) -> dict[str, str]:
    return {**call, "id": _without_random(call["id"])}


def _without_random(text: str) -> str:
    """Without random ids, and without the hash that tells one engine's settings from another's."""
    return re.sub(r"[0-9a-f]{8,}", "<random>", text)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, LOGPROB_DIGITS) if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return value


def _short(value: Any, width: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= width else f"{text[: width - 1]}…"
