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

from machines.replay import RetryRequestPlan

GENERATE_PATH = "/inference/v1/generate"

_encode = msgspec.json.encode


def leg_id(request: str, attempt: int, prompt: int, leg: str = "u") -> str:
    """The engine's id of one leg: `<request>.a<attempt>.p<prompt>.<leg>`, leg one of u(nion), p(refill), d(ecode)."""
    return f"{request}.a{attempt}.p{prompt}.{leg}"


def generate_body(plan: RetryRequestPlan, rest: Mapping[str, Any], *, request_id: str, stream: bool) -> bytes:
    """The body of a generate request. Streams always ask for the engine's usage: its details are known nowhere else.

    Args:
        plan: what is asked for.
        rest: the prompt's other fields, as rendered.
        request_id: the leg's.
        stream: events, or one whole answer.

    """
    return _encode(
        {
            **rest,
            "request_id": request_id,
            "token_ids": plan.ids,
            "sampling_params": plan.sampling,
            "stream": stream,
            "stream_options": {"include_usage": True} if stream else None,
        }
    )
