"""One map, one standing per instance; changes by content; what is the same is not touched."""

from __future__ import annotations

import itertools
import random

import pytest
import trio

from machines.faults import TREATMENTS, Fault
from motor_flow.config import InstanceSection
from motor_flow.config.sections import BreakerSection
from motor_flow.errors import EngineError
from motor_flow.scheduling.departure import Departure
from motor_flow.scheduling.profiles import connector_name, profile_of
from motor_flow.scheduling.registry import RANK_STRIDE, Instance, Registry


def an(number, port=None, role="union", **more):
    """A newly stated instance."""
    section = InstanceSection(id=number, role=role, url=f"http://e{number}:{port or 9000 + number}", **more)
    return Instance.of(section, BreakerSection())


def rank(group, dp_rank, port=None):
    """A data-parallel endpoint."""
    one = an(group, port)
    return Instance(one.id + dp_rank * RANK_STRIDE, one.role, one.url + str(dp_rank), one.origin, dp_rank=dp_rank)


def names(instances):
    return [instance.name for instance in instances]


@pytest.fixture
def registry():
    return Registry([an(1), an(2), an(3)])


def test_what_is_the_same_stays_as_it_is(registry):
    before = list(registry)
    before[0].breaker.failures = 2
    for changes in (registry.add([an(1)]), registry.set_all([an(3), an(2), an(1)])):
        assert changes == ([], [], [])
    assert all(a is b for a, b in zip(registry, before, strict=True))


@pytest.mark.parametrize(
    "more",
    [{"port": 7}, {"role": "decode"}, {"dispatch_profile": "trigger"}, {"kv_connector": "X"}, {"kv_lease_s": 5.0}],
)
@pytest.mark.parametrize("how", ["add", "set_all"])
def test_other_content_replaces(registry, how, more):
    """Under the same id, at once: the new one gets work, the old one none."""
    old = next(iter(registry))
    old.requests = 1
    changes = getattr(registry, how)([an(1, **more), an(2), an(3)])
    new = next(iter(registry))
    assert (names(changes.arrived), changes.leaving, changes.removed) == ([new.name], [old], [])
    assert (new.standing, old.standing, old.state) == ("available", "leaving", "draining")
    assert (old.left.announced, old.removed.announced, new.left.announced) == (True, False, False)
    assert registry.leaving == [old]
    assert old not in registry.of_role(old.role)
    old.requests = 0
    assert registry.leaving == []


def test_what_set_does_not_name_is_removed_in_any_standing(registry):
    """A paused instance, too, and one that still leaves."""
    paused, replaced, _ = registry
    registry.pause([1])
    replaced.requests = 1
    registry.add([an(2, port=7)])
    changes = registry.set_all([an(3)])
    assert set(names(changes.removed)) == {"union-1", "union-2"}
    assert len(changes.removed) == 3
    assert paused.removed.announced
    assert replaced.removed.announced
    assert names(registry) == ["union-3"]
    assert registry.leaving == []
    assert registry.set_all([]).removed
    assert not registry.schedulable


def test_a_paused_instance_is_registered_and_gets_no_work(registry):
    registry.pause([1, 2])
    assert names(registry.of_role("union")) == ["union-3"]
    assert [instance.state for instance in registry] == ["paused", "paused", "available"]
    registry.pause([3])
    assert not registry.schedulable
    registry.resume([2])
    assert names(registry.of_role("union")) == ["union-2"]
    assert registry.schedulable


def test_a_pause_holds_until_it_is_ended(registry):
    """Not until the next time that the list is sent, nor until the engine's address changes."""
    registry.pause([1])
    registry.add([an(1)])
    registry.set_all([an(1), an(2), an(3)])
    registry.add([an(1, port=7)])
    (one, *_) = registry
    assert (one.standing, one.url) == ("paused", "http://e1:7")
    registry.delete([1])
    registry.add([an(1)])
    assert registry.of_role("union")[-1].name == "union-1"


def test_who_is_gone_is_not_an_error(registry):
    assert registry.delete([7]) == ([], [], [])
    assert registry.missing([1, 7, 9]) == [7, 9]


def test_arrivals_are_told_and_nothing_else(registry):
    told = []
    with registry.announced_to(told.append):
        registry.add([an(1), an(4)])
        registry.set_all([an(1), an(4, port=7)])
        registry.pause([1])
        registry.delete([1])
    registry.add([an(5)])
    assert names(told) == ["union-4", "union-4"]


def test_data_parallel_endpoints_come_and_go_alone(registry):
    registry.add([rank(7, 0), rank(7, 1), rank(7, 2)])
    zero, one, two = list(registry)[3:]
    assert names([zero, one, two]) == ["union-7", "union-7.1", "union-7.2"]
    assert {each.group for each in (zero, one, two)} == {7}
    assert zero.id == 7
    one.requests = two.requests = 1
    changes = registry.add([rank(7, 0), rank(7, 2, port=1), rank(7, 3)])
    assert [each.id for each in registry][3:] == [7, two.id, 7 + 3 * RANK_STRIDE]
    assert set(names(changes.arrived)) == {"union-7.2", "union-7.3"}
    assert set(changes.leaving) == {one, two}
    registry.pause([7])
    assert all(each.standing == "paused" for each in registry if each.group == 7)
    assert len(registry.delete([7]).removed) == 5
    assert names(registry) == ["union-1", "union-2", "union-3"]


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_changes(seed):
    """Each object stands in one place, announced exactly so; every id has one instance."""
    dice = random.Random(seed)
    registry = Registry()
    known = []
    with registry.announced_to(known.append):
        for _ in range(60):
            some = [an(i, port=dice.choice([1, 2])) for i in dice.sample(range(6), dice.randint(1, 4))]
            ids = [each.id for each in some]
            operation = dice.choice(["add", "set_all", "delete", "pause", "resume"])
            getattr(registry, operation)(some if operation in ("add", "set_all") else ids)
            for each in known:
                busy = dice.randint(0, 1)
                each.requests = min(busy, each.requests) if each.left.announced else busy  # no new work
            current, leaving = list(registry), registry.leaving
            assert len({each.id for each in current}) == len(current)
            assert not set(map(id, current)) & set(map(id, leaving))
            if operation == "set_all":
                assert {each.id for each in current} == set(ids)
            for each in known:
                here = any(each is one for one in current)
                assert here == (each.standing in ("available", "paused")) == (not each.left.announced)
                assert each.removed.announced == (each.standing == "removed")
                assert any(each is one for one in leaving) == (each.standing == "leaving" and each.requests == 1)


