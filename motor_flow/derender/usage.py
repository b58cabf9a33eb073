"""What is the usage of a request, when several prompts, choices and engines had a part in it?

Our own count: prompt ids as rendered, completion ids as committed. Of the engines' counts only the detail that nobody
else knows is kept: cached prompt tokens.

Source: RFC 多 prompt (Usage 按请求级语义合并); vLLM 0.33 serve/engine/protocol.py (UsageInfo).
"""

from __future__ import annotations

import msgspec


def usage_object(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None, reasoning_tokens: int | None = None
) -> dict[str, object]:
    """An OpenAI usage object."""
    usage: dict[str, object] = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
    if cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    if reasoning_tokens is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return usage


def encoded_usage(
    prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None, reasoning_tokens: int | None = None
) -> bytes:
    """The same, as JSON."""
    if cached_tokens is not None or reasoning_tokens is not None:
        return msgspec.json.encode(usage_object(prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens))
    return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (
        prompt_tokens,
        prompt_tokens + completion_tokens,
        completion_tokens,
    )
