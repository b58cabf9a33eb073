"""Which tokens, and which sampling parameters, is an OpenAI request?

    chat        ── template ── tokenise ──▶ one prompt
    completion  ── tokenise ──▶ a prompt per item          each with its own parameters and its own room for output

`prompts_of_chat` and `prompts_of_completion` serve native requests too; `chat` and `completion` make Render's answer
of them.

Quirks, kept: the client's KV and EC transfer parameters come out as top-level fields, from wherever the client hid
them; `max_tokens` 16 is not written (sampling.py); a completion without `max_tokens` means 16, a chat without it all
the room there is; an unknown role renders as nothing.

Source: vllm/entrypoints/scale_out/render/serving.py, vllm/renderers/{online_renderer,params}.py (0.33).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from motor_flow.sim.reasoning import ends_in_prompt
from motor_flow.sim.refusal import Refusal, invalid
from motor_flow.sim.room import check_length, check_room, encode, room, truncated
from motor_flow.sim.sampling import Sampling
from motor_flow.sim.structured import chat_constraint, constraint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from motor_flow.sim.requests import Asked, ChatCompletionRequest, CompletionRequest
    from motor_flow.sim.served import Served

COMPLETION_PROMPTS_MAX = 1024
LOGIT_BIAS_MAX = 100.0

Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    ids: list[int]
    text: str
    offsets: list[tuple[int, int]] | None
    sampling: Sampling
    kv_transfer_params: Plain | None
    ec_transfer_params: Plain | None


def chat(served: Served, request: ChatCompletionRequest, header_id: str | None) -> Plain:
    """Render's answer to a chat."""
    served.check_model(request.model)
    _refuse_beams(request)
    prompt = prompt_of_chat(served, request)
    variables = template_variables(request)
    thinking = bool(variables.get("enable_thinking", True))
    ended = not request.include_reasoning or ends_in_prompt(served.tokenizer, prompt.ids, thinking=thinking)
    parsed = {"chat_template_kwargs": variables} if served.parsers else None
    return _generate_request(
        request,
        prompt,
        f"chatcmpl-{base_id(header_id, request.request_id)}",
        reasoning_ended=ended if served.parsers or not request.include_reasoning else None,
        reasoning_parser_kwargs=parsed,
        parse_context={
            "tools": [tool.plain() for tool in request.tools] if request.tools is not None else None,
            "tool_choice": _tool_choice(request),
            "parallel_tool_calls": request.parallel_tool_calls,
            "include_reasoning": request.include_reasoning,
            "chat_template_kwargs": variables,
            "history_tool_call_cnt": sum(len(message.tool_calls or ()) for message in request.messages),
        },
    )


def completion(served: Served, request: CompletionRequest, header_id: str | None) -> list[Plain]:
    """Render's answer to a completion: always a list."""
    served.check_model(request.model)
    _refuse_beams(request)
    prompts = prompts_of_completion(served, request)
    base = f"cmpl-{base_id(header_id, request.request_id)}"
    return [
        _generate_request(request, prompt, base if len(prompts) == 1 else f"{base}-{index}")
        for index, prompt in enumerate(prompts)
    ]


