"""Tokens of flow control: never more than there are, in turn, and back again on every path."""

from __future__ import annotations

import random

import pytest
import trio

from motor_flow.config.sections import FlowControlSection
from motor_flow.errors import AdmissionError
from motor_flow.scheduling.admission import FlowControl, Need
from motor_flow.scheduling.leases import LeaseLedger
from motor_flow.scheduling.turns import Turns


def flow_control(capacity=100, waiting=10, wait_ms=30_000):
    leases = LeaseLedger()
    limits = FlowControlSection(max_inflight_tokens=capacity, max_queue_requests=waiting, max_queue_wait_ms=wait_ms)
    return FlowControl(limits, leases), leases


class Asked:
    """A request that holds its tokens until it is told to end."""

    order: list

    def __init__(self, nursery, flow, tokens, name="", client="", guessed=0):
        self.flow, self.needs, self.name, self.client = flow, [Need(tokens, guessed)], name, client
        self.scope, self.end = trio.CancelScope(), trio.Event()
        self.state = "new"
        self.error = None
        nursery.start_soon(self.run)

    async def run(self):
        self.state = "waiting"
        try:
            with self.scope:
                grant = await self.flow.admit(self.client, self.needs)
                try:
                    self.state = "running"
                    self.order.append(self.name)
                    await self.end.wait()
                finally:
                    grant.close()
                self.state = "done"
                return
            self.state = "left"
        except AdmissionError as error:
            self.error, self.state = error, error.status


@pytest.fixture
def ask(nursery):
    """Ask one after the other; each has got as far as it can before the next one comes."""
    order = []

    async def one(flow, tokens, name="", client="", guessed=0):
        asked = Asked(nursery, flow, tokens, name, client, guessed)
        asked.order = order
        await trio.testing.wait_all_tasks_blocked()
        return asked

    one.order = order
    return one


async def ended(asked):
    asked.end.set()
    await trio.testing.wait_all_tasks_blocked()


async def test_what_fits_runs_and_what_does_not_waits(ask, autojump_clock):
    flow, leases = flow_control()
    first, second, third = [await ask(flow, tokens) for tokens in (60, 40, 1)]
    assert (first.state, second.state, third.state) == ("running", "running", "waiting")
    assert (flow.free, flow.waiting, leases.held["flow_tokens"]) == (0, 1, 100)
    await ended(first)
    assert (third.state, flow.waiting, flow.free) == ("running", 0, 59)
    for each in (second, third):
        await ended(each)
    assert leases.idle


async def test_nothing_overtakes_a_large_one(ask, autojump_clock):
    """A stream of small ones could keep the large one waiting for ever."""
    flow, _ = flow_control()
    running = [await ask(flow, 30, f"r{i}") for i in range(3)]
    large = await ask(flow, 100, "large")
    small = [await ask(flow, 5, f"s{i}") for i in range(3)]
    assert [each.state for each in (large, *small)] == ["waiting"] * 4
    for each in running:
        await ended(each)
    assert large.state == "running"
    assert {each.state for each in small} == {"waiting"}
    await ended(large)
    assert ask.order[3] == "large"
    for each in small:
        await ended(each)


async def test_a_large_one_that_leaves_makes_way(ask, autojump_clock):
    flow, leases = flow_control()
    running = await ask(flow, 50)
    large = await ask(flow, 100)
    small = [await ask(flow, 20) for _ in range(3)]
    large.scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert large.state == "left"
    assert [each.state for each in small] == ["running", "running", "waiting"]
    for each in (running, *small):
        await ended(each)
    assert leases.idle


async def test_a_large_one_that_has_waited_too_long_makes_way(ask, autojump_clock):
    flow, _ = flow_control(wait_ms=1000)
    running = await ask(flow, 50)
    large = await ask(flow, 100)
    await trio.sleep(0.5)
    small = await ask(flow, 20)
    await trio.sleep(0.6)
    assert (large.state, small.state) == (503, "running")
    await ended(running)
    await ended(small)


async def test_clients_take_turns(ask, autojump_clock):
    flow, _ = flow_control(capacity=10)
    blocker = await ask(flow, 10, "-")
    waiting = [await ask(flow, 10, name, name[0]) for name in ("a1", "a2", "a3", "b1", "c1", "c2")]
    for each in (blocker, *waiting):
        each.end.set()
    await trio.testing.wait_all_tasks_blocked()
    assert ask.order == ["-", "a1", "b1", "c1", "a2", "c2", "a3"]


async def test_a_full_line_refuses(ask, autojump_clock):
    flow, leases = flow_control(waiting=2)
    running = await ask(flow, 100)
    waiting = [await ask(flow, 10) for _ in range(2)]
    refused = await ask(flow, 10)
    assert (refused.state, refused.error.stage, flow.waiting) == (429, "admission", 2)
    assert refused.error.retry_after_s == 1
    for each in (running, *waiting):
        await ended(each)
    assert [each.state for each in waiting] == ["done", "done"]
    assert leases.idle


async def test_no_line_at_all(ask, autojump_clock):
    flow, _ = flow_control(waiting=0)
    running = await ask(flow, 100)
    assert (await ask(flow, 1)).state == 429
    await ended(running)


async def test_a_client_with_many_waiting_cannot_shut_others_out(ask, autojump_clock):
    """The line is full of one client's requests: its newest ones make room, until both have the same share."""
    flow, _ = flow_control(waiting=4)
    running = await ask(flow, 100)
    many = [await ask(flow, 10, client="many") for _ in range(4)]
    few = [await ask(flow, 10, client="few") for _ in range(3)]
    assert [each.state for each in many] == ["waiting", "waiting", 429, 429]
    assert [each.state for each in few] == ["waiting", "waiting", 429]
    assert (await ask(flow, 10, client="many")).state == 429
    for each in (running, *many, *few):
        await ended(each)


