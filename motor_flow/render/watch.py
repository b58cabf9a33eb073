"""Which sidecars are watched, and what may be asked of them?

What may be asked is what all of them can do, because each call may go to any of them. A sidecar that went away is not
forgotten: it comes back able to do as much, or is probed again. `machines.sidecar` decides when it is asked what.

Source: contract section 7 (Probe); RFC 故障处理 (findings concern new requests only).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import trio

from motor_flow.net.http import HttpClient
from motor_flow.net.sidecars import Sidecar
from motor_flow.render.capability import Capability, combined


@dataclass(slots=True, eq=False)
class Watched:
    """One sidecar.

    Attributes:
        sidecar: the one that calls go to.
        capability: as last probed; None: never seen.
        settled: the last probe found everything out.
        asked: it was asked once, whatever came of it.

    """

    url: str
    http: HttpClient
    sidecar: Sidecar
    capability: Capability | None = None
    settled: bool = False
    asked: trio.Event = field(default_factory=trio.Event)

    @property
    def there(self) -> bool:
        """It answered when it was last asked."""
        return self.asked.is_set() and not self.sidecar.lost


class Watch:
    """All sidecars.

    Args:
        sidecars: where.
        initial: what is assumed until one was seen; its switches stay.

    """

    def __init__(self, sidecars: Sequence[Watched], initial: Capability) -> None:
        self.sidecars = list(sidecars)
        self._initial = initial

    @property
    def capability(self) -> Capability:
        """What may be asked of any of them."""
        found = [sidecar.capability for sidecar in self.sidecars if sidecar.capability is not None]
        if not found:
            return self._initial
        return replace(combined(found), enabled=self._initial.enabled, streaming=self._initial.streaming)