def prompt_of_chat(served: Served, request: ChatCompletionRequest) -> Prompt:
    name = "max_completion_tokens" if request.max_completion_tokens is not None else "max_tokens"
    variables = template_variables(request)
    _refuse_template(request, variables)
    if not served.parsers and request.tool_choice not in (None, "none"):
        raise Refusal(_no_tool_parser(request))
    check_room(served, request, request.output_tokens_max, name)
    kv = dict(request.kv_transfer_params) if request.kv_transfer_params else None
    offsets: list[tuple[int, int]] | None = None
    if reused := (kv or {}).pop("prompt_token_ids", None):
        served.check_vocabulary(reused)
        text, ids = "", list(reused)
    else:
        text = served.template.render(
            [message.model_dump(exclude_none=True) for message in request.messages],
            tools=[tool.plain() for tool in request.tools] if request.tools is not None else None,
            variables=variables,
            model=served.model_name,
        )
        ids, offsets = encode(served, request, text, output_max=request.output_tokens_max)
    sampling, hoisted = _sampling(
        request,
        kv,
        max_tokens=room(served, request, ids, request.output_tokens_max),
        n=1 if request.n is None else request.n,
        logprobs=request.top_logprobs if request.logprobs and not request.logprob_token_ids else None,
        prompt_logprobs=request.top_logprobs if request.prompt_logprobs is None and request.echo else None,
        skip_special_tokens=False if served.parsers else request.skip_special_tokens is not False,
        structured_outputs=chat_constraint(request, parsers=served.parsers),
    )
    return Prompt(ids, text, offsets, sampling, *hoisted)


def prompts_of_completion(served: Served, request: CompletionRequest) -> list[Prompt]:
    if request.suffix is not None:
        wrong = (
            "Echo is unsupported with suffix."
            if request.echo
            else "suffix is only supported for models with FIM completion rendering"
        )
        raise Refusal(wrong, param="suffix")
    check_room(served, request, request.max_tokens or 0, "max_tokens")
    items = _items(request.prompt)
    if len(items) > COMPLETION_PROMPTS_MAX:
        raise invalid(
            f"prompt list length {len(items)} exceeds the maximum allowed count of {COMPLETION_PROMPTS_MAX}. To "
            "increase this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable.",
            "prompt",
        )
    prompts: list[Prompt] = []
    for item in items:
        text, offsets = (item, None) if isinstance(item, str) else ("", None)
        if isinstance(item, str):
            ids, offsets = encode(served, request, item, output_max=request.max_tokens or 0)
        else:
            ids = truncated(served, request, list(item), output_max=request.max_tokens or 0)
            check_length(served, len(ids))
        if not ids:
            raise Refusal("No token_ids rendered")
        only_echo = request.echo and request.max_tokens == 0
        sampling, hoisted = _sampling(
            request,
            dict(request.kv_transfer_params) if request.kv_transfer_params else None,
            max_tokens=1 if only_echo else room(served, request, ids, request.max_tokens),
            n=request.n,
            logprobs=None if request.logprob_token_ids else request.logprobs,
            prompt_logprobs=request.logprobs if request.prompt_logprobs is None and request.echo else None,
            skip_special_tokens=request.skip_special_tokens is not False,
            structured_outputs=constraint(request),
        )
        prompts.append(Prompt(ids, text, offsets, sampling, *hoisted))
    return prompts


def template_variables(request: ChatCompletionRequest) -> Plain:
    """What the template and the parsers see of a chat request besides its messages."""
    own = request.chat_template_kwargs or {}
    variables: Plain = {
        "cohere_format": "cmd4",
        **own,
        "add_generation_prompt": request.add_generation_prompt,
        "continue_final_message": request.continue_final_message,
    }
    if request.reasoning_effort is not None:
        variables["reasoning_effort"] = request.reasoning_effort
        if "enable_thinking" not in own:
            variables["enable_thinking"] = request.reasoning_effort != "none"
    return variables


def base_id(header_id: str | None, body_id: str | None) -> str:
    """The header's id goes before the body's."""
    return header_id if header_id is not None else body_id if body_id is not None else secrets.token_hex(8)


class GenerateRequest(BaseModel):
    """The part of Render's own answer that a client can spoil, with a hidden `vllm_xargs` of these names."""

    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None


