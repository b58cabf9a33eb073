"""What do we read of a token engine's answers?

Typed peeks: the fields that decide something. Everything else stays bytes. A choice of a stream event carries any
number of tokens: the engine merges what a slow reader has not fetched.

Source: vLLM 0.33 scale_out/token_in_token_out/protocol.py (GenerateTokensStreamResponse, GenerateTokensResponse).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from machines.tokens import SemanticJson

NULL = Raw(b"null")
TokenIds = list[Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]]  # the ledger holds 4 bytes each


class PromptTokensDetails(msgspec.Struct, omit_defaults=True):
    """Part of an engine's usage."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """An engine's own count; ours is the ledger's."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None


class ErrorObject(msgspec.Struct):
    """The `error` of an event inside HTTP 200."""

    message: str = ""
    type: str | None = None
    param: str | None = None
    code: int | str | None = None


class ChunkChoice(msgspec.Struct):
    """One choice of a stream event."""

    index: int
    token_ids: TokenIds | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Raw = NULL


class Chunk(msgspec.Struct):
    """One stream event. vLLM puts one choice into each; the usage event has none."""

    choices: list[ChunkChoice] = []
    usage: Usage | None = None
    error: ErrorObject | None = None


class WholeChoice(msgspec.Struct):
    """One choice of a whole answer."""

    index: int
    token_ids: TokenIds | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class Whole(msgspec.Struct):
    """A whole answer."""

    choices: list[WholeChoice]
    usage: Usage | None = None


class Prefilled(msgspec.Struct):
    """A prefill leg's answer, token-only or OpenAI; its tokens are of no interest."""

    choices: list[WholeChoice] = []
    usage: Usage | None = None


decode_prefill = msgspec.json.Decoder(Prefilled).decode
decode_chunk: Callable[[SemanticJson], Chunk] = msgspec.json.Decoder(Chunk).decode
decode_whole: Callable[[SemanticJson], Whole] = msgspec.json.Decoder(Whole).decode
