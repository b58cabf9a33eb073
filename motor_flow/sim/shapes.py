"""What do the answers look like, around the part that matters?

Key order is vLLM's, and so is which keys are written though they are null.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Plain = dict[str, Any]


def now() -> int:
    return int(time.time())


def usage(prompt: int, completion: int, *, reasoning: int | None = None, cached: int | None = None) -> Plain:
    """The usage of a complete answer. Cached prompt tokens are told by engines that are asked to."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
        "completion_tokens_details": None if reasoning is None else {"reasoning_tokens": reasoning},
    }


def without_nulls(value: Mapping[str, Any]) -> Plain:
    return {key: item for key, item in value.items() if item is not None}


def message(content: str | None, reasoning: str | None = None, tool_calls: Sequence[Plain] = ()) -> Plain:
    """An assistant's message; no calls, no key."""
    return {
        "role": "assistant",
        "content": content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        **({"tool_calls": list(tool_calls)} if tool_calls else {}),
        "reasoning": reasoning,
    }


def chat_choice(index: int, message: Plain, *, logprobs: Plain | None, finish: str, stop: Any, ids: Any) -> Plain:
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": stop,
        "token_ids": ids,
        "routed_experts": None,
        "weight_versions": None,
    }


def completion_choice(
    index: int, text: str, *, logprobs: Plain | None, finish: str | None, stop: Any, ids: Any, prompt_ids: Any
) -> Plain:
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": stop,
        "token_ids": ids,
        "prompt_logprobs": None,
        "prompt_token_ids": prompt_ids,
        "routed_experts": None,
        "weight_versions": None,
    }


def chat_answer(request_id: str, model: str, choices: Sequence[Plain], usage: Plain, **extra: Any) -> Plain:
    return {
        "id": request_id,
        "object": "chat.completion",
        "created": now(),
        "model": model,
        "choices": list(choices),
        "service_tier": None,
        "system_fingerprint": extra.get("fingerprint"),
        "usage": usage,
        "prompt_logprobs": extra.get("prompt_logprobs"),
        "prompt_token_ids": extra.get("prompt_token_ids"),
        "prompt_text": extra.get("prompt_text"),
        "kv_transfer_params": extra.get("kv_transfer_params"),
        "ec_transfer_params": None,
        "metrics": extra.get("metrics"),
    }


def completion_answer(request_id: str, model: str, choices: Sequence[Plain], usage: Plain, **extra: Any) -> Plain:
    return {
        "id": request_id,
        "object": "text_completion",
        "created": now(),
        "model": model,
        "choices": list(choices),
        "service_tier": None,
        "system_fingerprint": extra.get("fingerprint"),
        "usage": usage,
        "kv_transfer_params": extra.get("kv_transfer_params"),
        "ec_transfer_params": None,
        "metrics": extra.get("metrics"),
    }
