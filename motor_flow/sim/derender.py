"""Which OpenAI answer is a complete token answer?

    TokensResponse(s) ── drop the token that stopped ── detokenise ── cut at the stop string ── parse ──▶ answer

The engine's token ids keep the token, or the tokens of the string, that ended the generation; an answer's text does
not, unless it was asked for. Which token that was is told by `stop_reason`, or guessed from the request where an
engine does not tell.

Quirk, kept: KV transfer parameters of the engine's answer come out in the client's.

Source: vllm/entrypoints/scale_out/derender/serving.py, vllm/renderers/online_derenderer.py (0.33).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from motor_flow.sim import logprobs, shapes
from motor_flow.sim.derender_checks import NEEDS_CHAT_REQUEST, check_bounds, check_prompts
from motor_flow.sim.detokenizer import Detokenizer
from motor_flow.sim.parsers import finish_reason, parse_whole
from motor_flow.sim.refusal import Refusal
from motor_flow.sim.render import template_variables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from motor_flow.sim.protocol import (
        DerenderChatRequest,
        DerenderCompletionRequest,
        GenerateTokensResponse,
        TokensChoice,
    )
    from motor_flow.sim.requests import Asked, ChatCompletionRequest, CompletionRequest
    from motor_flow.sim.served import Served


def chat(served: Served, body: DerenderChatRequest) -> dict[str, Any]:
    """A chat completion from one engine answer."""
    served.check_model(body.model)
    answer, request = body.generate_response, body.chat_request
    check_bounds(served, [answer])
    check_prompts(served, [body.prompt_token_ids])
    if served.parsers and request is None:
        raise Refusal(NEEDS_CHAT_REQUEST)
    parsed = served.parsers and request is not None
    hidden = parsed and request is not None and not request.include_reasoning
    ids_wanted = request is not None and bool(request.return_token_ids)
    seed = Detokenizer.after_prompt(
        served.tokenizer, _prompt(body.prompt_token_ids, answer), skip_special=skips_special(request, parsed=parsed)
    )
    choices = []
    for choice in answer.choices:
        if not choice.token_ids:
            raise Refusal(f"choice {choice.index} has empty or null token_ids")
        text, stop = _text(served, choice, request, seed)
        if parsed and request is not None:
            parts = parse_whole(served, request, template_variables(request), text, answer.prompt_token_ids)
            message = shapes.message(parts["content"], parts["reasoning"], parts["tool_calls"])
        else:
            message = shapes.message(text)
        resolved = None
        if choice.logprobs is not None and not hidden:
            stream = logprobs.LogprobStream(served.tokenizer)
            resolved = stream.chat(logprobs.from_wire(choice.logprobs), chat_limit(request))
        choices.append(
            shapes.chat_choice(
                choice.index,
                message,
                logprobs=resolved,
                finish=finish_reason(choice.finish_reason, request, tools="tool_calls" in message),
                stop=stop,
                ids=choice.token_ids if ids_wanted and not hidden else None,
            )
        )
    return shapes.chat_answer(
        answer.request_id,
        body.model or served.model_name,
        choices,
        shapes.usage(body.prompt_tokens or 0, sum(len(choice.token_ids or ()) for choice in answer.choices)),
        prompt_logprobs=answer.prompt_logprobs,
        prompt_token_ids=answer.prompt_token_ids if ids_wanted else None,
        kv_transfer_params=answer.kv_transfer_params,
        metrics=answer.metrics,
    )


def completion(served: Served, body: DerenderCompletionRequest) -> dict[str, Any]:
    """One completion from the answers to a list of prompts; choices are numbered through, in the list's order."""
    served.check_model(body.model)
    answers, request = body.generate_responses, body.completion_request
    if not answers:
        raise Refusal("generate_responses must not be empty")
    check_bounds(served, answers)
    prompts: Sequence[list[int] | None] = body.prompt_token_ids or [None] * len(answers)
    check_prompts(served, prompts)
    ids_wanted = request is not None and bool(request.return_token_ids)
    choices: list[dict[str, Any]] = []
    count = 0
    for answer, prompt in zip(answers, prompts, strict=True):
        seed = Detokenizer.after_prompt(
            served.tokenizer, _prompt(prompt, answer), skip_special=skips_special(request, parsed=False)
        )
        for choice in answer.choices:
            if not choice.token_ids:
                raise Refusal(f"choice {choice.index} in response {answer.request_id} has empty or null token_ids")
            text, stop = _text(served, choice, request, seed)
            resolved = None
            if choice.logprobs is not None:
                resolved = completion_logprobs(logprobs.LogprobStream(served.tokenizer), choice.logprobs, request)
            choices.append(
                shapes.completion_choice(
                    len(choices),
                    text,
                    logprobs=resolved,
                    finish=choice.finish_reason,
                    stop=stop,
                    ids=choice.token_ids if ids_wanted else None,
                    prompt_ids=answer.prompt_token_ids if ids_wanted else None,
                )
            )
            count += len(choice.token_ids)
    kv = answers[0].kv_transfer_params
    return shapes.completion_answer(
        answers[0].request_id,
        body.model or served.model_name,
        choices,
        shapes.usage(sum(body.prompt_tokens or ()), count),
        kv_transfer_params=kv if all(answer.kv_transfer_params == kv for answer in answers) else None,
        metrics=answers[0].metrics if len(answers) == 1 else None,
    )


