"""Where does the thought end?

    <think> … </think> answer          the output starts inside the thought, unless the prompt has closed one

In a stream the markers are known by their token ids; text that only looks like one is text. A stop-string buffer may
hold a marker's text back after its id has come: then everything after the last marker waits for it, because only the
marker tells where to cut. A trailing "<…" that could still become a marker waits for one more piece. A tool call ends
a thought too.

A whole output has only its text to go by.

Source: vllm/parser/qwen3.py and vllm/parser/engine/* (0.33), with tool parsing left to the tool parser.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from motor_flow.sim.tokenizer import Tokenizer

OPEN, CLOSE, CALL = "<think>", "</think>", "<tool_call>"
_LITERALS = (OPEN, CLOSE, CALL, "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>")
_TURNS = ("<|im_start|>", "<|im_end|>")


@dataclass(frozen=True, slots=True)
class Markup:
    """What marks a thought in one tokenizer's tokens."""

    start: int
    ends: frozenset[int]
    turns: frozenset[int]
    markers: dict[int, str]
    special: dict[int, str]
    prefixes: frozenset[str]
    """The beginnings of all that might still become a marker."""

    @staticmethod
    @cache
    def of(tokenizer: Tokenizer) -> Markup:
        literals = (*_LITERALS, *tokenizer.special_texts)
        return Markup(
            start=tokenizer.id_of(OPEN),
            ends=frozenset((tokenizer.id_of(CLOSE), tokenizer.id_of(CALL))),
            turns=frozenset(tokenizer.id_of(text) for text in _TURNS),
            markers={tokenizer.id_of(text): text for text in (OPEN, CLOSE, CALL, "</tool_call>")},
            special={token: tokenizer.token_text(token) for token in tokenizer.special_ids},
            prefixes=frozenset(text[:size] for text in literals for size in range(1, len(text))),
        )


def ends_in_prompt(tokenizer: Tokenizer, prompt: Sequence[int], *, thinking: bool) -> bool:
    """Whether the last turn of the prompt has left no thought open."""
    markup = Markup.of(tokenizer)
    for token in reversed(prompt):
        if token in markup.ends:
            return True
        if token == markup.start:
            return not thinking
        if token in markup.turns:
            break
    return not thinking


class ThoughtStream:
    """The open thought of one stream; after `ended` it is not to be fed any more."""

    __slots__ = ("_buffer", "_held", "_markup", "_pending", "ended", "tokens")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._markup = Markup.of(tokenizer)
        # Markers whose text has not come, and how many tokens came before each.
        self._pending: deque[tuple[str, int]] = deque()
        self._buffer = ""
        self._held = ""
        self.ended = False
        self.tokens = 0
        """Tokens of thought whose text was seen."""

    def feed(self, text: str, ids: Sequence[int]) -> tuple[str, str]:
        """(thought, what follows it). The second is final text of the same piece, once the thought has ended."""
        markup, late = self._markup, len(self._pending)
        count = 0
        for token in ids:
            marker = markup.markers.get(token)
            if marker is not None:
                self._pending.append((marker, count))
                count = 0
            elif token in markup.special:
                text = text.replace(markup.special[token], "")
            else:
                count += 1
        self._buffer += text
        thought = ""
        while self._pending:
            marker, before = self._pending.popleft()
            at = self._buffer.find(marker)
            if at < 0:
                before += len(ids) if late > 0 and self._buffer else 0
                self._pending.appendleft((marker, before))
                return thought, ""
            late -= 1
            self.tokens += before if at else 0
            thought += self._emit(self._buffer[:at])
            rest = self._buffer[at + len(marker) :]
            if marker in (CLOSE, CALL):
                self.ended = True
                return thought + self._flush(), (marker if marker == CALL else "") + rest.replace(CLOSE, "")
            self._buffer = rest
            if marker != OPEN:
                thought += self._flush() + marker
        self.tokens += count if self._buffer else 0
        thought += self._emit(self._buffer)
        self._buffer = ""
        return thought, ""

    def finish(self) -> str:
        """What was kept back, now that no more comes."""
        self._pending.clear()
        text, self._buffer = self._emit(self._buffer), ""
        return text + self._flush()

    def _flush(self) -> str:
        held, self._held = self._held, ""
        return held

    def _emit(self, text: str) -> str:
        text = self._flush() + text
        at = text.rfind("<")
        if at >= 0 and text[at:] in self._markup.prefixes:
            text, self._held = text[:at], text[at:]
        return text


def split_whole(tokenizer: Tokenizer, text: str, *, inside: bool) -> tuple[str | None, str | None]:
    """(thought, answer) of a complete output that starts inside a thought or not; None where there is none."""
    markers = "|".join(map(re.escape, (OPEN, CLOSE, CALL, *tokenizer.special_texts)))
    thought: list[str] = []
    answer: list[str] = []
    for part in re.split(f"({markers})", text):
        if part in tokenizer.special_texts or (part == OPEN and inside) or (part == CLOSE and not inside):
            continue
        if part == CLOSE:
            inside = False
            continue
        if part == CALL:
            inside = False
        (thought if inside else answer).append(part)
    return "".join(thought) or None, "".join(answer) or None
