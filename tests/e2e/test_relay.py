"""A real engine dies under real answers, and the client's streams go on: same text, tools, logprobs and usage.

A gate in front of each engine (gate.py) makes the moment exact. Greedy answers are compared with the same request's
answer without a fault, from the same Coordinator. Kinds of end: the connection is reset while the engine lives
(many points), the whole process group is killed with -9,
and the process that computes is killed under the server. One engine is only stopped.

Source: RFC 流式 replay 与重调度, 多 prompt; contract section 7.
"""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace

import httpx
import pytest
from rich.console import Console
from rich.table import Table

from motor_flow.sim.tokenizer import tiny
from tests.e2e import real
from tests.e2e.engines import MortalEngine
from tests.e2e.gate import Gate, Trap
from tests.e2e.reading import Reading, check_same
from tests.e2e.requests import TOOLS, chat, text
from tests.e2e.residue import assert_idle

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

# No chat goes past its end (ignore_eos): how vLLM's parsers show special tokens there depends on the cut into chunks.
KINDS = {
    "completion": text("Once upon", max_tokens=300, ignore_eos=True),
    "reasoning": chat("Hello!"),
    "Chinese": chat("Say hello in Chinese."),
    "tools": chat("Weather in Paris and 北京?", tools=TOOLS),
    "logprobs": chat("Say hello in Chinese.", logprobs=True, top_logprobs=3),
}
LIST = text(["Once upon", "Numbers: ", "从前有座山，"], max_tokens=300, ignore_eos=True)
POINTS = (1, 3, 9, 25)
POINTS_BY_MEANING = 6
REPORT_S = 20  # until the Coordinator has noticed
STALL_S = 3
GAP_S_MAX = 10  # a relay costs one prefill and one derender; the machine may be busy with other things


@pytest.fixture(scope="module")
def engines(vllm, tmp_path_factory):
    """Two engines to kill, and a gate before the one that stays."""
    where = tmp_path_factory.mktemp("mortal")
    with contextlib.ExitStack() as stack:
        mortal = [MortalEngine(vllm.venv, vllm.model, where / f"{name}.log") for name in "ab"]
        stays = Gate(vllm.engine)
        stack.callback(stays.close)
        for engine in mortal:
            stack.callback(engine.stop)
            engine.start()
        for engine in mortal:
            engine.wait()
        yield SimpleNamespace(a=mortal[0], b=mortal[1], gates=[mortal[0].gate, mortal[1].gate, stays])


@contextlib.contextmanager
def serving(vllm, engines, where, kinds=(*KINDS, "list"), **changes):
    """A Coordinator in front of all gates; every kind of answer has been given once, without a fault."""
    ports = [gate.port for gate in engines.gates]
    turns = {"scheduler_config": {"scheduler_type": "round_robin"}}  # each engine has its turn to fail
    with real.coordinator(where, vllm.sidecar, ports, **(turns | changes)) as (infer, _, obs):
        asked = KINDS | {"list": LIST}
        want = {kind: Reading(infer, f"want-{where.name}-{kind}", asked[kind]).result() for kind in kinds}
        yield SimpleNamespace(infer=infer, obs=obs, want=want)
        assert_idle(obs)


@pytest.fixture(scope="module")
def patient(vllm, engines, tmp_path_factory):
    """Breakers that never open: the engines are well, their connections are not."""
    where = tmp_path_factory.mktemp("patient")
    with serving(vllm, engines, where, circuit_breaker_config={"failure_threshold": 1000}) as served:
        yield served


@pytest.fixture(scope="module")
def wary(vllm, engines, tmp_path_factory):
    """Breakers that open at once, and ask every second whether the engine is back."""
    breaker = {"failure_threshold": 1, "open_seconds": 1, "open_seconds_max": 1}
    with serving(vllm, engines, tmp_path_factory.mktemp("wary"), circuit_breaker_config=breaker) as served:
        yield served


def legs_of(engines, name):
    """The legs of one request: {(attempt, prompt): leg}."""
    found = [leg for gate in engines.gates for leg in gate.legs if leg.id.startswith(f"{name}.")]
    legs = {tuple(int(part[1:]) for part in leg.id.split(".")[-3:-1]): leg for leg in found}
    assert len(legs) == len(found)
    return legs


def check_replay(trap, again):
    """The second leg was asked for the first one's prompt and what had come of its answer; the budget is the rest."""
    first, committed = trap.leg, len(again.body["token_ids"]) - len(trap.leg.body["token_ids"])
    assert again.gate is not first.gate
    assert again.body["token_ids"] == [*first.body["token_ids"], *first.ids[:committed]]
    budgets = [leg.body["sampling_params"]["max_tokens"] for leg in (first, again)]
    assert budgets[0] - budgets[1] == committed
    return committed


def relays(served):
    return counter(served, 'motor_flow_relay_total{outcome="ok"}')


