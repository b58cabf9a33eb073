"""What does a response say, whether it was streamed or not?

Both forms become one `Answer`: joined texts per choice, tool calls, logprobs, finish, usage, ids. Null equals
absent, and how a stream was cut into chunks does not matter; everything else does.

Source: RFC 一致性测试 (the list of what is compared).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from motor_flow.net.sse import EventSplitter

DONE = b"[DONE]"
COMPARED = frozenset({"role", "content", "reasoning", "tool_calls"})


@dataclass(slots=True)
class Choice:
    """One choice, joined."""

    content: str = ""
    reasoning: str = ""
    tool_calls: dict[int, dict[str, str]] = field(default_factory=dict)
    logprobs: list[Any] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: Any = None
    finish_reason: str | None = None
    stop_reason: Any = None


@dataclass(slots=True)
class Answer:
    """One response.

    Attributes:
        status: HTTP status.
        choices: by index.
        usage: as sent, without nulls.
        error: the error object, from the body or from an event.
        kinds: the order of chunk kinds in a stream, repeats collapsed: role, delta, finish, usage, error, done.
        created: the times it names; one answer has one.
        members: paths of what the body, or any chunk, holds that is not null: `usage`, `choices.message.role`.
        oddities: what no answer of vLLM's has: a second finish, text behind it, a wrong media type.
        roles: of its messages.
        usages: every usage of a stream, without nulls.

    """

    status: int
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: Any = None
    id_prefix: str = ""
    ids: set[str] = field(default_factory=set)
    object: str = ""
    model: str = ""
    kinds: list[str] = field(default_factory=list)
    created: set[int] = field(default_factory=set)
    members: set[str] = field(default_factory=set)
    oddities: list[str] = field(default_factory=list)
    roles: set[str] = field(default_factory=set)
    usages: list[dict[str, Any]] = field(default_factory=list)
    system_fingerprint: str | None = None


def read_answer(status: int, media_type: str, body: bytes) -> Answer:
    """Read a whole response body."""
    answer = Answer(status)
    if not media_type.startswith(("text/event-stream", "application/json")):
        answer.oddities.append(f"media type {media_type!r}")
    if media_type.startswith("text/event-stream"):
        _read_events(answer, EventSplitter().feed(body))
    else:
        _read_object(answer, msgspec.json.decode(body))
    return answer


def without_nulls(value: Any) -> Any:
    """The value without null members, at any depth."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value]
    return value


def _read_events(answer: Answer, events: Iterable[bytes]) -> None:
    for event in events:
        if "done" in answer.kinds:
            answer.oddities.append("an event behind [DONE]")
        if event == DONE:
            _kind(answer, "done")
            continue
        chunk = msgspec.json.decode(event)
        if chunk.get("error"):
            answer.error = without_nulls(chunk["error"])
            _kind(answer, "error")
            continue
        _read_head(answer, chunk)
        if chunk.get("usage"):
            answer.usage = without_nulls(chunk["usage"])
            answer.usages.append(answer.usage)
        if not chunk["choices"]:
            _kind(answer, "usage")
        for raw in chunk["choices"]:
            _read_delta(answer, raw)


def _read_head(answer: Answer, body: dict[str, Any]) -> None:
    answer.ids.add(body["id"])
    answer.id_prefix = body["id"].split("-")[0]
    answer.object = body["object"]
    answer.model = body["model"]
    answer.created.add(body["created"])
    if not body["created"] > 0:
        answer.oddities.append("created is no time")
    answer.system_fingerprint = body.get("system_fingerprint") or answer.system_fingerprint
    answer.members.update(key for key, value in body.items() if value is not None)
    if body.get("prompt_token_ids") is not None:
        answer.prompt_token_ids = body["prompt_token_ids"]
    if body.get("prompt_logprobs") is not None:
        answer.prompt_logprobs = body["prompt_logprobs"]


def _read_delta(answer: Answer, raw: dict[str, Any]) -> None:
    choice = answer.choices.setdefault(raw["index"], Choice())
    delta = raw.get("delta", {})
    if choice.finish_reason is not None:
        answer.oddities.append("a chunk behind a choice's finish reason")
    _note_members(answer, "delta", delta)
    choice.content += raw.get("text") or delta.get("content") or ""
    choice.reasoning += delta.get("reasoning") or ""
    for call in delta.get("tool_calls") or ():
        if call.get("type") not in (None, "function"):
            answer.oddities.append(f"a tool call of type {call['type']!r}")
        slot = choice.tool_calls.setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
        slot["id"] = slot["id"] or call.get("id") or ""
        function = call.get("function") or {}
        slot["name"] += function.get("name") or ""
        slot["arguments"] += function.get("arguments") or ""
    _read_common(choice, raw)
    if delta.get("role"):
        _kind(answer, "role")
    elif raw.get("finish_reason"):
        _kind(answer, "finish")
    else:
        _kind(answer, "delta")


def _read_common(choice: Choice, raw: dict[str, Any]) -> None:
    if raw.get("logprobs"):
        choice.logprobs.append(raw["logprobs"])
    choice.token_ids += raw.get("token_ids") or ()
    if raw.get("prompt_token_ids") is not None:
        choice.prompt_token_ids = raw["prompt_token_ids"]
    if raw.get("prompt_logprobs") is not None:
        choice.prompt_logprobs = raw["prompt_logprobs"]
    if raw.get("finish_reason"):
        choice.finish_reason = raw["finish_reason"]
        choice.stop_reason = raw.get("stop_reason")


def _read_object(answer: Answer, body: dict[str, Any]) -> None:
    if body.get("error"):
        error = body["error"]
        answer.error = without_nulls(error) if isinstance(error, dict) else {"message": error}
        return
    _read_head(answer, body)
    answer.usage = without_nulls(body.get("usage") or {})
    for raw in body["choices"]:
        choice = answer.choices.setdefault(raw["index"], Choice())
        message = raw.get("message", {})
        _note_members(answer, "message", message)
        choice.content = raw.get("text") or message.get("content") or ""
        choice.reasoning = message.get("reasoning") or ""
        for position, call in enumerate(message.get("tool_calls") or ()):
            if call.get("type") != "function":
                answer.oddities.append(f"a tool call of type {call.get('type')!r}")
            choice.tool_calls[position] = {"id": call["id"], **call["function"]}
        _read_common(choice, raw)


def _note_members(answer: Answer, where: str, message: dict[str, Any]) -> None:
    """What a message or delta holds beside its text and calls; empty equals absent there."""
    for key, value in message.items():
        if value not in (None, "", [], {}) and key not in COMPARED:
            answer.members.add(f"choices.{where}.{key}")
    if message.get("role"):
        answer.roles.add(message["role"])


def _kind(answer: Answer, kind: str) -> None:
    if not answer.kinds or answer.kinds[-1] != kind:
        answer.kinds.append(kind)


def joined_logprobs(parts: list[Any]) -> Any:
    """Logprobs of all chunks as one object, in either of OpenAI's forms."""
    if not parts:
        return None
    if "content" in parts[0]:
        return {"content": [entry for part in parts for entry in part.get("content") or ()]}
    keys = ("tokens", "token_logprobs", "text_offset", "top_logprobs")
    return {key: [entry for part in parts for entry in part.get(key) or ()] for key in keys}
