"""How do simulated servers become a cluster that a Coordinator can be pointed at?

One sidecar and some engines, on real loopback sockets (the embedded cluster of `serve`) or on an in-memory network
(tests and campaigns, in virtual time). The same applications, the same server, the same wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from machines.topology import Profile, Role
from motor_flow.edge.server import Server
from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import Pool
from motor_flow.net.memory import MemoryNet
from motor_flow.net.stream import Dial, network
from motor_flow.sim.engine import Engine
from motor_flow.sim.kv import Fabric, Transfers
from motor_flow.sim.kv_network import callbacks_over
from motor_flow.sim.served import CONTEXT_TOKENS_DEFAULT
from motor_flow.sim.sidecar import Sidecar

LOOPBACK = "127.0.0.1"
MEMORY_PORT = 80


class Cluster:
    """A sidecar and engines.

    Args:
        sidecar: the sidecar.
        engines: at least one.
        roles: of the engines, in their order; union where it ends.
        profile: how prefill and decode engines work together.

    Attributes:
        fabric: the KV that passes between them.

    """

    def __init__(
        self,
        sidecar: Sidecar,
        engines: Sequence[Engine],
        *,
        roles: Sequence[Role] = (),
        profile: Profile | None = None,
    ) -> None:
        self.sidecar = sidecar
        self.engines = list(engines)
        self.fabric = Fabric()
        self._roles = [*roles, *["union"] * (len(self.engines) - len(roles))]
        self._profile = profile
        self._sidecar_at = ("", 0)
        self._engines_at: list[tuple[str, int]] = []

    async def listen_on_loopback(self, nursery: trio.Nursery) -> None:
        """Serve on free loopback ports until the nursery ends."""
        self._connect(network())
        self._sidecar_at = await _on_loopback(nursery, Server(self.sidecar))
        self._engines_at = [await _on_loopback(nursery, Server(engine)) for engine in self.engines]

    def listen_on(self, net: MemoryNet) -> None:
        """Serve on an in-memory network: the sidecar as `sidecar`, engines by their names."""
        self._connect(net.dial)
        self._sidecar_at = ("sidecar", MEMORY_PORT)
        self._engines_at = [(engine.name, MEMORY_PORT) for engine in self.engines]
        net.listen(*self._sidecar_at, Server(self.sidecar).serve_stream)
        for engine, address in zip(self.engines, self._engines_at, strict=True):
            net.listen(*address, Server(engine).serve_stream)

    def _connect(self, dial: Dial) -> None:
        """Prefill and decode engines get their KV connectors."""
        call = callbacks_over(HttpClient(Pool(dial)))
        for engine, role in zip(self.engines, self._roles, strict=True):
            if role != "union":
                engine.transfers = Transfers(engine.name, self.fabric, call)

    def configuration(self) -> dict[str, Any]:
        """The part of a Coordinator's configuration that names this cluster."""
        host, port = self._sidecar_at
        return {
            "model_config": {
                "model_name": self.sidecar.served.model_name,
                "max_model_len": self.sidecar.served.max_model_len,
            },
            "render_config": {"endpoint": {"host": host, "port": port}},
            "instances": [
                {"id": number, "role": role, "url": f"http://{host}:{port}"}
                | ({"dispatch_profile": self._profile} if self._profile and role != "union" else {})
                for number, ((host, port), role) in enumerate(zip(self._engines_at, self._roles, strict=True), 1)
            ],
        }


def embedded_cluster(*, engines: int = 2, pace_s: float = 0.02) -> Cluster:
    """The cluster of `motor-flow serve` without a configuration: paced, so that a person sees it stream."""
    return Cluster(
        Sidecar(max_model_len=CONTEXT_TOKENS_DEFAULT),
        [Engine(name=f"engine-{number}", pace_s=pace_s) for number in range(1, engines + 1)],
    )


async def _on_loopback(nursery: trio.Nursery, server: Server) -> tuple[str, int]:
    listeners = await trio.open_tcp_listeners(0, host=LOOPBACK)
    await nursery.start(server.serve, listeners)
    port: int = listeners[0].socket.getsockname()[1]
    return LOOPBACK, port


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A configuration with changes, section by section."""
    out = dict(base)
    for key, value in changes.items():
        out[key] = merged(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out