def without_stop_token(
    served: Served, ids: list[int], finish: str | None, stop: int | str | None, request: Asked | None
) -> tuple[list[int], int | str | None]:
    """(the tokens whose text is shown, the stop reason)."""
    if finish != "stop" or isinstance(stop, str) or not ids:
        return ids, stop
    last = ids[-1]
    if stop is None:
        ends = request is None or not request.ignore_eos
        if not (ends and last == served.tokenizer.eos_id):
            asked = request is not None and last in (request.stop_token_ids or ())
            if not asked and not (ends and last in served.tokenizer.eos_ids):
                return ids, None
            stop = last
    elif last != stop:
        return ids, stop
    return (ids if request is not None and request.include_stop_str_in_output else ids[:-1]), stop


def skips_special(request: Asked | None, *, parsed: bool) -> bool:
    """Parsers need to see special tokens; otherwise they are left out unless the request wants them."""
    return not parsed and (request is None or request.skip_special_tokens is not False)


def chat_limit(request: ChatCompletionRequest | None) -> int | None:
    if request is None or not request.logprobs:
        return None
    return logprobs.chat_limit(request.top_logprobs, every=bool(request.logprob_token_ids))


def completion_logprobs(
    stream: logprobs.LogprobStream, given: Any, request: CompletionRequest | None
) -> dict[str, Any]:
    asked = request.logprobs if request is not None else None
    limit = logprobs.completion_limit(asked, every=request is not None and bool(request.logprob_token_ids))
    positions = logprobs.from_wire(given)
    return stream.completion(positions, limit, [position.token for position in positions])


def _prompt(given: list[int] | None, answer: GenerateTokensResponse) -> list[int]:
    return given if given is not None else answer.prompt_token_ids or []


def _text(
    served: Served, choice: TokensChoice, request: Asked | None, seed: Detokenizer
) -> tuple[str, int | str | None]:
    """(the text that a client sees, why it stopped)."""
    reported = choice.stop_reason
    ids, stop = without_stop_token(served, choice.token_ids or [], choice.finish_reason, reported, request)
    window = seed.fork()
    least = request.min_tokens if request is not None else 0
    head = window.feed(ids[:least])
    text = head + window.feed(ids[least:])
    if choice.finish_reason != "stop" or isinstance(reported, int):
        return text, stop
    stops = [reported] if isinstance(reported, str) else [s for s in (request.stops if request else []) if s]
    # A stop string counts when it ends after the first `min_tokens` tokens; the one that is complete first wins.
    hits = [(at + len(s), at, s) for s in stops if (at := text.find(s, max(len(head) + 1 - len(s), 0))) >= 0]
    if not hits:
        return text, stop
    end, at, found = min(hits, key=lambda hit: hit[0])
    keep = request is not None and request.include_stop_str_in_output
    return text[: end if keep else at], found
