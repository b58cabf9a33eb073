"""Engines that were started with `--tokens-only` answer in token ids; what they cannot do is told, and harms nobody.

Contract section 7 (Route, Breaker). As vLLM 0.28 and 0.33 do it: text is refused with 400, chats with 500 without a
message, prompts of ids have answers without text, structured outputs are refused, bad words forgotten.
"""

from __future__ import annotations

import pytest
import trio

from motor_flow.app import ROUTES_RECHECK_S
from motor_flow.edge.server import Server
from motor_flow.engine.probe import has_tokenizer
from motor_flow.net.http import HttpClient
from motor_flow.sim.engine import Engine
from motor_flow.sim.faults import Fault
from tests.scripted import HANG, Scripted, error, reply
from tests.world import CHAT, TEXT, make_world, unexplained

HELLO = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 8}
ECHO = HELLO | {"echo": True}
TALK = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 8}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
SILENT = ("echo of ids", "bad words")  # such an engine does them, without a word, and wrongly
NEEDS_IT = {
    "echo": (TEXT, ECHO, "echo"),
    "streamed echo": (TEXT, ECHO | {"stream": True}, "echo"),
    "echo of ids": (TEXT, ECHO | {"prompt": [5, 6, 7]}, "echo"),
    "a stop string in a call": (CHAT, TALK | {"stream": True, "stop": ["x"], "tools": TOOLS}, "may cut a tool call"),
    "a passed route": ("/v1/responses", {"model": "tiny", "input": "hello"}, "passed through"),
    "structured outputs": (CHAT, TALK | {"structured_outputs": {"choice": ["yes", "no"]}}, "structured_outputs"),
    "bad words": (TEXT, HELLO | {"bad_words": ["time"]}, "bad_words"),
}


def nobody_has_asked(world):
    """As if the engines had not been there when the process started."""
    for instance in world.app.registry:
        instance.tokenizer = None


def judged(world):
    return [instance.tokenizer for instance in world.app.registry]


async def replaced(world, name, engine):
    """Another process listens there from now on."""
    world.net.listen(name, 80, Server(engine).serve_stream)
    world.app.pool.close()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", NEEDS_IT)
async def test_what_needs_a_tokenizer_is_told(nursery, autojump_clock, name, known):
    world = await make_world(nursery, engine={"tokens_only": True})
    path, body, why = NEEDS_IT[name]
    assert judged(world) == [False, False]
    if not known:
        nobody_has_asked(world)
    for _ in range(4):
        got = await world.ask(path, body)
        assert got.status == 501
        assert "--tokens-only" in got.error["message"]
        assert why in got.error["message"]
        assert got.error["stage"] == "schedule"
    assert world.seen() == world.seen("native") == []
    assert judged(world) == [False, False]
    assert [instance.breaker.failures for instance in world.app.registry] == [0, 0]
    assert (await world.ask(TEXT, HELLO)).status == 200
    await world.check()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", NEEDS_IT)
async def test_engines_with_a_tokenizer_do_it(nursery, autojump_clock, name, known):
    world = await make_world(nursery, engine={"tokens_only": True})
    able = Engine(name="engine-2")
    await replaced(world, "engine-2", able)
    one, two = world.app.registry
    one.tokenizer, two.tokenizer = (False, True) if known else (None, None)
    path, body, _ = NEEDS_IT[name]
    for _ in range(4):
        assert (await world.ask(path, body)).status == 200
    assert world.seen() == world.seen("native") == []
    assert two.tokenizer
    for _ in range(2):
        assert (await world.ask(TEXT, HELLO)).status == 200
    assert len(world.seen()) == 1, "plain requests go to both"
    await world.check()


@pytest.mark.parametrize("name", NEEDS_IT)
async def test_an_engine_that_has_lost_its_tokenizer_harms_nobody(nursery, autojump_clock, name):
    """It was started anew with other options, and nobody has noticed yet."""
    world = await make_world(nursery)
    await replaced(world, "engine-1", Engine(name="engine-1", tokens_only=True))
    path, body, _ = NEEDS_IT[name]
    if name in SILENT:
        await trio.sleep(ROUTES_RECHECK_S + 1)  # until then nobody can know
    for _ in range(4):
        assert (await world.ask(path, body)).status == 200
    assert judged(world) == [False, True]
    assert [instance.breaker.failures for instance in world.app.registry] == [0, 0]
    await world.check()


async def test_a_clients_words_judge_no_engine(nursery, autojump_clock):
    """vLLM repeats what it could not read."""
    world = await make_world(nursery)
    said = "1 validation error: truncation: Input should be 'auto' or 'disabled', got 'skip_tokenizer_init'"
    for name in ("engine-1", "engine-2"):
        Scripted(world, name, {"/v1/responses": [[error(400, said, kind="Bad Request")]]})
    got = await world.ask("/v1/responses", {"model": "tiny", "input": "hi", "truncation": "skip_tokenizer_init"})
    assert (got.status, got.error["message"]) == (400, said)
    assert judged(world) == [True, True]
    await world.check()


async def test_many_of_them_cost_no_attempts(nursery, autojump_clock):
    world = await make_world(nursery, engines=7, engine={"tokens_only": True})
    await replaced(world, "engine-7", Engine(name="engine-7"))
    nobody_has_asked(world)
    assert (await world.ask(TEXT, ECHO)).status == 200
    assert judged(world) == [False] * 6 + [True]
    await world.check()