def counter(served, series):
    lines = httpx.get(f"{served.obs}/metrics", timeout=10).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(series))


def until(what, seconds=REPORT_S, said=lambda: ""):
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"not after {seconds} s: {said()}"
        time.sleep(0.002)  # noqa: TID251 - other processes are at work
    return found


def described(served, name):
    """The Coordinator's own view of a request in flight."""
    requests = httpx.get(f"{served.obs}/debug/requests", timeout=10).json()["requests"]
    return next((request for request in requests if request["request_id"] == name), None)


def committed(served, reading, trap):
    """Wait until everything that the gate let through is the client's: the moment is exact. Returns the view of it."""
    view = {}

    def is_there():
        assert reading.is_alive(), reading.body[-500:]
        view.update(described(served, reading.name) or {})
        return view.get("visible") and view["prompts"][trap.prompt]["committed"] == len(trap.leg.ids)

    until(is_there, said=lambda: f"{view}, {trap.leg.ids}")
    return view


def caught(served, engines, victim, name, request, *, siblings=(), prompt=0, **moment):
    """Ask until this prompt's leg comes to this engine, and is held there; siblings are held wherever they are."""
    for turn in range(12):
        id_ = f"{name}-{turn}"
        one = Trap(id_, prompt=prompt, **moment)
        others = [Trap(id_, prompt=sibling, after=one.after, then="pass") for sibling in siblings]
        for gate in engines.gates:
            gate.traps = [one, *others]
        reading = Reading(served.infer, id_, request)
        until(lambda traps=(one, *others): all(trap.held.is_set() for trap in traps), said=lambda r=reading: r.body)
        if one.leg.gate is victim.gate and all(trap.leg.ids for trap in (one, *others)):
            views = [committed(served, reading, trap) for trap in (one, *others)]
            assert all(view["progress"] == "running" for view in views[-1]["prompts"])
            return [one, *others], reading
        for trap in (one, *others):
            trap.then = "pass"  # it went to another engine, or one of them was too fast
            trap.go.set()
        victim.go_on()
        assert reading.result().status == 200
        if siblings and turn % 2:  # or the prompts of the next list would go to the same engines
            Reading(served.infer, f"{name}-next", KINDS["reasoning"]).result()
    raise AssertionError(f"no leg of {name} came to the engine")


# --- many points: the connection is reset ---------------------------------------------------------


def inside_a_character(ids):
    return tiny().decode(ids).endswith("\ufffd")


def inside_arguments(ids):
    said = tiny().decode(ids)
    call = said.rpartition("<tool_call>")[2]
    return '"arguments": {' in call and "</tool_call>" not in said[-len(call) :]


