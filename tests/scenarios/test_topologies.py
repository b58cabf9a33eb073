"""The same answers whoever reads the prompt and whoever writes, also when one of them fails: union, handoff, trigger.

MindIE Motor's sequences; contract sections 2 and 7. The fabric between simulated engines tells a ticket that was used
twice, late, for another prompt or never; `World.check` asserts that none was.
"""

from __future__ import annotations

import pytest
import trio

from motor_flow.sim.faults import Fault
from motor_flow.views.parity.compare import differences
from tests.scripted import Scripted, error, reply
from tests.world import CHAT, TEXT, make_world

USAGE = {"stream_options": {"include_usage": True}}
PLAIN = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 30, "ignore_eos": True}
TALK = {"model": "tiny", "messages": [{"role": "user", "content": "Say hello in Chinese."}], "max_tokens": 60}
LIST = PLAIN | {"prompt": ["one", "two", "three"]}
BODIES = {"completion": (TEXT, PLAIN), "chat": (CHAT, TALK), "list": (TEXT, LIST)}
PAIR = ["prefill", "prefill", "decode", "decode"]
TOPOLOGIES = {
    "union": {"engines": 3},
    "handoff": {"engines": 4, "roles": PAIR, "profile": "handoff"},
    "trigger": {"engines": 4, "roles": PAIR, "profile": "trigger"},
}


async def world_of(nursery, topology, **more):
    return await make_world(nursery, engine={"pace_s": 0.01}, **(TOPOLOGIES[topology] | more))


def legs(world, role):
    """Engine requests at the engines of this role."""
    pairs = zip(world.engines, world.app.config.instances, strict=True)
    return [record for engine, section in pairs if section.role == role for record in engine.seen]


async def wanted(nursery, path, body, stream):
    """What a union cluster answers."""
    world = await make_world(nursery, engines=1)
    got = await world.ask(path, body | {"stream": stream} | (USAGE if stream else {}))
    world.net.refuse("callbacks", 80)
    return got


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("shape", BODIES)
@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_every_topology_gives_the_same_answer(nursery, autojump_clock, topology, shape, stream):
    path, body = BODIES[shape]
    want = await wanted(nursery, path, body, stream)
    world = await world_of(nursery, topology)
    got = await world.ask(path, body | {"stream": stream} | (USAGE if stream else {}))
    assert got.error is None
    assert list(map(str, differences(want.answer, got.answer))) == []
    prompts = 3 if shape == "list" else 1
    if topology == "trigger" and shape == "list" and stream:
        assert len(world.seen("native")) == 1
    elif topology != "union":
        assert (len(legs(world, "prefill")), len(legs(world, "decode"))) == (prompts, prompts)
        assert len({record.body["request_id"] for record in world.seen()}) == 2 * prompts
    await world.check()


async def test_handoff_says_what_each_leg_needs(nursery, autojump_clock):
    world = await world_of(nursery, "handoff")
    await world.stream(TEXT, PLAIN)
    (prefill,), (decode,) = legs(world, "prefill"), legs(world, "decode")
    asked = prefill.body["sampling_params"]
    assert (asked["max_tokens"], asked["min_tokens"], prefill.body["stream"]) == (1, 1, False)
    assert prefill.body["stream_options"] is None
    told = {"do_remote_decode": True, "do_remote_prefill": False}
    assert prefill.body["kv_transfer_params"] == asked["extra_args"]["kv_transfer_params"] == told
    ticket = decode.body["kv_transfer_params"]
    assert ticket == decode.body["sampling_params"]["extra_args"]["kv_transfer_params"]
    assert ticket["do_remote_prefill"] is True
    assert decode.body["token_ids"] == prefill.body["token_ids"]
    assert decode.body["sampling_params"]["max_tokens"] == 30
    await world.check()


