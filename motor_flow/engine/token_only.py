"""How does a tokenized prompt become an engine's request?

The one place where token-only requests are built, for every route, leg and attempt. Everything Render returned and this
program does not know passes through untouched.

vLLM takes the X-Request-Id header before the body's request_id, so both always carry the same leg id; and it does not
mind duplicates, so the id is unique per attempt, prompt and leg, also when clients repeat theirs.

Source: RFC Generate 阶段; vLLM 0.33 scale_out/token_in_token_out/protocol.py (GenerateRequest).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from machines.tokens import PhysicalFields, PhysicalIds
from motor_flow.engine.transfer import KEY, with_transfer

GENERATE_PATH = "/inference/v1/generate"

_encode = msgspec.json.encode


def leg_id(request: str, attempt: int, prompt: int, leg: str = "u") -> str:
    """The engine's id of one leg: `<request>.a<attempt>.p<prompt>.<leg>`, leg one of u(nion), p(refill), d(ecode)."""
    return f"{request}.a{attempt}.p{prompt}.{leg}"


def needs_tokenizer_for(sampling: Mapping[str, Any]) -> str:
    """What the engine must read text for: without a tokenizer it refuses the first, and forgets the second."""
    return next((name for name in ("structured_outputs", "bad_words") if sampling.get(name)), "")


def generate_body(
    ids: PhysicalIds,
    sampling: PhysicalFields,
    rest: PhysicalFields,
    *,
    request_id: str,
    stream: bool,
    kv: Mapping[str, Any] | None = None,
) -> bytes:
    """The body of a generate request. Streams always ask for the engine's usage: its details are known nowhere else.

    Args:
        ids: prompt and replayed tokens.
        sampling: parameters.
        rest: the prompt's other fields, as rendered.
        request_id: the leg's.
        stream: events, or one whole answer.
        kv: transfer parameters; None: there is no second leg.

    """
    return _encode(
        {
            **rest,
            "request_id": request_id,
            "token_ids": ids,
            "sampling_params": sampling if kv is None else with_transfer(sampling, kv),
            "stream": stream,
            "stream_options": {"include_usage": True} if stream else None,
            **({} if kv is None else {KEY: kv}),
        }
    )
