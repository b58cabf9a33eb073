"""Who is asked, and what do its failures mean to the client?

One table for Render, Derender and engines; only the words, the stage and the consequences differ.

| the upstream | the client is told |
|---|---|
| refuses the request | its own status, message, type and param |
| does not know the model | the same; 502 where another upstream has already accepted the model |
| lacks the endpoint or capability | 501 |
| refuses our key | 502 |
| is busy, fails, cannot be reached, breaks off | 502 |
| does not answer in time | 504 |

Source: RFC 故障处理; contract section 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from machines.faults import Fault
from motor_flow.errors import UpstreamError
from motor_flow.net.http1 import ConnectFailed, NotHttp, Reply, TimedOut, TransportFault
from motor_flow.net.verdict import complaint, judge

Failure = TypeVar("Failure", bound=UpstreamError)


@dataclass(frozen=True, slots=True)
class Upstream(Generic[Failure]):
    """One kind of server we call.

    Attributes:
        error: its failures.
        name: what messages call it.
        model_accepted: another upstream has accepted the request's model, so not knowing it is no client's fault.
        kinds: faults that are events of their own for whoever calls.

    """

    error: type[Failure]
    name: str
    model_accepted: bool = False
    kinds: Mapping[Fault, type[Failure]] = field(default_factory=dict)

    def refusal(self, reply: Reply, path: str = "this endpoint") -> Failure:
        """What an answer that is no 2xx means.

        Args:
            reply: the answer.
            path: what was asked for.

        """
        said = complaint(reply)
        fault = judge(reply.status, reply.body) or Fault.GARBAGE
        detail = f"HTTP {reply.status}" + (f", {said.kind}" if said.kind else "")
        error = self.kinds.get(fault, self.error)
        if fault is Fault.REQUEST or (fault is Fault.UNKNOWN_MODEL and not self.model_accepted):
            return error(said.message, fault=fault, status=reply.status, kind=said.kind, param=said.param, quoted=True)
        match fault:
            case Fault.UNKNOWN_MODEL:
                return error(f"{self.name} does not know this model", fault=fault, detail=detail)
            case Fault.UNSUPPORTED:
                return error(f"{self.name} does not offer {path}", fault=fault, status=501, detail=detail)
            case Fault.UNAUTHORIZED:
                return error(f"{self.name} refused our key", fault=fault, detail="check upstream_config.api_key")
            case _:
                return error(f"{self.name} failed (HTTP {reply.status})", fault=fault, detail=detail)

    def broken(self, broken: TransportFault) -> Failure:
        """What an exchange that brought no answer means."""
        fault = fault_of(broken)
        error = self.kinds.get(fault, self.error)
        if isinstance(broken, TimedOut):
            return error(f"{self.name} did not answer in time", fault=fault, status=504, detail=str(broken))
        return error(f"{self.name} failed or cannot be reached", fault=fault, detail=str(broken))


def fault_of(broken: TransportFault) -> Fault:
    """The kind of a transport's failure."""
    match broken:
        case ConnectFailed():
            return Fault.UNREACHABLE
        case TimedOut():
            return Fault.SILENT
        case NotHttp():
            return Fault.GARBAGE
        case _:
            return Fault.RESET
