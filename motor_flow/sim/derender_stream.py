"""Which OpenAI chunk is one token chunk of a stream?

    (chunk, state) ──▶ (delta, new state)            nothing is remembered between calls

Without a parser the state is a detokenizer's window: a call costs what its chunk costs. With one, a parser cannot be
sent over the wire, so every call starts a new one and replays all earlier chunks, with their old boundaries, before
it looks at the new one. Only the ids of tool calls are random, and therefore pinned in the state.

Quirks, kept: the role rides on the first delta; a token without text gives an empty delta; `created` is the time of
the call; all nulls are written; stop strings are refused.

Source: vllm/entrypoints/scale_out/derender/serving.py, vllm/renderers/online_derenderer.py (0.33).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from motor_flow.sim import logprobs, shapes
from motor_flow.sim.derender import (
    chat_limit,
    completion_logprobs,
    skips_special,
    without_stop_token,
)
from motor_flow.sim.detokenizer import Detokenizer
from motor_flow.sim.parsers import ChatStream
from motor_flow.sim.protocol import DerenderStreamState
from motor_flow.sim.render import template_variables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from motor_flow.sim.parsers import Delta
    from motor_flow.sim.protocol import (
        DerenderChatStreamRequest,
        DerenderCompletionStreamRequest,
        GenerateTokensStreamResponse,
        TokensStreamChoice,
    )
    from motor_flow.sim.requests import Asked, ChatCompletionRequest
    from motor_flow.sim.served import Served

Plain = dict[str, Any]


def chat(served: Served, body: DerenderChatStreamRequest, state: DerenderStreamState | None) -> tuple[Plain, Plain]:
    """(chat chunk, new state), for a body that passed `derender_checks.check_chat`."""
    request, chunk = body.chat_request, body.generate_chunk
    if served.parsers and request is not None:
        choices, new = _parsed(served, body, request, state or DerenderStreamState())
    else:
        choices, new = _plain_chat(served, body, state)
    wanted = request is not None and bool(request.return_token_ids)
    return {
        "id": chunk.request_id,
        "object": "chat.completion.chunk",
        "created": shapes.now(),
        "model": body.model or served.model_name,
        "choices": choices,
        "usage": _usage(chunk, body.prompt_tokens),
        "system_fingerprint": None,
        "prompt_token_ids": chunk.prompt_token_ids if wanted else None,
        "prompt_text": None,
        "metrics": chunk.metrics,
        "kv_transfer_params": None,
    }, new


def completion(
    served: Served, body: DerenderCompletionStreamRequest, state: DerenderStreamState | None
) -> tuple[Plain, Plain]:
    """(completion chunk, new state), for a body that passed `derender_checks.check_completion`."""
    request, chunk = body.completion_request, body.generate_chunk
    window, old = _window(served, request, chunk, state, body.prompt_token_ids)
    new = _dump(old, window)
    choices: list[Plain] = []
    for choice in chunk.choices:
        ids = choice.token_ids or []
        shown, stop = without_stop_token(served, ids, choice.finish_reason, choice.stop_reason, request)
        text = window.feed(shown)
        resolved = None
        offset = old.logprob_text_offset + len(text)
        if choice.logprobs is not None:
            stream = logprobs.LogprobStream(
                served.tokenizer, list(old.logprob_context_token_ids), old.logprob_text_offset
            )
            resolved = completion_logprobs(stream, choice.logprobs, request)
            offset = stream.text_offset if resolved["tokens"] else offset
        new = _dump(old, window) | {
            "logprob_context_token_ids": _context(old, ids),
            "logprob_text_offset": offset,
        }
        wanted = request is not None and bool(request.return_token_ids)
        choices.append(
            {
                "index": choice.index,
                "text": text,
                "logprobs": resolved,
                "finish_reason": choice.finish_reason,
                "stop_reason": stop,
                "prompt_token_ids": chunk.prompt_token_ids if wanted else None,
                "token_ids": choice.token_ids if wanted else None,
                "weight_versions": None,
            }
        )
    return {
        "id": chunk.request_id,
        "object": "text_completion",
        "created": shapes.now(),
        "model": body.model or served.model_name,
        "choices": choices,
        "usage": _usage(chunk, body.prompt_tokens),
        "system_fingerprint": None,
        "metrics": chunk.metrics,
        "kv_transfer_params": None,
    }, new


def _plain_chat(
    served: Served, body: DerenderChatStreamRequest, state: DerenderStreamState | None
) -> tuple[list[Plain], Plain]:
    request, chunk = body.chat_request, body.generate_chunk
    window, old = _window(served, request, chunk, state, body.prompt_token_ids)
    if not chunk.choices:
        return [], _dump(old, window)
    choice = chunk.choices[0]
    ids = choice.token_ids or []
    shown, stop = without_stop_token(served, ids, choice.finish_reason, choice.stop_reason, request)
    delta: Delta = {"content": window.feed(shown) or None}
    if not old.role_sent:
        delta["role"] = "assistant"
    wanted = request is not None and bool(request.return_token_ids)
    new = _dump(old, window) | {"role_sent": True, "logprob_context_token_ids": _context(old, ids)}
    resolved = _chat_logprobs(served, choice, old, request)
    return [_chat_choice(choice, delta, resolved, choice.finish_reason, stop, wanted=wanted)], new


def _parsed(
    served: Served, body: DerenderChatStreamRequest, request: ChatCompletionRequest, old: DerenderStreamState
) -> tuple[list[Plain], Plain]:
    prompt = body.prompt_token_ids or []
    stream = ChatStream(served, request, template_variables(request), prompt)
    window = Detokenizer.after_prompt(served.tokenizer, prompt, skip_special=False)
    at = 0
    for size in old.output_chunk_lens:
        earlier = old.output_token_ids[at : at + size]
        stream.step(window.feed(earlier), earlier, None)
        at += size
    stream.tools_streamed = old.tools_streamed
    new = old.model_dump()
    if not body.generate_chunk.choices:
        return [], new
    choice = body.generate_chunk.choices[0]
    ids = choice.token_ids or []
    shown, stop = without_stop_token(served, ids, choice.finish_reason, choice.stop_reason, request)
    delta: Delta | None = None
    finish: str | None = None
    if ids or choice.finish_reason is not None:
        delta, finish = stream.step(window.feed(shown), ids, choice.finish_reason)
    delta = delta or {}
    if not old.role_sent:
        delta["role"] = "assistant"
    new |= {
        "role_sent": True,
        "logprob_context_token_ids": _context(old, ids),
        "output_token_ids": old.output_token_ids + ids,
        "output_chunk_lens": old.output_chunk_lens + ([len(ids)] if ids else []),
        "tools_streamed": stream.tools_streamed,
        "last_tool_call_ids": _pin(delta.get("tool_calls") or (), old.last_tool_call_ids),
    }
    resolved = None if stream.hides_metadata else _chat_logprobs(served, choice, old, request)
    wanted = bool(request.return_token_ids) and not stream.hides_metadata
    return [_chat_choice(choice, delta, resolved, finish, stop, wanted=wanted)], new


def _pin(calls: Sequence[Plain], known: Sequence[str]) -> list[str]:
    """Give known calls the ids they have been given before, and remember new ones."""
    ids = list(known)
    for call in calls:
        if "id" not in call:
            continue
        if call["index"] < len(ids):
            call["id"] = ids[call["index"]]
        else:
            ids.append(call["id"])
    return ids


def _chat_choice(
    choice: TokensStreamChoice, delta: Delta, resolved: Plain | None, finish: str | None, stop: Any, *, wanted: bool
) -> Plain:
    full: Plain = {
        "role": delta.get("role"),
        "content": delta.get("content"),
        "reasoning": delta.get("reasoning"),
    }
    if calls := delta.get("tool_calls"):
        full["tool_calls"] = [
            {
                "id": call.get("id"),
                "type": call.get("type"),
                "index": call["index"],
                "function": {"name": None, "arguments": None} | call["function"],
            }
            for call in calls
        ]
    return {
        "index": choice.index,
        "delta": full,
        "logprobs": resolved,
        "finish_reason": finish,
        "stop_reason": stop,
        "token_ids": choice.token_ids if wanted else None,
        "weight_versions": None,
    }


def _chat_logprobs(
    served: Served, choice: TokensStreamChoice, old: DerenderStreamState, request: ChatCompletionRequest | None
) -> Plain | None:
    if choice.logprobs is None:
        return None
    stream = logprobs.LogprobStream(served.tokenizer, list(old.logprob_context_token_ids))
    return stream.chat(logprobs.from_wire(choice.logprobs), chat_limit(request))


def _window(
    served: Served,
    request: Asked | None,
    chunk: GenerateTokensStreamResponse,
    state: DerenderStreamState | None,
    prompt: list[int] | None,
) -> tuple[Detokenizer, DerenderStreamState]:
    """The stream's window: carried, or for the first chunk begun at the prompt's end."""
    skip = skips_special(request, parsed=False)
    if state is not None:
        window = Detokenizer(
            served.tokenizer, list(state.prev_tokens), state.prefix_offset, state.read_offset, skip_special=skip
        )
        return window, state
    prompt = prompt if prompt is not None else chunk.prompt_token_ids or []
    return Detokenizer.after_prompt(served.tokenizer, prompt, skip_special=skip), DerenderStreamState()


def _dump(old: DerenderStreamState, window: Detokenizer) -> Plain:
    return old.model_dump() | {
        "prev_tokens": window.pieces,
        "prefix_offset": window.prefix,
        "read_offset": window.read,
    }


def _context(old: DerenderStreamState, ids: list[int]) -> list[int]:
    return (old.logprob_context_token_ids + ids)[-logprobs.CONTEXT_TOKENS :]


def _usage(chunk: GenerateTokensStreamResponse, prompt_tokens: int | None) -> Plain | None:
    if chunk.usage is None:
        return None
    prompt = prompt_tokens if prompt_tokens is not None else chunk.usage.prompt_tokens
    return shapes.usage(prompt, chunk.usage.completion_tokens or 0)