# --- work in flight -------------------------------------------------------------------------------


async def test_calls_end_when_their_instance_is_removed(autojump_clock):
    registry = Registry([an(1), an(2)])
    one, two = registry
    ended = []

    async def call(instance):
        try:
            with instance.serving():
                await trio.sleep(10)
        except EngineError as error:
            ended.append((instance, error.fault, trio.current_time() - start))

    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for instance in (one, one, two):
            nursery.start_soon(call, instance)
        await trio.sleep(1)
        assert (one.requests, two.requests) == (2, 1)
        registry.add([an(2, port=7)])  # replaced: its call goes on
        registry.delete([1])
    assert ended == [(one, Fault.REMOVED, pytest.approx(1))] * 2
    assert trio.current_time() - start == pytest.approx(10)
    assert (one.requests, two.requests) == (0, 0)
    with pytest.raises(EngineError, match="removed"):
        await call_at_once(one)


async def call_at_once(instance):
    with instance.serving():
        await trio.sleep(10)


async def test_a_cancellation_from_outside_is_no_fault(autojump_clock):
    """Not even when the instance is removed in the same moment."""
    registry = Registry([an(1)])
    (one,) = registry
    with trio.CancelScope() as outer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call_at_once, one)
            await trio.sleep(1)
            registry.delete([1])
            outer.cancel()
    assert outer.cancelled_caught
    assert one.requests == 0


async def test_a_call_that_is_over_stays_over(autojump_clock):
    registry = Registry([an(1)])
    (one,) = registry
    with one.serving():
        await trio.sleep(1)
        registry.delete([1])
    assert one.requests == 0


async def test_a_departure_is_told_to_whoever_comes_later(autojump_clock):
    departure = Departure()
    with departure.scope() as early:
        departure.announce("gone")
        await trio.sleep(1)
    with departure.scope() as late:
        await trio.sleep(1)
    assert early.cancelled_caught
    assert late.cancelled_caught


def test_the_fault_is_cured_elsewhere_and_counts_against_nobody():
    assert TREATMENTS[Fault.REMOVED] == (True, True, False)


# --- profiles -------------------------------------------------------------------------------------


def multi(*names):
    return {
        "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": [{"kv_connector": name} for name in names]},
    }


@pytest.mark.parametrize(
    ("connector", "profile"),
    [
        ("MooncakeConnectorV1", "handoff"),
        ("MooncakeHybridConnector", "handoff"),
        ("nixlconnector", "handoff"),
        ("MooncakeLayerwiseConnector", "trigger"),
        ("MooncakeStoreConnector", None),
        ("", None),
        ({"kv_connector": "NixlConnector"}, "handoff"),
        ({"kv_connector": 7}, None),
        ("MultiConnector", None),
        (multi("NixlConnector", "MooncakeLayerwiseConnector"), "handoff"),
        (multi("MooncakeLayerwiseConnector", "NixlConnector"), "trigger"),
        (multi("AscendStoreConnector", "NixlConnector"), None),
        (multi("NixlConnector"), None),
        ({"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": ["a", "b"]}}, None),
        ({"kv_connector": "MultiConnector", "kv_connector_extra_config": 3}, None),
    ],
)
def test_the_connector_tells_the_profile(connector, profile):
    """And nothing is guessed of one that is not known."""
    assert profile_of(None, connector) == profile
    for explicit in ("handoff", "trigger"):
        assert profile_of(explicit, connector) == explicit


@pytest.mark.parametrize(
    ("capabilities", "profile"),
    [
        (["prefill_handoff_decode", "decode_colocation"], "handoff"),
        (["decode_colocation", "concurrent_engine_sync"], "trigger"),
        (["something"], None),
    ],
)
def test_capabilities_come_before_the_connector(capabilities, profile):
    for connector, own in (("", None), ("NixlConnector", "handoff"), ("MooncakeLayerwiseConnector", "trigger")):
        assert profile_of(None, connector, capabilities=capabilities) == (profile or own)
    assert profile_of(None, "", capabilities=capabilities, engine_type="sglang") is None


def test_the_connector_that_moves_the_kv_is_named():
    for connector, name in (
        (multi("NixlConnector", "B"), "NixlConnector"),
        ({}, ""),
        ("NixlConnector", "NixlConnector"),
        (multi("A"), "MultiConnector"),
    ):
        assert connector_name(connector) == name


def test_rank_ids_are_unique():
    """For every id that a configuration may hold."""
    ids = [group + dp_rank * RANK_STRIDE for group, dp_rank in itertools.product((0, 1, RANK_STRIDE - 1), range(4))]
    assert len(set(ids)) == len(ids)
    with pytest.raises(ValueError, match="less than or equal"):
        an(RANK_STRIDE)
