"""Two real engines share one answer: one reads the prompt, NixlConnector moves its KV, the other one writes.

Answers are compared with those of one engine that does both. A gate (gate.py) stands in front of every engine, so that
faults and departures happen at an exact moment; the engines' own metrics say what was moved and what is held.

Source: RFC Router、Scheduler 和 KV Conductor; vLLM 0.33 distributed/kv_transfer/kv_connector/v1/nixl (a lease of 30 s).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest

from motor_flow.views.parity.answers import read_answer
from motor_flow.views.parity.compare import differences
from tests.e2e import real
from tests.e2e.engines import MortalEngine
from tests.e2e.gate import HOLD_S_MAX, Gate, Trap
from tests.e2e.reading import Reading, check_same
from tests.e2e.requests import TOOLS, chat, text
from tests.e2e.residue import assert_idle

CORES_MIN = 4
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        (os.cpu_count() or 1) < CORES_MIN and not os.environ.get("MOTOR_FLOW_HANDOFF"),
        reason="NIXL polls on one core per engine: fewer than 4 cores; MOTOR_FLOW_HANDOFF=1 runs them all the same",
    ),
]

TRANSFER = {
    "kv_connector": "NixlConnector",
    "kv_role": "kv_both",
    "kv_buffer_device": "cpu",
    "kv_load_failure_policy": "fail",
}
NIXL = {"UCX_TLS": "tcp,sm,self", "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1"}
HITS = "vllm:external_prefix_cache_hits_total"
HELD = "vllm:kv_cache_usage_perc"
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
LONG = "A prompt of many blocks. " * 20

KINDS = {
    "completion": text("Once upon", max_tokens=60, ignore_eos=True),
    "many blocks": text(LONG),
    "reasoning": chat("Hello!"),
    "Chinese": chat("Say hello in Chinese."),
    "tools": chat("Weather in Paris and 北京?", tools=TOOLS),
    "logprobs": chat("Say hello in Chinese.", logprobs=True, top_logprobs=3),
    "list": text(["Once upon", "Numbers: ", "从前有座山，"], max_tokens=40, ignore_eos=True),
}
NICE = 19
FREED_S = 5  # far from the lease
STAYS_S = 1
REPORT_S = 20
GAP_S_MAX = 10


class Door(Gate):
    """A gate that can be shut for the answering legs of one request: the engine never hears of them.

    Attributes:
        shut: the client's x-request-id.
        came: such a leg has come, so the prompt has been read.
        go: it is sent away.

    """

    def __init__(self, engine):
        self.shut, self.came, self.go = "", threading.Event(), threading.Event()
        super().__init__(engine)

    def register(self, leg):
        trap = super().register(leg)
        if self.shut and leg.id.startswith(f"{self.shut}.") and leg.id.endswith(".d"):
            self.came.set()
            self.go.wait(HOLD_S_MAX)
            raise ConnectionAbortedError
        return trap

    @contextlib.contextmanager
    def shut_for(self, name):
        self.shut = name
        try:
            yield
        finally:
            self.go.set()
            self.shut, self.came, self.go = "", threading.Event(), threading.Event()


class NixlEngine(MortalEngine):
    """An engine that gives and takes KV."""

    def __init__(self, venv, model, log):
        super().__init__(venv, model, log)
        self.gate.close()
        self.gate = Door(self.port)
        self._command = [*self._command, "--kv-transfer-config", json.dumps(TRANSFER)]
        self._env = self._env | NIXL | {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(real.free_port())}

    def wait(self):
        """As soon as it serves, its computing comes before NIXL's waiting: a thread that polls all the time."""
        super().wait()
        ticks = {}
        for task in Path(f"/proc/{self._core()}/task").iterdir():
            user, system = (task / "stat").read_text().rsplit(")", 1)[1].split()[11:13]
            ticks[int(task.name)] = int(user) + int(system)
        del ticks[self._core()]
        os.setpriority(os.PRIO_PROCESS, max(ticks, key=ticks.get), NICE)

    def metric(self, name):
        return counter(f"http://127.0.0.1:{self.port}", f"{name}{{")


