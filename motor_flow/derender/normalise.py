"""How does a derendered chunk become the event that native vLLM would have sent?

The derender endpoint dumps its chunk with every null, with the engine's id, a fresh `created` and the role in the first
delta, and answers an empty delta for every token that made no text. Clients' helpers break on some of that, so one
place repairs it: constant id and created, no nulls but the allowed ones, role chunks of our own, empty deltas dropped,
choice indexes made global.

The constant part of every event is encoded once per request, the index once per stream.

Source: contract section 3; vLLM 0.33 openai/chat_completion/serving.py (exclude_unset, role chunk first).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Raw

from motor_flow.derender.codec import ChatChoice, TextChoice

ReasoningField = Literal["reasoning", "reasoning_content", "both"]

CLIENT_FINISHES = frozenset({"stop", "length", "tool_calls", "repetition"})
NULL = b"null"
OPEN = b',"logprobs":null,"finish_reason":null}'  # the end of nearly every choice
_encode = msgspec.json.encode


class Frame:
    """What all events of one stream share.

    Args:
        identity: the response id, `chatcmpl-...` or `cmpl-...`.
        kind: the `object` of a chunk.
        created: Unix time, seconds.
        model: as the client is to see it.

    """

    __slots__ = ("_head",)

    def __init__(self, identity: str, kind: str, created: int, model: str) -> None:
        self._head = b'data: {"id":%b,"object":%b,"created":%d,"model":%b,"choices":[' % (
            _encode(identity),
            _encode(kind),
            created,
            _encode(model),
        )

    def event(self, choice: bytes, usage: bytes | None = None, top: bytes = b"") -> bytes:
        """One SSE event with this choice (empty: none), usage and further top-level fields (`,"key":value`)."""
        if usage is None and not top:
            return b"%b%b]}\n\n" % (self._head, choice)
        tail = b',"usage":%b' % usage if usage is not None else b""
        return b"%b%b]%b%b}\n\n" % (self._head, choice, tail, top)


def shown_finish(derendered: str | None, engine: str | None) -> str | None:
    """The finish reason for the client: Derender's, which knows of tool calls, once the engine has finished."""
    if engine is None:
        return None
    return derendered if derendered in CLIENT_FINISHES else engine


def one_line(raw: Raw) -> bytes:
    """JSON that may stand in an event: pretty-printing would end it."""
    text = bytes(raw)
    return text if b"\n" not in text and b"\r" not in text else _encode(msgspec.json.decode(text))


def role_choice(index: int, role: str) -> bytes:
    """The first choice object of a chat stream."""
    return b'{"index":%d,"delta":{"role":%b,"content":""}%b' % (index, _encode(role), OPEN)


class ChatNormaliser:
    """Choices of one chat stream.

    Args:
        index: the client's choice index.
        reasoning_field: what reasoning is called (response_config.reasoning_field).

    """

    __slots__ = ("_head", "_reasoning_field")

    def __init__(self, index: int, reasoning_field: ReasoningField) -> None:
        self._head = b'{"index":%d,"delta":' % index
        self._reasoning_field = reasoning_field

    def choice(self, choice: ChatChoice, finish: str | None) -> bytes:
        """The choice object for the client; empty when it would say nothing."""
        delta = clean_delta(choice.delta)
        logprobs = one_line(choice.logprobs)
        token_ids = one_line(choice.token_ids)
        if not delta and finish is None and logprobs == NULL and token_ids in (NULL, b"[]"):
            return b""
        if self._reasoning_field != "reasoning" and "reasoning" in delta:
            rename_reasoning(delta, self._reasoning_field)
        if finish is None and logprobs == NULL and token_ids == NULL:
            return b"%b%b%b" % (self._head, _encode(delta), OPEN)
        return b'%b%b,"logprobs":%b%b' % (
            self._head,
            _encode(delta),
            logprobs,
            _end(finish, choice.stop_reason, token_ids),
        )


class TextNormaliser:
    """Choices of one completions stream.

    Args:
        index: the client's choice index.

    """

    __slots__ = ("_head",)

    def __init__(self, index: int) -> None:
        self._head = b'{"index":%d,"text":' % index

    def choice(self, choice: TextChoice, finish: str | None, prompt_ids: bytes = b"") -> bytes:
        """The choice object for the client; empty when it would say nothing.

        Args:
            choice: as derendered.
            finish: the finish reason, on the last chunk.
            prompt_ids: encoded prompt token ids, for the first choice object of a prompt when the client wants them.

        """
        logprobs = one_line(choice.logprobs)
        token_ids = one_line(choice.token_ids)
        if not choice.text and finish is None and logprobs == NULL and token_ids in (NULL, b"[]"):
            return b""
        text = _encode(choice.text)
        if finish is None and logprobs == NULL and token_ids == NULL and not prompt_ids:
            return b"%b%b%b" % (self._head, text, OPEN)
        end = _end(finish, choice.stop_reason, token_ids)
        if prompt_ids:
            end = b',"prompt_token_ids":%b%b' % (prompt_ids, end)
        return b'%b%b,"logprobs":%b%b' % (self._head, text, logprobs, end)


def _end(finish: str | None, stop_reason: int | str | None, token_ids: bytes) -> bytes:
    ids = b"" if token_ids == NULL else b',"token_ids":%b' % token_ids
    if finish is None:
        return b',"finish_reason":null%b}' % ids
    return b',"finish_reason":%b,"stop_reason":%b%b}' % (_encode(finish), _encode(stop_reason), ids)


def clean_delta(delta: dict[str, Any]) -> dict[str, Any]:
    """A delta without role, nulls, empty strings and empty lists, at any depth of its tool calls."""
    return {
        key: _without_nulls(value)
        for key, value in delta.items()
        if value is not None and value not in ("", []) and key != "role"
    }


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value


def rename_reasoning(message: dict[str, Any], field: ReasoningField) -> None:
    """Give the reasoning of a message or delta the name that the clients read."""
    reasoning = message.get("reasoning")
    if reasoning is None or field == "reasoning":
        return
    message["reasoning_content"] = reasoning
    if field == "reasoning_content":
        del message["reasoning"]
