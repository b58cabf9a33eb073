"""What may go wrong with an engine, and how is each kind treated?

One row per kind. Who decides what happens next reads the row; nobody asks for the kind itself, except where a row of
its own event exists (`UNSUPPORTED`).

Source: RFC 故障处理 (rows token-only Engine 能力, Engine 执行); contract section 7; vLLM 0.33 finish reasons.
"""

# ruff: noqa: FBT003 - the columns of a table

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Fault(Enum):
    """Why an attempt on an engine has failed."""

    UNREACHABLE = "unreachable"  # no connection: refused, unknown host, no answer to the dial in time
    RESET = "reset"  # the connection broke inside an answer, or before it
    ENDED = "ended"  # the answer ended cleanly, without a finish reason
    SILENT = "silent"  # no first event, or no next one, in time
    FAILED = "failed"  # 5xx, or an error event inside HTTP 200
    BUSY = "busy"  # 408, 425, 429
    ABORTED = "aborted"  # finish reason abort or error: what SIGTERM of an engine looks like
    RECOMPUTED = "recomputed"  # the engine gave the request's KV up; it is well
    GARBAGE = "garbage"  # nothing that could be read
    UNSUPPORTED = "unsupported"  # it does not offer the route
    PROTOCOL = "protocol"  # it answered well, but not what two legs need: no KV to hand over
    EXPIRED = "expired"  # the KV was not fetched in time
    NO_PARTNER = "no_partner"  # no instance for the second leg
    UNKNOWN_MODEL = "unknown_model"  # it does not know the model that Render accepted
    UNAUTHORIZED = "unauthorized"  # it refused our key
    REMOVED = "removed"  # the operator took the instance away
    REQUEST = "request"  # the request's own fault: any other instance would say the same


class Treatment(NamedTuple):
    """What follows from a fault.

    Attributes:
        retried: another attempt may do better.
        excludes: the instance is avoided by this request's later attempts. One that broke a connection once may still
            hold the request's KV; it is avoided from its second fault on.
        counted: against the instance's circuit breaker.

    """

    retried: bool
    excludes: bool
    counted: bool


TREATMENTS: dict[Fault, Treatment] = {
    #                            retried excludes counted
    Fault.UNREACHABLE: Treatment(True, True, True),
    Fault.RESET: Treatment(True, False, True),
    Fault.ENDED: Treatment(True, True, True),
    Fault.SILENT: Treatment(True, True, True),
    Fault.FAILED: Treatment(True, True, True),
    Fault.BUSY: Treatment(True, True, False),
    Fault.ABORTED: Treatment(True, True, True),
    Fault.RECOMPUTED: Treatment(True, False, False),
    Fault.GARBAGE: Treatment(True, True, True),
    Fault.UNSUPPORTED: Treatment(True, True, False),
    Fault.PROTOCOL: Treatment(False, False, False),
    Fault.EXPIRED: Treatment(True, False, False),
    Fault.NO_PARTNER: Treatment(True, False, False),
    Fault.UNKNOWN_MODEL: Treatment(True, True, False),
    Fault.UNAUTHORIZED: Treatment(True, True, False),
    Fault.REMOVED: Treatment(True, True, False),
    Fault.REQUEST: Treatment(False, False, False),
}
