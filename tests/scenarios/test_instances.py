"""Instances come, go, change and pause under load, and no client notices.

Contract section 4.
"""

from __future__ import annotations

import itertools
import json
import random

import pytest
import trio

from motor_flow.edge.server import Server
from motor_flow.effects.instance import instance_effects
from motor_flow.net.stream import Origin
from motor_flow.sim.faults import Fault
from tests.scripted import HANG, Scripted, reply
from tests.world import CHAT, TEXT, make_world

MANAGEMENT = Origin("management", 80)
BODY = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True}


def stated(number, engine=None, **more):
    """An instance in the short shape."""
    return {"id": number, "role": "union", "url": f"http://engine-{engine or number}"} | more


async def world_with(nursery, *registered, engines=2, **more):
    """A world in which only these of its engines are registered, with a management port."""
    config = {"instances": [stated(number) for number in registered]} | more.pop("config", {})
    world = await make_world(nursery, engines=engines, config=config, engine={"pace_s": 0.05} | more)
    server = Server(world.app.management, on_bug=world.bugs.append)
    world.net.listen(*MANAGEMENT[:2], server.serve_stream)
    return world


async def refresh(world, event, *instances):
    got = await world.ask("/instances/refresh", {"event": event, "instances": list(instances)}, to=MANAGEMENT)
    assert got.status == 200, got.error
    return got.json


async def listed(world):
    """What `GET /instances` shows, by name."""
    got = await world.ask("/instances", None, method="GET", to=MANAGEMENT)
    return {one["name"]: one for one in got.json["instances"]}


async def ready(world):
    return (await world.ask("/readiness", None, method="GET", to=MANAGEMENT)).json["ready"]


def asked(world):
    """How many generate calls each engine has had."""
    return [len([record for record in engine.seen if record.kind == "generate"]) for engine in world.engines]


def forget(world):
    for one in (*world.engines, world.sidecar):
        one.seen.clear()


async def streaming(world, nursery, count, body=BODY):
    """Start streams and return the answers that fill, once each has said something."""
    answers = []

    async def one():
        answers.append(await world.stream(TEXT, body))

    for _ in range(count):
        nursery.start_soon(one)
    await trio.sleep(0.5)
    return answers


# --- single operations ----------------------------------------------------------------------------


async def test_add_and_del(nursery, autojump_clock):
    world = await world_with(nursery, 1)
    said = await refresh(world, "add", stated(2))
    assert (said["status"], said["data"]["event_type"], said["data"]["instance_count"]) == ("success", "add", 1)
    assert said["data"]["timestamp"] == 1_700_000_000.0
    assert said["request_id"]
    for _ in range(4):
        await world.ask(TEXT, BODY)
    assert asked(world) == [2, 2]
    assert set(await listed(world)) == {"union-1", "union-2"}
    await refresh(world, "del", {"id": 1})
    for _ in range(3):
        await world.ask(TEXT, BODY)
    assert asked(world) == [2, 5]
    shown = await listed(world)
    assert shown == {
        "union-2": {
            "id": 2,
            "dp_rank": 0,
            "name": "union-2",
            "role": "union",
            "url": "http://engine-2",
            "state": "available",
            "requests": 0,
            "load_tokens": 0,
            "token_only": True,
            "tokenizer": True,
            "dispatch_profile": None,
            "kv_connector": "",
        }
    }
    await refresh(world, "del", {"id": 1})  # gone already
    await world.check()


async def test_what_does_not_fit_is_said(nursery, autojump_clock):
    """Two protocols side by side serve nothing: probes say so, and the answer names the instances."""
    world = await world_with(nursery, 1, engines=4)
    assert await ready(world)
    pair = [stated(2, role="prefill", dispatch_profile="handoff"), stated(3, role="decode", kv_connector="Foo")]
    said = await refresh(world, "add", *pair)
    assert "attention: decode-3 takes part in no pair" in said["message"]
    assert await ready(world)
    said = await refresh(world, "add", stated(4, role="decode", dispatch_profile="trigger"))
    assert (
        "attention: every request gets 503: instances of handoff (prefill-2) and trigger (decode-4)" in said["message"]
    )
    assert not await ready(world)
    assert (await world.ask("/health", None, method="GET")).status == 503
    got = await world.ask(TEXT, BODY)
    assert (got.status, "decode-4" in got.error["message"]) == (503, True)
    said = await refresh(world, "del", {"id": 4}, {"id": 9})
    assert "not registered: 9" in said["message"]
    assert await ready(world)
    assert (await world.ask(TEXT, BODY)).status == 200
    await world.check()


