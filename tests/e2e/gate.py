"""A TCP gate in front of a real engine, so that a test says where in an answer a fault happens.

```
Coordinator ──▶ Gate ──▶ engine        a Trap waits for one leg: it lets the first `after` tokens of its answer
                 ▲                     through, `inside` bytes of the event behind them, and then nothing
               Trap                    until `go`; what follows is `then`
```

The gate reads the requests (one after another on a connection, with a content-length) and the answers' SSE events; it
changes no byte. It runs in threads of the test process.

Source: vLLM 0.33 scale_out/token_in_token_out (one SSE event per step of the engine).
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

GENERATE = b"POST /inference/v1/generate "
EVENT_END = b"\n\n"
HOLD_S_MAX = 60
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: closing is a reset


@dataclass(slots=True, eq=False)
class Leg:
    """One generate request that came to a gate, and the tokens of its answer that went on to the Coordinator."""

    id: str
    body: dict
    gate: Gate
    ids: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Trap:
    """What happens to the first leg of one prompt of one request; once.

    Attributes:
        request: the client's x-request-id.
        then: "reset"; "end", after the engine's own end; "pass", as if nothing had been.
        act: called with the leg in the very moment, by the gate's thread.
        leg: which was caught.
        held: the moment has come.
        go: it is over; set beforehand where nothing has to be done in it.

    """

    request: str
    after: int
    prompt: int = 0
    inside: int = 0
    then: str = "reset"
    act: Callable[[Leg], None] | None = None
    leg: Leg | None = None
    held: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def takes(self, leg):
        return self.leg is None and leg.id.startswith(f"{self.request}.") and f".p{self.prompt}." in leg.id


class Gate:
    """The gate of the engine at `engine` (a port), listening on `port`.

    Attributes:
        legs: every generate request that came, in order.
        traps: those that wait here.

    """

    def __init__(self, engine):
        self.engine = engine
        self.legs, self.traps = [], []
        self._listener = None
        self.port = 0
        self.open()

    def open(self):
        """Listen, on the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self):
        """Refuse connections, as a dead process does."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # accept() returns
        self._listener.close()

    def _accept(self, listener):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.engine)) as engine:
            for s in (client, engine):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _Connection(self, client, engine).run()

    def register(self, leg):
        """The trap for this leg, if there is one."""
        self.legs.append(leg)
        for trap in self.traps:
            if trap.takes(leg):
                trap.leg = leg
                return trap
        return None


class _Connection:
    def __init__(self, gate, client, engine):
        self._gate, self._client, self._engine = gate, client, engine
        self._request = b""
        self._leg = self._trap = None
        self._answer = b""  # what has come of the event that is not complete
        self._sent = 0  # of it

    def run(self):
        while True:
            for ready in select.select([self._client, self._engine], [], [])[0]:
                data = ready.recv(1 << 16)
                if not data:
                    return
                if ready is self._client:
                    self._read_request(data)
                    self._engine.sendall(data)
                elif self._leg is None:
                    self._client.sendall(data)
                elif not self._forward(data):
                    return

    def _read_request(self, data):
        self._request += data
        head, found, body = self._request.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if not found or (length and len(body) < int(length[1])):
            return
        self._request, self._answer, self._sent, self._leg, self._trap = b"", b"", 0, None, None
        if head.startswith(GENERATE):
            body = json.loads(body)
            self._leg = Leg(body["request_id"], body, self._gate)
            self._trap = self._gate.register(self._leg)

    def _forward(self, data):
        """Send on what may go on; false when the connection is to be closed."""
        self._answer += data
        while (end := self._answer.find(EVENT_END)) >= 0:
            event = self._answer[: end + len(EVENT_END)]
            ids = token_ids(event)
            if self._is_due(len(self._leg.ids) + len(ids) - 1) and not self._spring():
                return False  # the engine has put several tokens into one event, and this one is too many
            self._leg.ids += ids
            self._client.sendall(event[self._sent :])
            self._answer, self._sent = self._answer[len(event) :], 0
            if self._is_due(len(self._leg.ids)) and not self._spring():
                return False
        if self._trap is None:
            self._client.sendall(self._answer[self._sent :])
            self._sent = len(self._answer)
        return True

    def _is_due(self, tokens):
        return self._trap is not None and tokens >= self._trap.after

    def _spring(self):
        trap, self._trap = self._trap, None
        while len(self._answer) < trap.inside:
            self._answer += self._engine.recv(1 << 16)
        self._client.sendall(self._answer[: trap.inside])
        self._sent = trap.inside
        if trap.act is not None:
            trap.act(trap.leg)
        trap.held.set()
        trap.go.wait(HOLD_S_MAX)
        if trap.then == "pass":
            return True
        if trap.then == "end":
            with contextlib.suppress(ConnectionError):
                while self._engine.recv(1 << 16):
                    pass
        else:
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        return False


def token_ids(event):
    """Of one SSE event, with whatever of the chunked encoding stands before it."""
    data = event[event.index(b"data: ") + 6 :]
    if data.startswith(b"[DONE]"):
        return []
    return [token for choice in json.loads(data).get("choices", ()) for token in choice.get("token_ids") or ()]
