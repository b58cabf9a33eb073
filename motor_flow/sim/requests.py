"""What may a client ask of the OpenAI routes?

The bodies of chat and text completions as pydantic models: the fields that this server acts on, with vLLM's names,
defaults and bounds. Unknown fields are ignored, numbers in strings are accepted, as there. Checks that look at
several fields at once run before the fields are read, and raise a Refusal of their own instead of a validation error.

Source: vllm/entrypoints/openai/{chat_completion,completion}/protocol.py, vllm/entrypoints/generate/base/protocol.py
(0.33).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from motor_flow.sim.refusal import Refusal, invalid

STOP_STRINGS_MAX = 4
CACHE_SALT_CHARS_MAX = 128

Stop = str | Annotated[list[str], Field(max_length=STOP_STRINGS_MAX)] | None
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
NoneIsZero = Annotated[int, BeforeValidator(lambda value: 0 if value is None else value)]
ExtraArgs = dict[str, str | int | float | list[str | int | float]]


class StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class FunctionDefinition(BaseModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    type: Literal["function"] = "function"
    function: FunctionDefinition

    def plain(self) -> dict[str, Any]:
        """As a template and a parse context see it: `strict` only where it was given."""
        function = self.function.model_dump()
        if function["strict"] is None:
            del function["strict"]
        return {"type": self.type, "function": function}


class NamedFunction(BaseModel):
    name: str


class NamedToolChoice(BaseModel):
    function: NamedFunction
    type: Literal["function"] = "function"


class Message(BaseModel):
    """One message. Its parts are looked at when the template is filled."""

    role: str
    content: str | list[str | dict[str, Any]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    reasoning: Any = None
    reasoning_content: Any = None


class Asked(BaseModel):
    """What both routes share."""

    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    response_format: dict[str, Any] | None = None
    seed: Int64 | None = None
    stop: Stop = Field(default_factory=list)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**63 - 1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = Field(default_factory=list)
    structured_outputs: dict[str, Any] | None = None
    priority: Int64 = 0
    request_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    return_weight_versions: bool = False
    return_token_offsets: bool | None = False
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: ExtraArgs | None = None
    thinking_token_budget: int | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_shared(cls, data: Any) -> Any:
        if isinstance(data, dict):
            check_cache_salt(data.get("cache_salt"))
            if data.get("stream_options") and not data.get("stream"):
                raise invalid("Stream options can only be defined when `stream=True`.", "stream_options")
            _check_prompt_logprobs(data)
        return data

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())


class ChatCompletionRequest(Asked):
    messages: list[Message]
    logprobs: bool | None = False
    top_logprobs: NoneIsZero = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = "none"
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool = True
    parallel_tool_calls: bool | None = True
    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_prompt_text: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_chat(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        top = data.get("top_logprobs")
        if top is not None:
            if not isinstance(top, (int, float)):
                raise invalid("`top_logprobs` must be an integer.", "top_logprobs", top)
            if top < 0 and top != -1:
                raise invalid("`top_logprobs` must be a positive value or -1.", "top_logprobs", top)
            if top != 0 and not data.get("logprobs"):
                raise invalid("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
        if data.get("logprob_token_ids") and not data.get("logprobs"):
            raise invalid("when using `logprob_token_ids`, `logprobs` must be set to true.", "logprob_token_ids")
        if data.get("continue_final_message") and data.get("add_generation_prompt"):
            raise Refusal("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        return _check_tools(data)

    @property
    def output_tokens_max(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def forces_tool(self) -> bool:
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedToolChoice)

    @property
    def keeps_tool_calls(self) -> bool:
        """Whether calls found in the output are handed out, rather than dropped."""
        return self.forces_tool or (self.tool_choice == "auto" and bool(self.tools))


class CompletionRequest(Asked):
    prompt: list[Annotated[int, Field(ge=0)]] | list[list[Annotated[int, Field(ge=0)]]] | str | list[str] | None = None
    echo: bool | None = False
    logprobs: int | None = None
    max_tokens: int | None = 16
    n: int = 1
    suffix: str | None = None
    add_special_tokens: bool = True

    @model_validator(mode="before")
    @classmethod
    def _check_completion(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        logprobs = data.get("logprobs")
        if logprobs is not None:
            if not isinstance(logprobs, (int, float)):
                raise invalid("`logprobs` must be an integer.", "logprobs", logprobs)
            if logprobs < 0 and logprobs != -1:
                raise invalid("`logprobs` must be a positive value or -1.", "logprobs", logprobs)
        if data.get("prompt") in (None, ""):
            raise invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
        if data.get("max_tokens") is None:
            data = {**data, "max_tokens": 16}
        return data


class TokenizeCompletionRequest(BaseModel):
    model: str | None = None
    prompt: str
    return_token_strs: bool | None = False


class TokenizeChatRequest(BaseModel):
    model: str | None = None
    messages: list[Message]
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None


class DetokenizeRequest(BaseModel):
    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=2**63 - 1)]]


def check_cache_salt(salt: Any) -> None:
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise invalid("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if len(salt) > CACHE_SALT_CHARS_MAX or not frozenset("@/\\\x00").isdisjoint(salt):
        raise invalid(
            f"Parameter 'cache_salt' must be at most {CACHE_SALT_CHARS_MAX} characters and must not contain '@', '/', "
            "'\\\\', or NUL.",
            "cache_salt",
        )


def _check_prompt_logprobs(data: dict[str, Any]) -> None:
    asked = data.get("prompt_logprobs")
    if asked is None:
        return
    if not isinstance(asked, (int, float)):
        raise invalid("`prompt_logprobs` must be an integer.", "prompt_logprobs", asked)
    if data.get("stream") and (asked > 0 or asked == -1):
        raise invalid("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
    if asked < 0 and asked != -1:
        raise invalid("`prompt_logprobs` must be a positive value or -1.", "prompt_logprobs", asked)


def _check_tools(data: dict[str, Any]) -> dict[str, Any]:
    tools = data.get("tools")
    if tools == []:
        raise invalid(
            "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely.", "tools"
        )
    if "tool_choice" not in data:
        return {**data, "tool_choice": "auto"} if tools else data
    choice = data["tool_choice"]
    if choice is None or choice == "none":
        return data
    if tools is None:
        raise invalid("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, dict):
        _check_named(choice, tools)
    elif choice not in ("auto", "required"):
        raise invalid(
            f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are supported.',
            "tool_choice",
        )
    return data


def _check_named(choice: dict[str, Any], tools: Any) -> None:
    usage = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'
    function = choice.get("function")
    if not isinstance(function, dict):
        raise invalid(f"Invalid value for `function`: `{function}` in `tool_choice`! {usage}", "tool_choice.function")
    if "name" not in function:
        raise invalid(f"Expected field `name` in `function` in `tool_choice`! {usage}", "tool_choice.function.name")
    known = [
        tool["function"].get("name")
        for tool in tools
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
    ]
    if function["name"] not in known:
        raise invalid("The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice")