async def test_an_added_engine_is_asked_what_it_serves(nursery, autojump_clock):
    world = await world_with(nursery, 1)
    cards = {"data": [{"id": "tiny"}, {"id": "an-adapter", "parent": "tiny"}]}
    engine = Scripted(world, "engine-2", {"/v1/models": [[reply(200, cards)]]})
    await refresh(world, "add", stated(2))
    await trio.sleep(0.1)
    assert len(engine.requests) == 1
    assert [card["id"] for card in world.app.models.cards] == ["tiny", "an-adapter"]
    await world.check()


async def test_the_request_id_is_the_same_in_head_and_body(nursery, autojump_clock):
    world = await world_with(nursery, 1)
    for given in ({}, {"x-request-id": "mine"}):
        body = {"event": "set", "instances": [stated(1)]}
        got = await world.ask("/instances/refresh", body, given, to=MANAGEMENT)
        assert got.json["request_id"] == got.headers["x-request-id"]
    assert got.json["request_id"] == "mine"


async def test_motors_shape_is_served(nursery, autojump_clock):
    """Two data-parallel endpoints are two engines with one id."""
    world = await world_with(nursery, engines=2)
    endpoints = {f"engine-{i + 1}": {str(i): {"id": i, "ip": f"engine-{i + 1}", "business_port": "80"}} for i in (0, 1)}
    seven = {"id": 7, "job_name": "u", "model_name": "tiny", "role": "both", "endpoints": endpoints}
    assert not await ready(world)
    await refresh(world, "add", seven)
    assert await ready(world)
    assert [(one["id"], one["dp_rank"]) for one in (await listed(world)).values()] == [(7, 0), (7, 1)]
    for _ in range(4):
        assert (await world.ask(TEXT, BODY)).status == 200
    assert asked(world) == [2, 2]
    await refresh(world, "pause", seven)
    assert {one["state"] for one in (await listed(world)).values()} == {"paused"}
    await refresh(world, "del", seven)
    assert await listed(world) == {}
    await world.check()


async def test_paused_streams_go_on(nursery, autojump_clock):
    world = await world_with(nursery, 1, 2)
    want = (await world.stream(TEXT, BODY)).answer
    forget(world)
    async with trio.open_nursery() as clients:
        answers = await streaming(world, clients, 6)
        await refresh(world, "pause", {"id": 1})
        assert (await listed(world))["union-1"]["state"] == "paused"
        assert (await listed(world))["union-1"]["requests"] == 3
    assert [one.answer.choices for one in answers] == [want.choices] * 6
    assert asked(world) == [3, 3]
    for _ in range(4):
        await world.ask(TEXT, BODY)
    assert asked(world) == [3, 7]
    await refresh(world, "pause", {"id": 2})
    assert not await ready(world)
    got = await world.ask(TEXT, BODY)
    assert (got.status, got.error["stage"], got.headers["retry-after"]) == (503, "schedule", "1")
    await refresh(world, "resume", {"id": 1})
    assert await ready(world)
    await world.ask(TEXT, BODY)
    assert asked(world) == [4, 7]
    await world.check()


@pytest.mark.parametrize("how", ["del", "set"])
async def test_streams_of_a_removed_instance_are_relayed(nursery, autojump_clock, how):
    """At once, to another one, with nothing held against anybody."""
    world = await world_with(nursery, 1, 2)
    want = (await world.stream(TEXT, BODY)).answer
    forget(world)
    async with trio.open_nursery() as clients:
        answers = await streaming(world, clients, 6)
        start = trio.current_time()
        await (refresh(world, "del", {"id": 1}) if how == "del" else refresh(world, "set", stated(2)))
        await trio.sleep(0.2)
        assert world.engines[0].running == 0
        assert asked(world) == [3, 6]
        assert trio.current_time() - start < 0.3
        assert set(await listed(world)) == {"union-2"}
    assert [one.answer.choices for one in answers] == [want.choices] * 6
    assert [instance.breaker.failures for instance in world.app.registry] == [0]
    await world.check()


