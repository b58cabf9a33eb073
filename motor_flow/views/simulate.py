"""How does one simulator run as its own process?

The same applications as in the embedded cluster, on one port, until a signal. For trying a Coordinator, its deployment
files or its clients without a model.

Source: contract section 1 (sim).
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable
from typing import Literal

import trio

from motor_flow.edge.asgi import ASGIApp
from motor_flow.edge.server import Server
from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import Pool
from motor_flow.net.stream import network
from motor_flow.sim.conductor import Conductor
from motor_flow.sim.engine import Engine
from motor_flow.sim.faults import BadFault, Fault, Plan
from motor_flow.sim.kv import Transfers
from motor_flow.sim.kv_network import NetworkFabric, callbacks_over
from motor_flow.sim.sidecar import Sidecar
from motor_flow.views.exits import EXIT_FAILED

HOST = "127.0.0.1"
Kind = Literal["engine", "sidecar", "kv"]
__all__ = ["BadFault", "Conductor", "Engine", "Sidecar", "plan", "run_simulator"]


def run_simulator(app: ASGIApp, kind: Kind, host: str, port: int) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status."""
    try:
        return trio.run(_serve, app, kind, host, port)
    except OSError as exc:
        sys.stderr.write(f"cannot listen on {host}:{port}: {exc.strerror or exc}\n")
        return EXIT_FAILED


async def _serve(app: ASGIApp, kind: Kind, host: str, port: int) -> int:
    listeners = await trio.open_tcp_listeners(port, host=host)
    server = Server(app)
    bound = listeners[0].socket.getsockname()[1]
    if isinstance(app, Engine):
        _connect(app, host, bound)
    sys.stderr.write(f"ready http://{host}:{bound} ({kind})\n")
    sys.stderr.flush()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, listeners)
            async for _ in signals:
                nursery.cancel_scope.cancel(reason="signal")
                break
    return 0


def _connect(app: Engine, host: str, port: int) -> None:
    """Give a prefill or decode engine a KV connector that reaches other processes."""
    if app.role == "union":
        return
    http = HttpClient(Pool(network()))
    fabric = NetworkFabric(http, host, port)
    fabric.serve(app)
    app.transfers = Transfers(app.name, fabric, callbacks_over(http))


def plan(faults: Plan, lines: Iterable[str]) -> None:
    """Let these things go wrong.

    Raises:
        BadFault: a line does not describe one.

    """
    for line in lines:
        if not line.strip():
            raise BadFault("an empty line describes no fault")
        faults.add(Fault.read(line))
