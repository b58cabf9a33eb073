"""`motor-flow parity` between a simulated engine's own API and the Coordinator in front of it."""

from __future__ import annotations

import io
import itertools
import json
import sys
from functools import partial

import pytest
import trio
from rich.console import Console

from motor_flow.app import App
from motor_flow.config import load_embedded
from motor_flow.edge.server import Server
from motor_flow.net.stream import Origin
from motor_flow.sim.faults import Fault
from motor_flow.sim.world import embedded_cluster
from motor_flow.views.parity.accepted import accepted_as
from motor_flow.views.parity.answers import read_answer
from motor_flow.views.parity.asking import Unreachable
from motor_flow.views.parity.cases import matching, shipped
from motor_flow.views.parity.compare import differences, envelope_differences
from motor_flow.views.parity.recorded import Player
from motor_flow.views.parity.run import Misused, list_cases, parity, run_parity
from motor_flow.views.parity.telling import document, tell
from tests.world import COORDINATOR, make_world

NATIVE, CHAIN = "http://engine-1", f"http://{COORDINATOR.authority}"
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 20}
SUBSET = (
    *("chat/hello/*", "chat/several turns/*", "unicode/Chinese, cut at 24/*", "tools/two calls/*", "tools/required/*"),
    *("reasoning/hidden/*", "logprobs/beside reasoning/*", "structured/regex/*", "stopping/across tokens/*"),
    *("sampling/n = 3/*", "completions/list of prompts/*", "completions/echo/*", "stream_options/list, *"),
    *("fields/everything at once/*", "fields/nulls/*", "refused/logprobs beyond the limit/*", "refused/n = 0/*"),
)


def subset(*patterns):
    cases = shipped()
    found = [matching(cases, pattern) for pattern in patterns or SUBSET]
    assert all(found), "a pattern fits nothing"
    return [case for part in found for case in part]


def told(outcome):
    text = io.StringIO()
    tell(outcome, Console(file=text))
    return text.getvalue()


async def compared(world, cases, **changes):
    return await parity(
        world.net.dial, [NATIVE, CHAIN], changes.get("model"), cases, changes.get("done", lambda _: None)
    )


async def test_the_simulators_agree_and_what_is_accepted_is_counted(nursery, autojump_clock):
    world = await make_world(nursery)
    seen = []
    cases = subset()
    outcome = await compared(world, cases, done=seen.append)
    assert [str(judged.difference) for _, judged in outcome.judged if not judged.accepted] == []
    assert outcome.good
    assert outcome.model == "tiny"
    assert [result.case for result in seen] == cases
    uses = outcome.uses()
    assert set(uses) == {"reasoning_tokens", "system_fingerprint", "refused before the stream"}
    found = document(outcome)
    assert (found["requests"], found["different"]) == (len(cases), 0)
    assert found["equal"] + found["accepted"] == len(cases)
    assert {entry["name"]: entry["count"] for entry in found["accepted_differences"] if entry["count"]} == uses
    assert sum(uses.values()) == len(found["differences"])
    text = told(outcome)
    for entry in found["accepted_differences"]:
        assert entry["reason"] in text
    await world.check()


async def test_the_tool_asks_the_chain_and_not_the_engine_twice(nursery, autojump_clock):
    world = await make_world(nursery)
    await compared(world, subset("chat/hello/whole"))
    assert (len(world.seen("native")), len(world.seen("generate")), len(world.seen("render"))) == (1, 1, 1)


async def test_a_planted_difference_is_found_and_named(nursery, autojump_clock):
    """The engine says something else natively: it gives up early, and it ends a stream too soon."""
    world = await make_world(nursery)
    world.engines[0].faults.add(Fault("abort", after=3, on="native"))
    world.engines[0].faults.add(Fault("done", after=2, on="native"))
    outcome = await compared(world, subset("completions/plain/*"))
    assert not outcome.good
    found = document(outcome)
    assert (found["different"], found["equal"], found["accepted"]) == (2, 0, 0)
    assert found["kinds"] == {"completions": {"equal": 0, "accepted": 0, "different": 2}}
    whole, short = (
        next(one for one in found["differences"] if one["field"] == field)
        for field in ("choices[0].finish_reason", "choices[0].content")
    )
    assert (whole["request"], whole["native"], whole["coordinator"], whole["accepted"]) == (
        *("completions/plain/whole", "abort", "length"),
        None,
    )
    assert (short["request"], short["accepted"]) == ("completions/plain/stream", None)
    assert len(short["native"]) < len(short["coordinator"])
    assert "choices[0].finish_reason: native 'abort', chain 'length'" in told(outcome)


