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

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from machines.topology import Choice, Profile
from motor_flow.config.sections import Role
from motor_flow.errors import ScheduleError
from motor_flow.scheduling.callbacks import Callbacks
from motor_flow.scheduling.load import Charge
from motor_flow.scheduling.pairing import lacking, paired, pick
from motor_flow.scheduling.policy import Chain, Demand
from motor_flow.scheduling.registry import Instance, Registry, Wanted


@dataclass(frozen=True, slots=True)
class Experience:
    """What one prompt has been through.

    Attributes:
        tried: ids of instances that have had an attempt.
        avoid: ids of those that should have no more.

    """

    tried: Collection[int] = field(default=())
    avoid: Collection[int] = field(default=())


class Placement(NamedTuple):
    """Where a leg goes.

    Attributes:
        instance: there.
        reason: the route receipt, for people: instance, policy, what it went by, tier and number of candidates.
        charge: the leg's load; whoever takes the placement closes it.

    """

    instance: Instance
    reason: str
    charge: Charge


class Scheduler:
    """All instances, and the policy between them.

    Args:
        registry: instances.
        policy: between equals.
        callbacks: whether decode engines can call back decides whether Trigger can be used.
        hybrids: prefill and decode instances may serve alone (enable_pd_separation_fallback_to_hybrid).

    """

    def __init__(self, registry: Registry, policy: Chain, callbacks: Callbacks, *, hybrids: bool = True) -> None:
        self._registry = registry
        self._policy = policy
        self._callbacks = callbacks
        self._hybrids = hybrids

    def of_role(self, role: Role) -> list[Instance]:
        """Instances that may be given work."""
        return self._registry.of_role(role)

    def place(
        self,
        role: Role,
        wanted: Wanted,
        experience: Experience,
        demand: Demand,
        *,
        pair: Profile | None = None,
        partner: Instance | None = None,
    ) -> Placement:
        """Choose the instance for one leg and charge it, with nothing in between.

        Args:
            role: of the instance.
            wanted: by the attempt.
            experience: of the prompt.
            demand: of the prompt.
            partner: the instance of the other leg, if it has one already.
            pair: the protocol between the two legs; None: this leg does all of it, whatever the instance's role.

        Raises:
            ScheduleError: there is none of this role.
            NoTokenEngine, NoTokenizer: those that are there are known to be unable.

        """
        tiers = self._tiers(self._candidates(role, wanted, pair, partner), experience)
        number, candidates = next((number, tier) for number, tier in enumerate(tiers, 1) if tier)
        instance, why = self._policy.choose(role, candidates, demand)
        reason = f"{instance.name} {why} tier={number} candidates={len(candidates)}"
        return Placement(instance, reason, Charge(instance, demand.of("union" if pair is None else role)))

    def choose(self, wanted: Wanted, experience: Experience, *, pairs: bool) -> Choice:
        """The topology for one attempt.

        Args:
            wanted: by the attempt.
            experience: of the prompt.
            pairs: the request can be split into prefill and decode.

        Raises:
            ScheduleError: nothing can serve it.
            NoTokenEngine, NoTokenizer: those that are there are known to be unable.

        """
        return pick(
            [instance for instance in self._registry if instance.standing == "available"],
            wanted,
            experience.avoid,
            pairs=pairs,
            hybrids=self._hybrids,
            callbacks=bool(self._callbacks.url),
        )

    @property
    def pauses_tokenizer(self) -> bool:
        """An instance with a tokenizer is there, but paused."""
        return any(each.tokenizer is not False and each.standing == "paused" for each in self._registry)

    def serves(self, wanted: Wanted) -> bool:
        """Something that is there may serve such an attempt, without a partner if need be."""
        try:
            self.choose(wanted, Experience(), pairs=False)
        except ScheduleError:
            return False
        return True

    def has_fresh(self, wanted: Wanted, experience: Experience, *, pairs: bool) -> bool:
        """For each leg of the next attempt, a healthy instance is left that has not failed this prompt.

        Args:
            wanted: by the attempt.
            experience: of the prompt; `tried` are those that have failed it.
            pairs: the request can be split into prefill and decode.

        """
        try:
            topology, role = self.choose(wanted, experience, pairs=pairs)
            roles = [role] if topology.second is None else [role, topology.second]
            return all(self._tiers(self._candidates(each, wanted, topology.profile), experience)[0] for each in roles)
        except ScheduleError:
            return False

    @staticmethod
    def _tiers(candidates: Iterable[Instance], experience: Experience) -> list[list[Instance]]:
        tiers: list[list[Instance]] = [[], [], [], [], []]
        for instance in candidates:
            closed, avoided = instance.breaker.closed, instance.id in experience.avoid
            if not closed:
                tier = 4 if avoided else 2
            elif avoided:
                tier = 3
            else:
                tier = 1 if instance.id in experience.tried else 0
            tiers[tier].append(instance)
        return tiers

    def _candidates(
        self, role: Role, wanted: Wanted, pair: Profile | None, partner: Instance | None = None
    ) -> list[Instance]:
        there = self._registry.of_role(role)
        if pair is None:
            there = [each for each in there if each.alone]
        elif partner is None:
            available = [each for each in self._registry if each.standing == "available" and each.offers(wanted)]
            there = [each for each in paired(available, pair) if each.role == role]
        else:
            there = [each for each in there if each.fits(partner)]
        if not there:
            names = ", ".join(instance.name for instance in self._registry) or "none"
            raise ScheduleError(
                "no engine instance can serve this request", retry_after_s=1, detail=f"registered instances: {names}"
            )
        able = [instance for instance in there if instance.offers(wanted)]
        if not able:
            raise lacking(there, wanted)
        return able
