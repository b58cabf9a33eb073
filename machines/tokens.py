"""What is a prompt in tokens?

Semantic ids are those of Render and Derender, and of everything between: ledger, replay, admission. Engines and the KV
conductor know physical ids, which differ from them when tokens are obfuscated. Each kind has a type of its own, so that
a checker finds what was not translated; without obfuscation the two are the same numbers.

Source: RFC Render 阶段, Token 混淆适配; vLLM 0.33 GenerateRequest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NewType

SemanticIds = NewType("SemanticIds", list[int])
"""Token ids as Render and Derender know them."""

PhysicalIds = NewType("PhysicalIds", list[int])
"""Token ids as engines and the KV conductor know them."""

PhysicalFields = NewType("PhysicalFields", dict[str, Any])
"""Fields of an engine's request, fit to be seen by it."""

SemanticJson = NewType("SemanticJson", bytes)
"""An engine's answer or event whose token ids are semantic."""


@dataclass(slots=True, eq=False)
class TokenizedPrompt:
    """One prompt of a request, as Render returned it (one vLLM GenerateRequest).

    Attributes:
        ids: prompt token ids, at least one, each >= 0.
        sampling: sampling_params as rendered, with vLLM's defaults restored.
        rest: every other field of the GenerateRequest, untouched.
        n: choices this prompt asks for, >= 1.

    """

    ids: SemanticIds
    sampling: dict[str, Any]
    rest: dict[str, Any]
    n: int = 1


@dataclass(frozen=True, slots=True)
class Thought:
    """The tokens that bound a model's reasoning, for one parser.

    Attributes:
        end: id of the one that ends it.
        ends: ids of all that end it; a call of a tool may.
        markers: ids of all that a parser looks for; none of them is reasoning.
        start: id of the one that begins it, for parsers that count between the two in the answer, and nothing else.

    """

    end: int
    ends: frozenset[int]
    markers: frozenset[int]
    start: int | None = None
