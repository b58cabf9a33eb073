"""Which Derender calls are refused before any work is done on them?

Sizes are checked first: a caller makes these bodies up, and detokenising or parsing costs. A stream has rules of its
own: one choice per chunk, no stop strings, and with a parser the request and the whole prompt on every call.

Source: vllm/entrypoints/scale_out/derender/serving.py (0.33).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from motor_flow.sim.protocol import (
    DerenderChatStreamRequest,
    DerenderCompletionStreamRequest,
    GenerateTokensResponse,
)
from motor_flow.sim.refusal import Refusal
from motor_flow.sim.served import Served

CHOICES_MAX = 16384

NEEDS_CHAT_REQUEST = (
    "chat_request is required when a tool or reasoning parser is configured because plain detokenization would leak "
    "raw parser markup into content."
)
_NO_STOPS = (
    "stop strings are not supported by streaming derender because text already sent cannot be cut. Use non-streaming "
    "derender or output_mode=text on /inference/v1/generate which holds stop strings back."
)
_NEEDS_PROMPT = (
    "prompt_token_ids is required when a tool or reasoning parser is configured. Without it parse_delta cannot tell "
    "whether the prompt left reasoning open (e.g. a chat template that pre-opens <think>) and would misclassify "
    "reasoning content as plain content."
)


def check_chat(served: Served, body: DerenderChatStreamRequest) -> None:
    served.check_model(body.model)
    request, chunk, prompt = body.chat_request, body.generate_chunk, body.prompt_token_ids
    if request is not None and request.stop:
        raise Refusal(_NO_STOPS)
    if served.parsers and request is None:
        raise Refusal(NEEDS_CHAT_REQUEST)
    if served.parsers and prompt is None:
        raise Refusal(_NEEDS_PROMPT)
    if len(chunk.choices) > 1:
        raise Refusal(f"derender_chat_stream expects at most one choice per chunk (got {len(chunk.choices)}).")
    before = len(body.stream_state.output_token_ids) if body.stream_state else 0
    new = sum(len(choice.token_ids or ()) for choice in chunk.choices)
    if len(prompt or ()) + before + new > served.max_model_len:
        raise Refusal(
            f"prompt_token_ids length ({len(prompt or ())}) plus output_token_ids length ({before}) plus delta ({new}) "
            f"exceeds max_model_len ({served.max_model_len})."
        )


def check_completion(served: Served, body: DerenderCompletionStreamRequest) -> None:
    served.check_model(body.model)
    if body.completion_request is not None and body.completion_request.stop:
        raise Refusal(_NO_STOPS)
    check_prompts(served, [body.prompt_token_ids])
    if len(body.generate_chunk.choices) > 1:
        raise Refusal("derender_completion_stream expects at most one choice per chunk")


def check_bounds(served: Served, answers: Sequence[GenerateTokensResponse]) -> None:
    """Refuse what is too large before any work is done on it."""
    if len(answers) > CHOICES_MAX:
        raise Refusal(
            f"generate_responses count ({len(answers)}) exceeds server maximum ({CHOICES_MAX}). "
            "Set VLLM_MAX_N_SEQUENCES to increase this limit."
        )
    size = served.max_model_len
    for answer in answers:
        if len(answer.choices) > CHOICES_MAX:
            raise Refusal(
                f"choices count ({len(answer.choices)}) in response '{answer.request_id}' exceeds server maximum "
                f"({CHOICES_MAX})."
            )
        for choice in answer.choices:
            where = f"choice {choice.index} exceeds max_model_len ({size})."
            if len(choice.token_ids or ()) > size:
                raise Refusal(f"token_ids length ({len(choice.token_ids or ())}) in {where}")
            content = (choice.logprobs and choice.logprobs.content) or ()
            if len(content) > size:
                raise Refusal(f"logprobs.content length ({len(content)}) in {where}")
            widest = max((len(entry.top_logprobs) for entry in content), default=0)
            if widest > served.logprobs_max:
                raise Refusal(
                    f"top_logprobs count ({widest}) in choice {choice.index} exceeds max_logprobs "
                    f"({served.logprobs_max})."
                )
        if len(answer.prompt_logprobs or ()) > size:
            raise Refusal(
                f"prompt_logprobs length ({len(answer.prompt_logprobs or ())}) in response '{answer.request_id}' "
                f"exceeds max_model_len ({size})."
            )


def check_prompts(served: Served, prompts: Iterable[Sequence[int] | None]) -> None:
    for prompt in prompts:
        if len(prompt or ()) > served.max_model_len:
            raise Refusal(
                f"prompt_token_ids length ({len(prompt or ())}) exceeds max_model_len ({served.max_model_len})."
            )
