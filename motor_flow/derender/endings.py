"""Which token has ended an answer, as far as the client is told?

Native vLLM names the token that ended an answer, unless it is the model's own end. An engine without a tokenizer
(`--tokens-only`) does not know that one and names it as well. Derender knows it: it is told nothing, and finds out.

Source: vLLM 0.33 renderers/online_derenderer.py (_drop_stop_token), v1/core/sched/utils.py (check_stop).
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from machines.tokens import SemanticJson

_decode, _encode = msgspec.json.decode, msgspec.json.encode


def names_an_end(stop_reason: int | str | None, asked: Collection[int]) -> bool:
    """The engine names a token that the client has not asked to stop at, so Derender is to judge.

    Args:
        stop_reason: as the engine says.
        asked: the request's stop_token_ids.

    """
    return isinstance(stop_reason, int) and stop_reason not in asked


def unnamed(answer: SemanticJson, asked: Collection[int]) -> SemanticJson:
    """An engine's answer or event without such names."""
    fields = _decode(answer)
    for choice in fields["choices"]:
        if names_an_end(choice.get("stop_reason"), asked):
            choice["stop_reason"] = None
    return SemanticJson(_encode(fields))
