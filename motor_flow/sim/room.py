"""Does a prompt fit, and how much room does it leave?

A prompt may be as long as the context; what it leaves, if anything, is the room for output. `truncate_prompt_tokens`
cuts the beginning of a prompt (or its end, if the client says so) before it is measured.

Source: vllm/renderers/params.py, vllm/entrypoints/serve/utils/api_utils.py (0.33).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from motor_flow.sim.refusal import invalid

if TYPE_CHECKING:
    from motor_flow.sim.requests import Asked
    from motor_flow.sim.served import Served


def encode(
    served: Served, request: Asked, text: str, *, output_max: int | None
) -> tuple[list[int], list[tuple[int, int]] | None]:
    size, longest = served.max_model_len, served.max_model_len * served.tokenizer.chars_per_token_max
    if request.truncate_prompt_tokens is None and len(text) > longest:
        raise invalid(
            f"This model's maximum context length is {size} tokens. However, your prompt contains {len(text)} "
            f"characters (more than {longest} characters, which is the upper bound for {size} input tokens). Please "
            "reduce the length of the input prompt.",
            "input_text",
            len(text),
        )
    offsets: list[tuple[int, int]] | None = None
    if request.return_token_offsets:
        ids, offsets = served.tokenizer.encode_offsets(text)
        offsets = truncated(served, request, offsets, output_max=output_max)
    else:
        ids = served.tokenizer.encode(text)
    ids = truncated(served, request, ids, output_max=output_max)
    # A text is tokenised no further than is needed to see that it is too long.
    check_length(served, min(len(ids), size + 1))
    return ids, offsets


def truncated(served: Served, request: Asked, items: list[Any], *, output_max: int | None) -> list[Any]:
    """The kept end (or beginning) of a prompt, if the client wants it cut."""
    keep = request.truncate_prompt_tokens
    if keep is None:
        return items
    if keep < 0:
        keep = served.max_model_len - (0 if output_max == 0 else 1)
    if keep >= len(items):
        return items
    return items[:keep] if request.truncation_side == "right" else items[len(items) - keep :]


def check_length(served: Served, count: int) -> None:
    size = served.max_model_len
    if count > size:
        least = "at least " if count == size + 1 else ""
        raise invalid(
            f"This model's maximum context length is {size} tokens. However, your prompt contains {least}{count} "
            "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
            "input prompt.",
            "input_tokens",
            count,
        )


def check_room(served: Served, request: Asked, output_max: int | None, name: str) -> None:
    size, keep = served.max_model_len, request.truncate_prompt_tokens
    if output_max is not None and output_max > size:
        raise invalid(
            f"{name}={output_max} cannot be greater than max_model_len={size}. Please request fewer output tokens.",
            name,
            output_max,
        )
    if keep is not None and keep > size:
        raise invalid(
            f"truncate_prompt_tokens={keep} cannot be greater than max_model_len = {size}. Please request a smaller "
            "truncation size.",
            "truncate_prompt_tokens",
            keep,
        )


def room(served: Served, request: Asked, ids: list[int], asked: int | None) -> int:
    """How many tokens may be generated. What is asked beyond the context is cut without a word."""
    count, keep = len(ids), request.truncate_prompt_tokens
    if keep is not None:
        count = min(count, served.max_model_len if keep == -1 else keep)
    return min(served.max_model_len - count, asked if asked is not None else served.max_model_len)
