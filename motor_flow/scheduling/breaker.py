"""Has an instance failed so often that it should be left alone?

The facts behind `machines.instance`: requests report here, the machine decides, and the scheduler reads its state.

Source: contract section 7 (Breaker).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from motor_flow.bell import Bell


class Running(Protocol):
    """The machine that decides."""

    @property
    def state(self) -> str: ...


@dataclass(slots=True, eq=False)
class Breaker:
    """One instance's.

    Attributes:
        threshold: consecutive failures that open it (circuit_breaker_config.failure_threshold).
        open_s: how long, the first time (open_seconds); doubles with every opening in a row.
        open_s_max: at most (open_seconds_max).
        failures: consecutive, of different requests.
        openings: in a row.
        reported: rung when a failure was counted.
        machine: None until the process has started.

    """

    threshold: int = 3
    open_s: float = 30.0
    open_s_max: float = 300.0
    failures: int = 0
    openings: int = 0
    reported: Bell = field(default_factory=Bell)
    machine: Running | None = None

    @property
    def state(self) -> str:
        return self.machine.state if self.machine is not None else "available"

    @property
    def closed(self) -> bool:
        """The instance may be given work."""
        return self.state == "available"

    @property
    def pause_s(self) -> float:
        """How long the present opening lasts."""
        return min(self.open_s * 2.0 ** min(self.openings - 1, 30), self.open_s_max)

    # --- requests report ---

    def failed(self) -> None:
        """One request could not be served there."""
        self.failures += 1
        self.reported.ring()

    def succeeded(self) -> None:
        """One request was; news from before the opening is no news."""
        if self.closed:
            self.failures = self.openings = 0

    # --- the machine's actions ---

    def grow(self) -> None:
        """It opens."""
        self.openings += 1
        self.failures = 0

    def put_on_trial(self) -> None:
        """It closes; the next failure opens it again."""
        self.failures = self.threshold - 1
