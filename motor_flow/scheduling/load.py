"""How much work has an instance been given that is not done yet, in tokens?

A leg is charged once, when it is placed, and its charge is given back once: by whoever closes it first (a prefill leg
that has handed over, or the end of its attempt). The charge belongs to the instance it was made for, also when another
one has taken that instance's id since.

Source: MindIE Motor's workload ledger (there with two counters and a byte heuristic; here tokens are known).
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from motor_flow.telemetry.log import get_logger

_log = get_logger()


class Loaded(Protocol):
    """What can be charged."""

    load_tokens: int

    @property
    def name(self) -> str: ...


class Charge:
    """Work given to one instance. Closing it twice gives it back once."""

    __slots__ = ("_instance", "_tokens")

    def __init__(self, instance: Loaded, tokens: int) -> None:
        self._instance = instance
        self._tokens = tokens
        instance.load_tokens += tokens

    @property
    def tokens(self) -> int:
        """What is still charged."""
        return self._tokens

    def close(self) -> None:
        """Give it back."""
        tokens, self._tokens = self._tokens, 0
        left = self._instance.load_tokens - tokens
        if left < 0:  # it would be the cheapest instance from now on, and get everything
            _log.error("bug", reason="more load was given back than was charged", instance=self._instance.name)
            left = 0
        self._instance.load_tokens = left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
