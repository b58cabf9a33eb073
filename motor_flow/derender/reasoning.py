"""How many tokens of an answer are reasoning?

Derender splits text, and counts nothing. What it has shown tells whether an answer began as reasoning; the ids tell
where that ended. Markers are no part of it, nor is the token that ended the answer. Counted only where the parser's
end of reasoning is a single token, which the probe of the sidecar finds out.

Source: contract sections 6 and 7 (reasoning_tokens); vLLM 0.33 parser/engine, reasoning/basic_parsers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from machines.tokens import Thought


@dataclass(slots=True)
class Shown:
    """What Derender has made of a choice.

    Attributes:
        reasoning: some of it was reasoning.
        answer: some of it was content or a tool call.

    """

    reasoning: bool = False
    answer: bool = False

    def add(self, message: Mapping[str, Any]) -> None:
        """A message, or a delta of it."""
        if message.get("reasoning"):
            self.reasoning = True
        if message.get("content") or message.get("tool_calls"):
            self.answer = True


def reasoning_tokens(ids: Sequence[int], thought: Thought, shown: Shown, *, hidden: bool, ended: bool) -> int:
    """The reasoning tokens of one choice.

    Args:
        ids: of all its tokens so far.
        thought: of the sidecar's parser.
        shown: of the same tokens.
        hidden: the client did not want to see reasoning, so Derender shows none.
        ended: the last token is one that ends answers.

    """
    closed = thought.end in ids
    if not (shown.reasoning or (hidden and (closed or not shown.answer))):
        return 0
    inside = ids[: ids.index(thought.end)] if closed else ids[: len(ids) - ended]
    return len(inside) - (0 if thought.begin is None else sum(token == thought.begin for token in inside))
