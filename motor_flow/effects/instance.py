"""What does an instance's circuit breaker do in each state of its machine?

Requests report failures to the instance's `Breaker`; here it is decided when that is too many, and when it is over.
Whatever a state waits for, it ends when the instance has left the registry.

Source: contract section 7 (Breaker).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import trio

from machines import INSTANCE
from motor_flow.engine.probe import ask_health
from motor_flow.flow import Effects
from motor_flow.net.http import HttpClient
from motor_flow.scheduling.registry import Instance
from motor_flow.telemetry.log import get_logger

_log = get_logger()


@dataclass(slots=True, eq=False)
class InstanceRun:
    """One instance, and how to ask it."""

    instance: Instance
    http: HttpClient

    def grow(self) -> None:
        self.instance.breaker.grow()

    def put_on_trial(self) -> None:
        self.instance.breaker.put_on_trial()


instance_effects: Effects[InstanceRun] = Effects(INSTANCE)


@instance_effects.on("available")
async def count_failures(run: InstanceRun) -> Literal["tripped", "retire"]:
    """Until there are too many in a row."""
    breaker = run.instance.breaker
    with run.instance.left.scope():
        while breaker.failures < breaker.threshold:
            await breaker.reported.wait()
        return "tripped"
    return "retire"


@instance_effects.on("opened")
async def keep_away(run: InstanceRun) -> Literal["due", "retire"]:
    """No work for a time."""
    breaker = run.instance.breaker
    _log.warning("breaker.open", instance=run.instance.name, openings=breaker.openings, seconds=breaker.pause_s)
    with run.instance.left.scope():
        await trio.sleep(breaker.pause_s)
        return "due"
    return "retire"


@instance_effects.on("probing")
async def probe(run: InstanceRun) -> Literal["recovered", "relapsed", "retire"]:
    """Does it live? Whether it works, the next request will tell."""
    with run.instance.left.scope():
        complaint = await ask_health(run.http, run.instance.url)
        if complaint is not None:
            _log.warning("breaker.relapsed", instance=run.instance.name, detail=complaint)
            return "relapsed"
        _log.info("breaker.closed", instance=run.instance.name)
        return "recovered"
    return "retire"


instance_effects.seal()
