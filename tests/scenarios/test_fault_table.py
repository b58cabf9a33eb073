"""The RFC's table of faults, row by row: what a client gets, what it costs, and what is left.

One line of `TABLE` is one way to a row of 故障处理, in one mode. Every line is played in a world of its own, and the
whole table is printed as it was observed.
"""

from __future__ import annotations

from typing import NamedTuple

import trio

from motor_flow.sim.faults import Fault
from tests.scripted import CUT, HANG, Scripted, error, reply
from tests.world import TEXT, Response, make_world

BODY = {"model": "tiny", "prompt": "Once upon", "max_tokens": 12, "ignore_eos": True}
CONFIG = {
    "render_config": {"timeout_ms": 500},
    "exception_config": {"first_token_timeout": 3, "stall_timeout": 2, "connect_timeout": 1, "retry_delay": 0},
}
LEAVES_S, FREED_S = 0.055, 0.3

# --- how each line is brought about ---------------------------------------------------------------


def render(*script):
    return lambda world: {"sidecar": Scripted(world, "sidecar", {"/render": [list(script)]})}


def derender(*script):
    return lambda world: {"sidecar": Scripted(world, "sidecar", {"/derender": [list(script)]})}


def lacking(*script):
    """Both engines answer the token-only route like this."""
    return lambda world: {
        engine.name: Scripted(world, engine.name, {"/generate": [list(script)]}) for engine in world.engines
    }


def first_attempt(line):
    """The fault of the first attempt, wherever it goes."""

    def arrange(world):
        for engine in world.engines:
            fault = Fault.read(f"{line} on=generate")
            fault.only = lambda record: ".a1." in record.body["request_id"]
            engine.faults.add(fault)
        return {}

    return arrange


def every_attempt(line):
    def arrange(world):
        for engine in world.engines:
            engine.faults.add(Fault.read(f"{line} times=99 on=generate"))
        return {}

    return arrange


def render_gone(world):
    world.net.refuse("sidecar", 80)
    world.app.pool.close()
    return {}


def sidecar_gone_after_render(world):
    """It renders, and is gone when it is to derender."""
    scripted = Scripted(world, "sidecar", {"/derender": [[CUT]]})
    meet = world.engines[0].meet

    def and_then(call, record):
        world.net.refuse("sidecar", 80)
        world.app.pool.close()
        meet(call, record)

    for engine in world.engines:
        engine.meet = and_then
    return {"sidecar": scripted}


def engine_gone(world):
    world.net.refuse("engine-1", 80)
    world.app.pool.close()
    return {}


def nothing(_world):
    return {}


ARRANGED = {
    "connection refused": render_gone,
    "connection cut": render(CUT),
    "time-out": render(HANG),
    "500": render(error(500)),
    "no such route": render(reply(404, {"detail": "Not Found"})),
    "no token ids": render(reply(200, {"unexpected": True})),
    "400": render(error(400, "bad", "BadRequestError", "messages")),
    "422": render(error(422, "odd", "UnprocessableEntityError", "x")),
    "context exceeded": nothing,
    "engine: 404": lacking(reply(404, {"detail": "Not Found"})),
    "engine: 501": lacking(error(501)),
    "engine: 404, obfuscated": lacking(reply(404, {"detail": "Not Found"})),
    "engine: connection refused": engine_gone,
    "engine: connection cut": first_attempt("reset"),
    "engine: 500": first_attempt("status status=500"),
    "engine: cut in the answer": first_attempt("cut after=4"),
    "engine: exits": first_attempt("die after=4 seconds=1000"),
    "engine: SIGTERM": first_attempt("abort after=4"),
    "engine: silent": first_attempt("stall after=4"),
    "engine: 500, always": every_attempt("status status=500"),
    "engine: cut, always": every_attempt("cut after=2"),
    "engine: refuses it": lacking(error(400, "odd", "BadRequestError", "logit_bias")),
    "derender: 400": derender(error(400, "bad state", "BadRequestError", "stream_state")),
    "derender: 422": derender(error(422, "bad state", "UnprocessableEntityError", "stream_state")),
    "derender: 404": derender(reply(404, {"detail": "Not Found"})),
    "derender: 501": derender(reply(501, {"detail": "x"})),
    "derender: connection refused": sidecar_gone_after_render,
    "derender: connection cut": derender(CUT),
    "derender: time-out": derender(HANG),
    "derender: 500": derender(error(500)),
    "closes": nothing,
}

