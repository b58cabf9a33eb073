"""What goes between Render, the engine and Derender?

    GenerateRequest ──▶ engine ──▶ TokensResponse | TokensChunk ──▶ Derender…Request, with the stream's state

Class names appear in error messages (`body.DerenderChatRequest.generate_response`), so they are vLLM's. What these
bodies carry without this server reading it (metrics, weight versions) is not declared.

Source: vllm/entrypoints/scale_out/token_in_token_out/protocol.py (0.33).
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    NonNegativeInt,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

from motor_flow.sim.refusal import unreadable
from motor_flow.sim.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    NamedToolChoice,
    StreamOptions,
    Tool,
)

WINDOW_PIECES_MAX = 1024
LOGPROB_CONTEXT_TOKENS = 4


class SamplingFields(TypedDict, total=False):
    """The keys that were given: a missing `max_tokens` means something else than 16."""

    n: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    stop: str | list[str] | None
    stop_token_ids: list[int] | None
    ignore_eos: bool
    max_tokens: int | None
    min_tokens: int
    logprobs: int | None
    prompt_logprobs: int | None
    logprob_token_ids: list[int] | None
    detokenize: bool
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    include_stop_str_in_output: bool
    stream_interval: int | None
    structured_outputs: dict[str, Any] | None
    logit_bias: dict[int, float] | None
    allowed_token_ids: list[int] | None
    extra_args: dict[str, Any] | None
    bad_words: list[str] | None


class SamplingParams:
    """Named in the first of two errors about sampling parameters: nothing on the wire can be an instance of it."""


class ParseContext(BaseModel):
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = "none"
    parallel_tool_calls: bool | None = True
    include_reasoning: bool = True
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    history_tool_call_cnt: int = Field(0, ge=0)


class GenerateRequest(BaseModel):
    request_id: str | None = None
    token_ids: list[int] = Field(min_length=1)
    sampling_params: InstanceOf[SamplingParams] | Annotated[SamplingFields, BeforeValidator(lambda value: value)]
    model: str | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens", "text", "derender"] = "tokens"
    parse_context: ParseContext | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: int = Field(0, ge=-(2**63), le=2**63 - 1)
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None

    @field_validator("token_ids")
    @classmethod
    def _not_negative(cls, ids: list[int]) -> list[int]:
        return _refuse_negative(ids)


class LogProb(BaseModel):
    token_id: int
    logprob: float
    rank: int | None = None


class LogProbContent(LogProb):
    top_logprobs: list[LogProb] = Field(default_factory=list)


class LogProbs(BaseModel):
    content: list[LogProbContent] | None = None


class TokensStreamChoice(BaseModel):
    index: int
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    logprobs: LogProbs | None = None


class TokensChoice(TokensStreamChoice):
    finish_reason: str | None = "stop"

    @field_validator("token_ids")
    @classmethod
    def _not_negative(cls, ids: list[int] | None) -> list[int] | None:
        return ids if ids is None else _refuse_negative(ids)


class Usage(BaseModel):
    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0


class GenerateTokensResponse(BaseModel):
    request_id: str = ""
    prompt_logprobs: list[dict[int, Any] | None] | None = None
    prompt_token_ids: list[NonNegativeInt] | None = None
    metrics: Any = None
    kv_transfer_params: dict[str, Any] | None = None
    output_mode: Literal["tokens"] = "tokens"
    choices: list[TokensChoice]


class GenerateTokensStreamResponse(BaseModel):
    request_id: str = ""
    usage: Usage | None = None
    prompt_token_ids: list[NonNegativeInt] | None = None
    metrics: Any = None
    output_mode: Literal["tokens"] = "tokens"
    choices: list[TokensStreamChoice]


class DerenderStreamState(BaseModel):
    """All that one choice's stream remembers. It travels: the server keeps none of it."""

    model_config = ConfigDict(frozen=True)

    prev_tokens: list[str] = Field(default_factory=list)
    prefix_offset: int = Field(0, ge=0)
    read_offset: int = Field(0, ge=0)
    role_sent: bool = False
    logprob_context_token_ids: list[int] = Field(default_factory=list, max_length=LOGPROB_CONTEXT_TOKENS)
    logprob_text_offset: int = Field(0, ge=0)
    output_token_ids: list[int] = Field(default_factory=list)
    output_chunk_lens: list[Annotated[int, Field(gt=0)]] = Field(default_factory=list)
    tools_streamed: bool = False
    last_tool_call_ids: list[str] = Field(default_factory=list)

    @field_validator("prev_tokens")
    @classmethod
    def _bounded(cls, pieces: list[str]) -> list[str]:
        if len(pieces) > WINDOW_PIECES_MAX:
            raise ValueError(f"prev_tokens length ({len(pieces)}) exceeds maximum ({WINDOW_PIECES_MAX})")
        return pieces

    @model_validator(mode="after")
    def _lengths_add_up(self) -> DerenderStreamState:
        total, count = sum(self.output_chunk_lens), len(self.output_token_ids)
        if total != count:
            raise ValueError(
                f"output_chunk_lens must sum to len(output_token_ids) (got sum={total}, len(output_token_ids)={count})"
            )
        return self


