"""Which legs does an attempt have, and in which order do they get their instances?

```
union     ── union ──────────────────────────► answer
handoff   ── prefill ── ticket ──► decode ───► answer     the Coordinator starts decode
trigger   ── decode ─────────────────────────► answer     the decode engine starts prefill, through a callback
               └─ callback ──► prefill
```

A topology is chosen for each attempt from what is alive; everything else (retry, relay, fan-out, cancellation) does not
know it.

Source: RFC Router、Scheduler 和 KV Conductor; MindIE Motor's coordination modes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Role = Literal["union", "prefill", "decode"]
Profile = Literal["handoff", "trigger"]


@dataclass(frozen=True, slots=True)
class Topology:
    """One way to run an attempt.

    Attributes:
        first: the role that is reserved when the attempt is placed.
        second: the role that is reserved by the first leg's progress; None: there is no second leg.
        answers: the role whose leg brings the answer.
        profile: the protocol between its legs.

    """

    name: Literal["union", "handoff", "trigger"]
    first: Role
    second: Role | None
    answers: Role
    profile: Profile | None = None

    def __str__(self) -> str:
        return self.name


UNION = Topology("union", first="union", second=None, answers="union")
HANDOFF = Topology("handoff", first="prefill", second="decode", answers="decode", profile="handoff")
TRIGGER = Topology("trigger", first="decode", second="prefill", answers="decode", profile="trigger")
PAIRS: dict[Profile, Topology] = {"handoff": HANDOFF, "trigger": TRIGGER}
LETTERS: dict[Role, str] = {"union": "u", "prefill": "p", "decode": "d"}
HYBRID_ORDER: tuple[Role, ...] = ("union", "prefill", "decode")
"""Who serves a plain request alone when there is no pair."""


@dataclass(frozen=True, slots=True)
class Alive:
    """What could serve an attempt, by how good it is for it.

    Attributes:
        fit: roles with a healthy instance that this prompt does not avoid.
        usable: roles with any instance.
        fit_alone, usable_alone: the same, of instances that can do all of it by themselves.
        profile: how prefill and decode instances work together; None: they do not.

    """

    fit: frozenset[Role]
    usable: frozenset[Role]
    fit_alone: frozenset[Role]
    usable_alone: frozenset[Role]
    profile: Profile | None


class Choice(NamedTuple):
    """A topology, and the role that takes the first leg (a hybrid one may run on any role)."""

    topology: Topology
    role: Role


def choices(alive: Alive, *, pairs: bool, hybrids: bool) -> Iterator[Choice]:
    """What may be tried, best first.

    Args:
        alive: what is there.
        pairs: the request can be split into prefill and decode.
        hybrids: prefill and decode instances may serve alone (enable_pd_separation_fallback_to_hybrid).

    """
    for there, alone in ((alive.fit, alive.fit_alone), (alive.usable, alive.usable_alone)):
        if pairs and alive.profile is not None and there >= {"prefill", "decode"}:
            topology = PAIRS[alive.profile]
            yield Choice(topology, topology.first)
        for role in HYBRID_ORDER if hybrids else HYBRID_ORDER[:1]:
            if role in alone:
                yield Choice(UNION, role)
