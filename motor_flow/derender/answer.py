"""How does a derendered whole answer become the client's?

The sidecar's answer carries the engine's id, a usage of its own counting, and would show KV transfer parameters (hosts,
ports, blocks) to the client. One place repairs that and checks that every choice is there and has really finished.

Source: vLLM 0.33 scale_out/derender/serving.py (derender_chat_response copies kv_transfer_params).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from motor_flow.derender.normalise import CLIENT_FINISHES, ReasoningField, rename_reasoning
from motor_flow.derender.reasoning import Shown
from motor_flow.errors import UNREADABLE, DerenderError
from motor_flow.net.transfer import without_transfer

ASSISTANT = "assistant"
_encode = msgspec.json.encode


class Message(msgspec.Struct):
    """What tells which kinds of text a chat choice holds."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Raw] | None = None


class Choice(msgspec.Struct):
    """A choice of either API."""

    index: int
    finish_reason: str
    message: Message | None = None

    @property
    def shown(self) -> Shown:
        """What Derender has made of it."""
        shown = Shown()
        if self.message is not None:
            shown.add(msgspec.structs.asdict(self.message))
        return shown


class _Answer(msgspec.Struct):
    choices: list[Choice]


@dataclass(frozen=True, slots=True)
class Derendered:
    """A complete answer.

    Attributes:
        choices: what is read of them.
        fields: the answer without what is nobody's business.

    """

    choices: list[Choice]
    fields: dict[str, object]


_check = msgspec.json.Decoder(_Answer).decode
_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_objects = msgspec.json.Decoder(list[dict[str, Any]]).decode


def read_answer(body: bytes, *, choices: int) -> Derendered:
    """Check what the derender endpoint answered.

    Args:
        body: as it came.
        choices: how many choices the request asked for, over all prompts.

    Raises:
        DerenderError: the answer is not complete.

    """
    try:
        answer = _check(body)
        fields: dict[str, object] = dict(without_transfer(_fields(body)))
    except UNREADABLE as exc:
        raise DerenderError("the sidecar gave an invalid derender answer", detail=str(exc)) from None
    if odd := {choice.finish_reason for choice in answer.choices} - CLIENT_FINISHES:
        raise DerenderError(f"the sidecar gave a finish reason that is none: {min(odd)!r}")
    if [choice.index for choice in answer.choices] != list(range(choices)):
        raise DerenderError(f"the sidecar derendered {len(answer.choices)} choices of {choices}")
    return Derendered(answer.choices, fields)


def client_answer(
    answer: Derendered,
    *,
    identity: str,
    created: int,
    model: str,
    usage: dict[str, object],
    reasoning_field: ReasoningField,
    role: str = ASSISTANT,
) -> bytes:
    """The response body for the client.

    Args:
        answer: the derendered one.
        identity: the response id.
        created: Unix time, seconds.
        model: as the client is to see it.
        usage: our own count.
        reasoning_field: what reasoning is called.
        role: of a chat's messages; Derender calls all of them the assistant's.

    """
    fields = dict(answer.fields)
    if reasoning_field != "reasoning" or role != ASSISTANT:
        fields["choices"] = _rewritten(fields["choices"], reasoning_field, role)
    return _encode(fields | {"id": identity, "created": created, "model": model, "usage": usage})


def _rewritten(raw: object, field: ReasoningField, role: str) -> list[dict[str, Any]]:
    assert isinstance(raw, Raw)
    choices = _objects(raw)
    for choice in choices:
        if isinstance(message := choice.get("message"), dict):
            rename_reasoning(message, field)
            if role != ASSISTANT:
                message["role"] = role
    return choices
