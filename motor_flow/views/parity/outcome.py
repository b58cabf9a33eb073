"""What came of a comparison?

    request = equal | accepted (all its differences are) | different

Source: contract section 1 (parity).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from motor_flow.views.parity.accepted import Accepted
from motor_flow.views.parity.cases import Case
from motor_flow.views.parity.compare import Difference

Verdict = Literal["equal", "accepted", "different"]


@dataclass(frozen=True, slots=True)
class Server:
    """One of the two.

    Attributes:
        url: its base.
        version: of vLLM, empty when it does not say.

    """

    url: str
    version: str


@dataclass(frozen=True, slots=True)
class Judged:
    """A difference, and the entry that accepts it, if one does."""

    difference: Difference
    accepted: Accepted | None

    @property
    def field(self) -> str:
        """The field, of whichever choice."""
        return re.sub(r"\[\d+\]", "[]", self.difference.field)


@dataclass(frozen=True, slots=True)
class Result:
    """One request to both."""

    case: Case
    found: tuple[Judged, ...]

    @property
    def verdict(self) -> Verdict:
        if not self.found:
            return "equal"
        return "accepted" if all(judged.accepted for judged in self.found) else "different"


@dataclass(slots=True)
class Outcome:
    """All of them.

    Attributes:
        native: whose answers are right.
        coordinator: whose answers are compared; a sidecar where tokens are fixed.
        model: its served name.
        results: in the order they were asked.
        left_out: names of requests that fixed tokens cannot answer, by what keeps them from it.
        planned: how many requests there are.
        ended: why it ended before all were asked; empty: it did not.
        status: the exit status for that; 0: it did not.

    """

    native: Server
    coordinator: Server
    model: str
    results: list[Result] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    planned: int = 0
    ended: str = ""
    status: int = 0

    def verdicts(self, kind: str | None = None) -> Counter[Verdict]:
        """How many requests of this kind, or of all, are what."""
        return Counter(result.verdict for result in self.results if kind in (None, result.case.kind))

    @property
    def kinds(self) -> list[str]:
        """In the order they were asked."""
        return list(dict.fromkeys(result.case.kind for result in self.results))

    @property
    def judged(self) -> list[tuple[Case, Judged]]:
        """Every difference with its request."""
        return [(result.case, judged) for result in self.results for judged in result.found]

    def fields(self, *, accepted: bool) -> Counter[str]:
        """How many differences there are by field."""
        return Counter(judged.field for _, judged in self.judged if (judged.accepted is not None) == accepted)

    def uses(self) -> Counter[str]:
        """How many differences each entry of the list has accepted."""
        return Counter(judged.accepted.name for _, judged in self.judged if judged.accepted is not None)

    @property
    def good(self) -> bool:
        """Were there requests, all of them asked, and no difference that is not accepted?"""
        return bool(self.results) and not self.ended and not self.verdicts()["different"]
