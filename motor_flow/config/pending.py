"""Which keys of the configuration are accepted but have no effect yet?

Each entry leaves this table with the feature that gives it its effect. An operator who sets one of them is told so.
"""

from __future__ import annotations

from collections.abc import Iterable

PENDING = ("inference_workers_config",)


def without_effect(given: Iterable[str]) -> list[str]:
    """The given keys that do nothing yet, sorted."""
    return sorted(key for key in given if any(key == entry or key.startswith(f"{entry}.") for entry in PENDING))
