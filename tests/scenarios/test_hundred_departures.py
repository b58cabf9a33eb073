"""A hundred clients leave at random points, on real sockets and by real clocks: how soon is the engine free?

Everything is in one process (simulators, Coordinator, clients), so that the moment in which an engine is free is seen
and not inferred. The points are drawn from a fixed seed; every kind of request has its share.

RFC 客户端断开.
"""

from __future__ import annotations

import json
import random

import pytest
import trio
import trio.lowlevel

from motor_flow.app import App
from motor_flow.config import load_embedded
from motor_flow.edge.server import Server
from motor_flow.sim.engine import Engine
from motor_flow.sim.faults import Fault
from motor_flow.sim.sidecar import Sidecar
from motor_flow.sim.world import Cluster
from tests.world import CHAT, TEXT, merged

SEED, DEPARTURES = 20, 100
FREED_S = 0.3
PACE_S = 0.01
LATEST_S = 0.08
ENDLESS = {"model": "tiny", "max_tokens": 500, "ignore_eos": True}
PLAIN = ENDLESS | {"prompt": "Once upon"}
TALK = ENDLESS | {"messages": [{"role": "user", "content": "Tell me"}]}
LIST = ENDLESS | {"prompt": ["a", "b", "c"]}


def slow_render(cluster):
    cluster.sidecar.render_s = 2 * LATEST_S


def slow_first_token(cluster):
    for engine in cluster.engines:
        engine.first_token_s = 2 * LATEST_S


def attempts_that_break(cluster):
    """Again and again, so that the departure meets any part of a relay, the pauses between attempts included."""
    for engine in cluster.engines:
        engine.faults.add(Fault("cut", after=2, times=99, on="generate"))


KINDS = {
    # path, body, what is different
    "rendering": (CHAT, TALK | {"stream": True}, slow_render),
    "opening": (CHAT, TALK | {"stream": True}, slow_first_token),
    "streaming": (CHAT, TALK | {"stream": True}, None),
    "whole": (TEXT, PLAIN, None),
    "list": (TEXT, LIST | {"stream": True}, None),
    "list, whole": (TEXT, LIST, None),
    "native": (TEXT, PLAIN | {"echo": True, "stream": True}, None),
    "native, whole": (TEXT, PLAIN | {"echo": True}, None),
    "relaying": (TEXT, PLAIN | {"stream": True}, attempts_that_break),
    "rolling back": (TEXT, PLAIN, attempts_that_break),
}


class Served:
    """A cluster and a Coordinator on loopback."""

    async def start(self, nursery):
        engines = [Engine(name=f"engine-{number}", pace_s=PACE_S) for number in (1, 2)]
        self.cluster = Cluster(Sidecar(), engines)
        await self.cluster.listen_on_loopback(nursery)
        # The breakers stay closed, or the last kinds would starve the others.
        config = merged(self.cluster.configuration(), {"circuit_breaker_config": {"failure_threshold": 10_000}})
        self.app = App(load_embedded(config, {}).config)
        await nursery.start(self.app.run)
        self.bugs = []
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.server = Server(self.app.inference, on_bug=self.bugs.append)
        await nursery.start(self.server.serve, listeners)
        self.port = listeners[0].socket.getsockname()[1]

    def even(self):
        """What one departure may have changed is as before."""
        self.cluster.sidecar.render_s = 0.0
        for engine in self.cluster.engines:
            engine.first_token_s = 0.0
            engine.faults.clear()

    @property
    def free(self):
        return (
            not any(engine.running for engine in self.cluster.engines)
            and self.app.requests == self.server.active == 0
            and self.app.leases.idle
        )


async def leave(served, path, body, at_s):
    """Ask, leave, and say how many seconds it took until everything was free."""
    raw = json.dumps(body).encode()
    client = await trio.open_tcp_stream("127.0.0.1", served.port)
    await client.send_all(
        b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(raw), raw)
    )
    while not served.app.requests:
        await trio.lowlevel.checkpoint()
    await trio.sleep(at_s)
    assert served.app.requests == 1
    start = trio.current_time()
    await client.aclose()
    with trio.move_on_after(10 * FREED_S):
        while not served.free:  # noqa: ASYNC110 - nobody tells when the last of it is free
            await trio.sleep(0.0005)
    return trio.current_time() - start


@pytest.fixture
async def served(nursery):
    one = Served()
    await one.start(nursery)
    yield one
    one.app.close()


async def test_a_hundred_departures(served, capsys):
    drawn = random.Random(SEED)
    took = {kind: [] for kind in KINDS}
    for number in range(DEPARTURES):
        kind = list(KINDS)[number % len(KINDS)]
        path, body, different = KINDS[kind]
        served.even()
        if different is not None:
            different(served.cluster)
        took[kind].append(await leave(served, path, body, drawn.uniform(0, LATEST_S)))
    every = sorted(seconds for some in took.values() for seconds in some)
    with capsys.disabled():
        worst = ", ".join(f"{kind} {max(some) * 1e3:.1f}" for kind, some in took.items())
        print(
            f"\n{len(every)} departures: everything free after p50 {every[len(every) // 2] * 1e3:.1f} ms, "
            f"p100 {every[-1] * 1e3:.1f} ms (worst of each kind, ms: {worst})"
        )
    assert len(every) == DEPARTURES
    assert every[-1] < FREED_S
    assert served.bugs == []
    assert list(served.cluster.sidecar.anomalies) == []
    assert served.app.pool.open == sum(map(len, served.app.pool._idle.values()))
