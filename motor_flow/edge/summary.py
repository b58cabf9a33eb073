"""What is known of a request once it has ended?

One place turns marks and counts into metrics and the summary line. It runs without an await, also after a cancellation.

Source: RFC 可观测性; contract section 5.
"""

from __future__ import annotations

import trio

from motor_flow.effects.context import Marks, RequestRun
from motor_flow.errors import MotorFlowError
from motor_flow.flow import Flow
from motor_flow.telemetry.log import get_logger

CLIENT_GONE_STATUS = 499
_log = get_logger()


def record(flow: Flow[RequestRun], error: MotorFlowError | None) -> None:
    """Count and log one request."""
    run = flow.ctx
    metrics, marks = run.services.metrics, run.marks
    now = trio.current_time()
    status = 200 if flow.state == "completed" else CLIENT_GONE_STATUS if error is None else error.status
    metrics.requests.labels(run.envelope.api, "true" if run.stream else "false", "union", run.route, str(status)).inc()
    for phase, seconds in _phases(marks, now):
        metrics.phase(phase, seconds, ok=error is None)
    tokens = run.completion_tokens
    if flow.state == "completed":
        metrics.duration.observe(now - marks.arrived)
        if marks.first_chunk is not None:
            metrics.ttft.observe(marks.first_chunk - marks.arrived)
            if tokens > 1 and marks.last_chunk is not None:
                metrics.tpot.observe((marks.last_chunk - marks.first_chunk) / (tokens - 1))
    outcome = "evicted" if flow.state == "cancelled" and error is not None else flow.state
    fields = {
        "request_id": run.identity.request_id,
        "outcome": outcome,
        "status": status,
        "api": run.envelope.api,
        "stream": run.stream,
        "route": run.route,
        "attempt": run.attempt,
        "instances": [leg.instance.name for leg in run.legs],
        "prompt_tokens": run.prompt_tokens,
        "completion_tokens": tokens,
        "latency_ms": _ms(now - marks.arrived),
    }
    if marks.first_chunk is not None:
        fields["ttft_ms"] = _ms(marks.first_chunk - marks.arrived)
    if error is not None:
        fields |= {"stage": error.stage, "type": error.kind}
        if error.param is not None:
            fields["param"] = error.param
        if not error.quoted:
            fields["reason"] = error.message
        if error.detail:
            fields["detail"] = error.detail
    if flow.state == "cancelled":
        source = flow.trace[-1][0].source
        siblings = sum(stream.finish is None for stream in run.streams)
        _log.info(
            "cancel",
            request_id=run.identity.request_id,
            phase=source,
            reason=flow.reason,
            siblings=siblings,
        )
        fields["reason"] = flow.reason
    _log.info("request.end", **fields)


def _phases(marks: Marks, now: float) -> list[tuple[str, float]]:
    """The phases that were entered, with their length in seconds."""
    steps = [
        ("render", marks.arrived, marks.rendered),
        ("schedule", marks.rendered, marks.placed),
        ("first_engine_chunk", marks.placed, marks.first_event),
        ("first_derender", marks.first_event, marks.first_chunk),
        ("decode", marks.first_chunk, marks.last_chunk),
        ("client_response", marks.last_chunk, now),
    ]
    return [(phase, end - start) for phase, start, end in steps if start is not None and end is not None]


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)