async def test_engines_that_lack_the_token_route_still_have_their_tokenizer(nursery, autojump_clock):
    world = await make_world(nursery, engine={"tokens_only": True})
    await replaced(world, "engine-1", Engine(name="engine-1", scale_out=False))
    nobody_has_asked(world)
    path, body, _ = NEEDS_IT["structured outputs"]
    for _ in range(4):
        assert (await world.ask(path, body)).status == 200
    await world.check()


async def test_whoever_asks_at_the_same_time_waits_for_one_answer(nursery, autojump_clock):
    world = await make_world(nursery, engines=1)
    asked = Scripted(world, "engine-1", {"/abort_requests": [[HANG]]})
    nobody_has_asked(world)
    async with trio.open_nursery() as clients:
        for _ in range(20):
            clients.start_soon(world.ask, TEXT, HELLO | {"stop": ["zzz"]})
    assert 1 <= sum(path == "/abort_requests" for path, _ in asked.requests) < 3
    assert trio.current_time() < 5
    await world.check()


async def test_without_render_there_is_no_way_for_now(nursery, autojump_clock):
    world = await make_world(nursery, engine={"tokens_only": True})
    world.sidecar.faults.add(Fault("status", status=503, times=9, on="render"))
    got = await world.ask(TEXT, HELLO)
    assert (got.status, got.error["stage"]) == (503, "render")
    assert "tokenizer" in got.error["message"]
    assert got.headers["retry-after"]
    await world.check()


async def test_when_the_one_with_a_tokenizer_is_paused_it_may_come_back(nursery, autojump_clock):
    world = await make_world(nursery, engine={"tokens_only": True})
    two = world.app.registry.of_role("union")[1]
    two.tokenizer = True
    world.app.registry.pause([two.id])
    got = await world.ask(TEXT, ECHO)
    assert (got.status, got.headers["retry-after"]) == (503, "1")
    await world.check()


async def test_a_prefill_engine_without_one_is_no_matter_of_waiting(nursery, autojump_clock):
    """The decode engine has one, but cannot serve alone."""
    world = await make_world(nursery, engine={"tokens_only": True}, roles=("prefill", "decode"), profile="trigger")
    world.app.registry.of_role("decode")[0].tokenizer = True
    got = await world.ask(TEXT, ECHO)
    assert got.status == 501
    await world.check()


@pytest.mark.parametrize("known", [False, True])
async def test_a_missing_route_on_one_of_them_is_no_way_to_openai(nursery, autojump_clock, known):
    """An ingress without a backend, say: the other one is asked."""
    world = await make_world(nursery, engine={"tokens_only": True})
    if not known:
        nobody_has_asked(world)
    Scripted(world, "engine-1", {"/inference/v1/generate": [[reply(404, {"detail": "Not Found"})]]})
    for _ in range(3):
        assert (await world.ask(TEXT, HELLO)).status == 200
    await world.check()


async def test_an_engine_that_is_down_is_not_judged_anew(nursery, autojump_clock):
    world = await make_world(nursery, engines=1, engine={"tokens_only": True})
    world.net.refuse("engine-1", 80)
    world.app.pool.close()
    await trio.sleep(ROUTES_RECHECK_S + 1)
    assert judged(world) == [False]


async def test_an_engine_that_was_started_anew_is_found(nursery, autojump_clock):
    world = await make_world(nursery, engines=1, engine={"tokens_only": True})
    assert (await world.ask(TEXT, ECHO)).status == 501
    await replaced(world, "engine-1", Engine(name="engine-1"))
    await trio.sleep(ROUTES_RECHECK_S + 1)
    assert (await world.ask(TEXT, ECHO)).status == 200
    await world.check()


@pytest.mark.parametrize("known", [False, True])
async def test_a_list_streamed_by_trigger_stays_with_the_chain(nursery, autojump_clock, known):
    """It would take an engine's own API, if there were one."""
    roles = ("prefill", "decode", "union")
    world = await make_world(nursery, engines=3, engine={"tokens_only": True}, roles=roles, profile="trigger")
    if not known:
        nobody_has_asked(world)
    body = HELLO | {"prompt": ["one", "two"]}
    able = await make_world(nursery)
    got, want = await world.stream(TEXT, body), await able.native(TEXT, body, stream=True)
    assert unexplained(want.answer, got.answer) == []
    await world.check()


@pytest.mark.parametrize(
    ("old_abort", "tokenize", "found"),
    [
        (405, 400, False),
        (405, 200, True),  # vLLM's development mode has the old abort route too
        (404, 400, True),  # never asked: nothing speaks against it
        (503, 400, None),
        (405, 401, None),
        (405, 429, None),
        (405, 503, None),
    ],
)
async def test_who_has_the_old_abort_route_is_asked_for_tokens(nursery, autojump_clock, old_abort, tokenize, found):
    world = await make_world(nursery)
    Scripted(world, "engine-1", {"/abort_requests": [[reply(old_abort, {})]], "/tokenize": [[reply(tokenize, {})]]})
    assert await has_tokenizer(HttpClient(world.app.pool), "http://engine-1") is found


async def test_whoever_cannot_be_asked_is_not_judged(nursery, autojump_clock):
    world = await make_world(nursery)
    assert await has_tokenizer(HttpClient(world.app.pool), "http://nobody") is None
