"""Which machine answers which question, and what may happen when.

Everything a request may do is declared in this package, and nothing else is: no clock, no I/O, no randomness, no log.
The coroutines that act live in `motor_flow/effects`; they are attached to states, report what happened as an event,
and never choose what comes next.

Two machines:

`RequestMachine` (diagrams/request.mmd) - one per client request. Where is this request on its way from an OpenAI
body to a closed response? It walks rendering -> admitted -> scheduled -> generating -> derendering -> committed ->
completed. A stream skips `derendering`, because its chunks are derendered one by one inside `generating`. One compound
state holds everything that is not over, so that `cancel` (the client left) and `fail` (nothing can be done) are one
arrow each.

`StreamMachine` (diagrams/stream.mmd) - one per prompt and choice of a streamed request, all of them inside the
request's `generating`; a single prompt is N = 1. Where is this stream with its next chunk? The loop generating ->
derendering -> committed runs once per batch of engine tokens. The edge `derendered / commit` is the only place in the
whole system where `stream_state` and the token ledger move, and it moves them together with the bytes for the client.

The classes are declared with python-statemachine and compiled to tables at import (`table.py`): the class is the only
definition, the table is what runs. `proofs.py` proves properties of the tables, and a test proves table == library.

Reading order: request.py, stream.py, rules.py, context.py, table.py, proofs.py.
"""

from __future__ import annotations

from machines.request import RequestMachine
from machines.stream import StreamMachine
from machines.table import Edge, IllegalEvent, Table

REQUEST = Table.of(RequestMachine)
STREAM = Table.of(StreamMachine)
TABLES: dict[str, Table] = {"request": REQUEST, "stream": STREAM}

__all__ = ["REQUEST", "STREAM", "TABLES", "Edge", "IllegalEvent", "RequestMachine", "StreamMachine", "Table"]
