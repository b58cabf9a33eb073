"""Which machine answers which question, and what may happen when.

Everything a request may do is declared in this package, and nothing else is: no clock, no I/O, no randomness, no log.
The coroutines that act live in `motor_flow/effects`; they are attached to states, report what happened as an event,
and never choose what comes next.

Four machines:

`RequestMachine` (diagrams/request.mmd) - one per client request. Where is this request on its way from an OpenAI
body to a closed response? It walks rendering -> admitted -> scheduled -> generating -> derendering -> committed ->
completed. A stream skips `derendering`, because its chunks are derendered one by one inside `generating`. When an
engine fails it goes back to `scheduled`: through `rolling_back` while the client has seen nothing, through `relaying`
when the answer must go on where it is. The attempts run in one nursery that belongs to the compound state `running`:
whoever leaves that state has cancelled and awaited all of them. The compound around it holds everything that is not
over, so that `cancel` (the client left) and `fail` (nothing can be done) are one arrow each.

`StreamMachine` (diagrams/stream.mmd) - one per prompt, choice and attempt of a streamed request. Where is this stream
with its next chunk? The loop generating -> derendering -> committed runs once per batch of engine tokens. The edge
`derendered / commit` is the only place in the whole system where `stream_state` and the token ledger move, and it moves
them together with the bytes for the client. What it has committed outlives it: the next attempt's stream goes on there.

`InstanceMachine` (diagrams/instance.mmd) - one per engine instance: its circuit breaker.

`SidecarMachine` (diagrams/sidecar.mmd) - one per Render sidecar: is it there, and what can it do?

The classes are declared with python-statemachine and compiled to tables at import (`table.py`): the class is the only
definition, the table is what runs. `proofs.py` proves properties of the tables, and a test proves table == library.

Reading order: request.py, stream.py, rules.py, context.py, faults.py, replay.py, table.py, proofs.py.
"""

from __future__ import annotations

from machines.instance import InstanceMachine
from machines.request import RequestMachine
from machines.sidecar import SidecarMachine
from machines.stream import StreamMachine
from machines.table import Edge, IllegalEvent, Table

REQUEST = Table.of(RequestMachine)
STREAM = Table.of(StreamMachine)
INSTANCE = Table.of(InstanceMachine)
SIDECAR = Table.of(SidecarMachine)
TABLES: dict[str, Table] = {"request": REQUEST, "stream": STREAM, "instance": INSTANCE, "sidecar": SIDECAR}

__all__ = [
    "INSTANCE",
    "REQUEST",
    "SIDECAR",
    "STREAM",
    "TABLES",
    "Edge",
    "IllegalEvent",
    "InstanceMachine",
    "RequestMachine",
    "SidecarMachine",
    "StreamMachine",
    "Table",
]