async def test_a_replaced_instance_drains(nursery, autojump_clock):
    """Its streams end where they are; the new one gets what comes."""
    world = await world_with(nursery, 1, 2, engines=3)
    want = (await world.stream(TEXT, BODY)).answer
    forget(world)
    async with trio.open_nursery() as clients:
        answers = await streaming(world, clients, 4)
        await refresh(world, "set", stated(1, engine=3), stated(2))
        shown = await world.ask("/instances", None, method="GET", to=MANAGEMENT)
        assert [(one["id"], one["url"], one["state"], one["requests"]) for one in shown.json["instances"]] == [
            (1, "http://engine-3", "available", 0),
            (2, "http://engine-2", "available", 2),
            (1, "http://engine-1", "draining", 2),
        ]
        answers += [await world.stream(TEXT, BODY), await world.stream(TEXT, BODY)]
    assert [one.answer.choices for one in answers] == [want.choices] * 6
    assert asked(world) == [2, 3, 1]
    assert len(await listed(world)) == 2
    await world.check()


async def test_a_whole_answer_is_asked_for_again(nursery, autojump_clock):
    world = await world_with(nursery, 1, 2)
    talk = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 30}
    want = (await world.ask(CHAT, talk)).answer
    forget(world)
    answers = []
    async with trio.open_nursery() as clients:

        async def one():
            answers.append(await world.ask(CHAT, talk))

        clients.start_soon(one)
        await trio.sleep(0.3)
        (busy,) = (instance.id for instance in world.app.registry if instance.requests)
        await refresh(world, "del", {"id": busy})
    assert answers[0].answer.choices == want.choices
    assert sum(asked(world)) == 2
    await world.check()


async def test_a_native_stream_ends_with_a_clear_error(nursery, autojump_clock):
    """It cannot go on elsewhere once it is visible, as after any other failure of its engine."""
    world = await world_with(nursery, 1, 2)
    async with trio.open_nursery() as clients:
        answers = await streaming(world, clients, 1, BODY | {"echo": True})
        (busy,) = (instance.id for instance in world.app.registry if instance.requests)
        await refresh(world, "del", {"id": busy})
    (got,) = answers
    assert (got.status, got.error["code"], got.error["stage"]) == (200, 502, "generate")
    assert got.events[-1][1] == b"[DONE]"
    await world.check()


async def test_the_last_instance_is_removed(nursery, autojump_clock):
    world = await world_with(nursery, 1)
    async with trio.open_nursery() as clients:
        answers = await streaming(world, clients, 1)
        await refresh(world, "set")
        assert not await ready(world)
    assert (answers[0].error["code"], answers[0].error["stage"]) == (503, "schedule")
    assert answers[0].events[-1][1] == b"[DONE]"
    await world.check()


async def test_an_instance_that_fails_and_is_replaced_gets_a_new_breaker(nursery, autojump_clock):
    """And one that is stated again as it was does not."""
    world = await world_with(nursery, 1, 2, engines=3)
    world.engines[0].faults.add(Fault("status", status=500, times=9, on="generate"))
    for _ in range(6):
        await world.ask(TEXT, BODY)
    assert (await listed(world))["union-1"]["state"] == "opened"
    await refresh(world, "set", stated(1), stated(2))
    assert (await listed(world))["union-1"]["state"] == "opened"
    await refresh(world, "set", stated(1, engine=3), stated(2))
    assert (await listed(world))["union-1"]["state"] == "available"
    await world.check()


# --- everything at once ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_everything_changes_under_load(nursery, autojump_clock, seed):
    """100 streams, and a change every 100 ms: none is lost, and every text is what it would have been."""
    dice = random.Random(seed)
    # An attempt is spent on every removal: this many changes are more than the default bears.
    config = {"exception_config": {"max_retry": 20}}
    world = await world_with(nursery, 1, 2, 3, engines=6, config=config)
    prompts = [f"Story number {i}" for i in range(10)]
    want = {prompt: (await world.stream(TEXT, BODY | {"prompt": prompt})).answer.choices for prompt in prompts}
    forget(world)
    answers = []
    done = 0

    async def client(prompt, after):
        nonlocal done
        await trio.sleep(after)
        answers.append((prompt, await world.stream(TEXT, BODY | {"prompt": prompt, "max_tokens": 40})))
        done += 1

    async with trio.open_nursery() as clients:
        for number in range(100):
            clients.start_soon(client, prompts[number % 10], dice.uniform(0, 4))
        changes = itertools.cycle(["add", "pause", "del", "replace", "resume", "set"])
        while done < 100:
            await trio.sleep(0.1)
            await change(world, next(changes), dice)
    wrong = [
        got.error or got.answer.choices for prompt, got in answers if got.error or got.answer.choices != want[prompt]
    ]
    relays = sum(asked(world)) - 100
    print(f"\nseed {seed}: 100 streams, {len(wrong)} wrong, {relays} relayed")
    assert wrong == []
    assert relays > 20
    await world.check()
    assert world.sidecar.repeats == []


