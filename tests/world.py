"""A whole serving world in one trio run: simulated sidecar and engines, the Coordinator, and clients.

Everything speaks real HTTP over in-memory streams, in virtual time. `World.check` asserts what must be true after every
request, however it ended.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import trio

from motor_flow.app import MACHINES, App
from motor_flow.config import load_embedded
from motor_flow.edge.limits import Limits
from motor_flow.edge.server import Server
from motor_flow.net.http1 import Pool
from motor_flow.net.memory import MemoryNet
from motor_flow.net.sse import EventSplitter
from motor_flow.net.stream import Origin
from motor_flow.sim.engine import Engine
from motor_flow.sim.sidecar import Sidecar
from motor_flow.sim.world import Cluster, merged
from motor_flow.views.parity.accepted import accepted_as
from motor_flow.views.parity.answers import Answer, read_answer
from motor_flow.views.parity.compare import differences

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
COORDINATOR = Origin("coordinator", 80)


@dataclass
class Response:
    """What a client got.

    `events` are (time, data) of a stream; `ended` is false when the body was cut.
    """

    status: int
    headers: dict
    body: bytes = b""
    events: list = field(default_factory=list)
    comments: int = 0
    ended: bool = True

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        if self.events:
            return next((json.loads(data)["error"] for _, data in self.events if b'"error"' in data[:9]), None)
        return self.json.get("error")

    @property
    def answer(self) -> Answer:
        return read_answer(self.status, self.headers["content-type"], self.body)

    @property
    def chunks(self):
        return [json.loads(data) for _, data in self.events if data != b"[DONE]"]


def unexplained(native, chain):
    """The differences of two answers that are not accepted ones."""
    return [found for found in differences(native, chain) if accepted_as(found, native, chain, "") is None]


class World:
    """Made by `make_world`."""

    def __init__(self, net, cluster, app):
        self.net, self.cluster, self.app = net, cluster, app
        self.sidecar, self.engines = cluster.sidecar, cluster.engines
        self.clients = Pool(net.dial)
        self.bugs = []
        limits = Limits(write_stall_s=app.config.stream.client_stall_timeout)
        self.server = Server(app.inference, limits, on_bug=self.bugs.append)
        net.listen(COORDINATOR.host, COORDINATOR.port, self.server.serve_stream)

    # --- clients ---

    async def ask(self, path, body, headers=None, *, method="POST", to=COORDINATOR):
        """A whole request, read to its end."""
        response = Response(0, {})
        await self.read(response, path, body, headers, method=method, to=to)
        return response

    async def stream(self, path, body, headers=None, *, to=COORDINATOR):
        return await self.ask(path, {**body, "stream": True}, headers, to=to)

    async def read(self, response, path, body, headers=None, *, method="POST", to=COORDINATOR):
        """The same, filling `response` as it comes, so that a test can look before the end."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = {"host": "test", "content-length": len(raw), "content-type": "application/json", **(headers or {})}
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n"
        exchange = await self.clients.start(to, head.encode("latin-1") + raw)
        try:
            response.status = exchange.status
            response.headers = {k.decode().lower(): v.decode() for k, v in exchange.headers}
            splitter = EventSplitter()
            sse = response.headers.get("content-type", "").startswith("text/event-stream")
            response.ended = False
            while data := await exchange.receive():
                response.body += data
                response.comments += data.count(b": keep-alive\n\n")
                if sse:
                    response.events += [(trio.current_time(), event) for event in splitter.feed(data)]
            response.ended = True
        finally:
            exchange.close()

    async def native(self, path, body, stream):
        """The same request to an engine's own OpenAI API."""
        to = Origin(self.engines[0].name, 80)
        return await (self.stream if stream else self.ask)(path, body, to=to)

    # --- what must be true ---

    async def check(self, *, anomalies=()):
        """Nothing is left of any request, and nobody saw anything odd."""
        await trio.sleep(0.5)
        assert self.bugs == []
        assert self.app.requests == 0, self.app.journal.describe()
        assert self.app.leases.idle, self.app.leases.held
        assert self.server.active == 0
        assert [engine.running for engine in self.engines] == [0] * len(self.engines)
        assert [a for engine in self.engines for a in engine.anomalies] == []
        assert list(self.sidecar.anomalies) == list(anomalies)
        assert self.cluster.fabric.anomalies == []
        assert self.cluster.fabric.outstanding == 0, "a prefill engine still holds KV for somebody"
        assert len(self.app.callbacks) == 0
        for effects in ("request", "stream"):
            assert not any(self.population(effects).values()), self.population(effects)
        for _ in range(20):  # a look at a sidecar may be under way
            idle = sum(map(len, self.app.pool._idle.values()))
            if self.app.pool.open == idle:
                break
            await trio.sleep(0.01)
        assert self.app.pool.open == idle, "an upstream connection is neither idle nor closed"

    @staticmethod
    def population(machine):
        return MACHINES[machine].census.population

    def seen(self, kind="generate"):
        """What engines (generate, native) or the sidecar (render, derender) were asked, in order of arrival."""
        where = [self.sidecar] if kind in ("render", "derender") else self.engines
        return [record for one in where for record in one.seen if record.kind == kind]


async def make_world(
    nursery, *, engines=2, engine=None, sidecar=None, config=None, parsers=True, roles=(), profile=None
):
    """Build and start a world. `engine`, `sidecar`: keyword arguments of the simulators; `config`: changes."""
    net = MemoryNet(nursery)
    cluster = Cluster(
        Sidecar(parsers=parsers, **(sidecar or {})),
        [Engine(name=f"engine-{i}", parsers=parsers, **(engine or {})) for i in range(1, engines + 1)],
        roles=roles,
        profile=profile,
    )
    cluster.listen_on(net)
    # In turn, so that a test knows who is asked; policies have tests of their own.
    in_turn = {"scheduler_config": {"scheduler_type": "round_robin"}}
    document = merged(merged(cluster.configuration(), in_turn), config or {})
    app = App(load_embedded(document, {}).config, dial=net.dial, wall=lambda: 1_700_000_000.0)
    world = World(net, cluster, app)
    net.listen("callbacks", 80, Server(app.metaserver, on_bug=world.bugs.append).serve_stream)
    app.callbacks.url = "http://callbacks"
    await nursery.start(app.run)
    for one in (cluster.sidecar, *cluster.engines):
        one.seen.clear()  # the probe's calls
    return world
