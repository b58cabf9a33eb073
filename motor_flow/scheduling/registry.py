"""Which engine instances are there, and which of them may be given work?

One map from id to instance. An instance's standing is a word on the instance itself, so it cannot be in two pools:

```
   add, set ──► available ◄──pause / resume──► paused
                    │                            │
                    └──────────┬─────────────────┘
        other content          │          del, or missing from set
    leaving: no new work,  ◄───┴───►  removed: no new work,
    calls in flight go on             calls in flight end as faults of their engine, and are relayed
```

`set` and `add` compare content: what is the same stays as it is, with its breaker, its load and its pause. Everything
here is synchronous, so a change is seen whole or not at all.

Several data-parallel endpoints of one of Motor's instances are a group of instances here, each with its own load and
breaker. The id of rank r in group g is g + r * 2^32: it depends on nothing else, so that one endpoint may come or go
without renaming another, and rank 0 has the id that its operator knows.

Source: contract section 4; MindIE Motor's instances.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from machines.context import Route
from machines.faults import Fault
from motor_flow.config import InstanceSection
from motor_flow.config.sections import INSTANCE_ID_MAX, BreakerSection, Profile, Role
from motor_flow.errors import EngineError
from motor_flow.net.http import origin_of
from motor_flow.net.stream import Origin
from motor_flow.scheduling.breaker import Breaker
from motor_flow.scheduling.departure import Departure
from motor_flow.scheduling.profiles import profile_of

Standing = Literal["available", "paused", "leaving", "removed"]
RANK_STRIDE = INSTANCE_ID_MAX + 1


class Wanted(NamedTuple):
    """What an attempt asks of its engines.

    Attributes:
        route: of the attempt.
        tokenizer: an engine without one (`--tokens-only`) cannot do it: OpenAI's API, structured outputs, bad words.

    """

    route: Route
    tokenizer: bool


NATIVE = Wanted("native", tokenizer=True)


@dataclass(slots=True, eq=False)
class Instance:
    """One engine that can be asked.

    Attributes:
        id: of this engine; see above.
        url: base URL without a trailing slash.
        profile: how it works in a pair of prefill and decode; None: not at all.
        kv_connector: vLLM's connector that moves its KV, if it is known.
        kv_lease_s: how long a prefill engine keeps KV for a decode engine.
        engine_type: Motor's; only equal ones make a pair. Empty: not said.
        dp_rank: of a data-parallel group.
        requests: engine requests of ours that are in flight there.
        load_tokens: work of ours that is not done there; moved by `load.Charge` alone.
        token_only: it has the token-only route, or has not been found to lack it.
        tokenizer: it has one, and can do what `Wanted.tokenizer` says; None: nobody has asked it yet.
        left: announced when it will get no new work any more.
        removed: announced when whatever runs there must end.

    """

    id: int
    role: Role
    url: str
    origin: Origin
    requests: int = 0
    load_tokens: int = 0
    token_only: bool = True
    tokenizer: bool | None = None
    breaker: Breaker = field(default_factory=Breaker)
    profile: Profile | None = None
    kv_connector: str = ""
    kv_lease_s: float = 30.0
    engine_type: str = ""
    model: str = ""
    dp_rank: int = 0
    standing: Standing = "available"
    left: Departure = field(default_factory=Departure)
    removed: Departure = field(default_factory=Departure)

    @property
    def group(self) -> int:
        """The id that its operator knows."""
        return self.id - self.dp_rank * RANK_STRIDE

    @property
    def name(self) -> str:
        rank = f".{self.dp_rank}" if self.dp_rank else ""
        return f"{self.role}-{self.group}{rank}"

    @property
    def alone(self) -> bool:
        """It can serve without a partner; a decode engine, if its connector leaves plain requests alone."""
        return self.role != "decode" or profile_of(None, self.kv_connector) is not None

    def offers(self, wanted: Wanted) -> bool:
        """It can do this, or has not been found unable."""
        if wanted.tokenizer and self.tokenizer is False:
            return False
        return wanted.route == "native" or self.token_only

    def fits(self, other: Instance) -> bool:
        """They can be the two legs of one attempt."""
        types = {self.engine_type, other.engine_type} - {""}
        return self.role != other.role and self.profile == other.profile and len(types) < 2

    @property
    def state(self) -> str:
        """For people: available, opened, probing, paused or draining."""
        if self.standing == "paused":
            return "paused"
        return self.breaker.state if self.standing == "available" else "draining"

    @property
    def content(self) -> tuple[object, ...]:
        """What makes it the same engine."""
        return (self.role, self.url, self.profile, self.kv_connector, self.kv_lease_s, self.engine_type, self.model)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """One engine request of ours is in flight there, for the length of the block.

        Entered and left by one task, in order, so a cancel scope around the block is sound here.

        Raises:
            EngineError: the instance was removed meanwhile.

        """
        scope = self.removed.scope()
        self.requests += 1
        try:
            with scope:
                yield
        finally:
            self.requests -= 1
        if scope.cancelled_caught:
            raise EngineError("the engine instance was removed", fault=Fault.REMOVED)

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
            breaker=new_breaker(breaker),
            profile=profile_of(section.dispatch_profile, section.kv_connector),
            kv_connector=section.kv_connector,
            kv_lease_s=section.kv_lease_s,
        )


def new_breaker(section: BreakerSection) -> Breaker:
    """As it is configured."""
    return Breaker(section.failure_threshold, section.open_seconds, section.open_seconds_max)


def mixed(instances: Iterable[Instance]) -> str | None:
    """Why nothing can be served: prefill and decode instances of several protocols; None: they have one, or none."""
    profiles: dict[str, list[str]] = {}
    for each in instances:
        if each.role != "union" and each.profile is not None:
            profiles.setdefault(each.profile, []).append(each.name)
    if len(profiles) < 2:
        return None
    listed = " and ".join(f"{profile} ({', '.join(names)})" for profile, names in sorted(profiles.items()))
    return (
        f"instances of {listed} are registered side by side: which one this cluster is cannot be guessed; give all "
        "prefill and decode instances one dispatch_profile"
    )


class Changes(NamedTuple):
    """What one operation has done.

    Attributes:
        arrived: new, or with new content.
        leaving: replaced; their requests go on.
        removed: their requests are relayed.

    """

    arrived: list[Instance]
    leaving: list[Instance]
    removed: list[Instance]


class Registry:
    """All instances, in the order in which they were registered."""

    def __init__(self, instances: Iterable[Instance] = ()) -> None:
        self._instances = {instance.id: instance for instance in instances}
        self._leaving: list[Instance] = []
        self._listeners: list[Callable[[Instance], None]] = []

    def __iter__(self) -> Iterator[Instance]:
        """Registered ones, paused ones too; a snapshot."""
        return iter(list(self._instances.values()))

    def __len__(self) -> int:
        return len(self._instances)

    @property
    def leaving(self) -> list[Instance]:
        """Replaced ones whose requests still go on."""
        self._leaving = [instance for instance in self._leaving if instance.requests]
        return list(self._leaving)

    def of_role(self, role: Role) -> list[Instance]:
        """Those that may be given work, whatever their breakers say."""
        return [i for i in self._instances.values() if i.role == role and i.standing == "available"]

    @property
    def schedulable(self) -> bool:
        """Something could serve a request."""
        there = [i for i in self._instances.values() if i.standing == "available"]
        if mixed(there) is not None:
            return False
        return any(i.alone for i in there) or {"prefill", "decode"} <= {i.role for i in there}

    def missing(self, groups: Iterable[int]) -> list[int]:
        """Those of `groups` that are not registered."""
        known = {instance.group for instance in self._instances.values()}
        return [group for group in groups if group not in known]

    @contextmanager
    def announced_to(self, tell: Callable[[Instance], None]) -> Iterator[None]:
        """Arrivals are told there, for the length of the block. Departures are told by the instances themselves."""
        self._listeners.append(tell)
        try:
            yield
        finally:
            self._listeners.remove(tell)

    # --- changes ---

    def add(self, instances: Iterable[Instance]) -> Changes:
        """Register these. A group that is there already is changed to what it is said to be now."""
        changes = Changes([], [], [])
        groups: dict[int, list[Instance]] = {}
        for instance in instances:
            groups.setdefault(instance.group, []).append(instance)
        for group, members in groups.items():
            self._change(group, members, changes)
        for instance in changes.arrived:
            for tell in self._listeners:
                tell(instance)
        return changes

    def set_all(self, instances: Collection[Instance]) -> Changes:
        """These are all there are."""
        stated = {instance.group for instance in instances}
        gone = {instance.group for instance in (*self._instances.values(), *self.leaving)} - stated
        changes = self.delete(gone)
        arrived, leaving, _ = self.add(instances)
        return Changes(arrived, leaving, changes.removed)

    def delete(self, groups: Collection[int]) -> Changes:
        """Remove these, and what still leaves under their ids. One that is not there is gone already."""
        removed = [i for i in (*self._instances.values(), *self.leaving) if i.group in groups]
        for instance in removed:
            if self._instances.get(instance.id) is instance:
                del self._instances[instance.id]
            instance.standing = "removed"
            instance.left.announce("removed")
            instance.removed.announce("removed")
        self._leaving = [instance for instance in self._leaving if instance.standing == "leaving"]
        return Changes([], [], removed)

    def pause(self, groups: Collection[int]) -> None:
        """No new work for these, until they are resumed or deleted."""
        self._stand("paused", groups)

    def resume(self, groups: Collection[int]) -> None:
        self._stand("available", groups)

    def _stand(self, standing: Standing, groups: Collection[int]) -> None:
        for instance in self._instances.values():
            if instance.group in groups:
                instance.standing = standing

    def _change(self, group: int, members: list[Instance], changes: Changes) -> None:
        before = {instance.id: instance for instance in self._instances.values() if instance.group == group}
        paused = any(instance.standing == "paused" for instance in before.values())
        for member in members:
            old = before.get(member.id)
            if old is not None and old.content == member.content:
                del before[member.id]
                continue
            member.standing = "paused" if paused else "available"
            self._instances[member.id] = member
            changes.arrived.append(member)
        for old in before.values():
            if self._instances[old.id] is old:
                del self._instances[old.id]
            old.standing = "leaving"
            old.left.announce("replaced")
            self._leaving.append(old)
            changes.leaving.append(old)
