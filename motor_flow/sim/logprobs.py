"""How likely was a token, and what else might have come?

    engine: token ids        chat: token, bytes        completion: four parallel lists
    (k or k+1 candidates,    (the first top_logprobs)  (the first logprobs+1, offsets absolute in the stream)
     the sampled one first)

A token that is a piece of a character has no text of its own. It is given with the tokens before it: the piece that
completes the character carries it, the others are empty. So one choice's stream carries the last few tokens along.

Source: vllm/renderers/online_derenderer.py, vllm/entrypoints/generate/base/serving.py (0.33).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from motor_flow.sim.oracle import Candidate
    from motor_flow.sim.protocol import LogProbs
    from motor_flow.sim.tokenizer import Tokenizer

CONTEXT_TOKENS = 4
_HALF = "\ufffd"

Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Position:
    """One sampled token and the candidates at its place, likeliest order of the engine."""

    token: int
    logprob: float
    candidates: list[tuple[int, float]]


@dataclass(slots=True)
class LogprobStream:
    """One choice's positions resolved to texts, in order."""

    tokenizer: Tokenizer
    context: list[int] = field(default_factory=list)
    text_offset: int = 0

    def chat(self, positions: Iterable[Position], limit: int | None) -> Plain:
        """OpenAI chat shape; `limit` None keeps every candidate."""
        content: list[Plain] = []
        for position in positions:
            tops = position.candidates if limit is None else position.candidates[:limit]
            content.append(
                self._entry(position.token, position.logprob)
                | {"top_logprobs": [self._entry(token, logprob) for token, logprob in tops]}
            )
            self.context = [*self.context, position.token][-CONTEXT_TOKENS:]
        return {"content": content}

    def completion(self, positions: Sequence[Position | None], limit: int | None, ids: Sequence[int]) -> Plain:
        """OpenAI completions shape. A position without log-probabilities (a prompt's first) is null."""
        out: Plain = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for token, position in zip(ids, positions, strict=True):
            text = self._text(token)
            tops = position.candidates if position is not None else []
            out["text_offset"].append(self.text_offset)
            out["token_logprobs"].append(None if position is None else position.logprob)
            out["tokens"].append(text)
            out["top_logprobs"].append(
                {self._text(other): logprob for other, logprob in (tops if limit is None else tops[:limit])}
                if tops
                else None
            )
            self.text_offset += len(text)
            self.context = [*self.context, token][-CONTEXT_TOKENS:]
        return out

    def _entry(self, token: int, logprob: float) -> Plain:
        text = self._text(token)
        known = self.tokenizer.piece(token) is not None
        return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if known else None}

    def _text(self, token: int) -> str:
        text = self.tokenizer.token_text(token)
        return text if not text.endswith(_HALF) else _completed(self.tokenizer, self.context, token)


def _completed(tokenizer: Tokenizer, context: Sequence[int], token: int) -> str:
    """The character that this token completes, or nothing."""
    for size in range(1, len(context) + 1):
        before = list(context[-size:])
        full = tokenizer.decode([*before, token])
        if full.endswith(_HALF):
            continue
        while before and tokenizer.token_text(before[-1]).endswith(_HALF):
            before.pop()
        return full.removeprefix(tokenizer.decode(before))
    return ""


def from_wire(logprobs: LogProbs) -> list[Position]:
    return [
        Position(entry.token_id, entry.logprob, [(top.token_id, top.logprob) for top in entry.top_logprobs])
        for entry in logprobs.content or ()
    ]


def position(candidates: Sequence[Candidate]) -> Position:
    return Position(candidates[0].token, candidates[0].logprob, [(c.token, c.logprob) for c in candidates])


def to_wire(candidates: Sequence[Candidate]) -> Plain:
    """One position of a token-only engine."""
    tops = [{"token_id": c.token, "logprob": c.logprob, "rank": c.rank} for c in candidates]
    return {**tops[0], "top_logprobs": tops}


def chat_limit(top_logprobs: int | None, *, every: bool) -> int | None:
    return None if every or top_logprobs == -1 else top_logprobs or 0


def completion_limit(logprobs: int | None, *, every: bool) -> int | None:
    return None if every or logprobs in (None, -1) else (logprobs or 0) + 1
