"""How is one world of a campaign played?

A Coordinator, a sidecar, three engines and a clean engine that nobody but the checks asks, on an in-memory network in
virtual time. All scenes run at once; an engine may die under them and come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import trio

from motor_flow.app import MACHINES, App
from motor_flow.config import load_embedded
from motor_flow.edge.limits import Limits
from motor_flow.edge.server import Server
from motor_flow.net.memory import MemoryNet
from motor_flow.net.stream import Origin
from motor_flow.sim.engine import Engine
from motor_flow.sim.sidecar import Sidecar
from motor_flow.sim.world import Cluster, merged
from motor_flow.views.campaign.checks import answer_problems, world_problems
from motor_flow.views.campaign.clients import Received, play
from motor_flow.views.campaign.scenes import Scene, scene

SCENES_PER_WORLD = 16
ENGINES = 3
COORDINATOR, CLEAN = Origin("coordinator", 80), Origin("clean", 80)
CONFIG: dict[str, Any] = {
    "render_config": {"timeout_ms": 500},
    "exception_config": {
        "max_retry": 8,
        "retry_delay": 0.05,
        "first_token_timeout": 3,
        "stall_timeout": 2,
        "infer_timeout": 60,
    },
    "stream_config": {"sse_keep_alive_interval": 1},
}
SETTLED_S = 1.0
WORLD_S_MAX = 600.0


@dataclass(slots=True)
class Problem:
    """Something that must not be.

    Attributes:
        scene: the request, or empty: the world as a whole.

    """

    world: int
    scene: str
    text: str

    def __str__(self) -> str:
        return f"world {self.world}{', ' + self.scene if self.scene else ''}: {self.text}"


@dataclass(slots=True)
class Tally:
    """What has happened."""

    requests: int = 0
    completed: int = 0
    left: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    faults: int = 0
    deaths: int = 0
    attempts: int = 0
    further_attempts: int = 0
    native: int = 0

    def add(self, other: Tally) -> None:
        for name in ("requests", "completed", "left", "faults", "deaths", "attempts", "further_attempts", "native"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for stage, count in other.failed.items():
            self.failed[stage] = self.failed.get(stage, 0) + count


class World:
    """One world.

    Args:
        seed: everything follows from it.
        number: of this world.
        scenes: how many requests.

    """

    def __init__(self, seed: int, number: int, scenes: int) -> None:
        self._random = Random(f"{seed}:{number}")  # noqa: S311 - a seed is the point
        self.number = number
        self.scenes = [scene(self._random, f"w{number}r{index}") for index in range(scenes)]
        pace_s = self._random.choice((0.0, 0.005, 0.02))
        self.sidecar = Sidecar(derender_s=self._random.choice((0.0, 0.0, 0.01)))
        self.engines = [
            Engine(name=f"engine-{i}", pace_s=pace_s, chunk_tokens=self._random.choice((1, 1, 3)))
            for i in range(1, ENGINES + 1)
        ]
        self.clean = Engine(name="clean")
        self.dies_s = self._random.uniform(0, 3) if self._random.random() < 0.3 else None
        self.bugs: list[BaseException] = []
        self.tally = Tally(requests=scenes)
        self.problems: list[Problem] = []
        self.app: App
        self._plan()

    def _plan(self) -> None:
        for each in self.scenes:
            self.tally.faults += len(each.faults)
            for fault in each.faults:
                if fault.on == "any":
                    for engine in self.engines:
                        engine.faults.add(fault)  # one fault, whichever engine is asked
                else:
                    self.sidecar.faults.add(fault)

    @property
    def engines_fail(self) -> bool:
        """Anything goes wrong with an engine here."""
        return self.dies_s is not None or any(fault.on == "any" for each in self.scenes for fault in each.faults)

    def population(self) -> Iterator[tuple[str, str, int]]:
        for name, effects in MACHINES.items():
            for state, count in effects.census.population.items():
                yield name, state, count

    async def run(self) -> None:
        """Play everything, and check everything."""
        async with trio.open_nursery() as nursery:
            net = MemoryNet(nursery)
            cluster = Cluster(self.sidecar, self.engines)
            cluster.listen_on(net)
            net.listen(CLEAN.host, CLEAN.port, Server(self.clean).serve_stream)
            document = merged(cluster.configuration(), CONFIG)
            self.app = App(load_embedded(document, {}).config, dial=net.dial, wall=lambda: 1_700_000_000.0)
            server = Server(self.app.inference, Limits(), on_bug=self.bugs.append)
            net.listen(COORDINATOR.host, COORDINATOR.port, server.serve_stream)
            await nursery.start(self.app.run)
            self.sidecar.seen.clear()
            for engine in self.engines:
                engine.seen.clear()
            with trio.move_on_after(WORLD_S_MAX) as limit:
                async with trio.open_nursery() as clients:
                    if self.dies_s is not None:
                        clients.start_soon(self._death, self.dies_s)
                    for each in self.scenes:
                        clients.start_soon(self._play, net, each)
            if limit.cancelled_caught:
                self._problem("", f"not over after {WORLD_S_MAX:g} s")
            await trio.sleep(SETTLED_S)
            for text in world_problems(self):
                self._problem("", text)
            self._count()
            nursery.cancel_scope.cancel(reason="the world ends")

    async def _death(self, at_s: float) -> None:
        await trio.sleep(at_s)
        self.tally.deaths += 1
        self._random.choice(self.engines).die(self._random.uniform(0.1, 2))

    async def _play(self, net: MemoryNet, each: Scene) -> None:
        want = await play(net, CLEAN, Scene(each.name, each.path, each.body, 0.0))
        await trio.sleep(each.starts_s)
        got = await play(net, COORDINATOR, each)
        for text in answer_problems(each, want, got, deaths=self.dies_s is not None):
            self._problem(each.name, text)
        self._note(got)

    def _note(self, got: Received) -> None:
        if got.left:
            self.tally.left += 1
        elif got.status == 200 and b'"stage":' not in got.body:
            self.tally.completed += 1
        else:
            _, _, after = bytes(got.body).partition(b'"stage":"')
            stage = after.partition(b'"')[0].decode() or "?"
            self.tally.failed[stage] = self.tally.failed.get(stage, 0) + 1

    def _count(self) -> None:
        for engine in self.engines:
            for call in engine.seen:
                self.tally.attempts += 1
                self.tally.further_attempts += ".a1." not in call.headers.get("x-request-id", "")
                self.tally.native += call.kind == "native"

    def _problem(self, scene: str, text: str) -> None:
        self.problems.append(Problem(self.number, scene, text))


def play_world(seed: int, number: int, scenes: int, clock: Callable[[], trio.abc.Clock]) -> World:
    """Make one world and play it in a trio run of its own."""
    world = World(seed, number, scenes)
    trio.run(world.run, clock=clock())
    return world