async def test_trigger_says_what_each_leg_needs(nursery, autojump_clock):
    world = await world_of(nursery, "trigger")
    await world.stream(TEXT, PLAIN)
    (prefill,), (decode,) = legs(world, "prefill"), legs(world, "decode")
    assert decode.body["kv_transfer_params"]["metaserver"] == "http://callbacks/v1/metaserver?attempt=1"
    kv = prefill.body["kv_transfer_params"]
    assert (kv["do_remote_decode"], kv["do_remote_prefill"], kv["remote_block_ids"]) == (True, False, [[7, 8]])
    assert "metaserver" not in kv
    assert prefill.body["sampling_params"]["max_tokens"] == 1
    await world.check()


FAULTS = {
    "prefill refuses": ("prefill", Fault("status", status=503, on="generate")),
    "prefill resets": ("prefill", Fault("reset", on="generate")),
    "prefill breaks off": ("prefill", Fault("cut", on="generate")),
    "prefill aborted": ("prefill", Fault("abort", on="generate")),
    "decode refuses": ("decode", Fault("status", on="generate")),
    "decode resets": ("decode", Fault("reset", on="generate")),
    "decode dies at once": ("decode", Fault("cut", after=0, on="generate")),
    "decode dies": ("decode", Fault("cut", after=7, on="generate")),
    "decode ends": ("decode", Fault("eof", after=7, on="generate")),
    "decode recomputes": ("decode", Fault("recomputed", after=7, on="generate")),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("topology", ["handoff", "trigger"])
async def test_a_leg_fails_and_nobody_notices(nursery, autojump_clock, topology, fault, stream):
    role, planned = FAULTS[fault]
    want = await wanted(nursery, TEXT, PLAIN, stream)
    world = await world_of(nursery, topology)
    first = next(e for e, s in zip(world.engines, world.app.config.instances, strict=True) if s.role == role)
    one = Fault(**{name: getattr(planned, name) for name in ("kind", "after", "status", "on")})
    for engine in world.engines[:2] if role == "prefill" else world.engines[2:]:
        engine.faults.add(one)  # whichever is asked first
    got = await world.ask(TEXT, PLAIN | {"stream": stream} | (USAGE if stream else {}))
    assert got.error is None, got.error
    assert list(map(str, differences(want.answer, got.answer))) == []
    assert one.times == 0
    assert len({record.body["request_id"] for record in world.seen()}) == len(world.seen())
    assert first is not None
    await world.check()


@pytest.mark.parametrize("topology", ["handoff", "trigger"])
async def test_prompts_of_a_list_are_relayed_on_their_own(nursery, autojump_clock, topology):
    want = await wanted(nursery, TEXT, LIST, stream=False)
    world = await world_of(nursery, topology)
    for engine in world.engines[2:]:
        engine.faults.add(Fault("reset", on="generate", only=lambda r: ".a1.p1." in r.body["request_id"]))
    got = await world.ask(TEXT, LIST)
    assert differences(want.answer, got.answer) == []
    await world.check()


async def test_no_ticket_is_a_protocol_error(nursery, autojump_clock):
    """Nobody is to blame but the cluster: no second attempt, no breaker."""
    world = await world_of(nursery, "handoff")
    for engine in world.engines[:2]:
        engine.transfers = None
    got = await world.ask(TEXT, PLAIN)
    assert (got.status, got.error["stage"], got.headers["x-should-retry"]) == (502, "generate", "false")
    assert legs(world, "decode") == []
    assert [instance.breaker.failures for instance in world.app.registry] == [0] * 4
    await world.check()


@pytest.mark.parametrize("connector", ["", "NixlConnector"])
async def test_a_ticket_nobody_comes_for_is_given_back(nursery, autojump_clock, connector):
    """By abort, or by a one-token decode where only that frees the blocks."""
    world = await world_of(nursery, "handoff")
    for instance in world.app.registry:
        instance.kv_connector = connector
    refusing = Scripted(world, "engine-3", {"/generate": [[error(400, "odd", "BadRequestError")]]})
    Scripted(world, "engine-4", {"/generate": [[error(400, "odd", "BadRequestError")]]})
    got = await world.ask(TEXT, PLAIN)
    assert got.status == 400
    await trio.sleep(1)
    pulls = [body for _, body in refusing.requests if body["request_id"].endswith(".x")]
    assert len(pulls) == (1 if connector else 0)
    if connector:
        assert pulls[0]["sampling_params"]["max_tokens"] == 1
        world.cluster.fabric.abort(
            [f"generate-tokens-{record.body['request_id']}" for record in legs(world, "prefill")]
        )
    await world.check()


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.5, 2.5])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("topology", ["handoff", "trigger"])
async def test_the_client_leaves_between_the_legs(nursery, autojump_clock, topology, stream, after_s):
    world = await world_of(nursery, topology)
    for engine in world.engines:
        engine.first_token_s = 1.0
    with trio.move_on_after(after_s):
        await world.ask(TEXT, PLAIN | {"stream": stream})
    await world.check()


