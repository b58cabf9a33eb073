"""What is a prompt in tokens?

Semantic ids are those of Render and Derender, and of everything between: ledger, replay, admission. What engines get
may differ from them (token obfuscation), so they have a type of their own.

Source: RFC Render 阶段; vLLM 0.33 GenerateRequest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NewType

SemanticIds = NewType("SemanticIds", list[int])
"""Token ids as Render and Derender know them."""


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
