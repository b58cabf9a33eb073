"""What is known of a request once it has ended?

One place turns marks and counts into metrics and the summary line. It runs without an await, also after a cancellation.

Source: RFC 可观测性; contract section 5.
"""

from __future__ import annotations

from typing import NamedTuple

import trio

from motor_flow.effects.context import Marks, RequestRun
from motor_flow.errors import MotorFlowError, Stage
from motor_flow.flow import Flow
from motor_flow.telemetry.log import get_logger

CLIENT_GONE_STATUS = 499
MODEL_CHARS_MAX = 256
_log = get_logger()


class Failure(NamedTuple):
    """What a request ended with, and where it was."""

    error: MotorFlowError
    stage: Stage


def record(flow: Flow[RequestRun], failure: Failure | None) -> None:
    """Count and log one request."""
    run = flow.ctx
    error = None if failure is None else failure.error
    metrics, marks = run.services.metrics, run.marks
    now = trio.current_time()
    status = 200 if flow.state == "completed" else CLIENT_GONE_STATUS if error is None else error.status
    metrics.requests.labels(
        run.envelope.api, "true" if run.stream else "false", run.topology, run.route, str(status)
    ).inc()
    source = flow.trace[-1][0].source
    for phase, seconds, ok in _phases(marks, now, completed=flow.state == "completed", committed=source == "committed"):
        metrics.phase(phase, seconds, ok=ok)
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
        "model": run.envelope.model[:MODEL_CHARS_MAX],
        "stream": run.stream,
        "topology": run.topology,
        "route": run.route,
        "attempt": run.attempt,
        "instances": [leg.instance.name for leg in run.legs],
        "prompt_tokens": run.prompt_tokens,
        "completion_tokens": tokens,
        "latency_ms": _ms(now - marks.arrived),
    }
    if marks.first_chunk is not None:
        fields["ttft_ms"] = _ms(marks.first_chunk - marks.arrived)
    if failure is not None and error is not None:
        fields |= {"stage": failure.stage, "type": error.kind}
        if error.param is not None:
            fields["param"] = error.param
        if not error.quoted:
            fields["reason"] = error.message
        if error.detail:
            fields["detail"] = error.detail
    if flow.state == "cancelled":
        siblings = sum(stream.finish is None for stream in run.streams)
        _log.info(
            "cancel",
            request_id=run.identity.request_id,
            phase=source,
            reason=flow.reason,
            siblings=siblings,
        )
        fields["reason"] = flow.reason
    say = _log.warning if status >= 500 else _log.info
    say("request.end", **fields)


def _phases(marks: Marks, now: float, *, completed: bool, committed: bool) -> list[tuple[str, float, bool]]:
    """The phases that were entered, with their length in seconds; the one in which a request failed has failed."""
    last = marks.last_chunk if committed else None
    steps = [
        ("render", marks.arrived, marks.rendered),
        ("flow_control", marks.rendered, marks.admitted),
        ("schedule", marks.admitted, marks.placed),
        ("first_engine_chunk", marks.placed, marks.first_event),
        ("first_derender", marks.first_event, marks.first_chunk),
        ("decode", marks.first_chunk, last),
        ("client_response", last, now if completed else None),
    ]
    entered = [(phase, start, end) for phase, start, end in steps if start is not None]
    reached = [(phase, end - start, True) for phase, start, end in entered if end is not None]
    unfinished = [(phase, now - start, False) for phase, start, end in entered if end is None and not completed]
    return reached + unfinished[-1:]


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)
