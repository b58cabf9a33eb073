"""What about these instances would an operator want to know, because requests are served worse for it, or not at all?

One line each, with the names of the instances: told at the start, by `check`, and in the answer of a refresh.

Source: contract section 2 (instances); MindIE Motor's selection and degradation order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from motor_flow.scheduling.profiles import CONNECTORS
from motor_flow.scheduling.registry import Instance, mixed


def misfits(instances: Sequence[Instance], *, callbacks: bool) -> list[str]:
    """What does not fit.

    Args:
        instances: all that are registered.
        callbacks: decode engines can call back (Trigger).

    """
    several = mixed(instances)
    lines = [f"every request gets 503: {several}"] if several is not None else []
    for each in instances:
        if each.role != "union" and each.profile is None:
            lines.append(f"{each.name} takes part in no pair of prefill and decode: {_why(each)}")
        elif several is None and each.role != "union" and not any(each.fits(other) for other in instances):
            lines.append(f"{each.name} ({each.profile}) has no partner of the other role")
    if not callbacks and any(each.profile == "trigger" for each in instances):
        lines.append("no pair works by trigger: decode engines cannot call back, see metaserver_config and trigger_off")
    return lines + _same_address(instances)


def _why(instance: Instance) -> str:
    known = ", ".join(sorted(CONNECTORS))
    if instance.kv_connector:
        return f"its kv_connector {instance.kv_connector!r} is none of {known}, and it has no dispatch_profile"
    return "it has neither dispatch_profile nor kv_connector"


def _same_address(instances: Iterable[Instance]) -> list[str]:
    at: dict[str, list[str]] = {}
    for each in instances:
        at.setdefault(each.url, []).append(each.name)
    return [
        f"{', '.join(names)} are one engine, {url}: its load and its failures are counted apart"
        for url, names in at.items()
        if len(names) > 1
    ]
