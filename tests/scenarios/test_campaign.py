"""Random faults find nothing, and would find what is wrong: broken rules are caught.

RFC 故障测试; `motor-flow check --sim` plays the same with more requests.
"""

from __future__ import annotations

import logging

import pytest
import structlog

from machines.replay import RetryRequestPlan
from motor_flow.effects import placing
from motor_flow.effects.stream import stream_effects
from motor_flow.scheduling.leases import Lease
from motor_flow.views.campaign.run import campaign

REQUESTS = 96


@pytest.fixture(autouse=True)
def quiet():
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


def test_nothing_is_wrong():
    outcome = campaign(REQUESTS, 7)
    assert [str(problem) for problem in outcome.problems] == []
    tally = outcome.tally
    assert tally.requests == REQUESTS
    assert tally.completed + tally.left + sum(tally.failed.values()) == REQUESTS
    assert min(tally.faults, tally.further_attempts, tally.native, tally.left) > 0


def test_the_same_seed_is_the_same_campaign():
    first, second = campaign(32, 3).tally, campaign(32, 3).tally
    assert first == second


def test_a_commit_before_derender_is_caught(monkeypatch):
    """The ledger moves although the chunk was never derendered: a relay loses what it held."""
    derender = stream_effects.run["derendering"]

    async def commit_first(stream):
        stream.ledger.extend(stream.inbox.events[0].ids)
        reported = await derender(stream)
        stream.pending.ids = stream.pending.ids[len(stream.pending.ids) :]
        return reported

    monkeypatch.setitem(stream_effects.run, "derendering", commit_first)
    assert campaign(48, 7).problems


def test_a_lease_that_is_not_returned_is_caught(monkeypatch):
    monkeypatch.setattr(Lease, "close", lambda _: None)
    assert any("lease" in problem.text for problem in campaign(16, 7).problems)


def test_a_stale_replay_is_caught(monkeypatch):
    """A relay that forgets the last committed token."""
    right = placing.plan

    def stale(prompt, ledger):
        plan = right(prompt, ledger[:-1])
        return RetryRequestPlan(plan.ids, plan.sampling, plan.remaining)

    monkeypatch.setattr(placing, "plan", stale)
    assert any("differs" in problem.text for problem in campaign(48, 7).problems)