async def test_who_has_waited_too_long_is_told_so(ask, autojump_clock):
    flow, _ = flow_control(wait_ms=2500)
    running = await ask(flow, 100)
    waiting = await ask(flow, 1)
    await trio.sleep(2.49)
    assert waiting.state == "waiting"
    await trio.sleep(0.02)
    assert (waiting.state, waiting.error.stage, waiting.error.retry_after_s) == (503, "admission", 1)
    assert flow.waiting == 0
    await ended(running)
    await ended(await ask(flow, 100))
    assert flow.free == 100


async def test_retry_after_is_what_others_had_to_wait(ask, autojump_clock):
    flow, _ = flow_control(waiting=1)
    first, second = [await ask(flow, 100) for _ in range(2)]
    await trio.sleep(7)
    await ended(first)
    third = await ask(flow, 100)
    assert (await ask(flow, 1)).error.retry_after_s == 7
    for each in (second, third):
        await ended(each)


async def test_what_can_never_fit_is_refused_at_once(ask, autojump_clock):
    flow, leases = flow_control()
    refused = await ask(flow, 101)
    assert (refused.state, refused.error.kind) == (400, "BadRequestError")
    assert "101" in str(refused.error)
    assert leases.idle


async def test_guesses_are_cut_to_what_there_is(ask, autojump_clock):
    flow, leases = flow_control()
    asked = await ask(flow, 30, guessed=5000)
    assert (asked.state, leases.held["flow_tokens"]) == ("running", 100)
    await ended(asked)


async def test_prompts_give_back_their_own(autojump_clock):
    flow, leases = flow_control()
    grant = await flow.admit("", [Need(10, 5), Need(20), Need(30, 50)])
    assert leases.held["flow_tokens"] == 100
    grant.give_back(1)
    grant.give_back(1)
    assert leases.held["flow_tokens"] == 80
    grant.close()
    grant.close()
    assert leases.idle


async def test_a_prompt_that_ends_lets_others_in(ask, autojump_clock):
    flow, _ = flow_control()
    grant = await flow.admit("", [Need(50), Need(50)])
    waiting = await ask(flow, 40)
    grant.give_back(0)
    await trio.testing.wait_all_tasks_blocked()
    assert waiting.state == "running"
    grant.close()
    await ended(waiting)


async def test_granted_and_gone_in_the_same_moment(ask, autojump_clock):
    """The tokens are handed over before the waiting task runs: if it runs no more, they come back."""
    flow, leases = flow_control()
    grant = await flow.admit("", [Need(100)])
    waiting = await ask(flow, 100)
    waiting.scope.cancel()
    grant.close()
    assert leases.held["flow_tokens"] == 100
    await trio.testing.wait_all_tasks_blocked()
    assert waiting.state == "left"
    assert leases.idle


async def test_granted_and_overdue_in_the_same_moment(ask, autojump_clock):
    """Granted wins."""
    flow, _ = flow_control(wait_ms=1000)
    grant = await flow.admit("", [Need(100)])
    waiting = await ask(flow, 100)
    autojump_clock.jump(2)
    grant.close()
    await trio.testing.wait_all_tasks_blocked()
    assert (waiting.state, flow.free) == ("running", 0)
    await ended(waiting)
    assert flow.free == 100


@pytest.mark.parametrize("seed", range(20))
async def test_any_order_of_events(seed, autojump_clock, monkeypatch):
    """Never more than there is, nobody is forgotten, and in the end nothing is held."""
    rng = random.Random(seed)
    flow, leases = flow_control(capacity=100, waiting=30, wait_ms=3000)
    peaks, outcomes = [], []
    take = LeaseLedger.take

    def watched(self, kind, amount=1):
        lease = take(self, kind, amount)
        peaks.append(self.held["flow_tokens"])
        return lease

    monkeypatch.setattr(LeaseLedger, "take", watched)

    async def client():
        await trio.sleep(rng.uniform(0, 5))
        amounts = [Need(rng.randint(1, 40), rng.randint(0, 20)) for _ in range(rng.randint(1, 3))]
        with trio.move_on_after(rng.choice([0.5, 2, 1000])) as scope:
            try:
                grant = await flow.admit(rng.choice("abc"), amounts)
            except AdmissionError as error:
                outcomes.append(error.status)
                return
            try:
                for prompt in range(len(amounts)):
                    await trio.sleep(rng.uniform(0, 0.3))
                    grant.give_back(prompt)
            finally:
                grant.close()
            outcomes.append("done")
        if scope.cancelled_caught:
            outcomes.append("left")

    async with trio.open_nursery() as nursery:
        for _ in range(150):
            nursery.start_soon(client)
    assert len(outcomes) == 150
    assert {"done", "left"} <= set(outcomes) <= {"done", "left", 400, 429, 503}
    assert 80 < max(peaks) <= 100
    assert (flow.waiting, leases.idle) == (0, True)


def test_turns_of_lines_that_come_and_go():
    turns = Turns()
    for name in ("a1", "a2", "b1"):
        turns.add(name[0], name)
    turns.remove("b", "b1")
    turns.add("c", "c1")
    assert (len(turns), turns.head) == (3, "a1")
    assert [turns.take() for _ in range(3)] == ["a1", "c1", "a2"]
    assert (len(turns), turns.head, turns.crowd_out("a")) == (0, None, None)
