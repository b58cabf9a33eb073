"""Which topologies could serve an attempt right now?

Chosen for each attempt from what is alive: a pair while prefill and decode instances fit together and are well, else
one instance alone. Clusters in which prefill and decode instances follow different protocols are refused: a guess
would strand KV.

Source: MindIE Motor's selection and degradation order; contract section 2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from machines.topology import Alive, Choice, Profile, Role, choices
from motor_flow.errors import NoTokenEngine, NoTokenizer, ScheduleError
from motor_flow.scheduling.registry import Instance, Wanted, mixed


def pick(
    instances: Iterable[Instance],
    wanted: Wanted,
    avoid: Collection[int],
    *,
    pairs: bool,
    hybrids: bool,
    callbacks: bool,
) -> Choice:
    """The best topology for one attempt.

    Args:
        instances: that may be given work.
        wanted: by the attempt.
        avoid: ids of instances that this prompt avoids.
        pairs: the request can be split.
        hybrids: prefill and decode instances may serve alone.
        callbacks: decode engines can call back (Trigger).

    Raises:
        ScheduleError: nothing can serve it, with the reason.
        NoTokenEngine, NoTokenizer: nothing that is there can do what is wanted.

    """
    there = list(instances)
    able = [each for each in there if each.offers(wanted)]
    if there and not able:
        raise lacking(there, wanted)

    def best_of(some: list[Instance]) -> Choice | None:
        fit = [each for each in some if each.breaker.closed and each.id not in avoid]
        profile = _profile(some, callbacks=callbacks)
        alive = Alive(
            fit=_roles(paired(fit, profile)),
            usable=_roles(paired(some, profile)),
            fit_alone=_roles(each for each in fit if each.alone),
            usable_alone=_roles(each for each in some if each.alone),
            profile=profile,
        )
        return next(choices(alive, pairs=pairs, hybrids=hybrids), None)

    best = best_of(able)
    if best is None and len(able) < len(there) and best_of(there) is not None:
        raise lacking(there, wanted)
    if best is None:
        names = ", ".join(each.name for each in there) or "none"
        raise ScheduleError(
            f"no engine instance can serve this request: {_why_none(there, pairs=pairs, hybrids=hybrids)}",
            retry_after_s=1,
            detail=f"available instances: {names}",
        )
    return best


def lacking(there: Iterable[Instance], wanted: Wanted) -> ScheduleError:
    """What is there, but cannot do what is wanted."""
    some = list(there)
    if wanted.route == "token_only" and not (wanted.tokenizer and all(each.tokenizer is False for each in some)):
        return NoTokenEngine("no engine instance offers the token-only route that this request needs")
    return NoTokenizer("no engine instance that could serve this request has a tokenizer (--tokens-only)")


def _why_none(there: list[Instance], *, pairs: bool, hybrids: bool) -> str:
    """For people."""
    if not there:
        return "none is registered, or all of them are paused"
    if hybrids:
        return "none of the decode instances can serve alone, and there is no prefill instance for them"
    off = "enable_pd_separation_fallback_to_hybrid is off"
    if pairs:
        return f"no prefill and decode instances fit together, and {off}"
    reasons = "n > 1, over the engine's own API, or a list streamed by trigger"
    return f"it cannot be split between prefill and decode ({reasons}), and {off}"


def paired(instances: Iterable[Instance], profile: Profile | None) -> list[Instance]:
    """Those that have a partner among them."""
    members = [each for each in instances if each.role != "union" and each.profile == profile]
    return [each for each in members if any(each.fits(other) for other in members)]


def _roles(instances: Iterable[Instance]) -> frozenset[Role]:
    return frozenset(instance.role for instance in instances)


def _profile(instances: Collection[Instance], *, callbacks: bool) -> Profile | None:
    """How prefill and decode instances work together; None: they do not, or nobody said how.

    Raises:
        ScheduleError: they follow different protocols.

    """
    found: dict[Role, set[Profile]] = {"union": set(), "prefill": set(), "decode": set()}
    for instance in instances:
        if instance.role != "union" and instance.profile is not None:
            found[instance.role].add(instance.profile)
    profiles = found["prefill"] | found["decode"]
    if (several := mixed(instances)) is not None:
        raise ScheduleError(several)
    profile = next(iter(profiles), None)
    if profile not in found["prefill"] or profile not in found["decode"]:
        return None
    return profile if profile == "handoff" or callbacks else None