class DerenderChatRequest(BaseModel):
    stream: Literal[False] = False
    model: str | None = None
    generate_response: GenerateTokensResponse
    prompt_tokens: int | None = None
    prompt_token_ids: list[NonNegativeInt] | None = None
    chat_request: ChatCompletionRequest | None = None


class DerenderChatStreamRequest(BaseModel):
    stream: Literal[True]
    model: str | None = None
    generate_chunk: GenerateTokensStreamResponse
    stream_state: DerenderStreamState | None = None
    prompt_tokens: int | None = None
    prompt_token_ids: list[NonNegativeInt] | None = None
    chat_request: ChatCompletionRequest | None = None


class DerenderCompletionRequest(BaseModel):
    stream: Literal[False] = False
    model: str | None = None
    generate_responses: list[GenerateTokensResponse]
    prompt_tokens: list[int] | None = None
    prompt_token_ids: list[list[NonNegativeInt] | None] | None = None
    completion_request: CompletionRequest | None = None

    @model_validator(mode="after")
    def _parallel(self) -> DerenderCompletionRequest:
        count = len(self.generate_responses)
        for name, given in (("prompt_tokens", self.prompt_tokens), ("prompt_token_ids", self.prompt_token_ids)):
            if given is not None and len(given) != count:
                raise ValueError(f"{name} length ({len(given)}) must equal generate_responses length ({count})")
        return self


class DerenderCompletionStreamRequest(BaseModel):
    stream: Literal[True]
    model: str | None = None
    generate_chunk: GenerateTokensStreamResponse
    stream_state: DerenderStreamState | None = None
    prompt_tokens: int | None = None
    prompt_token_ids: list[NonNegativeInt] | None = None
    completion_request: CompletionRequest | None = None


T = TypeVar("T")
S = TypeVar("S")


def read(model: type[T], body: Any) -> T:
    """The body as this model.

    Raises:
        Refusal: with every fault listed.

    """
    try:
        return cast("T", _adapter(cast("Any", model)).validate_python(body, from_attributes=True))
    except ValidationError as error:
        raise unreadable(
            {**fault, "loc": ("body", *fault["loc"])} for fault in error.errors(include_url=False)
        ) from None


def read_either(whole: type[T], stream: type[S], body: Any) -> T | S:
    """The body as the model that its `stream` names. Faults are told of both, as one does not know which was meant."""
    model: Any = stream if isinstance(body, dict) and body.get("stream") is True else whole
    try:
        return cast("T | S", _adapter(model).validate_python(body, from_attributes=True))
    except ValidationError:
        return cast("T | S", read(cast("type[Any]", whole | stream), body))


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def _refuse_negative(ids: list[int]) -> list[int]:
    if min(ids, default=0) < 0:
        raise ValueError("token_ids must not contain negative values")
    return ids
