"""Engines that were started with `--tokens-only` answer in token ids; what they cannot do is told, and harms nobody.

Contract section 7 (Route, Breaker); vLLM 0.33 (`--tokens-only`: OpenAI's API answers 500 without a message).
"""

from __future__ import annotations

import pytest
import trio

from motor_flow.app import ROUTES_RECHECK_S
from motor_flow.edge.server import Server
from motor_flow.engine.probe import lacks_tokenizer
from motor_flow.net.http import HttpClient
from motor_flow.sim.engine import Engine
from motor_flow.sim.faults import Fault
from tests.scripted import Scripted, reply
from tests.world import CHAT, TEXT, make_world, unexplained

HELLO = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 8}
ECHO = HELLO | {"echo": True}
TALK = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 8}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
NATIVE = {
    "echo": (TEXT, ECHO, "echo"),
    "streamed echo": (TEXT, ECHO | {"stream": True}, "echo"),
    "a stop string in a call": (CHAT, TALK | {"stream": True, "stop": ["x"], "tools": TOOLS}, "may cut a tool call"),
    "a passed route": ("/v1/responses", {"model": "tiny", "input": "hello"}, "passed through"),
}


def unknown(world):
    """As if the engines had not been there when we asked."""
    for instance in world.app.registry:
        instance.tokenizer = True


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", NATIVE)
async def test_what_needs_an_engines_own_api_is_told(nursery, autojump_clock, name, known):
    world = await make_world(nursery, engine={"tokens_only": True})
    path, body, why = NATIVE[name]
    if not known:
        unknown(world)
    for _ in range(4):
        got = await world.ask(path, body)
        assert got.status == 501
        assert "--tokens-only" in got.error["message"]
        assert why in got.error["message"]
        assert got.error["stage"] == "schedule"
    assert len(world.seen("native")) == (0 if known else len(world.engines))
    assert [instance.breaker.failures for instance in world.app.registry] == [0, 0]
    assert (await world.ask(TEXT, HELLO)).status == 200
    await world.check()


@pytest.mark.parametrize("known", [False, True])
async def test_engines_with_a_tokenizer_answer_it(nursery, autojump_clock, known):
    world = await make_world(nursery, engine={"tokens_only": True})
    able = Engine(name="engine-2")
    world.net.listen("engine-2", 80, Server(able).serve_stream)
    world.app.pool.close()
    one, two = world.app.registry
    one.tokenizer, two.tokenizer = not known, True
    for _ in range(4):
        got = await world.ask(TEXT, ECHO)
        assert got.status == 200
        assert got.json["choices"][0]["text"].startswith(HELLO["prompt"])
    assert (one.tokenizer, two.tokenizer) == (False, True)
    assert len(world.seen("native")) == (0 if known else 1)
    assert (await world.ask(TEXT, HELLO)).status == (await world.ask(TEXT, HELLO)).status == 200
    assert len(world.seen()) == 1, "token requests go to both"
    await world.check()


async def test_without_render_there_is_no_way_for_now(nursery, autojump_clock):
    world = await make_world(nursery, engine={"tokens_only": True})
    world.sidecar.faults.add(Fault("status", status=503, times=9, on="render"))
    got = await world.ask(TEXT, HELLO)
    assert (got.status, got.error["stage"]) == (503, "render")
    assert "tokenizer" in got.error["message"]
    assert got.headers["retry-after"]
    await world.check()


async def test_an_engine_that_was_started_anew_is_found(nursery, autojump_clock):
    world = await make_world(nursery, engines=1, engine={"tokens_only": True})
    assert (await world.ask(TEXT, ECHO)).status == 501
    world.net.listen("engine-1", 80, Server(Engine(name="engine-1")).serve_stream)
    world.app.pool.close()
    await trio.sleep(ROUTES_RECHECK_S + 1)
    assert (await world.ask(TEXT, ECHO)).status == 200
    await world.check()


async def test_a_list_streamed_by_trigger_stays_with_the_chain(nursery, autojump_clock):
    """It would take an engine's own API, if there were one."""
    roles = ("prefill", "decode", "union")
    world = await make_world(nursery, engines=3, engine={"tokens_only": True}, roles=roles, profile="trigger")
    body = HELLO | {"prompt": ["one", "two"]}
    able = await make_world(nursery)
    got, want = await world.stream(TEXT, body), await able.native(TEXT, body, stream=True)
    assert unexplained(want.answer, got.answer) == []
    await world.check()


@pytest.mark.parametrize(
    ("old_abort", "paused", "lacking"), [(405, 404, True), (405, 200, False), (404, 404, False), (500, 404, False)]
)
async def test_who_else_has_the_old_abort_route_has_a_tokenizer(nursery, autojump_clock, old_abort, paused, lacking):
    world = await make_world(nursery)
    plan = {"/abort_requests": [[reply(old_abort, {})]], "/is_paused": [[reply(paused, {})]]}
    Scripted(world, "engine-1", plan)
    assert await lacks_tokenizer(HttpClient(world.app.pool), "http://engine-1") is lacking


async def test_whoever_cannot_be_asked_is_not_judged(nursery, autojump_clock):
    world = await make_world(nursery)
    assert not await lacks_tokenizer(HttpClient(world.app.pool), "http://nobody")
