"""How many tokens has a request when Render cannot be asked?

The model's own tokenizer and chat template, from local files, in a thread, one call at a time. It is loaded at the
first real need; no client waits for it longer than for Render: who comes too early is served without a count, and the
load goes on. The ids are those of Render, or there are none: a request that the two may read differently is not
tokenized here.

Source: RFC Render Token In fallback; vLLM 0.33 renderers/hf.py (safe_apply_chat_template).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec
import trio

from machines.tokens import SemanticIds, TokenizedPrompt
from motor_flow.errors import UNREADABLE
from motor_flow.render.envelope import Envelope
from motor_flow.render.tokenization import TokenizedRequest
from motor_flow.telemetry.log import get_logger

_UNSAFE = ("chat_template", "mm_processor_kwargs", "media_io_kwargs", "prompt_embeds", "truncate_prompt_tokens")
_log = get_logger()


class Tokenizer(Protocol):
    """What we need of transformers' tokenizers."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any: ...
    def apply_chat_template(self, messages: list[dict[str, Any]], **how: Any) -> list[int]: ...


class _Chat(msgspec.Struct):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, str]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    reasoning_effort: str | None = None


class _Completion(msgspec.Struct):
    prompt: str | list[str] | list[int] | list[list[int]]
    add_special_tokens: bool = True


_read_chat = msgspec.json.Decoder(_Chat, strict=True).decode


def load(path: str) -> Tokenizer:
    """The tokenizer in this directory. Seconds of one core; nothing is fetched, no code of the model's is run."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoTokenizer  # noqa: PLC0415 - a second of import that most processes never need

    return cast("Tokenizer", AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False))


class LocalTokenizer:
    """The local tokenizer of one model.

    Args:
        path: the directory (model_config.model_path), or empty: there is none.
        patience_s: how long a request waits for its tokens.
        load: makes the tokenizer of a directory.

    """

    def __init__(self, path: str, patience_s: float, load: Callable[[str], Tokenizer] = load) -> None:
        self._path = path
        self._patience_s = patience_s
        self._load = load
        self._loaded: Tokenizer | None = None
        self._broken = not path
        self._one = trio.CapacityLimiter(1)

    async def tokenize(self, envelope: Envelope) -> TokenizedRequest | None:
        """The request in tokens; None when that cannot be said here, or not in time."""
        if self._broken or any(envelope.given(key) for key in _UNSAFE):
            return None
        with trio.move_on_after(self._patience_s):
            prompts = await trio.to_thread.run_sync(self._prompts, envelope, abandon_on_cancel=True, limiter=self._one)
            if prompts is None:
                return None
            return TokenizedRequest(
                prompts=[TokenizedPrompt(SemanticIds(ids), {}, {}, envelope.n) for ids in prompts],
                stream=envelope.stream,
                include_usage=envelope.include_usage,
                continuous_usage=envelope.continuous_usage,
                source="local",
            )
        return None

    def _prompts(self, envelope: Envelope) -> list[list[int]] | None:
        """In the thread; one at a time."""
        if self._loaded is None:
            if self._broken:
                return None
            try:
                self._loaded = self._load(self._path)
            except Exception as exc:  # noqa: BLE001 - whatever is wrong with the files, requests go on without them
                self._broken = True
                _log.warning("local_tokenizer.off", path=self._path, detail=f"{type(exc).__name__}: {exc}"[:200])
                return None
            _log.info("local_tokenizer.loaded", path=self._path)
        try:
            return _chat(self._loaded, envelope) if envelope.api == "chat" else _texts(self._loaded, envelope)
        except Exception as exc:  # noqa: BLE001 - a template may raise anything; the engine has the last word
            _log.info("local_tokenizer.cannot", detail=type(exc).__name__)
            return None


def _chat(tokenizer: Tokenizer, envelope: Envelope) -> list[list[int]] | None:
    asked = _read_chat(envelope.encode())
    if not asked.messages or not all(isinstance(message.get("content"), str) for message in asked.messages):
        return None  # parts and nulls are arranged by vLLM before its template sees them
    kwargs = dict(asked.chat_template_kwargs or {})
    if asked.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", asked.reasoning_effort)
    ids = tokenizer.apply_chat_template(
        asked.messages,
        tools=asked.tools,
        documents=asked.documents,
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        tokenize=True,
        return_dict=False,
        **kwargs,
    )
    return [list(ids)]


def _texts(tokenizer: Tokenizer, envelope: Envelope) -> list[list[int]] | None:
    try:
        asked = msgspec.json.decode(envelope.encode(), type=_Completion)
    except UNREADABLE:
        return None
    given: Any = asked.prompt
    one = isinstance(given, str) or (given and isinstance(given[0], int))  # a list of ids is one prompt
    found: list[list[int]] = [
        tokenizer(each, add_special_tokens=asked.add_special_tokens)["input_ids"] if isinstance(each, str) else each
        for each in ([given] if one else given)
    ]
    return found if found and all(found) else None


def can_load(path: str) -> str | None:
    """Why there can be no local tokenizer in this directory; None when there may be one. Loads nothing."""
    if not path:
        return "model_config.model_path is not set"
    if not (Path(path) / "tokenizer_config.json").exists():
        return f"no tokenizer in {path}"
    return None
