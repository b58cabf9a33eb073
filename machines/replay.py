"""What is an engine asked when an answer that has begun goes on elsewhere?

```
tokens:    prompt (as rendered) + ledger (what the client's text was made of)
budget:    max_tokens - len(ledger), min_tokens - len(ledger)
the rest:  as it was
```

The engine cannot tell such a request from a new one, so whatever restarts with a request (a grammar, a seeded sampler)
cannot go on: `obstacle` says so. Counts of penalties see the ledger as prompt, which changes them a little.

Source: RFC 流式 replay 与重调度 (RetryRequestPlan, steps 1-4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from machines.tokens import SemanticIds, TokenizedPrompt

GRAMMARS = ("structured_outputs", "guided_decoding")


@dataclass(frozen=True, slots=True)
class RetryRequestPlan:
    """What the next attempt of a prompt asks for.

    Attributes:
        ids: prompt and committed tokens.
        sampling: sampling parameters with the remaining budget.
        remaining: tokens that may still come.

    """

    ids: SemanticIds
    sampling: dict[str, Any]
    remaining: int


def plan(prompt: TokenizedPrompt, ledger: Sequence[int]) -> RetryRequestPlan:
    """The request for what is left, after `ledger` was committed; an empty ledger gives the first request."""
    done = len(ledger)
    sampling = prompt.sampling
    remaining = remaining_tokens(sampling, done)
    if done:
        least = sampling.get("min_tokens") or 0
        sampling = {**sampling, "max_tokens": remaining, "min_tokens": max(0, least - done)}
    return RetryRequestPlan(SemanticIds([*prompt.ids, *ledger]) if done else prompt.ids, sampling, remaining)


def remaining_tokens(sampling: Mapping[str, Any], done: int) -> int:
    """Of the output budget, which Render always states."""
    budget: int = sampling["max_tokens"]
    return max(0, budget - done)


def obstacle(prompt: TokenizedPrompt) -> str | None:
    """Why an answer to this prompt cannot go on elsewhere once a part of it is visible; None when it can."""
    if prompt.n > 1:
        return "several choices share one engine stream"
    if any(prompt.sampling.get(key) is not None for key in GRAMMARS):
        return "a grammar would start again"
    return None


def caveats(prompt: TokenizedPrompt) -> list[str]:
    """What a continued answer would do differently, one line each."""
    sampling = prompt.sampling
    found = []
    if sampling.get("seed") is not None and sampling.get("temperature", 1.0) != 0:
        found.append("seed: if an engine fails, the rest of the answer is sampled anew")
    return found