# --- what must come of it -------------------------------------------------------------------------


class Line(NamedTuple):
    """One line of the table.

    Attributes:
        row: of the RFC's table.
        way: into it, a key of ARRANGED.
        mode: stream or whole.
        status: of HTTP; 0: the client did not wait for it.
        event: the code in the error event of a stream.
        stage: in the error, whether it is an event or a body.
        generate: requests that reached a token-only route of an engine.
        native: requests that reached an engine's OpenAI API.
        breaker: failures counted by all breakers.
        leases: still held, of all kinds.
        busy: connections to engines and sidecars that are not idle.

    """

    row: str
    way: str
    mode: str
    status: int
    event: str
    stage: str
    generate: int
    native: int
    breaker: int
    leases: int = 0
    busy: int = 0


def both(row, way, whole, stream):
    """Two lines: (status, event, stage, generate, native, breaker) each."""
    return [Line(row, way, "whole", *whole), Line(row, way, "stream", *stream)]


GOOD_NATIVE, REFUSED = (200, "", "", 0, 1, 0), (400, "", "render", 0, 0, 0)
RELAYED = (200, "", "", 2, 0, 1)
RENDER, CHECK, TOKENS = "Render Token In", "Render 请求校验", "token-only Engine 能力"
ENGINE, GONE = "Engine 执行", "客户端断开"
STATE, MISSING, DOWN = "Derender 请求校验", "Derender 能力缺失", "Derender 不可用"
TABLE = [
    # ---- row, way ------------------------------- whole: status, event, stage, generate, native, breaker ---- stream
    *both(RENDER, "connection refused", GOOD_NATIVE, GOOD_NATIVE),
    *both(RENDER, "connection cut", GOOD_NATIVE, GOOD_NATIVE),
    *both(RENDER, "time-out", GOOD_NATIVE, GOOD_NATIVE),
    *both(RENDER, "500", GOOD_NATIVE, GOOD_NATIVE),
    *both(RENDER, "no such route", GOOD_NATIVE, GOOD_NATIVE),
    *both(RENDER, "no token ids", GOOD_NATIVE, GOOD_NATIVE),
    *both(CHECK, "400", REFUSED, REFUSED),
    *both(CHECK, "422", (422, "", "render", 0, 0, 0), (422, "", "render", 0, 0, 0)),
    *both(CHECK, "context exceeded", REFUSED, REFUSED),
    *both(TOKENS, "engine: 404", (200, "", "", 1, 1, 0), (200, "", "", 1, 1, 0)),
    *both(TOKENS, "engine: 501", (200, "", "", 1, 1, 0), (200, "", "", 1, 1, 0)),
    *both(TOKENS, "engine: 404, obfuscated", (501, "", "schedule", 2, 0, 0), (501, "", "schedule", 2, 0, 0)),
    *both(ENGINE, "engine: connection refused", (200, "", "", 1, 0, 1), (200, "", "", 1, 0, 1)),
    *both(ENGINE, "engine: connection cut", RELAYED, RELAYED),
    *both(ENGINE, "engine: 500", RELAYED, RELAYED),
    *both(ENGINE, "engine: cut in the answer", RELAYED, RELAYED),
    *both(ENGINE, "engine: exits", RELAYED, RELAYED),
    *both(ENGINE, "engine: SIGTERM", RELAYED, RELAYED),
    *both(ENGINE, "engine: silent", (504, "", "generate", 1, 0, 0), RELAYED),
    *both(ENGINE, "engine: 500, always", (502, "", "generate", 5, 0, 2), (502, "", "generate", 5, 0, 2)),
    *both(ENGINE, "engine: cut, always", (502, "", "generate", 5, 0, 2), (200, "502", "generate", 5, 0, 2)),
    *both(ENGINE, "engine: refuses it", (400, "", "generate", 1, 0, 0), (400, "", "generate", 1, 0, 0)),
    *both(STATE, "derender: 400", (400, "", "derender", 1, 0, 0), (200, "400", "derender", 1, 0, 0)),
    *both(STATE, "derender: 422", (422, "", "derender", 1, 0, 0), (200, "422", "derender", 1, 0, 0)),
    *both(MISSING, "derender: 404", (501, "", "derender", 1, 0, 0), (200, "501", "derender", 1, 0, 0)),
    *both(MISSING, "derender: 501", (501, "", "derender", 1, 0, 0), (200, "501", "derender", 1, 0, 0)),
    *both(DOWN, "derender: connection refused", (502, "", "derender", 1, 0, 0), (200, "502", "derender", 1, 0, 0)),
    *both(DOWN, "derender: connection cut", (502, "", "derender", 1, 0, 0), (200, "502", "derender", 1, 0, 0)),
    *both(DOWN, "derender: time-out", (504, "", "derender", 1, 0, 0), (200, "504", "derender", 1, 0, 0)),
    *both(DOWN, "derender: 500", (502, "", "derender", 1, 0, 0), (200, "502", "derender", 1, 0, 0)),
    *both(GONE, "closes", (0, "", "", 1, 0, 0), (200, "", "", 1, 0, 0)),
]


