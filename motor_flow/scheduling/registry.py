"""Which engine instances are there?

One map from id to instance, filled from the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from motor_flow.config import InstanceSection
from motor_flow.config.sections import BreakerSection, Role
from motor_flow.net.http import origin_of
from motor_flow.net.stream import Origin
from motor_flow.scheduling.breaker import Breaker


@dataclass(slots=True, eq=False)
class Instance:
    """One engine.

    Attributes:
        url: base URL without a trailing slash.
        requests: engine requests of ours that are in flight there.
        token_only: it has the token-only route, or has not been found to lack it.

    """

    id: int
    role: Role
    url: str
    origin: Origin
    requests: int = 0
    token_only: bool = True
    breaker: Breaker = field(default_factory=Breaker)

    @property
    def name(self) -> str:
        return f"{self.role}-{self.id}"

    @classmethod
    def of(cls, section: InstanceSection, breaker: BreakerSection) -> Instance:
        """From its configuration.

        Raises:
            ValueError: the URL is none.

        """
        return cls(
            section.id,
            section.role,
            section.url.rstrip("/"),
            origin_of(section.url),
            breaker=Breaker(breaker.failure_threshold, breaker.open_seconds, breaker.open_seconds_max),
        )


class Registry:
    """All instances, in the order in which they were registered."""

    def __init__(self, instances: Iterable[Instance] = ()) -> None:
        self._instances = {instance.id: instance for instance in instances}

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._instances.values())

    def of_role(self, role: Role) -> list[Instance]:
        return [instance for instance in self._instances.values() if instance.role == role]

    @property
    def schedulable(self) -> bool:
        """Something could serve a request."""
        return bool(self.of_role("union"))