def points_of(ids):
    """Numbers of tokens after which to cut."""
    points = {*POINTS, len(ids) // 2, len(ids) - 1}
    for meaning in (inside_a_character, inside_arguments):
        found = [k for k in range(1, len(ids)) if meaning(ids[:k])]
        points |= set(found[:: max(1, len(found) // POINTS_BY_MEANING)])
    return sorted(point for point in points if 0 < point < len(ids))


@pytest.mark.parametrize("kind", KINDS)
def test_the_connection_is_reset_anywhere(patient, engines, capsys, kind):
    want = patient.want[kind]
    (whole,) = legs_of(engines, patient.want[kind].name).values()
    points = points_of(whole.ids)
    meant = {inside_a_character: 0, inside_arguments: 0}
    before, relayed, gaps = relays(patient), 0, []
    for number, point in enumerate(points):
        # Every second time a part of the next event has arrived, too.
        trap = Trap(f"{kind}-{point}", after=point, inside=30 * (number % 2))
        trap.go.set()
        for gate in engines.gates:
            gate.traps = [trap]
        got = Reading(patient.infer, trap.request, KINDS[kind]).result()
        assert trap.held.is_set(), f"{len(whole.ids)} tokens, not {point}"
        check_same(want, got)
        legs = legs_of(engines, trap.request)
        assert sorted(legs) == [(1, 0), (2, 0)], point
        relayed += check_replay(trap, legs[2, 0]) > 0
        gaps.append(got.gap)
        for meaning in meant:
            meant[meaning] += meaning(trap.leg.ids)
    assert relays(patient) - before == relayed
    assert relayed > len(points) // 3  # the first token may not have been derendered when the connection broke
    if kind == "Chinese":
        assert meant[inside_a_character] >= POINTS_BY_MEANING - 2
    if kind == "tools":
        assert meant[inside_arguments] >= POINTS_BY_MEANING - 2
    assert max(gaps) < GAP_S_MAX
    with capsys.disabled():
        print(
            f"\nreset, {kind}: {len(points)} points of {len(whole.ids)} tokens, {relayed} relayed,"
            f" {meant[inside_a_character]} inside a character, {meant[inside_arguments]} inside arguments;"
            f" largest gap {1e3 * max(gaps):.0f} ms, without a fault {1e3 * want.gap:.0f} ms"
        )


# --- kill -9 --------------------------------------------------------------------------------------


def kill_under_all_kinds(served, engines, victim, after):
    """One engine is killed with an answer of every kind on it; returns (kind, tokens, seconds to the next piece)."""
    held = {
        kind: caught(served, engines, victim, f"kill{after}-{kind}", request, after=after, then="end")
        for kind, request in KINDS.items()
    }
    before = relays(served)
    moment = victim.kill()
    for (trap,), _ in held.values():
        trap.go.set()
    rows = []
    for kind, ((trap,), reading) in held.items():
        check_same(served.want[kind], reading.result())
        legs = legs_of(engines, trap.request)
        assert sorted(legs) == [(1, 0), (2, 0)]
        assert check_replay(trap, legs[2, 0]) == len(trap.leg.ids)
        rows.append((kind, len(trap.leg.ids), reading.resumed(moment)))
    assert relays(served) - before == len(KINDS)
    assert state_of(served, victim, engines) != "closed"
    return rows


def state_of(served, victim, engines):
    number = engines.gates.index(victim.gate) + 1
    return {0: "closed", 1: "open", 2: "probing"}[
        counter(served, f'motor_flow_breaker_state{{instance="union-{number}"}}')
    ]


def show(capsys, title, rows):
    table = Table("answer", "tokens before", "next piece after", title=title)
    for kind, tokens, seconds in rows:
        assert seconds < GAP_S_MAX, kind
        table.add_row(kind, str(tokens), f"{1e3 * seconds:.0f} ms")
    with capsys.disabled():
        print()
        Console(width=100).print(table)


def test_an_engine_is_killed_early_in_every_kind_of_answer(wary, engines, capsys):
    try:
        show(capsys, "kill -9, early", kill_under_all_kinds(wary, engines, engines.a, 3))
    finally:
        engines.a.restart()


def test_another_one_is_killed_late(wary, engines, capsys):
    try:
        show(capsys, "kill -9, late", kill_under_all_kinds(wary, engines, engines.b, 22))
    finally:
        engines.b.restart()


def test_they_come_back_and_serve_again(wary, engines):
    """On the same ports; the Coordinator finds out by itself."""
    for engine in (engines.a, engines.b):
        engine.reopen()
        until(lambda engine=engine: state_of(wary, engine, engines) == "closed")
        seen = len(engine.gate.legs)
        for turn in range(3):
            check_same(wary.want["reasoning"], Reading(wary.infer, f"back-{turn}", KINDS["reasoning"]).result())
        assert len(engine.gate.legs) > seen


def test_an_engine_falls_silent(vllm, engines, tmp_path, capsys):
    """Stopped, its connections stay open: only time tells. When it goes on, nobody waits for its answer any more."""
    changes = {"exception_config": {"stall_timeout": STALL_S}}
    with serving(vllm, engines, tmp_path, kinds=["completion"], **changes) as served:
        (trap,), reading = caught(served, engines, engines.a, "silent", KINDS["completion"], after=9, then="pass")
        with engines.a.stopped() as moment:
            trap.go.set()
            check_same(served.want["completion"], reading.result())
        legs = legs_of(engines, reading.name)
        assert sorted(legs) == [(1, 0), (2, 0)]
        check_replay(trap, legs[2, 0])
        until(lambda: engines.a.running() == 0)
        seconds = reading.resumed(moment) if reading.gap < STALL_S else reading.gap
    show(capsys, f"stopped, stall_timeout {STALL_S} s", [("completion", len(trap.leg.ids), seconds)])


@pytest.mark.parametrize("end", ["group", "core"])
def test_one_prompt_of_a_list_loses_its_engine(wary, engines, capsys, end):
    """Its siblings stream on and are asked once. `core`: the server lives a moment longer and reports it itself."""
    if end == "group":
        victim, kill, moment = engines.a, engines.a.kill, {"then": "end"}
    else:
        victim, kill, moment = engines.b, engines.b.kill_core, {"then": "pass", "act": engines.b.stop_core}
    want = wary.want["list"]
    traps, reading = caught(wary, engines, victim, f"list-{end}", LIST, prompt=1, siblings=(0, 2), after=20, **moment)
    moment = kill()
    for trap in traps:
        trap.go.set()
    check_same(want, reading.result())
    legs = legs_of(engines, reading.name)
    assert sorted(legs) == [(1, 0), (1, 1), (1, 2), (2, 1)]
    check_replay(traps[0], legs[2, 1])
    title = f"a list, kill -9 of the {end}"
    show(capsys, title, [(f"prompt {n}", len(legs[1, n].ids), reading.resumed(moment, n)) for n in range(3)])
