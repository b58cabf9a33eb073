"""Which numbers does the process show, and what do they cost?

One registry per process object, so that tests can run several. Children of labelled series are looked up once, when
it is made, never per chunk. What is known elsewhere (leases, machines, requests in flight) is read
when it is scraped, not counted twice.

Source: contract section 5; OpenTelemetry GenAI metric names and vLLM's buckets (ecosystem conventions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import trio
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from machines.faults import Fault
from motor_flow.flow import Effects

PHASES = (
    "render",
    "flow_control",
    "kv_query",
    "schedule",
    "prefill",
    "first_engine_chunk",
    "first_derender",
    "decode",
    "derender",
    "client_response",
)
PHASE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
TPOT_BUCKETS = (*(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75), *(1, 2.5, 5, 7.5, 10, 20, 40, 80))
DURATION_BUCKETS = (
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)
disable_created_metrics()  # type: ignore[no-untyped-call]  # a third of the page, and of no use to anybody
FALLBACK_REASONS = {
    Fault.UNREACHABLE: "unreachable",
    Fault.RESET: "unreachable",
    Fault.SILENT: "timeout",
    Fault.UNSUPPORTED: "unsupported",
    Fault.GARBAGE: "malformed",
    Fault.FAILED: "failed",
    Fault.BUSY: "failed",
    Fault.UNAUTHORIZED: "failed",
}
OUTCOMES = ("ok", "failed")
ROLES = ("union", "prefill", "decode")


class Metrics:
    """Everything `/metrics` shows."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "motor_flow_requests",
            "Requests that have ended",
            ["api", "stream", "topology", "path", "code"],
            registry=self.registry,
        )
        for api, stream in (("chat", "true"), ("chat", "false"), ("completions", "true"), ("completions", "false")):
            self.requests.labels(api, stream, "union", "token_only", "200")
        phases = Histogram(
            "motor_flow_phase_duration_seconds",
            "Time a request spent in a phase",
            ["phase", "outcome"],
            buckets=PHASE_BUCKETS,
            registry=self.registry,
        )
        self._phases = {(phase, outcome): phases.labels(phase, outcome) for phase in PHASES for outcome in OUTCOMES}
        self.derender_seconds = self._phases["derender", "ok"]
        fallback = Counter(
            "motor_flow_render_fallback", "Requests tokenized without Render", ["reason"], registry=self.registry
        )
        self._render_fallback = {reason: fallback.labels(reason) for reason in FALLBACK_REASONS.values()}
        attempts = Counter(
            "motor_flow_attempts", "Engine legs that have ended", ["role", "outcome"], registry=self.registry
        )
        self.attempts = {(role, outcome): attempts.labels(role, outcome) for role in ROLES for outcome in OUTCOMES}
        relays = Counter("motor_flow_relay", "Streams moved to another engine", ["outcome"], registry=self.registry)
        self.relays = {outcome: relays.labels(outcome) for outcome in OUTCOMES}
        derenders = Counter("motor_flow_derender", "Derender calls", ["kind", "outcome"], registry=self.registry)
        self.derender_stream_ok = derenders.labels("stream", "ok")
        self.derender_stream_failed = derenders.labels("stream", "failed")
        self._derender_whole_ok = derenders.labels("full", "ok")
        self._derender_whole_failed = derenders.labels("full", "failed")
        self.coalesced_chunks = Counter(
            "motor_flow_derender_coalesced_chunks",
            "Engine chunks that were merged into another one's derender call",
            registry=self.registry,
        )
        self.ttft = self._gen_ai("time_to_first_token", "Arrival to first derendered chunk", TTFT_BUCKETS)
        self.tpot = self._gen_ai("time_per_output_token", "Between output tokens after the first", TPOT_BUCKETS)
        self.duration = self._gen_ai("request_duration", "Arrival to the last byte", DURATION_BUCKETS)

    def _gen_ai(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"gen_ai_server_{name}_seconds", text, buckets=buckets, registry=self.registry)

    def fallback(self, fault: Fault) -> str:
        """Render could not be used; returns what that is called."""
        reason = FALLBACK_REASONS[fault]
        self._render_fallback[reason].inc()
        return reason

    def phase(self, phase: str, seconds: float, *, ok: bool = True) -> None:
        """A request has been through a phase."""
        self._phases[phase, "ok" if ok else "failed"].observe(seconds)

    @contextmanager
    def derender_whole(self) -> Iterator[None]:
        """Count and time one whole derender call."""
        started = trio.current_time()
        try:
            yield
        except Exception:
            self._derender_whole_failed.inc()
            self.phase("derender", trio.current_time() - started, ok=False)
            raise
        self._derender_whole_ok.inc()
        self.derender_seconds.observe(trio.current_time() - started)

    def watch(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Add series that are read when they are scraped."""
        self.registry.register(_Scraped(collect))

    def exposition(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)


class _Scraped:
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self.collect = collect

    def describe(self) -> list[Metric]:
        return []


def lease_series(amounts: Mapping[str, int]) -> Iterable[Metric]:
    """What is held right now."""
    held = GaugeMetricFamily("motor_flow_leases", "Held for requests right now; idle means zero", labels=["kind"])
    for kind, amount in amounts.items():
        held.add_metric([kind], amount)
    yield held


def machine_series(machines: dict[str, Effects[object]]) -> Iterable[Metric]:
    """Where the machines are, and which edges they have taken."""
    taken = CounterMetricFamily(
        "motor_flow_transitions", "Edges taken by the machines", labels=["machine", "source", "target"]
    )
    population = GaugeMetricFamily("motor_flow_machines", "Machines by state", labels=["machine", "state"])
    for name, effects in machines.items():
        table, census = effects.table, effects.census
        arrows: dict[tuple[str, str], int] = {}
        for edge, count in zip(table.edges, census.taken, strict=True):
            arrow = (edge.source, edge.target)
            arrows[arrow] = arrows.get(arrow, 0) + count
        for (source, target), count in arrows.items():
            taken.add_metric([name, source, target], count)
        for state, count in census.population.items():
            population.add_metric([name, state], count)
    yield taken
    yield population
