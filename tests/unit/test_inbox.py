"""Tokens wait for their stream in order, within bounds, and are merged only where no parser can tell."""

from __future__ import annotations

import pytest
import trio

from motor_flow.derender.coalesce import TOKENS_MAX
from motor_flow.effects.inbox import INBOX_BYTES_MAX, Event, Inbox
from motor_flow.errors import EngineError


def event(*ids, raw=b"{}", finish=None, lone=False):
    return Event(raw, list(ids), finish, lone)


def filled(*events):
    inbox = Inbox()
    for each in events:
        inbox.put(each)
    return inbox


def batches(inbox, *, alone=False):
    taken = []
    while inbox.events:
        taken.append([token for each in inbox.take(alone=alone) for token in each.ids])
    return taken


def test_what_waits_is_one_batch():
    assert batches(filled(event(1), event(2), event(3))) == [[1, 2, 3]]


def test_alone_means_one_by_one():
    assert batches(filled(event(1), event(2)), alone=True) == [[1], [2]]


def test_a_marker_is_merged_with_nothing_before_or_behind_it():
    inbox = filled(event(1), event(2), event(9, lone=True), event(3), event(4))
    assert batches(inbox) == [[1, 2], [9], [3, 4]]


def test_a_batch_is_bounded_in_tokens():
    inbox = filled(*[event(1)] * (TOKENS_MAX + 5))
    assert [len(batch) for batch in batches(inbox)] == [TOKENS_MAX, 5]


def test_an_event_larger_than_a_batch_goes_alone():
    inbox = filled(event(*range(TOKENS_MAX + 1)), event(1))
    assert [len(batch) for batch in batches(inbox)] == [TOKENS_MAX + 1, 1]


async def test_a_fault_comes_after_what_arrived_before_it():
    inbox = filled(event(1))
    inbox.fail(EngineError("gone"))
    await inbox.arrival()
    inbox.take(alone=False)
    with pytest.raises(EngineError, match="gone"):
        await inbox.arrival()


def test_the_first_fault_counts_and_none_after_the_end():
    inbox = filled(event(1))
    inbox.fail(EngineError("first"))
    inbox.fail(EngineError("second"))
    assert str(inbox.fault) == "first"
    done = filled(event(1, finish="stop"))
    done.fail(EngineError("late"))
    assert done.fault is None


async def test_a_full_inbox_makes_its_reader_wait(autojump_clock):
    inbox = filled(event(1, raw=b"x" * INBOX_BYTES_MAX))
    with trio.move_on_after(1) as scope:
        await inbox.room()
    assert not scope.cancelled_caught
    inbox.put(event(2, raw=b"x"))
    with trio.move_on_after(1) as scope:
        await inbox.room()
    assert scope.cancelled_caught
    inbox.take(alone=True)
    with trio.move_on_after(1) as scope:
        await inbox.room()
    assert not scope.cancelled_caught