@pytest.fixture(scope="module")
def engines(vllm, tmp_path_factory):
    where = tmp_path_factory.mktemp("handoff")
    with contextlib.ExitStack() as stack:
        prefill, decode = (NixlEngine(vllm.venv, vllm.model, where / f"{name}.log") for name in ("prefill", "decode"))
        union = Gate(vllm.engine)
        stack.callback(union.close)
        for engine in (prefill, decode):
            stack.callback(engine.stop)
            engine.start()
        for engine in (prefill, decode):
            engine.wait()
        yield SimpleNamespace(prefill=prefill, decode=decode, union=union, gates=[prefill.gate, decode.gate, union])


@contextlib.contextmanager
def serving(vllm, where, roles, **changes):
    """A Coordinator in front of these gates: [(role, gate)]."""
    pair = {"dispatch_profile": "handoff", "kv_connector": "NixlConnector"}
    instances = [
        {"id": i, "role": role, "url": f"http://127.0.0.1:{gate.port}"} | ({} if role == "union" else pair)
        for i, (role, gate) in enumerate(roles, 1)
    ]
    with real.coordinator(where, vllm.sidecar, [], instances=instances, **changes) as (infer, _, obs):
        yield SimpleNamespace(infer=infer, obs=obs)
        assert_idle(obs)


@pytest.fixture(scope="module")
def pair(vllm, engines, tmp_path_factory):
    """Nothing but the two; breakers that never open: the engines are well, their connections are not."""
    roles = [("prefill", engines.prefill.gate), ("decode", engines.decode.gate)]
    where = tmp_path_factory.mktemp("pair")
    with serving(vllm, where, roles, circuit_breaker_config={"failure_threshold": 1000}) as served:
        yield served


@pytest.fixture(scope="module")
def mixed(vllm, engines, tmp_path_factory):
    """The two, and a plain engine; breakers that open at once, and ask every second whether the engine is back."""
    roles = [("prefill", engines.prefill.gate), ("decode", engines.decode.gate), ("union", engines.union)]
    breaker = {"failure_threshold": 1, "open_seconds": 1, "open_seconds_max": 1}
    with serving(vllm, tmp_path_factory.mktemp("mixed"), roles, circuit_breaker_config=breaker) as served:
        yield served


@pytest.fixture(scope="module")
def want(served):
    """What one engine alone answers, asked once."""
    cache = {}

    def of(kind, *, stream=True):
        if (kind, stream) not in cache:
            cache[kind, stream] = ask(served.infer, f"want-{len(cache)}", KINDS[kind], stream=stream)
        return cache[kind, stream]

    return of


@pytest.fixture(autouse=True)
def no_kv_is_left(engines):
    """After every test both engines hold nothing, and nothing has been left to its lease."""
    yield
    for engine in (engines.prefill, engines.decode):
        engine.gate.traps = []
        until(lambda engine=engine: engine.metric(HELD) == 0, FREED_S)
        assert engine.metric(EXPIRED) == 0


def ask(infer, name, request, *, stream=True):
    """A whole answer: `answer` is what it says, `body` what came."""
    if stream:
        return Reading(infer, name, request).result()
    path, body = request
    reply = httpx.post(infer + path, json=body, headers={"x-request-id": name}, timeout=60)
    answer = read_answer(reply.status_code, reply.headers["content-type"], reply.content)
    return SimpleNamespace(answer=answer, body=reply.content)


def compare(want, got, *, stream=True):
    if stream:
        check_same(want, got)
    assert got.answer.status == 200
    assert list(map(str, differences(want.answer, got.answer))) == []


def legs_of(engines, name):
    """The legs of one request: {(attempt, prompt, letter): leg}. The letter x: the KV was taken to be thrown away."""
    found = [leg for gate in engines.gates for leg in gate.legs if leg.id.startswith(f"{name}.")]
    legs = {}
    for leg in found:
        *_, attempt, prompt, letter = leg.id.removesuffix(".x").split(".")
        legs[int(attempt[1:]), int(prompt[1:]), "x" if leg.id.endswith(".x") else letter] = leg
    assert len(legs) == len(found)
    return legs


def counter(base, series):
    lines = httpx.get(f"{base}/metrics", timeout=10).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(series))


