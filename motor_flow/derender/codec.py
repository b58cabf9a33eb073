"""What do we read of a derendered chunk?

The delta is a plain mapping, so that kinds of delta that this program does not know pass through; of the chunk and the
choice only the listed fields are read, so that nothing internal (KV parameters, engine ids) can reach a client.

Source: vLLM 0.33 scale_out/token_in_token_out/protocol.py (Derender*StreamResponse),
openai/{chat_completion,completion}/protocol.py (stream choices).
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw

NULL = Raw(b"null")


class ChatChoice(msgspec.Struct):
    """A choice of a chat chunk."""

    index: int
    delta: dict[str, Any]
    logprobs: Raw = NULL
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: Raw = NULL


class TextChoice(msgspec.Struct):
    """A choice of a completions chunk."""

    index: int
    text: str = ""
    logprobs: Raw = NULL
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: Raw = NULL


Choice = TypeVar("Choice", ChatChoice, TextChoice)


class DerenderedChunk(msgspec.Struct, Generic[Choice]):
    """The `chunk` of an answer."""

    choices: list[Choice]


class StreamAnswer(msgspec.Struct, Generic[Choice]):
    """The answer of a streaming derender call."""

    chunk: DerenderedChunk[Choice]
    stream_state: Raw


decode_chat = msgspec.json.Decoder(StreamAnswer[ChatChoice]).decode
decode_text = msgspec.json.Decoder(StreamAnswer[TextChoice]).decode