async def test_decode_is_not_placed_before_there_is_something_to_decode(nursery, autojump_clock):
    world = await world_of(nursery, "handoff")
    for engine in world.engines[:2]:
        engine.first_token_s = 2.0
    nursery.start_soon(world.stream, TEXT, PLAIN)
    await trio.sleep(1)
    loads = {instance.name: instance.load_tokens for instance in world.app.registry}
    assert (sum(loads[name] > 0 for name in loads if "prefill" in name), loads["decode-3"], loads["decode-4"]) == (
        1,
        0,
        0,
    )
    await trio.sleep(1.1)
    loads = {instance.name: instance.load_tokens for instance in world.app.registry}
    assert [load for name, load in loads.items() if "prefill" in name] == [0, 0]
    await trio.sleep(5)
    await world.check()


# --- who is there ---------------------------------------------------------------------------------

MIXES = {
    "pair before union": (["prefill", "decode", "union"], "handoff", PLAIN, {"prefill", "decode"}),
    "no decode": (["prefill", "union"], "handoff", PLAIN, {"union"}),
    "no prefill": (["decode", "union"], "handoff", PLAIN, {"union"}),
    "prefill alone": (["prefill", "prefill"], "handoff", PLAIN, {"prefill"}),
    "no profile": (["prefill", "decode"], None, PLAIN, {"prefill"}),
    "several choices": (["prefill", "decode"], "handoff", PLAIN | {"n": 2}, {"prefill"}),
    "native": (["prefill", "decode", "union"], "handoff", PLAIN | {"echo": True}, {"union"}),
}


@pytest.mark.parametrize("mix", MIXES)
async def test_the_topology_follows_from_what_is_alive(nursery, autojump_clock, mix):
    roles, profile, body, used = MIXES[mix]
    world = await make_world(nursery, engines=len(roles), roles=roles, profile=profile)
    got = await world.stream(TEXT, body)
    assert got.error is None
    assert {
        section.role for e, section in zip(world.engines, world.app.config.instances, strict=True) if e.seen
    } == used
    if len(used) == 1:
        assert not any(record.body.get("kv_transfer_params") for engine in world.engines for record in engine.seen)
    await world.check()


@pytest.mark.parametrize("connector", ["", "NixlConnector"])
async def test_a_decode_instance_serves_alone_if_its_connector_lets_it(nursery, autojump_clock, connector):
    world = await make_world(nursery, engines=1, roles=["decode"], profile="handoff")
    for instance in world.app.registry:
        instance.kv_connector = connector
    got = await world.ask(TEXT, PLAIN)
    assert got.status == (200 if connector else 503)
    await world.check()


async def test_without_hybrids_a_half_pair_serves_nobody(nursery, autojump_clock):
    config = {"scheduler_config": {"enable_pd_separation_fallback_to_hybrid": False}}
    world = await make_world(nursery, engines=2, roles=["prefill", "prefill"], profile="handoff", config=config)
    got = await world.ask(TEXT, PLAIN)
    assert (got.status, got.error["stage"]) == (503, "schedule")
    assert "enable_pd_separation_fallback_to_hybrid" in got.error["message"]
    await world.check()