def until(what, seconds=REPORT_S):
    """Wait for it; returns how long that took."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < seconds, f"not after {seconds} s"
        time.sleep(0.05)  # noqa: TID251 - other processes are at work
    return time.monotonic() - began


# --- the same answer ------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_two_engines_answer_as_one(want, pair, engines, kind, stream):
    hits = engines.decode.metric(HITS)
    name = f"{kind.replace(' ', '-')}-{stream}"
    got = ask(pair.infer, name, KINDS[kind], stream=stream)
    compare(want(kind, stream=stream), got, stream=stream)
    prompts = range(3 if kind == "list" else 1)
    legs = legs_of(engines, name)
    assert sorted(legs) == sorted((1, prompt, letter) for prompt in prompts for letter in "pd")
    for prompt in prompts:
        prefill, decode = legs[1, prompt, "p"], legs[1, prompt, "d"]
        assert (prefill.gate, decode.gate) == (engines.prefill.gate, engines.decode.gate)
        assert decode.body["kv_transfer_params"]["remote_request_id"].startswith(f"generate-tokens-{prefill.id}")
    assert b"kv_transfer_params" not in got.body
    until(lambda: engines.decode.metric(HITS) > hits)


def test_the_decode_engine_reads_nothing_of_the_prompt_again(pair, engines):
    """A prompt that nobody has seen: all of it comes from the prefill engine."""
    hits = engines.decode.metric(HITS)
    got = ask(pair.infer, "unseen", text(f"Something new. {LONG}", max_tokens=5), stream=False)
    tokens = got.answer.usage["prompt_tokens"]
    assert tokens > 100
    until(lambda: engines.decode.metric(HITS) - hits == tokens)


def test_many_at_once(want, pair, engines):
    expected = {kind: want(kind) for kind in KINDS}
    readings = {kind: Reading(pair.infer, f"many-{kind.replace(' ', '-')}", KINDS[kind]) for kind in KINDS}
    for kind, reading in readings.items():
        compare(expected[kind], reading.result())
        assert {attempt for attempt, _, _ in legs_of(engines, reading.name)} == {1}


def test_what_clients_say_of_kv_reaches_no_engine(want, pair, engines):
    """It could name blocks of others, and end the engine."""
    path, body = KINDS["completion"]
    said = {"do_remote_prefill": True, "remote_engine_id": "mine"}
    odd = path, body | {"kv_transfer_params": said, "vllm_xargs": {"kv_transfer_params": json.dumps(said)}}
    compare(want("completion"), ask(pair.infer, "said", odd))
    assert all("mine" not in json.dumps(leg.body) for leg in legs_of(engines, "said").values())


# --- a decode engine is lost ----------------------------------------------------------------------


@pytest.mark.parametrize("after", [1, 20])
@pytest.mark.parametrize("kind", ["completion", "tools", "Chinese"])
def test_the_connection_to_decode_is_reset(want, pair, engines, kind, after):
    """The prompt and what has come of its answer are handed over once more."""
    expected = want(kind)
    trap = Trap(f"reset-{kind}-{after}", after=after, inside=30)
    trap.go.set()
    engines.decode.gate.traps = [trap]
    got = ask(pair.infer, trap.request, KINDS[kind])
    assert trap.held.is_set()
    compare(expected, got)
    legs = legs_of(engines, trap.request)
    given_back = legs.pop((1, 0, "x"), None)
    assert sorted(legs) == [(1, 0, "d"), (1, 0, "p"), (2, 0, "d"), (2, 0, "p")]
    first, prefill, again = trap.leg, legs[2, 0, "p"], legs[2, 0, "d"]
    committed = len(again.body["token_ids"]) - len(first.body["token_ids"])
    if after > 1:
        assert committed > 0  # a first token may be lost with the connection; then nobody knows that the KV was taken
    assert given_back is None or committed == 0
    assert again.body["token_ids"] == prefill.body["token_ids"] == [*first.body["token_ids"], *first.ids[:committed]]
    assert got.gap < GAP_S_MAX


# --- clients leave --------------------------------------------------------------------------------


def send(infer, name, request, *, stream):
    """A client that has asked and reads nothing yet."""
    path, body = request
    at, raw = urlsplit(infer), json.dumps(body | {"stream": stream}).encode()
    client = socket.create_connection((at.hostname, at.port), timeout=30)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-request-id: {name}\r\n"
    client.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(raw) + raw)
    return client


@pytest.mark.parametrize("stream", [True, False])
def test_the_client_leaves_between_the_legs(pair, engines, capsys, stream):
    """Only a pull frees the blocks before their lease ends: the Coordinator has them pulled, for nobody."""
    name, door = f"between-{stream}", engines.decode.gate
    with door.shut_for(name):
        client = send(pair.infer, name, KINDS["many blocks"], stream=stream)
        assert door.came.wait(REPORT_S)
        held = engines.prefill.metric(HELD)
        assert held > 0
        time.sleep(STAYS_S)  # noqa: TID251 - they are not freed by themselves
        assert engines.prefill.metric(HELD) == held
        client.close()
        seconds = until(lambda: engines.prefill.metric(HELD) == 0, FREED_S)
        assert_idle(pair.obs)
    legs = legs_of(engines, name)
    assert sorted(legs) == [(1, 0, "d"), (1, 0, "p"), (1, 0, "x")]
    assert legs[1, 0, "x"].body["sampling_params"]["max_tokens"] == 1
    with capsys.disabled():
        print(f"\nleft between the legs: {held:.1%} of the prefill engine's KV, free after {1e3 * seconds:.0f} ms")


def test_the_client_leaves_while_decode_is_at_its_first_token(pair, engines):
    trap = Trap("first", after=0, then="end")
    engines.decode.gate.traps = [trap]
    client = send(pair.infer, trap.request, KINDS["completion"], stream=True)
    assert trap.held.wait(REPORT_S)
    client.close()
    assert_idle(pair.obs)
    trap.go.set()
    until(lambda: engines.decode.running() == 0, FREED_S)
    until(lambda: engines.prefill.metric(HELD) == 0, FREED_S)


# --- kill -9 --------------------------------------------------------------------------------------


def held_at(served, engines, name, kind, after, then):
    trap = Trap(name, after=after, then=then)
    engines.decode.gate.traps = [trap]
    reading = Reading(served.infer, name, KINDS[kind])
    assert trap.held.wait(REPORT_S), reading.body[-500:]
    return trap, reading


def comes_back(served, engines, engine, want):
    """The same port, another process: the other engine must be introduced to it again."""
    engine.restart()
    engine.reopen()
    until(lambda: counter(served.obs, "motor_flow_breaker_state{") == 0)
    hits, name = engines.decode.metric(HITS), f"again-{engine.port}"
    compare(want("tools"), ask(served.infer, name, KINDS["tools"]))
    assert sorted(legs_of(engines, name)) == [(1, 0, "d"), (1, 0, "p")]
    until(lambda: engines.decode.metric(HITS) > hits)


def test_the_prefill_engine_is_killed_while_decode_writes(want, mixed, engines):
    """It is not needed any more. New requests go to the engine that does both."""
    expected = want("completion")
    trap, reading = held_at(mixed, engines, "p-killed", "completion", 20, "pass")
    engines.prefill.kill()
    trap.go.set()
    compare(expected, reading.result())
    assert sorted(legs_of(engines, trap.request)) == [(1, 0, "d"), (1, 0, "p")]
    compare(want("reasoning"), ask(mixed.infer, "p-is-dead", KINDS["reasoning"]))
    last = max(legs_of(engines, "p-is-dead").items())[1]
    assert last.gate is engines.union
    comes_back(mixed, engines, engines.prefill, want)


def test_the_decode_engine_is_killed_while_it_writes(want, mixed, engines, capsys):
    """Its answer goes on where the prompt is read again, without KV."""
    expected = want("tools")
    trap, reading = held_at(mixed, engines, "d-killed", "tools", 20, "end")
    moment = engines.decode.kill()
    trap.go.set()
    compare(expected, reading.result())
    again = legs_of(engines, trap.request)[2, 0, "u"]
    assert again.gate is engines.union
    assert again.body["token_ids"][: len(trap.leg.body["token_ids"])] == trap.leg.body["token_ids"]
    assert "kv_transfer_params" not in again.body
    with capsys.disabled():
        print(f"\ndecode killed with -9: next piece after {1e3 * reading.resumed(moment):.0f} ms")
    comes_back(mixed, engines, engines.decode, want)