def _generate_request(request: Asked, prompt: Prompt, request_id: str, **chat_only: Any) -> Plain:
    options = request.stream_options if request.stream else None
    return {
        "request_id": request_id,
        "token_ids": prompt.ids,
        "token_offsets": prompt.offsets if request.return_token_offsets else None,
        "features": None,
        "content_parts": None,
        "sampling_params": prompt.sampling.dump(stream=bool(request.stream)),
        "model": request.model,
        "reasoning_ended": chat_only.get("reasoning_ended"),
        "reasoning_parser_kwargs": chat_only.get("reasoning_parser_kwargs"),
        "return_token_ids": request.return_token_ids,
        "output_mode": "tokens",
        "parse_context": chat_only.get("parse_context"),
        "stream": bool(request.stream),
        "stream_options": options.model_dump() if options is not None else None,
        "cache_salt": request.cache_salt,
        "priority": request.priority,
        "kv_transfer_params": prompt.kv_transfer_params,
        "ec_transfer_params": prompt.ec_transfer_params,
    }


def _items(prompt: Any) -> Sequence[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("You must pass at least one prompt", "prompt")
    return [prompt] if isinstance(prompt[0], int) else prompt


def _sampling(
    request: Asked, kv: Plain | None, *, prompt_logprobs: int | None, **own: Any
) -> tuple[Sampling, tuple[Plain | None, Plain | None]]:
    """(the parameters, the transfer parameters that were among the extra arguments)."""
    extra: Plain = dict(request.vllm_xargs or {})
    if kv:
        extra["kv_transfer_params"] = kv
    if request.ec_transfer_params:
        extra["ec_transfer_params"] = request.ec_transfer_params
    given = {
        name: value
        for name in (
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
        )
        if (value := getattr(request, name)) is not None
    }
    bias = request.logit_bias
    sampling = Sampling(
        **given,
        seed=request.seed,
        stop=request.stops,
        stop_token_ids=list(request.stop_token_ids or ()),
        ignore_eos=request.ignore_eos,
        min_tokens=request.min_tokens,
        prompt_logprobs=request.prompt_logprobs if request.prompt_logprobs is not None else prompt_logprobs,
        logprob_token_ids=request.logprob_token_ids or None,
        spaces_between_special_tokens=request.spaces_between_special_tokens,
        include_stop_str_in_output=request.include_stop_str_in_output,
        stream_interval=request.stream_interval,
        logit_bias=_bias(bias) if bias is not None else None,
        allowed_token_ids=request.allowed_token_ids,
        bad_words=list(request.bad_words),
        thinking_token_budget=request.thinking_token_budget if request.thinking_token_budget != -1 else None,
        **own,
    )
    transfer = {name: extra.pop(name, None) for name in ("kv_transfer_params", "ec_transfer_params")}
    try:
        hoisted = GenerateRequest(**transfer)
    except ValidationError as error:
        raise Refusal(str(error)) from None
    sampling.extra_args = extra or None
    return sampling, (hoisted.kv_transfer_params, hoisted.ec_transfer_params)


def _bias(bias: dict[str, float]) -> dict[int, float]:
    if wrong := [key for key in bias if not key.lstrip("-").isdigit()]:
        raise invalid(
            f"logit_bias contains key(s) that cannot be converted to integer token IDs: {wrong!r}", "logit_bias", wrong
        )
    return {int(key): min(LOGIT_BIAS_MAX, max(-LOGIT_BIAS_MAX, value)) for key, value in bias.items()}


def _tool_choice(request: ChatCompletionRequest) -> Any:
    choice = request.tool_choice
    return choice if choice is None or isinstance(choice, str) else choice.model_dump()


def _no_tool_parser(request: ChatCompletionRequest) -> str:
    choice = request.tool_choice
    if choice == "auto":
        return '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    named = f'"{choice}"' if isinstance(choice, str) or choice is None else f'function "{choice.function.name}"'
    return f"tool_choice={named} requires --tool-call-parser to be set"


def _refuse_template(request: ChatCompletionRequest, variables: Plain) -> None:
    if request.chat_template is not None or variables.get("chat_template") is not None:
        raise Refusal(
            "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request "
            "with untrusted chat template."
        )


def _refuse_beams(request: Asked) -> None:
    if request.use_beam_search:
        raise Refusal("Beam search is not supported by the render endpoint")