async def test_mixed_protocols_are_refused(nursery, autojump_clock):
    world = await make_world(nursery, engines=2, roles=["prefill", "decode"], profile="handoff")
    next(i for i in world.app.registry if i.role == "decode").profile = "trigger"
    got = await world.ask(TEXT, PLAIN)
    assert (got.status, got.error["stage"]) == (503, "schedule")
    assert "cannot be guessed" in got.error["message"]
    await world.check()


async def test_decode_engines_that_are_gone_leave_a_union_to_go_on(nursery, autojump_clock):
    """In mid-stream, on the same connection, without KV parameters."""
    want = await wanted(nursery, TEXT, PLAIN, stream=True)
    roles = ["prefill", "decode", "union"]
    world = await make_world(nursery, engines=3, roles=roles, profile="handoff", engine={"pace_s": 0.01})
    world.engines[1].faults.add(Fault("die", after=9, seconds=1e9, on="generate"))
    got = await world.stream(TEXT, PLAIN | USAGE)
    assert got.error is None
    assert differences(want.answer, got.answer) == []
    assert legs(world, "union")
    assert not any(record.body.get("kv_transfer_params") for record in legs(world, "union"))
    await world.check()


# --- callbacks ------------------------------------------------------------------------------------


async def test_callbacks_that_are_not_due(nursery, autojump_clock):
    world = await world_of(nursery, "trigger")
    for engine in world.engines[:2]:
        engine.first_token_s = 1.0
    nursery.start_soon(world.stream, TEXT, PLAIN)
    await trio.sleep(0.5)
    (decode,) = legs(world, "decode")
    name = decode.id
    from motor_flow.net.stream import Origin  # noqa: PLC0415

    at = Origin("callbacks", 80)
    for path, body, status in (
        ("/v1/metaserver?attempt=9", {"request_id": name}, 409),
        ("/v1/metaserver?attempt=1", {"request_id": "generate-tokens-nobody.a1.p0.d"}, 404),
        ("/v1/metaserver?attempt=1", {"request_id": "odd"}, 404),
        ("/v1/metaserver?attempt=x", {"request_id": name}, 400),
        ("/v1/metaserver", {"request_id": name}, 400),
        ("/v1/metaserver?attempt=1", {}, 400),
        ("/v1/metaserver?attempt=1", b"{nonsense", 400),
    ):
        assert (await world.ask(path, body, to=at)).status == status, (path, body)
    again = await world.ask("/v1/metaserver?attempt=1", {"request_id": name}, to=at)
    assert (again.status, len(legs(world, "prefill"))) == (200, 1)
    await trio.sleep(5)
    late = await world.ask("/v1/metaserver?attempt=1", {"request_id": name}, to=at)
    assert late.status == 404
    await world.check()


async def test_a_callback_that_fails_ends_the_decode_leg(nursery, autojump_clock):
    """Its engine would wait for KV for ever."""
    config = {"exception_config": {"max_retry": 2, "retry_delay": 0}}
    world = await world_of(nursery, "trigger", config=config)
    for engine in world.engines[:2]:
        engine.faults.add(Fault("status", times=99, on="generate"))
    got = await world.ask(TEXT, PLAIN)
    assert (got.status, got.error["stage"]) == (502, "generate")
    assert trio.current_time() < 5
    await world.check()


async def test_without_a_listener_there_is_no_trigger(nursery, autojump_clock):
    world = await world_of(nursery, "trigger")
    world.app.callbacks.url = ""
    got = await world.ask(TEXT, PLAIN)
    assert got.status == 200
    assert legs(world, "decode") == []
    await world.check()


@pytest.mark.parametrize("body", [reply(200, b"<html>"), reply(200, {"choices": [{"index": 0, "finish_reason": 7}]})])
async def test_a_prefill_answer_that_cannot_be_read(nursery, autojump_clock, body):
    config = {"exception_config": {"max_retry": 1}}
    world = await world_of(nursery, "handoff", config=config)
    for host in ("engine-1", "engine-2"):
        Scripted(world, host, {"/generate": [[body]]})
    got = await world.ask(TEXT, PLAIN)
    assert (got.status, got.error["stage"]) == (502, "generate")
    await world.check()
