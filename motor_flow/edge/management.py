"""What may an orchestrator ask, and what may an operator see?

Management port: probes and the instances. Observability port: metrics and the requests in flight. None of them
waits for a sidecar or an engine.

Source: contract sections 4 and 5; MindIE Motor's probes (/readiness stays 200, or a Service would cut off the
Controller).
"""

from __future__ import annotations

from collections.abc import Callable

from motor_flow.edge.asgi import ASGIApp, Receive, Scope, Send
from motor_flow.edge.instances import PATH as INSTANCES_PATH, REFRESH_PATH, InstanceRoutes
from motor_flow.edge.routes import Routes, respond, respond_json
from motor_flow.telemetry.journal import Journal
from motor_flow.telemetry.metrics import Metrics

HEALTH_PATH = "/health"  # on the inference port, as vLLM has it
EXPOSITION = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


def json_view(value: Callable[[], object]) -> ASGIApp:
    """An application that answers with what `value` returns."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await respond_json(send, value())

    return app


def health(ready: Callable[[], bool]) -> ASGIApp:
    """200 while requests are served, 503 otherwise: for whoever looks at the status only (load balancers, probes)."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        serving = ready()
        await respond_json(send, {"ready": serving}, 200 if serving else 503)

    return app


def management_routes(instances: InstanceRoutes, ready: Callable[[], bool]) -> Routes:
    """The management port."""
    readiness = json_view(lambda: {"ready": ready()})
    alive = json_view(lambda: {"status": "ok"})
    return Routes(
        {
            "GET /startup": alive,
            "GET /liveness": alive,
            "GET /readiness": readiness,
            f"GET {INSTANCES_PATH}": instances.list,
            f"POST {REFRESH_PATH}": instances.refresh,
        }
    )


def observability_routes(metrics: Metrics, journal: Journal) -> Routes:
    """The observability port."""

    async def exposition(_scope: Scope, _receive: Receive, send: Send) -> None:
        await respond(send, 200, metrics.exposition(), [EXPOSITION])

    return Routes(
        {
            "GET /metrics": exposition,
            "GET /debug/requests": json_view(lambda: {"requests": journal.describe()}),
        }
    )
