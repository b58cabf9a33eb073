"""What does an engine do with token ids?

    GenerateRequest ── checks ──▶ Live ──▶ one answer, or a stream of chunks

Two kinds of checks. The early ones refuse before anything is sent. The late ones are the engine core's own (too long,
outside the vocabulary, too many log-probabilities, a bad grammar, a wrong rank): for a stream they come after the
head, as status 200 with an error event.

`max_tokens` that is not given means all the room there is; more than the room is cut without a word.

Source: vllm/entrypoints/scale_out/token_in_token_out/serving.py, vllm/v1/engine/input_processor.py (0.33).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from motor_flow.sim import logprobs, shapes
from motor_flow.sim.parsers import finish_reason, parse_whole
from motor_flow.sim.refusal import Refusal
from motor_flow.sim.requests import ChatCompletionRequest, NamedToolChoice
from motor_flow.sim.sampling import Sampling
from motor_flow.sim.token_events import TokenEvents, weight_versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from motor_flow.sim.decoding import Decoding
    from motor_flow.sim.exchange import Exchange
    from motor_flow.sim.live import Live
    from motor_flow.sim.oracle import Candidate, Oracle
    from motor_flow.sim.protocol import GenerateRequest, ParseContext
    from motor_flow.sim.requests import StreamOptions
    from motor_flow.sim.seen import Seen
    from motor_flow.sim.served import Served

Plain = dict[str, Any]


def sampling_of(served: Served, request: GenerateRequest) -> Sampling:
    """The parameters of a token request.

    Raises:
        Refusal: parameters that contradict each other, or a prompt that leaves no room to default `max_tokens` from.

    """
    given: Any = request.sampling_params
    sampling = Sampling.from_wire(given)
    if "max_tokens" not in given:
        count, size = len(request.token_ids), served.max_model_len
        if count > size:
            raise Refusal(f"Input length ({count}) exceeds model's maximum context length ({size}).")
        sampling.max_tokens = size - count
    return sampling


def check_early(served: Served, request: GenerateRequest, sampling: Sampling, *, choices_max: int) -> None:
    if served.tokens_only and sampling.stop:
        raise Refusal(
            "stop strings are not supported on a --tokens-only server because detokenization is disabled. Check stop "
            "strings on the coordinator, or use stop_token_ids."
        )
    if served.tokens_only and sampling.structured_outputs is not None:
        raise Refusal("Structured outputs requires a tokenizer so it can't be used with 'skip_tokenizer_init'")
    if sampling.n > choices_max:
        raise Refusal(f"sampling_params.n must be at most the server's max_num_seqs ({choices_max}), got {sampling.n}.")
    if request.output_mode != "derender":
        return
    if request.stream:
        raise Refusal("output_mode='derender' does not support stream=true.")
    if served.parsers and request.parse_context is None:
        raise Refusal(
            "output_mode='derender' requires parse_context on a server with a tool or reasoning parser. Use the one "
            "returned by /render."
        )


def check_late(served: Served, ids: Sequence[int], sampling: Sampling, rank: str | None) -> None:
    """What the engine core checks."""
    if rank is not None and rank.lstrip("+-").isdigit() and int(rank) != 0:
        raise Refusal(f"data_parallel_rank {int(rank)} is out of range [0, 1).")
    sampling.check_model(served)
    served.check_vocabulary(ids)
    count, size = len(ids), served.max_model_len
    hint = "Make sure that `max_model_len` is no smaller than the number of text tokens"
    if count > size:
        raise Refusal(f"The decoder prompt (length {count}) is longer than the maximum model length of {size}. {hint}.")
    if count == size:
        raise Refusal(
            f"The decoder prompt (length {count}) plus the number of requested output tokens (at least 1) is longer "
            f"than the maximum model length of {size}. {hint} (prompt + requested output tokens)."
        )


async def answer(served: Served, oracle: Oracle, request: GenerateRequest, live: Live, record: Seen) -> Plain:
    """The whole answer, when the last choice is over."""
    await live.complete()
    prompt, mode = live.prompt, request.output_mode
    choices: list[Plain] = []
    count = 0
    for choice in live.choices:
        ids, positions, text, finish = choice.take(len(choice.tokens))
        count += len(ids)
        plain: Plain = {
            "index": choice.index,
            "finish_reason": finish,
            "stop_reason": choice.stop,
            "token_ids": ids,
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": weight_versions(len(ids)),
        }
        if mode == "text":
            plain["text"] = text
        elif mode == "derender":
            _parse(served, request.parse_context, text, prompt, plain)
        plain["logprobs"] = _logprobs(served, live.sampling, positions, mode=mode, stream=None)
        choices.append(plain)
    record.tokens = count
    return {
        "request_id": record.id,
        "model": served.model_name,
        "created": shapes.now(),
        "usage": shapes.usage(len(prompt), count, cached=live.cached),
        "prompt_logprobs": prompt_logprobs(served, oracle, prompt, live.sampling.prompt_logprobs),
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": list(prompt) if request.return_token_ids else None,
        "mm_placeholders": None,
        "metrics": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "output_mode": mode,
        "choices": choices,
    }


async def stream(served: Served, request: GenerateRequest, live: Live, record: Seen, call: Exchange) -> None:
    """The events of a stream whose head has gone."""
    prompt, mode = live.prompt, request.output_mode
    include, continuous = usage_wanted(request.stream_options)
    events = TokenEvents(record.id, mode=mode, prompt_ids=prompt if request.return_token_ids else None)
    texts = {choice.index: logprobs.LogprobStream(served.tokenizer) for choice in live.choices}
    while (count := await live.more()) is not None:
        for choice in live.choices:
            if choice.done:
                continue
            ids, positions, text, finish = choice.take(count)
            if not (ids or text or finish):
                continue
            record.tokens += len(ids)
            await call.event(
                events.chunk(
                    choice.index,
                    ids,
                    finish=finish,
                    stop=choice.stop,
                    total=choice.sent,
                    usage=shapes.usage(len(prompt), choice.sent) if continuous else None,
                    logprobs=_logprobs(served, live.sampling, positions, mode=mode, stream=texts[choice.index]),
                    text=text,
                )
            )
    if include:
        await call.event(events.usage(len(prompt), sent(live.choices), cached=live.cached))
    await call.close()


def usage_wanted(options: StreamOptions | None) -> tuple[bool, bool]:
    """(once at the end, on every chunk). The second needs the first."""
    include = options is not None and bool(options.include_usage)
    return include, include and options is not None and bool(options.continuous_usage_stats)


def sent(choices: Sequence[Decoding]) -> int:
    return sum(choice.sent for choice in choices)


def prompt_logprobs(served: Served, oracle: Oracle, prompt: Sequence[int], count: int | None) -> list[Any] | None:
    """For each token of the prompt but the first, how likely it was, and the likeliest others."""
    if count is None:
        return None
    chain = oracle.start(prompt[:1])
    positions: list[Any] = [None]
    for token in prompt[1:]:
        chain.force(token)
        positions.append(
            {
                str(c.token): {
                    "logprob": c.logprob,
                    "rank": c.rank,
                    "decoded_token": served.tokenizer.token_text(c.token),
                }
                for c in chain.candidates(count)
            }
        )
    return positions


def _logprobs(
    served: Served,
    sampling: Sampling,
    positions: Sequence[Sequence[Candidate]],
    *,
    mode: str,
    stream: logprobs.LogprobStream | None,
) -> Plain | None:
    if sampling.logprobs is None:
        return None
    if mode == "tokens":
        return {"content": [logprobs.to_wire(candidates) for candidates in positions]}
    stream = stream or logprobs.LogprobStream(served.tokenizer)
    return stream.chat([logprobs.position(candidates) for candidates in positions], None)


def _parse(served: Served, context: ParseContext | None, text: str, prompt: Sequence[int], plain: Plain) -> None:
    """The message that `output_mode="derender"` adds."""
    if context is None or not served.parsers:
        plain["message"] = shapes.message(text)
        return
    choice = context.tool_choice
    if isinstance(choice, NamedToolChoice) and all(
        tool.function.name != choice.function.name for tool in context.tools or ()
    ):
        raise Refusal("The tool specified in `tool_choice` does not match any of the specified `tools`")
    request = ChatCompletionRequest.model_construct(
        messages=[],
        tools=context.tools,
        tool_choice=context.tool_choice,
        parallel_tool_calls=context.parallel_tool_calls,
        include_reasoning=context.include_reasoning,
    )
    parts = parse_whole(served, request, context.chat_template_kwargs, text, prompt)
    plain["message"] = shapes.message(parts["content"], parts["reasoning"], parts["tool_calls"])
    plain["finish_reason"] = finish_reason(plain["finish_reason"], request, tools=bool(parts["tool_calls"]))