async def test_an_answer_that_breaks_is_a_difference(nursery, autojump_clock):
    world = await make_world(nursery)
    world.engines[0].faults.add(Fault("reset", on="native"))
    outcome = await compared(world, subset("completions/plain/whole"))
    (broken,) = outcome.results[0].found
    assert broken.difference.field == "answer"
    assert broken.difference.native.startswith("broken: ")
    assert broken.difference.chain == "status 200, readable"
    assert not outcome.good


PLANTED = {
    "another finish": lambda events: [*events[:-1], events[-2], *events[-1:]],
    "an empty delta behind it": lambda events: [*events[:-1], events[0] | {"choices": [EMPTY]}, *events[-1:]],
    "another end": lambda events: [*events, b"[DONE]"],
    "another member of a delta": lambda events: [with_delta(events[0], refusal="no"), *events[1:]],
    "another role": lambda events: [with_delta(events[0], role="user"), *events[1:]],
    "no time": lambda events: [event | {"created": 0} if isinstance(event, dict) else event for event in events],
}
EMPTY = {"index": 0, "delta": {}, "finish_reason": None}


def with_delta(event, **more):
    choice = event["choices"][0]
    return event | {"choices": [choice | {"delta": choice["delta"] | more}]}


@pytest.mark.parametrize("plant", PLANTED)
async def test_what_no_answer_of_vllms_has_is_found(nursery, autojump_clock, plant):
    world = await make_world(nursery)
    got = await world.stream("/v1/chat/completions", HELLO, to=Origin("engine-1", 80))
    events = [json.loads(data) if data != b"[DONE]" else data for _, data in got.events]
    assert events[-1] == b"[DONE]"
    changed = PLANTED[plant](events)
    body = b"".join(b"data: %b\n\n" % (e if isinstance(e, bytes) else json.dumps(e).encode()) for e in changed)
    clean, odd = got.answer, read_answer(200, "text/event-stream", body)
    found = differences(clean, odd) + envelope_differences(clean, odd)
    assert found, plant
    assert all(accepted_as(one, clean, odd, "") is None for one in found)


async def test_who_does_not_answer_is_named(nursery, autojump_clock):
    world = await make_world(nursery)
    for urls in ((NATIVE, "http://nobody"), ("http://nobody", CHAIN)):
        with pytest.raises(Unreachable, match="http://nobody does not answer"):
            await parity(world.net.dial, urls, None, subset("chat/hello/*"))


async def test_a_server_that_shows_no_model_needs_one_named(nursery, autojump_clock):
    world = await make_world(nursery)

    async def bare(stream):
        await Server(nothing).serve_stream(stream)

    world.net.listen("bare", 80, bare)
    with pytest.raises(Misused, match="--model"):
        await parity(world.net.dial, ["http://bare", CHAIN], None, subset("chat/hello/*"))


async def nothing(scope, receive, send):
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def run(*arguments):
    command = [sys.executable, "-m", "motor_flow", "parity", *arguments]
    return await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)


