"""What is known of sidecars is right whenever they start, restart or differ.

Contract section 7 (Probe).
"""

from __future__ import annotations

import pytest
import trio

from motor_flow.app import App
from motor_flow.config import load_embedded
from motor_flow.render.capability import Capability, combined
from motor_flow.sim.sidecar import Sidecar
from tests.scripted import Scripted, reply
from tests.world import make_world, merged

OFF = {"data": [{"object": "model"}]}


async def another_app(world, changes=None):
    """A second Coordinator in the same world, which has not looked at anything yet."""
    document = merged(world.cluster.configuration(), changes or {})
    return App(load_embedded(document, {}).config, dial=world.net.dial, wall=lambda: 1.0)


async def test_a_sidecar_that_starts_after_us_is_known_as_well(nursery, autojump_clock):
    world = await make_world(nursery)
    handler = world.net._listening.pop(("sidecar", 80))
    app = await another_app(world)
    await nursery.start(app.run)
    assert app.services.capability.version == ""
    world.net._listening["sidecar", 80] = handler
    await trio.sleep(6)
    assert app.services.capability == world.app.services.capability
    assert app.services.capability.markers


async def test_a_sidecar_that_comes_back_is_probed_again(nursery, autojump_clock):
    world = await make_world(nursery)
    assert world.app.services.capability.parser is True
    handler = world.net._listening.pop(("sidecar", 80))
    world.app.pool.close()
    await trio.sleep(6)
    assert world.app.services.capability.parser is True  # as it was: whoever comes back is looked at then
    plain = Sidecar(parsers=False)
    world.net._listening["sidecar", 80] = handler
    from motor_flow.edge.server import Server  # noqa: PLC0415

    world.net.listen("sidecar", 80, Server(plain).serve_stream)
    await trio.sleep(6)
    assert world.app.services.capability.parser is False


async def test_without_tokenize_no_chat_chunks_are_merged(nursery, autojump_clock):
    world = await make_world(nursery)
    Scripted(world, "sidecar", {"/tokenize": [[reply(404, {"detail": "Not Found"})]]})
    app = await another_app(world)
    await nursery.start(app.run)
    assert not app.services.capability.marks_known
    assert any("/tokenize" in line for line in app.services.capability.missing)


def test_what_may_be_asked_is_what_all_of_them_can_do():
    full = Capability(parser=True, markers=frozenset({1}), version="0.33.0")
    assert combined([full]) == full
    plain = Capability(parser=False, version="0.33.0")
    both = combined([full, plain])
    assert (both.parser, both.markers, both.marks_known) == (True, frozenset({1}), True)
    old = Capability(derenders=True, streams=False, streams_chat=False, parser=None, version="0.26.0")
    mixed = combined([full, old])
    assert (mixed.derenders, mixed.streams, mixed.streams_chat) == (True, False, False)
    assert not mixed.marks_known
    assert mixed.version == "0.33.0, 0.26.0"


@pytest.mark.parametrize("cards", [reply(200, OFF), reply(500, {}), reply(200, b'{"data":[{"id":"\xff"}]}')])
async def test_odd_model_cards_do_no_harm(nursery, autojump_clock, cards):
    world = await make_world(nursery)
    for host in ("engine-1", "engine-2", "sidecar"):
        Scripted(world, host, {"/v1/models": [[cards]]})
    app = await another_app(world, {"model_config": {"model_name": "told"}})
    await nursery.start(app.run)
    assert [card["id"] for card in app.models.cards] == ["told"]
