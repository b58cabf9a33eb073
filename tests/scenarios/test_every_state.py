"""From every state of every machine: the client leaves, or an effect has a bug."""

from __future__ import annotations

import pytest
import trio

from motor_flow.effects.request import request_effects
from motor_flow.effects.stream import stream_effects
from tests.world import CHAT, make_world

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 12}
PLACES = [("request", state, request_effects) for state in request_effects.run] + [
    ("stream", state, stream_effects) for state in stream_effects.run
]


def request_for(machine, state):
    """A request that comes to this state."""
    return BODY | {"stream": machine == "stream" or state == "committed"}


@pytest.fixture(params=PLACES, ids=lambda place: f"{place[0]}.{place[1]}")
def place(request):
    return request.param


async def test_the_client_leaves(nursery, autojump_clock, monkeypatch, place):
    machine, state, effects = place
    world = await make_world(nursery)
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
            both.start_soon(world.ask, CHAT, request_for(machine, state))
            both.start_soon(leave)
    await world.check()
    (edge,) = effects.table.alternatives(state, "cancel")
    assert effects.census.taken[edge.index] == before[edge.index] + 1


async def test_an_effect_has_a_bug(nursery, autojump_clock, monkeypatch, place):
    """The client is told `internal error` and nothing else; whatever was held is given back."""
    machine, state, effects = place
    world = await make_world(nursery)

    async def boom(_ctx):
        await trio.lowlevel.checkpoint()
        raise ZeroDivisionError("secret detail")

    monkeypatch.setitem(effects.run, state, boom)
    before = list(effects.census.taken)
    got = await world.ask(CHAT, request_for(machine, state))
    assert got.error["message"] == "internal error"
    assert (got.error["code"], got.ended) == (500, True)
    assert b"secret" not in got.body
    await world.check()
    (edge,) = effects.table.alternatives(state, "fail")
    assert effects.census.taken[edge.index] == before[edge.index] + 1
