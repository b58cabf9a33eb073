"""Who is asked, and what do its failures mean to the client?

One table for Render, Derender and engines; only the words and the stage differ.

| the upstream | the client is told |
|---|---|
| refuses the request (4xx that is the request's own fault) | that status, message, type and param |
| does not know the model | the same; 502 where another upstream has already accepted the model |
| lacks the endpoint or capability | 501 |
| refuses our key | 502 |
| answers 408, 425, 429 or 5xx, cannot be reached, breaks off | 502 |
| does not answer in time | 504 |

Source: RFC 故障处理; contract section 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from motor_flow.errors import MotorFlowError
from motor_flow.net.http1 import Reply, TimedOut, TransportFault
from motor_flow.net.verdict import Verdict, complaint, judge

Failure = TypeVar("Failure", bound=MotorFlowError)


@dataclass(frozen=True, slots=True)
class Upstream(Generic[Failure]):
    """One kind of server we call.

    Attributes:
        error: its failures.
        name: what messages call it.
        model_accepted: another upstream has accepted the request's model, so not knowing it is no client's fault.

    """

    error: type[Failure]
    name: str
    model_accepted: bool = False

    def refusal(self, reply: Reply, path: str = "this endpoint") -> Failure:
        """What an answer that is no 2xx means.

        Args:
            reply: the answer.
            path: what was asked for.

        """
        said = complaint(reply)
        verdict = judge(reply.status, reply.body)
        detail = f"HTTP {reply.status}" + (f", {said.kind}" if said.kind else "")
        if verdict is Verdict.REFUSED or (verdict is Verdict.UNKNOWN and not self.model_accepted):
            return self.error(said.message, status=reply.status, kind=said.kind, param=said.param, quoted=True)
        match verdict:
            case Verdict.UNKNOWN:
                return self.error(f"{self.name} does not know this model", detail=detail)
            case Verdict.UNSUPPORTED:
                return self.error(f"{self.name} does not offer {path}", status=501, detail=detail)
            case Verdict.UNAUTHORIZED:
                return self.error(f"{self.name} refused our key", detail="check upstream_config.api_key")
            case _:
                return self.error(f"{self.name} failed (HTTP {reply.status})", detail=detail)

    def broken(self, fault: TransportFault) -> Failure:
        """What an exchange that brought no answer means."""
        if isinstance(fault, TimedOut):
            return self.error(f"{self.name} did not answer in time", status=504, detail=str(fault))
        return self.error(f"{self.name} failed or cannot be reached", detail=str(fault))
