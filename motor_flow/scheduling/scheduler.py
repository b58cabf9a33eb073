"""Which instance gets the next leg?

Candidates of a role are sorted into tiers, and the policy chooses within the first tier that holds any:

| tier | breaker closed | avoided by this request | already tried by it |
|---|---|---|---|
| 1 | yes | no | no |
| 2 | yes | no | yes |
| 3 | no | no | |
| 4 | yes | yes | |
| 5 | no | yes | |

An open breaker means no work while a healthy instance is left that has not failed this very request. When none is,
asking is better than refusing: what is known of an open one is old, and it may be back.

Source: RFC Router、Scheduler 和 KV Conductor; contract section 7 (Excluded instances).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from machines.context import Route
from motor_flow.config.sections import Role
from motor_flow.errors import NoTokenEngine, ScheduleError
from motor_flow.scheduling.policy import RoundRobin
from motor_flow.scheduling.registry import Instance, Registry


@dataclass(frozen=True, slots=True)
class Experience:
    """What one prompt has been through.

    Attributes:
        tried: ids of instances that have had an attempt.
        avoid: ids of those that should have no more.

    """

    tried: Collection[int] = field(default=())
    avoid: Collection[int] = field(default=())


class Scheduler:
    """All instances, and the policy between them.

    Args:
        registry: instances.
        policy: between equals.

    """

    def __init__(self, registry: Registry, policy: RoundRobin) -> None:
        self._registry = registry
        self._policy = policy

    def place(self, role: Role, route: Route, experience: Experience) -> Instance:
        """The instance for one leg.

        Raises:
            ScheduleError: there is none of this role.
            NoTokenEngine: those that are there are known to have no token-only route.

        """
        tiers = self._tiers(role, route, experience)
        return self._policy.choose(role, next(tier for tier in tiers if tier))

    def has_fresh(self, role: Role, route: Route, experience: Experience) -> bool:
        """A healthy instance is left that this prompt has not tried."""
        try:
            return bool(self._tiers(role, route, experience)[0])
        except ScheduleError:
            return False

    def _tiers(self, role: Role, route: Route, experience: Experience) -> list[list[Instance]]:
        tiers: list[list[Instance]] = [[], [], [], [], []]
        for instance in self._candidates(role, route):
            closed, avoided = instance.breaker.closed, instance.id in experience.avoid
            if not closed:
                tier = 4 if avoided else 2
            elif avoided:
                tier = 3
            else:
                tier = 1 if instance.id in experience.tried else 0
            tiers[tier].append(instance)
        return tiers

    def _candidates(self, role: Role, route: Route) -> list[Instance]:
        there = self._registry.of_role(role)
        if not there:
            names = ", ".join(instance.name for instance in self._registry) or "none"
            raise ScheduleError(
                "no engine instance can serve this request", retry_after_s=1, detail=f"registered instances: {names}"
            )
        if route == "native":
            return there
        able = [instance for instance in there if instance.token_only]
        if not able:
            raise NoTokenEngine("no engine instance offers the token-only route that this request needs")
        return able
