"""What is being served?

The facts that every route of a sidecar or an engine needs: the name, the context length, the tokenizer and the
template, and whether reasoning and tool calls are parsed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from motor_flow.sim.refusal import Refusal, unknown_model
from motor_flow.sim.template import ChatTemplate, tiny_template
from motor_flow.sim.tokenizer import Tokenizer, tiny

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTEXT_TOKENS_DEFAULT = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    model_name: str = "tiny"
    max_model_len: int = CONTEXT_TOKENS_DEFAULT
    parsers: bool = True
    tokens_only: bool = False
    logprobs_max: int = 20
    tokenizer: Tokenizer = field(default_factory=tiny)
    template: ChatTemplate = field(default_factory=tiny_template)

    def check_model(self, asked: str | None) -> None:
        """No name is this model's name."""
        if asked and asked != self.model_name:
            raise unknown_model(asked, self.model_name)

    def check_tokenizer(self) -> None:
        """What an engine with `--tokens-only` answers to text."""
        if self.tokens_only:
            raise Refusal("Tokenizer not available when `skip_tokenizer_init=True`")

    def check_vocabulary(self, ids: Sequence[int]) -> None:
        if max(ids, default=0) >= self.tokenizer.vocab_size:
            raise Refusal(f"Token id {max(ids)} is out of vocabulary")