async def change(world, kind, dice):
    """One change that leaves something to work with."""
    registry = world.app.registry
    there = {instance.id: int(instance.origin.host.removeprefix("engine-")) for instance in registry}
    free = sorted(set(range(1, 7)) - set(there.values()))
    if kind == "add" and free:
        await refresh(world, "add", stated(max(there, default=0) + 1, engine=dice.choice(free)))
    elif kind in ("pause", "del") and len(registry.of_role("union")) > 2:
        await refresh(world, kind, {"id": dice.choice(registry.of_role("union")).id})
    elif kind == "replace" and free:
        await refresh(world, "add", stated(dice.choice(sorted(there)), engine=dice.choice(free)))
    elif kind == "resume":
        await refresh(world, "resume", *({"id": each} for each in there))
    elif kind == "set" and len(there) > 2:
        await refresh(world, "set", *(stated(each, engine=there[each]) for each in sorted(there)[1:]))


# --- the watch of an instance ---------------------------------------------------------------------


@pytest.mark.parametrize("state", ["available", "opened", "probing"])
@pytest.mark.parametrize("how", ["del", "replace"])
async def test_a_watch_ends_with_its_instance(nursery, autojump_clock, state, how):
    world = await world_with(nursery, 1, 2)
    Scripted(world, "engine-1", {"/health": [[HANG]]})
    one = next(iter(world.app.registry))
    if state != "available":
        for _ in range(one.breaker.threshold):
            one.breaker.failed()
    await trio.sleep({"available": 1, "opened": 1, "probing": 31}[state])
    assert one.breaker.state == state
    (edge,) = instance_effects.table.alternatives(state, "retire")
    before = instance_effects.census.taken[edge.index]
    if how == "del":
        await refresh(world, "del", {"id": 1})
    else:
        await refresh(world, "add", stated(1, engine=2))
    await trio.sleep(0.1)
    assert one.breaker.state == "retired"
    assert instance_effects.census.taken[edge.index] == before + 1
    assert (await world.ask(TEXT, BODY)).status == 200
    await world.check()


async def test_an_added_engine_that_does_not_answer(nursery, autojump_clock):
    """It is registered; requests find out, and go elsewhere."""
    world = await world_with(nursery, 1)
    await refresh(world, "add", stated(9, url="http://nowhere:1"))
    for _ in range(8):
        assert (await world.ask(TEXT, BODY)).status == 200
    assert (await listed(world))["union-9"]["state"] == "opened"
    await world.check()


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "not JSON"),
        ({"event": "add", "instances": [stated(1), stated(1)]}, 400, "instances[1] (id 1): the same id"),
        ({"event": "set", "instances": [stated(2), stated(3, role="x")]}, 400, "instances[1] (id 3).role"),
        ({"event": "pause", "instances": [{"id": 1}, {"id": 9}]}, 404, "no such instance: 9"),
        ({"event": "resume", "instances": [{"id": 9}]}, 404, "no such instance: 9"),
        (b" " * (10 * 1024 * 1024 + 1), 413, "exceeds 10485760 bytes"),
    ],
)
async def test_a_refusal_changes_nothing(nursery, autojump_clock, body, status, said):
    world = await world_with(nursery, 1, 2)
    before = await listed(world)
    got = await world.ask("/instances/refresh", body, to=MANAGEMENT)
    assert (got.status, got.error["code"], got.error["stage"]) == (status, status, "client")
    assert said in got.error["message"]
    assert await listed(world) == before
    got = await world.ask("/instances/refresh", None, method="GET", to=MANAGEMENT)
    assert got.status == 405


async def test_ten_megabytes_are_read(nursery, autojump_clock):
    world = await world_with(nursery, 1)
    body = json.dumps({"event": "set", "instances": [stated(1)]}).encode()
    got = await world.ask("/instances/refresh", body.ljust(10 * 1024 * 1024), to=MANAGEMENT)
    assert got.status == 200
