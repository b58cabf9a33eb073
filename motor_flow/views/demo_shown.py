"""What has been shown so far, and what does it come to?

`Shown` grows while a request runs: the passages of its machine, its attempts, and the pieces of text that its client
got. Two of them are an `Outcome`. Whatever draws, writes or judges reads these and nothing else.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, Protocol

from motor_flow.views.demo_watch import Loop


@dataclass(frozen=True, slots=True)
class Passage:
    """The request's machine has entered a state.

    Attributes:
        event: which edge it took; empty for the initial state.
        at_s: seconds after the client asked.

    """

    state: str
    event: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Piece:
    """One chunk that holds tokens.

    Attributes:
        before: tokens that came before it.
        tokens: its own.
        thought: it belongs to the reasoning.

    """

    at_s: float
    before: int
    tokens: list[int]
    text: str
    thought: bool


@dataclass(slots=True)
class Attempt:
    """One engine's part of the answer.

    Attributes:
        before: tokens that the client's answer already had.

    """

    engine: str
    before: int
    loop: Loop


@dataclass(slots=True)
class Shown:
    """One request: what its machine did and what its client got, so far.

    Attributes:
        died: the engine that was killed; empty: none was.
        error: why it did not end well.
        done: it has ended.

    """

    title: str
    started: float
    passages: list[Passage] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    died: str = ""
    error: str = ""
    done: bool = False

    @property
    def tokens(self) -> list[int]:
        return [token for piece in self.pieces for token in piece.tokens]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces if not piece.thought)

    @property
    def reasoning(self) -> str:
        return "".join(piece.text for piece in self.pieces if piece.thought)

    @property
    def relayed(self) -> bool:
        return any(passage.state == "relaying" for passage in self.passages)

    @property
    def gap_s(self) -> float:
        """The longest time between two chunks."""
        return max((b.at_s - a.at_s for a, b in itertools.pairwise(self.pieces)), default=0.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Both requests, when they have ended."""

    undisturbed: Shown
    disturbed: Shown

    @property
    def same(self) -> bool:
        """The client of the killed engine got the same answer, and got it whole."""
        one, other = self.undisturbed, self.disturbed
        answers = [(each.tokens, each.text, each.reasoning, each.finish_reason, each.usage) for each in (one, other)]
        return not one.error and not other.error and bool(one.tokens) and answers[0] == answers[1]

    @property
    def good(self) -> bool:
        """The same, and not for want of a failure."""
        return self.same and self.disturbed.relayed


class Audience(Protocol):
    """Who looks on. Nothing here waits or raises."""

    def begins(self, shown: Shown) -> None:
        """A request is asked; `shown` grows from now on."""

    def moved(self, shown: Shown, passage: Passage) -> None:
        """Its machine has entered a state."""

    def said(self, shown: Shown, piece: Piece) -> None:
        """The client has got a chunk."""
