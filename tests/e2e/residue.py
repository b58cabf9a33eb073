"""What a Coordinator still holds, read from its metrics."""

from __future__ import annotations

import time

import httpx

GAUGES = ("motor_flow_inflight_requests", "motor_flow_queue_requests", "motor_flow_leases")
KINDS = ("flow_tokens", "instance_slots", "engine_streams", "producers", "contexts", "kv_tickets")


def residue(obs):
    """{series: value} of everything that must be zero when idle and is not, or is missing."""
    lines = httpx.get(f"{obs}/metrics", timeout=5).text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if line.startswith(GAUGES))
    wanted = {"motor_flow_inflight_requests", "motor_flow_queue_requests"}
    wanted |= {f'motor_flow_leases{{kind="{kind}"}}' for kind in KINDS}
    assert wanted <= set(values), f"not exported: {sorted(wanted - set(values))}"
    return {series: float(value) for series, value in values.items() if float(value)}


def assert_idle(obs, seconds=2.0):
    until = time.monotonic() + seconds
    while held := residue(obs):
        assert time.monotonic() < until, f"still held after {seconds} s: {held}"
        time.sleep(0.02)  # noqa: TID251 - another process is finishing
