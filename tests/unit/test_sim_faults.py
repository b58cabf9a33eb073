"""What goes wrong on the wire, kind by kind: for streams and for whole answers, of engines and of the sidecar.

Real HTTP over in-memory streams. What a client can see of an answer is its status, its bytes, when they came, and how
it ended: complete, cut, or silent for ever.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pytest
import trio

from motor_flow.cli import FAULT_HELP
from motor_flow.edge.server import Server
from motor_flow.net.http1 import Pool, TransportFault
from motor_flow.net.memory import MemoryNet
from motor_flow.net.stream import Origin
from motor_flow.sim import exchange
from motor_flow.sim.engine import Engine
from motor_flow.sim.faults import KINDS, BadFault, Fault, Plan
from motor_flow.sim.seen import Seen
from motor_flow.sim.sidecar import Sidecar

SIM = Origin("sim", 80)
FOR_EVER_S = 1e4
DONE = b"[DONE]"
GENERATE, CHAT, TEXT = "/inference/v1/generate", "/v1/chat/completions", "/v1/completions"
PROMPT = [1, 402, 201, 530, 16, 2, 201, 1, 431, 201]
BODIES = {
    GENERATE: {"request_id": "r", "token_ids": PROMPT, "sampling_params": {"max_tokens": 8, "ignore_eos": True}},
    CHAT: {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 8, "ignore_eos": True},
    TEXT: {"prompt": "Once upon a ", "max_tokens": 8, "ignore_eos": True},
}
RENDERS = {f"{CHAT}/render": BODIES[CHAT], f"{TEXT}/render": BODIES[TEXT]}
HALVES = ("cut", "bytes", "eof", "done", "lost", "error")


@dataclass
class Got:
    """What a client saw. `end`: complete, cut, or silent."""

    status: int = 0
    body: bytes = b""
    end: str = "silent"
    took_s: float = 0.0

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def events(self):
        """The data of its events, without what differs from call to call."""
        body = re.sub(rb'"(id|created|request_id)":("[^"]*"|\d+),', b"", self.body)
        return [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]


class Wire:
    """One simulator and its clients."""

    def __init__(self, nursery, app):
        self.app, self.bugs = app, []
        self.net = MemoryNet(nursery)
        self.net.listen(SIM.host, SIM.port, Server(app, on_bug=self.bugs.append).serve_stream)
        self.pool = Pool(self.net.dial)

    async def ask(self, path, **changes):
        """The answer, however it ends. Afterwards nothing may have gone wrong that was not planned."""
        body = json.dumps({"model": "tiny", **{**BODIES, **RENDERS}[path], **changes}).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        got, start = Got(), trio.current_time()
        with trio.move_on_after(FOR_EVER_S):
            try:
                answer = await self.pool.start(SIM, head.encode() + body)
                try:
                    got.status = answer.status
                    while data := await answer.receive():
                        got.body += data
                    got.end = "complete"
                finally:
                    answer.close()
            except TransportFault:
                got.end = "cut"
        got.took_s = trio.current_time() - start
        await trio.testing.wait_all_tasks_blocked()
        assert self.bugs == []
        return got


async def with_fault(nursery, app, fault, path, **changes):
    """(an answer without, one with the fault, the wire)."""
    wire = Wire(nursery, app)
    good = await wire.ask(path, **changes)
    assert (good.status, good.end) == (200, "complete")
    app.faults.add(fault)
    got = await wire.ask(path, **changes)
    assert app.faults.left == 0
    assert app.seen[-1].fault == fault.kind
    return good, got, wire


# --- lines and plans ------------------------------------------------------------------------------


def test_lines():
    assert Fault.read("reset") == Fault("reset")
    assert Fault.read(" cut  after=5 ") == Fault("cut", after=5)
    read = Fault.read("status status=503 times=2 skip=1 on=generate")
    assert read == Fault("status", status=503, times=2, skip=1, on="generate")
    seconds = Fault.read("late seconds=0.25").seconds
    assert (seconds, type(seconds)) == (0.25, float)
    for kind in KINDS:
        assert Fault.read(kind).kind == kind


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("explode", "'explode' is no fault; there are: reset, status"),
        ("cut foo=1", "'foo=1': expected key=value with a key of after, on, seconds, skip, status, times"),
        ("cut after", "'after': expected key=value"),
        ("cut after=", "'after=': not a number"),
        ("cut after=1.5", "'after=1.5': not a number"),
        ("late seconds=soon", "'seconds=soon': not a number"),
        ("cut kind=reset", "'kind=reset': expected"),
        ("cut only=x", "'only=x': expected"),
    ],
)
def test_bad_lines(line, said):
    with pytest.raises(BadFault) as caught:
        Fault.read(line)
    assert said in str(caught.value)


def call(kind="generate", path=GENERATE):
    return Seen(path, {}, {}, kind)


def test_a_plan_is_taken_in_order_by_those_that_are_meant():
    plan = Plan([Fault("cut", on="derender"), Fault("eof", times=2), Fault("reset", skip=2)])
    assert plan.left == 4
    kinds = [fault.kind if (fault := plan.take(call())) else None for _ in range(6)]
    assert kinds == ["eof", "eof", None, None, "reset", None]
    assert plan.left == 1
    assert plan.take(call("derender")).kind == "cut"
    assert plan.take(call("derender")) is None
    plan.add(Fault("cut"))
    plan.clear()
    assert (plan.left, plan.take(call())) == (0, None)


def test_only_narrows_a_fault_further():
    plan = Plan([Fault("cut", skip=1, only=lambda seen: seen.path == TEXT)])
    assert plan.take(call("native", CHAT)) is None
    assert plan.take(call("native", TEXT)) is None
    assert plan.take(call("native", CHAT)) is None
    assert plan.take(call("native", TEXT)).kind == "cut"


def test_help_names_every_kind():
    named = FAULT_HELP.partition("Kinds: ")[2].partition(".")[0]
    assert tuple(named.split(", ")) == KINDS


# --- streams --------------------------------------------------------------------------------------

AFTER = 3
PACE_S = 0.01  # a reset takes along what was not read yet, so the reader must be given the time
STREAMS = pytest.mark.parametrize("path", [GENERATE, CHAT, TEXT])


async def streamed(nursery, path, kind, pace_s=PACE_S, **more):
    good, got, _ = await with_fault(nursery, Engine(pace_s=pace_s), Fault(kind, after=AFTER, **more), path, stream=True)
    assert good.events[-1] == DONE
    if kind not in ("reset", "status"):
        assert got.status == 200
        assert got.events[:AFTER] == good.events[:AFTER]
    return good, got


@STREAMS
async def test_stream_cut(nursery, autojump_clock, path):
    _, got = await streamed(nursery, path, "cut")
    assert (len(got.events), got.end) == (AFTER, "cut")


@STREAMS
@pytest.mark.parametrize(("kind", "more"), [("eof", []), ("done", [DONE])])
async def test_stream_that_ends_as_if_all_were_well(nursery, autojump_clock, path, kind, more):
    _, got = await streamed(nursery, path, kind)
    assert (got.events[AFTER:], got.end) == (more, "complete")


@STREAMS
async def test_stream_stall(nursery, autojump_clock, path):
    _, got = await streamed(nursery, path, "stall")
    assert (len(got.events), got.end) == (AFTER, "silent")


@STREAMS
async def test_stream_error(nursery, autojump_clock, path):
    _, got = await streamed(nursery, path, "error")
    error, done = got.events[AFTER:]
    assert json.loads(error)["error"]["code"] == 500
    assert (done, got.end) == (DONE, "complete")


@STREAMS
async def test_stream_garbage(nursery, autojump_clock, path):
    _, got = await streamed(nursery, path, "garbage")
    (garbage,) = got.events[AFTER:]
    with pytest.raises(ValueError, match="property name"):
        json.loads(garbage)
    assert got.end == "complete"


@STREAMS
async def test_stream_oversized(nursery, autojump_clock, monkeypatch, path):
    monkeypatch.setattr(exchange, "OVERSIZED_LINE_BYTES_MAX", 1 << 20)
    _, got = await streamed(nursery, path, "oversized")
    (line,) = got.events[AFTER:]
    assert len(line) == 1 << 20
    assert b"\n" not in line


@STREAMS
@pytest.mark.parametrize(("kind", "end"), [("abort", ("abort", None)), ("recomputed", ("stop", "recomputed"))])
async def test_stream_with_an_end_that_is_none(nursery, autojump_clock, path, kind, end):
    _, got = await streamed(nursery, path, kind)
    last, done = got.events[AFTER:]
    (choice,) = json.loads(last)["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == end
    assert not any(choice.get(key) for key in ("token_ids", "text", "delta"))
    assert (done, got.end) == (DONE, "complete")


@STREAMS
async def test_stream_lost(nursery, autojump_clock, path):
    """Everything came but how it ended."""
    good, got = await streamed(nursery, path, "lost")
    finishes = [at for at, event in enumerate(good.events[:-1]) if json.loads(event)["choices"][0]["finish_reason"]]
    assert got.events == good.events[: finishes[0]]
    assert got.end == "cut"


@STREAMS
@pytest.mark.parametrize("after", [0, 1, 200, 777])
async def test_stream_cut_in_bytes(nursery, autojump_clock, path, after):
    good, got, _ = await with_fault(nursery, Engine(pace_s=PACE_S), Fault("bytes", after=after), path, stream=True)
    assert len(good.body) > 777
    assert (got.status, len(got.body), got.end) == (200, after, "cut")


@STREAMS
async def test_stream_slow(nursery, autojump_clock, path):
    good, got = await streamed(nursery, path, "slow", pace_s=0.0, seconds=0.5)
    assert (got.events, got.end) == (good.events, "complete")
    pieces = sum(-(-len(event + b"\n\n") // 16) for event in got.body.split(b"\n\n")[:-2])
    assert got.took_s == pytest.approx(pieces * 0.5)


@STREAMS
@pytest.mark.parametrize("kind", ["cut", "eof", "done", "error", "garbage", "abort", "recomputed", "bytes"])
async def test_a_fault_behind_the_end_happens_at_the_end(nursery, autojump_clock, path, kind):
    """The plan may be longer than the stream: then its `[DONE]` is missing, or something comes before it."""
    good, got, _ = await with_fault(nursery, Engine(pace_s=PACE_S), Fault(kind, after=10**6), path, stream=True)
    said = good.events[:-1]
    if kind in ("cut", "bytes"):
        assert got.events in (said, said[:-1])  # the reset may overtake the last one
        assert got.end == "cut"
    else:
        assert got.events[: len(said)] == said
        assert got.end == "complete"


# --- before the head, and whole answers -----------------------------------------------------------

WHOLES = [(Engine, path) for path in (GENERATE, CHAT, TEXT)] + [(Sidecar, path) for path in RENDERS]
ANY = pytest.mark.parametrize(
    ("make", "path", "changes"),
    [(make, path, {}) for make, path in WHOLES] + [(Engine, path, {"stream": True}) for path in BODIES],
)


@ANY
async def test_reset(nursery, autojump_clock, make, path, changes):
    _, got, _ = await with_fault(nursery, make(), Fault("reset"), path, **changes)
    assert (got.status, got.body, got.end) == (0, b"", "cut")


@ANY
async def test_status(nursery, autojump_clock, make, path, changes):
    _, got, _ = await with_fault(nursery, make(), Fault("status", status=429), path, **changes)
    assert (got.status, got.json["error"]["code"], got.end) == (429, 429, "complete")


@ANY
async def test_late(nursery, autojump_clock, make, path, changes):
    good, got, _ = await with_fault(nursery, make(), Fault("late", seconds=7), path, **changes)
    assert got.took_s == pytest.approx(7)
    assert len(got.body) == len(good.body)
    assert (got.status, got.end) == (200, "complete")


@ANY
async def test_silence_from_the_beginning(nursery, autojump_clock, make, path, changes):
    _, got, _ = await with_fault(nursery, make(), Fault("stall"), path, **changes)
    assert (got.status, got.end) == (0, "silent")


WHOLE = pytest.mark.parametrize(("make", "path"), WHOLES)


@WHOLE
async def test_whole_answer_that_stalls_later_stalls_too(nursery, autojump_clock, make, path):
    _, got, _ = await with_fault(nursery, make(), Fault("stall", after=5), path)
    assert (got.status, got.end) == (0, "silent")


@WHOLE
@pytest.mark.parametrize("kind", HALVES)
async def test_whole_answer_cut_in_half(nursery, autojump_clock, make, path, kind):
    good, got, _ = await with_fault(nursery, make(), Fault(kind, after=AFTER), path)
    assert (got.status, got.end) == (200, "cut")
    assert abs(len(got.body) - len(good.body) // 2) <= 1


@WHOLE
@pytest.mark.parametrize("kind", ["garbage", "oversized"])
async def test_whole_answer_that_is_none(nursery, autojump_clock, make, path, kind):
    _, got, _ = await with_fault(nursery, make(), Fault(kind), path)
    assert (got.status, got.body[:1], got.end) == (200, b"<", "complete")


@pytest.mark.parametrize("path", [GENERATE, CHAT, TEXT])
@pytest.mark.parametrize(("kind", "end"), [("abort", ("abort", None)), ("recomputed", ("stop", "recomputed"))])
async def test_whole_answer_with_an_end_that_is_none(nursery, autojump_clock, path, kind, end):
    good, got, _ = await with_fault(nursery, Engine(), Fault(kind), path)
    (choice,) = got.json["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == end
    assert choice.keys() == good.json["choices"][0].keys() | {"stop_reason"}


@WHOLE
async def test_whole_answers_know_no_slowness(nursery, autojump_clock, make, path):
    good, got, _ = await with_fault(nursery, make(), Fault("slow"), path)
    assert (len(got.body), got.took_s) == (len(good.body), 0)


# --- the process ----------------------------------------------------------------------------------


@ANY
async def test_a_dead_process_resets_everything_and_comes_back(nursery, autojump_clock, make, path, changes):
    _, got, wire = await with_fault(nursery, make(), Fault("die", seconds=9), path, **changes)
    assert (got.status, got.end) == (0, "cut")
    await trio.sleep(8.9)
    assert (await wire.ask(path, **changes)).end == "cut"
    await trio.sleep(0.2)
    assert (await wire.ask(path, **changes)).end == "complete"


async def test_a_death_takes_every_call_along(nursery, autojump_clock):
    """One call has the fault; the others, old and new, go with the process."""
    engine = Engine(pace_s=0.1)
    wire = Wire(nursery, engine)
    engine.faults.add(Fault("die", after=AFTER, seconds=9, on="generate"))
    answers = {}

    async def ask(path):
        answers[path] = await wire.ask(path, stream=True)

    async with trio.open_nursery() as clients:
        for path in BODIES:
            clients.start_soon(ask, path)
    assert [answers[path].end for path in BODIES] == ["cut"] * 3
    assert all(answer.took_s == pytest.approx(0.3) for answer in answers.values())
    assert len(answers[GENERATE].events) == AFTER
    assert engine.running == 0


async def test_what_is_meant_for_others_passes(nursery, autojump_clock):
    engine = Engine()
    wire = Wire(nursery, engine)
    engine.faults.add(Fault("reset", on="generate", skip=1))
    assert (await wire.ask(CHAT)).end == "complete"
    assert (await wire.ask(GENERATE)).end == "complete"
    assert (await wire.ask(GENERATE)).end == "cut"
    assert (await wire.ask(GENERATE)).end == "complete"
    assert [seen.fault for seen in engine.seen] == ["", "", "reset", ""]


@pytest.mark.parametrize("kind", ["reset", "status", "cut", "die"])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_call_that_is_refused_can_go_wrong_too(nursery, autojump_clock, path, kind):
    engine = Engine()
    wire = Wire(nursery, engine)
    engine.faults.add(Fault(kind))
    got = await wire.ask(path, model="unknown")
    assert (got.status, got.end) == ((500, "complete") if kind == "status" else (got.status, "cut"))


@pytest.mark.parametrize("kind", ["abort", "recomputed"])
@pytest.mark.parametrize("path", RENDERS)
async def test_what_has_no_end_is_left_alone(nursery, autojump_clock, path, kind):
    good, got, _ = await with_fault(nursery, Sidecar(), Fault(kind), path)
    assert (got.status, len(got.body)) == (200, len(good.body))
