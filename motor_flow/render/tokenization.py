"""How does Render's answer become the token view that admission, scheduling, engines and Derender share?

`TokenizedPrompt` is the one internal form: a chat is one prompt, a list of completions prompts is several. Here,
once for every route and topology:

- `sampling_params.max_tokens` is restored: vLLM leaves defaults out when it dumps, 16 is the default, and the engine
  would read its absence as "to the end of the context".
- KV and EC transfer parameters are removed at the top level and in `sampling_params.extra_args`.
- ids are checked: at least one, none negative, no booleans.

Source: RFC Render 阶段; vLLM 0.33 scale_out/token_in_token_out/protocol.py (GenerateRequest), sampling_params.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from machines.context import SemanticIds, TokenizedPrompt
from motor_flow.errors import UNREADABLE, RenderDown
from motor_flow.net.transfer import without_transfer
from motor_flow.render.envelope import Api, StreamOptions

VLLM_DEFAULT_MAX_TOKENS = 16

_item = msgspec.json.Decoder(dict[str, Raw])
_items = msgspec.json.Decoder(list[dict[str, Raw]])
_ids = msgspec.json.Decoder(Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)])
_object = msgspec.json.Decoder(dict[str, Any])
_flag = msgspec.json.Decoder(bool | None)


_stream_options = msgspec.json.Decoder(StreamOptions | None)


@dataclass(slots=True, eq=False)
class TokenizedRequest:
    """A request in tokens.

    Attributes:
        prompts: at least one; a chat has exactly one.
        stream, include_usage, continuous_usage: as Render understood the client, which is how an engine would.
        source: who tokenized.

    """

    prompts: list[TokenizedPrompt]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    source: Literal["render", "local"] = "render"

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.ids) for prompt in self.prompts)


def tokenized(api: Api, body: bytes) -> TokenizedRequest:
    """Read the answer of a render endpoint: one GenerateRequest for chat, a list for completions.

    Raises:
        RenderDown: it is not what the endpoint is documented to answer.

    """
    try:
        items = [_item.decode(body)] if api == "chat" else _items.decode(body)
        if not items:
            raise msgspec.ValidationError("an empty list")
        prompts = [_prompt(item) for item in items]
        first = items[0]
        options = _stream_options.decode(first.get("stream_options", b"null"))
        stream = bool(_flag.decode(first.get("stream", b"null")))
    except UNREADABLE as exc:
        raise RenderDown("the Render sidecar gave an invalid answer", detail=str(exc)) from None
    include_usage = options is not None and bool(options.include_usage)
    return TokenizedRequest(
        prompts=prompts,
        stream=stream,
        include_usage=include_usage,
        continuous_usage=include_usage and options is not None and bool(options.continuous_usage_stats),
    )


def _prompt(item: dict[str, Raw]) -> TokenizedPrompt:
    if "token_ids" not in item or "sampling_params" not in item:
        raise msgspec.ValidationError("token_ids or sampling_params is missing")
    ids = _ids.decode(item.pop("token_ids"))
    sampling = _object.decode(item.pop("sampling_params"))
    sampling.setdefault("max_tokens", VLLM_DEFAULT_MAX_TOKENS)
    extra = sampling.get("extra_args")
    if isinstance(extra, dict):
        sampling["extra_args"] = without_transfer(extra)
    n = sampling.get("n", 1)
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise msgspec.ValidationError("sampling_params.n is not a positive number")
    return TokenizedPrompt(ids=SemanticIds(ids), sampling=sampling, rest=without_transfer(item), n=n)
