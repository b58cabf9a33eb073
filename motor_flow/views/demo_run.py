"""What happens in the demo?

The same streamed chat is asked twice. The first time nothing goes wrong. The second time the engine that serves it is
killed in mid-answer, and the Coordinator goes on elsewhere. What the client got must be the same, token for token.

```
client --HTTP--> Coordinator --HTTP--> sidecar, engine-1 (dies), engine-2
   `- Shown: pieces with their times        `- Shown: edges with their times
```

Everything here runs on real sockets and in virtual time alike; who looks at it is told by `Audience`.

Source: RFC 流式 replay 与重调度; contract section 1 (demo).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import trio

from machines import Edge
from motor_flow.app import MACHINES, App
from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import Pool, TransportFault
from motor_flow.net.sse import EventSplitter
from motor_flow.net.stream import Dial
from motor_flow.render.envelope import CHAT_PATH
from motor_flow.sim.engine import Engine
from motor_flow.sim.faults import Fault
from motor_flow.sim.world import Cluster
from motor_flow.views.demo_shown import Attempt, Audience, Outcome, Passage, Piece, Shown
from motor_flow.views.demo_watch import EdgeWatch, Loop

QUESTION = "Count."
ANSWER_S_MAX = 120.0  # by far longer than any pace that a person would watch
DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where it is played.

    Attributes:
        coordinator: base URL of the inference port.
        dial: the client's network.

    """

    cluster: Cluster
    app: App
    coordinator: str
    dial: Dial

    def engine_of(self, instance: str) -> str:
        """The simulator's name of one of the Coordinator's instances."""
        names = [each.name for each in self.app.registry]
        return self.cluster.engines[names.index(instance)].name


async def perform(stage: Stage, audience: Audience) -> Outcome:
    """Ask twice, the second time with a death. Who has died stays dead."""
    undisturbed = await _ask(stage, audience, "undisturbed")
    engines = stage.cluster.engines
    half = len(undisturbed.tokens) // 2
    for engine in engines:
        # A fault for each, since the scheduler chooses who serves; the first death is the only one.
        engine.faults.add(_death(engines, tokens=half))
    try:
        disturbed = await _ask(stage, audience, "an engine is killed")
    finally:
        for engine in engines:
            engine.faults.clear()
    return Outcome(undisturbed, disturbed)


def _death(engines: list[Engine], *, tokens: int) -> Fault:
    return Fault(
        "die",
        tokens=tokens,
        seconds=math.inf,
        on="generate",
        only=lambda _: not any(engine.dead_until for engine in engines),
    )


async def _ask(stage: Stage, audience: Audience, title: str) -> Shown:
    """One request, from the client's side and from the machine's."""
    shown = Shown(title, trio.current_time())
    audience.begins(shown)

    def enter(state: str, event: str) -> None:
        passage = Passage(state, event, trio.current_time() - shown.started)
        shown.passages.append(passage)
        audience.moved(shown, passage)

    def tell(edge: Edge) -> None:
        _keep_attempts(stage, shown, edge)
        enter(edge.target, edge.event)
        if edge.target in request.table.finals:
            over.set()

    request, over = MACHINES["request"], trio.Event()
    enter(request.table.initial, "")
    with EdgeWatch(request, tell).watching():
        with trio.move_on_after(ANSWER_S_MAX) as limit:
            await _read(stage, audience, shown)
            if not shown.error:
                await over.wait()  # the last edge is taken after the last byte
    if limit.cancelled_caught:
        shown.error = f"no whole answer within {ANSWER_S_MAX:g} s"
    for attempt in shown.attempts:
        attempt.loop.stop()
    shown.done = True
    return shown


def _keep_attempts(stage: Stage, shown: Shown, edge: Edge) -> None:
    """Which engine the request is on, and how far it had got when it came there."""
    if edge.target == "generating":
        about = stage.app.journal.describe()[-1]
        engine = next(map(stage.engine_of, about["instances"]), "none")  # none: only the finish was lost
        shown.attempts.append(Attempt(engine, about["completion_tokens"], Loop(MACHINES["stream"])))
    elif edge.source == "generating":
        shown.attempts[-1].loop.stop()
        if edge.target == "relaying":
            shown.died = shown.attempts[-1].engine


async def _read(stage: Stage, audience: Audience, shown: Shown) -> None:
    """The client: an ordinary HTTP request, read as it comes."""
    body = {
        "model": stage.cluster.sidecar.served.model_name,
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    pool = Pool(stage.dial)
    try:
        url = f"{stage.coordinator}{CHAT_PATH}"
        exchange = await HttpClient(pool).start("POST", url, body=msgspec.json.encode(body))
        try:
            if exchange.status != 200:
                shown.error = f"status {exchange.status}: {(await exchange.read()).decode(errors='replace')}"
                return
            splitter, ended = EventSplitter(), False
            while data := await exchange.receive():
                for event in splitter.feed(data):
                    ended = event == DONE
                    if not ended:
                        _note(audience, shown, msgspec.json.decode(event))
            if not ended:
                shown.error = shown.error or "the stream ended without [DONE]"
        finally:
            exchange.close()
    except TransportFault as fault:
        shown.error = str(fault)
    finally:
        pool.close()


def _note(audience: Audience, shown: Shown, chunk: dict[str, Any]) -> None:
    if chunk.get("error"):
        shown.error = str(chunk["error"].get("message"))
        return
    shown.usage = chunk.get("usage") or shown.usage
    for choice in chunk["choices"]:
        shown.finish_reason = choice.get("finish_reason") or shown.finish_reason
        tokens = choice.get("token_ids") or []
        if not tokens:
            continue
        delta, now = choice["delta"], trio.current_time() - shown.started
        thought = delta.get("reasoning")
        before = len(shown.tokens)
        piece = Piece(now, before, tokens, thought or delta.get("content") or "", thought is not None)
        shown.pieces.append(piece)
        audience.said(shown, piece)