async def test_the_command_on_real_sockets(nursery, tmp_path):
    cluster = embedded_cluster(pace_s=0)
    await cluster.listen_on_loopback(nursery)
    configuration = cluster.configuration()
    app = App(load_embedded(configuration, {}).config)
    await nursery.start(app.run)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(Server(app.inference).serve, listeners)
    chain = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    native = configuration["instances"][0]["url"]
    both = ("--native", native, "--coordinator", chain)

    good = await run(*both, "--only", "completions/plain/*", "--json", "-")
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["requests"] == 2

    wrong = await run(*both, "--model", "wrong")
    assert (wrong.returncode, b"does not serve 'wrong'; it shows tiny" in wrong.stderr) == (2, True)

    for engine in cluster.engines:
        engine.first_token_s = 0.5
    out = tmp_path / "part.json"
    async with trio.open_nursery() as inner:
        command = [sys.executable, "-m", "motor_flow", "parity", *both, "--json", str(out)]
        start = partial(trio.run_process, command, capture_stdout=True, capture_stderr=True, check=False)
        process = await inner.start(start)
        await trio.sleep(5)
        process.terminate()
    assert process.returncode == 143
    part = json.loads(out.read_bytes())
    assert part["ended_early"] == "a signal"
    assert 0 < part["requests"] < part["planned"] == len(shipped())
    for engine in cluster.engines:
        engine.first_token_s = 0.0

    cluster.engines[0].faults.add(Fault("abort", after=3, on="native"))
    out = tmp_path / "found.json"
    bad = await run(*both, "--only", "completions/plain/whole", "--json", str(out))
    assert bad.returncode == 3, bad.stderr
    assert b"1 requests: 0 equal, 0 with accepted differences only, 1 different" in bad.stdout
    assert json.loads(out.read_bytes())["different"] == 1
    nursery.cancel_scope.cancel()
    app.pool.close()


def test_statuses_without_a_comparison(tmp_path, capsys):
    free, other = "http://127.0.0.1:1", "http://127.0.0.1:2"
    assert run_parity(free, other, only="chat/hello/*") == 69
    assert f"{free} does not answer" in capsys.readouterr().err
    assert run_parity("ftp://x", free) == 2
    assert run_parity(free, free) == 2
    assert "the same server" in capsys.readouterr().err
    assert run_parity(free, other, only="nothing") == 2
    assert run_parity(free, other, corpus=tmp_path / "none.jsonl") == 78
    assert run_parity(free, other, out=tmp_path / "no" / "such.json") == 2
    capsys.readouterr()
    assert list_cases(None, "chat/hello/*") == 0
    assert capsys.readouterr().out == "chat/hello/whole\nchat/hello/stream\n"


# --- fixed tokens ---------------------------------------------------------------------------------


async def fixed(world, cases):
    return await parity(world.net.dial, [NATIVE, "http://sidecar"], None, cases, fixed_tokens=True)


async def test_derender_alone_says_what_the_engine_said_with_the_same_tokens(nursery, autojump_clock):
    world = await make_world(nursery)
    outcome = await fixed(world, shipped())
    assert [(case.name, str(judged.difference)) for case, judged in outcome.judged if not judged.accepted] == []
    assert len(outcome.results) > 300
    left_out = document(outcome)["left_out"]
    assert sum(map(len, left_out.values())) + len(outcome.results) == len(shipped())
    assert not world.seen("generate")
    for reason, names in left_out.items():
        assert f"{len(names)} requests were left out: {reason}" in told(outcome)


async def test_an_engine_that_never_says_the_same_twice_is_no_obstacle(nursery, autojump_clock, monkeypatch):
    """A model that is drawn anew with every request."""
    world = await make_world(nursery)
    ids = itertools.count()
    start = world.engines[0].oracle.start
    monkeypatch.setattr(
        world.engines[0].oracle, "start", lambda prompt, index=0: start([*prompt, next(ids) % 600], index), raising=True
    )
    cases = subset("unicode/*", "completions/list of prompts/*")
    assert not (await compared(world, cases)).good
    assert (await fixed(world, cases)).good


async def test_other_tokens_are_noticed(nursery, autojump_clock, monkeypatch):
    world = await make_world(nursery)
    take = Player.take

    def without_last(player, answer):
        for choice in answer.choices.values():
            choice.token_ids = choice.token_ids[:-1]
        take(player, answer)

    monkeypatch.setattr(Player, "take", without_last)
    outcome = await fixed(world, subset("chat/hello/*"))
    assert outcome.verdicts()["different"] == 2
