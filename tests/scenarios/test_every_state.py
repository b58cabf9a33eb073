"""From every state of every machine: whoever waits leaves, or an effect has a bug."""

from __future__ import annotations

import pytest
import trio

from motor_flow.app import App
from motor_flow.config import load_embedded
from motor_flow.effects.instance import instance_effects
from motor_flow.effects.request import request_effects
from motor_flow.effects.sidecar import sidecar_effects
from motor_flow.effects.stream import stream_effects
from tests.scripted import SSE_END, SSE_HEAD, Scripted, error, tokens
from tests.world import TEXT, make_world

BODY = {"model": "tiny", "prompt": "Once upon", "max_tokens": 12}
PLACES = [("request", state, request_effects) for state in request_effects.run] + [
    ("stream", state, stream_effects) for state in stream_effects.run
]
HOUSE = [("instance", state, instance_effects) for state in instance_effects.run] + [
    ("sidecar", state, sidecar_effects) for state in sidecar_effects.run
]


def named(place):
    return f"{place[0]}.{place[1]}"


async def world_for(nursery, state):
    """A world in which requests come to this state."""
    world = await make_world(nursery, engines=2)
    if state == "localizing":
        Scripted(world, "sidecar", {"/render": [[error(500)]]})
    elif state == "rolling_back":
        Scripted(world, "engine-1", {"/generate": [[error(500)]]})
    elif state == "relaying":
        Scripted(world, "engine-1", {"/generate": [[SSE_HEAD, tokens(630), tokens(595), SSE_END]]})
    return world


def request_for(machine, state):
    """A request that comes to this state."""
    return BODY | {"stream": machine == "stream" or state in ("committed", "relaying")}


@pytest.fixture(params=PLACES, ids=named)
def place(request):
    return request.param


async def test_the_client_leaves(nursery, autojump_clock, monkeypatch, place):
    machine, state, effects = place
    world = await world_for(nursery, state)
    reached = trio.Event()

    async def hold(_ctx):
        reached.set()
        await trio.sleep_forever()

    monkeypatch.setitem(effects.run, state, hold)
    before = list(effects.census.taken)
    with trio.CancelScope() as client:

        async def leave():
            await reached.wait()
            await trio.sleep(1)
            client.cancel()

        async with trio.open_nursery() as both:
            both.start_soon(world.ask, TEXT, request_for(machine, state))
            both.start_soon(leave)
    await world.check()
    (edge,) = effects.table.alternatives(state, "cancel")
    assert effects.census.taken[edge.index] == before[edge.index] + 1


async def test_an_effect_has_a_bug(nursery, autojump_clock, monkeypatch, place):
    """The client is told `internal error` and nothing else; whatever was held is given back."""
    machine, state, effects = place
    world = await world_for(nursery, state)

    async def boom(_ctx):
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError("secret detail")

    monkeypatch.setitem(effects.run, state, boom)
    before = list(effects.census.taken)
    got = await world.ask(TEXT, request_for(machine, state))
    assert got.error["message"] == "internal error"
    assert (got.error["code"], got.ended) == (500, True)
    assert b"secret" not in got.body
    await world.check()
    (edge,) = effects.table.alternatives(state, "fail")
    assert effects.census.taken[edge.index] == before[edge.index] + 1


# --- the watches ----------------------------------------------------------------------------------


async def another_app(world):
    """Whose sidecar goes and comes back, and whose instances fail and recover."""
    config = load_embedded(world.cluster.configuration(), {}).config
    return App(config, dial=world.net.dial, wall=lambda: 1.0)


async def trouble(world, app):
    """Bring the watches through all of their states."""
    await trio.sleep(1)
    for instance in app.registry:
        for _ in range(instance.breaker.threshold):
            instance.breaker.failed()
    handler = world.net._listening.pop(("sidecar", 80))
    app.pool.close()
    await trio.sleep(20)
    world.net._listening["sidecar", 80] = handler
    await trio.sleep(60)


@pytest.mark.parametrize("place", HOUSE, ids=named)
async def test_a_watch_ends_with_its_process(nursery, autojump_clock, monkeypatch, place):
    _, state, effects = place
    world = await make_world(nursery)
    app = await another_app(world)

    async def hold(_ctx):
        await trio.sleep_forever()

    before = list(effects.census.taken)
    with trio.move_on_after(100):
        async with trio.open_nursery() as process:
            at_once = effects is sidecar_effects and state == "probing"
            if not at_once:
                await process.start(app.run)
            monkeypatch.setitem(effects.run, state, hold)
            if at_once:
                process.start_soon(app.run)
            await trouble(world, app)
            process.cancel_scope.cancel()
    (edge,) = effects.table.alternatives(state, "cancel")
    assert effects.census.taken[edge.index] > before[edge.index]


@pytest.mark.parametrize("place", HOUSE, ids=named)
async def test_a_bug_in_a_watch_is_told_and_the_watch_starts_again(nursery, autojump_clock, monkeypatch, place, capfd):
    _, state, effects = place
    world = await make_world(nursery)
    app = await another_app(world)
    good = effects.run[state]
    failures = []

    async def boom(ctx):
        if not failures:
            failures.append(ctx)
            await trio.lowlevel.checkpoint()
            raise ZeroDivisionError
        return await good(ctx)

    await nursery.start(app.run)
    monkeypatch.setitem(effects.run, state, boom)
    await trouble(world, app)
    (edge,) = effects.table.alternatives(state, "fail")
    assert effects.census.taken[edge.index] >= 1
    assert "ZeroDivisionError" in "".join(capfd.readouterr())
    assert all(instance.breaker.closed for instance in app.registry)
    assert not app.services.render._sidecars.lost
