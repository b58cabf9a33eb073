"""What does the watch over a Render sidecar do in each state of its machine?

A sidecar is probed fully when it is new, has come back or has changed; in between one GET tells that it is there: every
few seconds, and at once when a call to it has failed. While it does not answer, new requests do not wait for it.

Source: contract section 7 (Probe); RFC 故障处理.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import trio

from machines import SIDECAR
from motor_flow.flow import Effects
from motor_flow.net.asking import ask_models, ask_version
from motor_flow.net.http1 import TransportFault
from motor_flow.render.probe import Unclear, probe_sidecar
from motor_flow.render.watch import Watched
from motor_flow.telemetry.log import get_logger

WATCH_S = 5.0  # between two looks
DEGRADED_S = 5.0  # before a lost one is asked again
_log = get_logger()


@dataclass(slots=True, eq=False)
class SidecarRun:
    """One sidecar, and who wants to know.

    Attributes:
        learn: takes model cards.
        changed: called when its capability is another one.

    """

    watched: Watched
    learn: Callable[[Sequence[dict[str, Any]]], None]
    changed: Callable[[], None]


sidecar_effects: Effects[SidecarRun] = Effects(SIDECAR)


@sidecar_effects.on("probing")
async def probe(run: SidecarRun) -> Literal["found", "lost"]:
    """Ask for everything."""
    watched = run.watched
    known = watched.capability
    try:
        watched.capability = await probe_sidecar(watched.http, watched.url)
        watched.settled = True
    except TransportFault as fault:
        return _lost(watched, fault)
    except Unclear as unclear:
        # What was known stays known; a new one is judged by its version until it can be asked.
        watched.settled = False
        watched.capability = known or unclear.guess
        if not watched.there:
            _log.warning("sidecar.unclear", url=watched.url, detail=str(unclear))
    was_there, watched.sidecar.lost = watched.there, False
    if watched.capability != known or not was_there:
        run.changed()
        _tell(watched)
        run.learn(await ask_models(watched.http, watched.url))
    watched.asked.set()
    return "found"


def _tell(watched: Watched) -> None:
    capability = watched.capability
    assert capability is not None
    _log.info("sidecar.found", url=watched.url, version=capability.version)
    for missing in capability.missing:
        _log.warning("sidecar.missing", url=watched.url, version=capability.version, missing=missing)


@sidecar_effects.on("available")
async def watch(run: SidecarRun) -> Literal["changed", "lost"]:
    """Until it is not there, or not what it was."""
    watched = run.watched
    while True:
        with trio.move_on_after(WATCH_S):
            await watched.sidecar.suspected.wait()
        try:
            version = await ask_version(watched.http, watched.url)
        except TransportFault as fault:
            return _lost(watched, fault)
        if not watched.settled or watched.capability is None or version != watched.capability.version:
            return "changed"


def _lost(watched: Watched, fault: TransportFault) -> Literal["lost"]:
    if watched.there or not watched.asked.is_set():
        _log.warning("sidecar.unreachable", url=watched.url, detail=str(fault))
    watched.sidecar.lost = True
    watched.asked.set()
    return "lost"


@sidecar_effects.on("degraded")
async def leave_alone(_: SidecarRun) -> Literal["due"]:
    """For a short time."""
    await trio.sleep(DEGRADED_S)
    return "due"


sidecar_effects.seal()
