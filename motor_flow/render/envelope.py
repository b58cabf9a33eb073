"""What must the Coordinator know of a client's request?

A thin envelope: model, stream, choices, prompts, stop strings and the few fields that decide the route. Everything else
stays the bytes that the client sent and reaches Render (or, on the native route, the engine) untouched, so that nothing
is lost that this program does not know.

Types are Render's business: a field of the wrong type is peeked as absent here and refused there, with vLLM's message.
The one thing taken away: KV and EC transfer parameters, which name other engines' memory and can kill an engine.

Source: contract section 3 and 6; vLLM 0.33 openai/{chat_completion,completion}/protocol.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec
from msgspec import Raw

from motor_flow.errors import UNREADABLE, ClientError
from motor_flow.net.transfer import TRANSFER_KEYS, without_transfer

Api = Literal["chat", "completions", "other"]
"""`other`: a route that only engines know, passed through."""

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"

T = TypeVar("T")
ASSISTANT = "assistant"
NULL = Raw(b"null")
_TRUE = frozenset({b"true", b"t", b"yes", b"y", b"on", b"1"})
_fields = msgspec.json.Decoder(dict[str, Raw])
_encode = msgspec.json.encode


class _Spoken(msgspec.Struct):
    """A message of a chat."""

    role: str = ASSISTANT


def peek(raw: Raw | None, kind: type[T], default: T) -> T:
    """The value if it has this type, else the default. "true" and 1 are booleans, as they are to pydantic."""
    if raw is None:
        return default
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except UNREADABLE:
        return default


class StreamOptions(msgspec.Struct):
    """`stream_options` of a request."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


@dataclass(slots=True, eq=False)
class Envelope:
    """One client request.

    Attributes:
        fields: the client's body, top level only, values as sent; transfer parameters removed.
        model: the model name, empty when absent.
        stream: the client wants server-sent events.
        include_usage: a usage chunk at the end of the stream.
        continuous_usage: usage on every chunk too.
        n: choices per prompt, >= 1.

    """

    api: Api
    fields: dict[str, Raw]
    model: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    n: int

    @classmethod
    def parse(cls, api: Api, body: bytes) -> Envelope:
        """Read a request body.

        Raises:
            ClientError: it is not one JSON object.

        """
        try:
            fields = _fields.decode(body)
        except UNREADABLE as exc:
            raise ClientError(f"the request body is not a JSON object: {exc}") from None
        fields = without_transfer(fields)
        _strip_extra_arguments(fields)
        options = peek(fields.get("stream_options"), StreamOptions, StreamOptions())
        include_usage = bool(options.include_usage)
        return cls(
            api=api,
            fields=fields,
            model=peek(fields.get("model"), str, ""),
            stream=_truth(fields.get("stream")),
            include_usage=include_usage,
            continuous_usage=include_usage and bool(options.continuous_usage_stats),
            n=max(1, peek(fields.get("n"), int, 1)),
        )

    @property
    def prompts(self) -> int:
        """How many prompts the request holds, >= 1. A long list takes time to read: only for who has no tokens."""
        if self.api != "completions":
            return 1
        embeds = self.fields.get("prompt_embeds", NULL)
        given = [_count(raw, parts) for raw, parts in ((self.fields.get("prompt", NULL), b'"['), (embeds, b'"'))]
        return max(1, sum(given))

    @property
    def gives_ids(self) -> bool:
        """The client has tokenized its prompt itself: `[1, 2]` or `[[1], [2]]`."""
        first = bytes(self.fields.get("prompt", NULL)).lstrip(b"[ \t\r\n")[:1]
        return self.api == "completions" and first.isdigit()

    def encode(self) -> bytes:
        """The request for Render, or for an engine's own OpenAI API."""
        return _encode(self.fields)

    def given(self, key: str) -> bool:
        """The client set this field to something that is not null, false or empty."""
        raw = self.fields.get(key)
        return raw is not None and bytes(raw) not in (b"null", b"false", b"[]", b'""', b"{}")

    def flag(self, key: str) -> bool:
        """A boolean field, read as pydantic reads one."""
        return _truth(self.fields.get(key))

    def declines(self, key: str) -> bool:
        """A boolean field that is true unless the client says otherwise."""
        raw = self.fields.get(key)
        return raw is not None and bytes(raw) != b"null" and not _truth(raw)

    @property
    def role(self) -> str:
        """Of a chat's answer: the assistant's, or that of the message which it continues."""
        if not self.declines("add_generation_prompt"):
            return ASSISTANT
        return (peek(self.fields.get("messages"), list[_Spoken], None) or [_Spoken()])[-1].role

    def strings(self, key: str) -> list[str]:
        """A field that holds a string or several."""
        raw = self.fields.get(key)
        one = peek(raw, str, "")
        return [one] if one else peek(raw, list[str], [])

    def text(self, key: str) -> str | None:
        """A string field, or None."""
        return peek(self.fields.get(key), str, "") or None


def _strip_extra_arguments(fields: dict[str, Raw]) -> None:
    """vLLM merges `vllm_xargs` into the sampling parameters' extra_args, where connectors look for their parameters."""
    raw = fields.get("vllm_xargs")
    if raw is None:
        return
    extra = peek(raw, dict[str, Raw], {})  # what is no object holds no keys, and Render refuses it
    if not TRANSFER_KEYS.isdisjoint(extra):
        fields["vllm_xargs"] = Raw(_encode(without_transfer(extra)))


def _truth(raw: Raw | None) -> bool:
    return raw is not None and bytes(raw).strip(b'"').lower() in _TRUE


def _count(raw: Raw, parts: bytes) -> int:
    """`"a"` and `[1, 2]` are one prompt, `["a", "b"]` and `[[1], [2]]` two: `parts` says what each begins with."""
    text = bytes(raw)
    if text in (b"null", b""):
        return 0
    first = text[1:].lstrip()[:1] if text[:1] == b"[" else b""
    if not first or first not in parts:
        return 1
    return len(peek(raw, list[Raw], []))