async def play(line):
    """The line as it is observed."""
    body = BODY | {"stream": line.mode == "stream"}
    config = CONFIG
    if "obfuscated" in line.way:
        hidden = {"enable": True, "seed_content": "0123456789abcdef0123456789abcdef", "vocab_size": 650}
        config = CONFIG | {"token_obfuscation_config": hidden}
    if line.way == "context exceeded":
        body["prompt"] = "x " * 5000
    if line.way == "engine: silent" and line.mode == "whole":  # only the request's own deadline bounds a whole answer
        config = CONFIG | {"exception_config": CONFIG["exception_config"] | {"infer_timeout": 20}}
    async with trio.open_nursery() as nursery:
        world = await make_world(nursery, engines=2, engine={"pace_s": 0.01}, config=config)
        world.app._inference._refusal = None  # of obfuscated requests, which are not to be had yet
        scripted = ARRANGED[line.way](world)
        got = Response(0, {})
        with trio.move_on_after(LEAVES_S if line.row == GONE else 1000) as client:
            await world.read(got, TEXT, body)
        assert client.cancelled_caught == (line.row == GONE)
        await trio.sleep(FREED_S)
        leases = sum(world.app.leases.held.values())
        busy = world.app.pool.open - sum(map(len, world.app.pool._idle.values()))
        wrong = None if line.row == GONE else got.error
        if got.status == 200 and line.row != GONE:
            whole_or_said(got, wrong, line.mode)
        asked = [path for one in scripted.values() for path, _ in one.requests if path.endswith("/generate")]
        observed = line._replace(
            status=got.status,
            event=str(wrong["code"]) if wrong and got.events else "",
            stage=wrong["stage"] if wrong else "",
            generate=len(world.seen("generate")) + len(asked),
            native=len(world.seen("native")),
            breaker=sum(instance.breaker.failures for instance in world.app.registry),
            leases=leases,
            busy=busy,
        )
        await world.check()
        nursery.cancel_scope.cancel()
    return observed


def whole_or_said(got, wrong, mode):
    """Nothing ends early without a word."""
    if mode == "stream":
        assert got.ended
        assert got.events[-1][1] == b"[DONE]"
        assert got.body.count(b"[DONE]") == 1
    if wrong is None:
        (choice,) = got.answer.choices.values()
        assert choice.finish_reason == "length"


async def test_every_row_of_the_fault_table(autojump_clock, capsys):
    observed = [await play(line) for line in TABLE]
    with capsys.disabled():
        print(f"\n{drawn(observed)}")
    assert [line for line, wanted in zip(observed, TABLE, strict=True) if line != wanted] == []
    assert {line.row for line in TABLE} == {RENDER, CHECK, TOKENS, ENGINE, STATE, MISSING, DOWN, GONE}


def drawn(lines):
    """The table, as text."""
    heads = ("fault", "way", "mode", "HTTP", "event", "stage", "generate", "native", "breaker", "leases", "busy")
    rows = [heads, *([str(cell) or "-" for cell in line] for line in lines)]
    wide = [max(width(row[column]) for row in rows) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell + " " * (wide[column] - width(cell)) for column, cell in enumerate(row)).rstrip() for row in rows
    )


def width(text):
    """In columns of a terminal: Chinese takes two."""
    return sum(2 if ord(character) > 0x2E7F else 1 for character in text)
