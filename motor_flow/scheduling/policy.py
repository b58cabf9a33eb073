"""Which of several instances that are equally fit serves the next leg?

Pure: candidates and demand in, one instance and the reason out. Each policy keeps those it likes best; what it leaves
equal goes to the next one, and so does everything when it has no opinion:

```
kv_cache_affinity ──► load_balance ──► round_robin
 least prefill        least load        longest not chosen
 and load             in tokens         for this role
```

`scheduler_config.scheduler_type` says where the chain begins. The first policy with an opinion is named in the reason.

Source: RFC Router、Scheduler 和 KV Conductor; MindIE Motor's policies and their fallback chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

Role = Literal["union", "prefill", "decode"]
SchedulerType = Literal["round_robin", "load_balance", "kv_cache_affinity"]

PREFILL_LOAD_SCALE = 1.0
OVERLAP_CREDIT = 1.0
LOAD_WEIGHT = 0.25  # load counts a whole output budget for as long as it runs; it delays a reader by far less
GATE_INSTANCES = 2
REMEMBERED_MAX = 4096


class Candidate(Protocol):
    """What a policy looks at."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def load_tokens(self) -> int: ...


C = TypeVar("C", bound=Candidate)


@dataclass(frozen=True, slots=True)
class Demand:
    """What one prompt asks of an instance, in tokens.

    Attributes:
        prompt: to be read, before any cache.
        output: that may still be written, in all choices.
        matched: by instance name, how many tokens of the prompt it has cached; None: not known.
        unknown: why it is not, where that was asked for.

    """

    prompt: int = 0
    output: int = 0
    matched: Mapping[str, int] | None = None
    unknown: str = ""

    def of(self, role: Role) -> int:
        """What weighs on an instance that plays this role: a prefill instance is done when the prompt is read."""
        return self.prompt if role == "prefill" else self.prompt + self.output


class Ranking(NamedTuple, Generic[C]):
    """A policy's opinion.

    Attributes:
        best: what it likes best, all of them equally.
        cost: what they would cost, in tokens; None: it does not count.

    """

    best: list[C]
    cost: float | None = None


class Policy(Protocol):
    """One link of the chain."""

    @property
    def name(self) -> str: ...

    def rank(self, role: Role, candidates: Sequence[C], demand: Demand) -> Ranking[C] | None:
        """The best of `candidates`, which are at least one; None: no opinion."""


class RoundRobin:
    """The one that was not chosen for this role for the longest time.

    By memory and not by counting, so that instances that come, go or are avoided do not skew it; and one memory for
    each role, so that one role's traffic does not skew another's.
    """

    name = "round_robin"

    def __init__(self) -> None:
        self._turn = 0
        self._chosen: dict[Role, dict[int, int]] = {}

    def rank(self, role: Role, candidates: Sequence[C], _: Demand) -> Ranking[C]:
        chosen = self._chosen.get(role, {})
        longest = min(candidates, key=lambda candidate: chosen.get(candidate.id, 0))
        return Ranking([longest])

    def remember(self, role: Role, instance: int) -> None:
        """It was chosen, by whichever policy. Forgetting the oldest changes nothing: it is next in any case."""
        chosen = self._chosen.setdefault(role, {})
        self._turn += 1
        chosen.pop(instance, None)
        chosen[instance] = self._turn
        if len(chosen) > REMEMBERED_MAX:
            del chosen[next(iter(chosen))]


class LoadBalance:
    """The least loaded."""

    name = "load_balance"

    def rank(self, _role: Role, candidates: Sequence[C], _: Demand) -> Ranking[C]:
        least = min(candidate.load_tokens for candidate in candidates)
        return Ranking([candidate for candidate in candidates if candidate.load_tokens == least])


@dataclass(frozen=True, slots=True)
class KvAffinity:
    """The cheapest, where the cost is what has to be read plus what is there to be done already.

    Only reading a prompt gains from a cache, so decode instances are not known to the conductor: they are left to the
    next policy.
    """

    prefill_load_scale: float = PREFILL_LOAD_SCALE
    overlap_credit: float = OVERLAP_CREDIT
    load_weight: float = LOAD_WEIGHT
    name: str = "kv_cache_affinity"

    def rank(self, role: Role, candidates: Sequence[C], demand: Demand) -> Ranking[C] | None:
        matched = demand.matched
        if matched is None or role == "decode":
            return None

        def cost(candidate: C) -> float:
            unread = max(0.0, demand.prompt - self.overlap_credit * matched.get(candidate.name, 0))
            return self.prefill_load_scale * unread + self.load_weight * candidate.load_tokens

        costs = [cost(candidate) for candidate in candidates]
        least = min(costs)
        return Ranking([c for c, each in zip(candidates, costs, strict=True) if each == least], least)


@dataclass(frozen=True, slots=True)
class GatedKvAffinity:
    """Motor's other mode: the longest cached prefix among the least loaded.

    Attributes:
        gate: how many of those; equals of the last one pass too.

    """

    gate: int = GATE_INSTANCES
    name: str = "kv_cache_affinity"

    def rank(self, role: Role, candidates: Sequence[C], demand: Demand) -> Ranking[C] | None:
        matched = demand.matched
        if matched is None or role == "decode":
            return None
        limit = sorted(candidate.load_tokens for candidate in candidates)[min(self.gate, len(candidates)) - 1]
        gated = [candidate for candidate in candidates if candidate.load_tokens <= limit]
        longest = max(matched.get(candidate.name, 0) for candidate in gated)
        best = [candidate for candidate in gated if matched.get(candidate.name, 0) == longest]
        return Ranking(best, float(demand.prompt - longest))


class Chain:
    """The policies in their order.

    Args:
        first: what the chain begins with, before load and turns; none: turns alone.

    """

    def __init__(self, *first: Policy) -> None:
        self._turns = RoundRobin()
        self._policies: tuple[Policy, ...] = (*first, self._turns)

    def choose(self, role: Role, candidates: Sequence[C], demand: Demand) -> tuple[C, str]:
        """One of `candidates`, which are at least one, and why: `load_balance load=120`."""
        left: Sequence[C] = candidates
        decisive, cost, silent = "", None, ""
        for policy in self._policies:
            ranking = policy.rank(role, left, demand)
            if ranking is None:
                why = "it knows no decode instances" if role == "decode" else demand.unknown
                silent = f" ({policy.name}: {why})"
                continue
            if not decisive:
                decisive, cost = policy.name, ranking.cost
            left = ranking.best
            if len(left) == 1:
                break
        (chosen,) = left
        self._turns.remember(role, chosen.id)
        words = [decisive, f"load={chosen.load_tokens}"]
        if demand.matched is not None:
            words.append(f"matched={demand.matched.get(chosen.name, 0)}")
        if cost is not None:
            words.append(f"cost={cost:g}")
        return chosen, " ".join(words) + silent


def policy_of(kind: SchedulerType) -> Chain:
    """The chain that a configuration asks for."""
    match kind:
        case "round_robin":
            return Chain()
        case "load_balance":
            return Chain(LoadBalance())
        case "kv_cache_affinity":
            return Chain(KvAffinity(), LoadBalance())
