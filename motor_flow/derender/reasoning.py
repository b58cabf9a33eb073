"""How many tokens of an answer are reasoning?

Derender splits text, and counts nothing. What it has shown tells whether an answer began as reasoning; the ids tell
where that ended. Markers are no part of it, nor is the token that ended the answer. Counted only where the parser's
end of reasoning is a single token, which the probe of the sidecar finds out.

Some of vLLM's parsers (deepseek_r1, say) count what stands between the two markers, whatever was made of it: nothing,
where the template has opened the reasoning already. That is what native vLLM says, and so do we.

Source: contract sections 6 and 7 (reasoning_tokens); vLLM 0.33 parser/engine, reasoning/basic_parsers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from machines.tokens import Thought

TEMPLATE_TOKENS = 8  # at a prompt's end, where a template that wants no reasoning closes it


@dataclass(slots=True)
class Shown:
    """What Derender has made of a choice.

    Attributes:
        reasoning: some of it was reasoning.
        answer: some of it was content or a tool call.
        ended: its last token is one that ends answers.

    """

    reasoning: bool = False
    answer: bool = False
    ended: bool = False

    def add(self, message: Mapping[str, Any]) -> None:
        """A message, or a delta of it."""
        if message.get("reasoning"):
            self.reasoning = True
        if message.get("content") or message.get("tool_calls"):
            self.answer = True

    def finish(self, finish: str | None, stop_reason: int | str | None) -> None:
        """As the engine says, with the last token. A stop string is no token of its own."""
        self.ended = finish == "stop" and not isinstance(stop_reason, str)


def reasoning_tokens(prompt: Sequence[int], ids: Sequence[int], thought: Thought, shown: Shown, *, hidden: bool) -> int:
    """The reasoning tokens of one choice.

    Args:
        prompt: its prompt's ids.
        ids: of all its tokens so far.
        thought: of the sidecar's parser.
        shown: of the same tokens.
        hidden: the client did not want to see reasoning, so Derender shows none.

    """
    if thought.start is not None:
        return _between(ids, thought.start, thought.end)
    at = next((at for at, token in enumerate(ids) if token in thought.ends), None)
    if shown.reasoning:
        began = True
    elif shown.answer:
        began = hidden and at is not None
    else:  # nothing to go by, but what the template has written
        began = thought.end not in prompt[-TEMPLATE_TOKENS:]
    if not began:
        return 0
    inside = ids[: len(ids) - shown.ended] if at is None else ids[:at]
    return sum(token not in thought.markers for token in inside)


def _between(ids: Sequence[int], start: int, end: int) -> int:
    """Tokens inside of spans, which may stand in one another."""
    count = depth = 0
    for token in ids:
        if token == start:
            depth += 1
        elif token == end:
            depth = max(0, depth - 1)
        else:
            count += depth > 0
    return count
