"""Which sidecars answer, and what may be asked of them?

A sidecar is probed fully when it is first seen and whenever it comes back or has become another version; between that
one GET tells that it is there. What may be asked is what all of them can do, because each call may go to any of them.
A sidecar that went away is not forgotten: it comes back able to do as much, or is probed again.

Source: contract section 7 (Probe); RFC 故障处理 (findings concern new requests only).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import trio

from motor_flow.net.asking import ask_version
from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import TransportFault
from motor_flow.net.sidecars import Sidecar
from motor_flow.render.capability import Capability, combined
from motor_flow.render.probe import Unclear, probe_sidecar


@dataclass(slots=True, eq=False)
class Watched:
    """One sidecar.

    Attributes:
        sidecar: the one that calls go to.
        capability: as last probed; None: never seen.
        settled: the last probe found everything out.
        there: it answered when it was last asked.
        trouble: why it did not.

    """

    url: str
    http: HttpClient
    sidecar: Sidecar
    capability: Capability | None = None
    settled: bool = False
    there: bool | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Sighting:
    """Something about a sidecar has changed."""

    sidecar: Watched
    what: Literal["found", "lost"]


class Watch:
    """All sidecars.

    Args:
        sidecars: where.
        initial: what is assumed until one was seen; its switches stay.

    """

    def __init__(self, sidecars: Sequence[Watched], initial: Capability) -> None:
        self._sidecars = list(sidecars)
        self._initial = initial
        self.capability = initial

    async def look(self) -> list[Sighting]:
        """Ask all of them, at once."""
        sightings: list[Sighting] = []

        async def one(sidecar: Watched) -> None:
            sighting = await _look_at(sidecar)
            if sighting is not None:
                sightings.append(sighting)

        async with trio.open_nursery() as nursery:
            for sidecar in self._sidecars:
                nursery.start_soon(one, sidecar)
        found = [sidecar.capability for sidecar in self._sidecars if sidecar.capability is not None]
        if found:
            initial = self._initial
            self.capability = replace(combined(found), enabled=initial.enabled, streaming=initial.streaming)
        return sightings


async def _look_at(sidecar: Watched) -> Sighting | None:
    known = sidecar.capability
    if known is not None and sidecar.there and sidecar.settled:
        try:
            if await ask_version(sidecar.http, sidecar.url) == known.version:
                return None
        except TransportFault as fault:
            return _lost(sidecar, fault)
    try:
        sidecar.capability = await probe_sidecar(sidecar.http, sidecar.url)
        sidecar.settled = True
    except TransportFault as fault:
        return _lost(sidecar, fault)
    except Unclear as unclear:
        # What was known stays known; a new one is judged by its version until it can be asked.
        sidecar.settled, sidecar.trouble = False, str(unclear)
        sidecar.capability = known or unclear.guess
        if sidecar.there:
            return None
    sidecar.there, sidecar.sidecar.lost = True, False
    return Sighting(sidecar, "found")


def _lost(sidecar: Watched, fault: TransportFault) -> Sighting | None:
    was_there, sidecar.there, sidecar.trouble = sidecar.there, False, str(fault)
    sidecar.sidecar.lost = True
    return None if was_there is False else Sighting(sidecar, "lost")
