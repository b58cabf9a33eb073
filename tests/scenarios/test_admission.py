"""Who may run now: flow control in tokens, taking turns, the rate limit, and what a client is told of them.

RFC 流控; contract sections 2, 3, 5 and 7.
"""

from __future__ import annotations

import hashlib
from contextlib import closing

import pytest
import trio

from motor_flow.scheduling.admission import Need
from motor_flow.scheduling.leases import LeaseLedger
from motor_flow.sim.faults import Fault
from tests.scenarios.test_observability import series
from tests.world import CHAT, TEXT, Response, make_world


def flow(tokens=100, waiting=10, wait_ms=60_000, **more):
    limits = {"max_inflight_tokens": tokens, "max_queue_requests": waiting, "max_queue_wait_ms": wait_ms}
    return {"flow_control_config": limits | more}


def text(letter="a", prompt=20, output=20, **more):
    return {"model": "tiny", "prompt": ids(letter, prompt), "max_tokens": output, "ignore_eos": True, **more}


def ids(letter, count):
    """A prompt of so many tokens."""
    return [ord(letter)] * count


def chat(content="hi", **more):
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "ignore_eos": True, **more}


def tokens(world):
    return world.app.leases.held["flow_tokens"]


def asked(world):
    """The letters that the only engine was asked about, in order."""
    return "".join(chr(record.body["token_ids"][0]) for record in world.seen())


@pytest.fixture
def peak(monkeypatch):
    """The most tokens that were ever held."""
    take, peaks = LeaseLedger.take, [0]

    def watched(self, kind, amount=1):
        lease = take(self, kind, amount)
        peaks.append(self.held["flow_tokens"])
        return lease

    monkeypatch.setattr(LeaseLedger, "take", watched)
    return lambda: max(peaks)


async def gather(world, *requests):
    """Ask all at once; the responses in the order of the requests."""
    responses = [None] * len(requests)

    async def one(number, path, body, headers):
        responses[number] = await world.ask(path, body, headers)

    async with trio.open_nursery() as nursery:
        for number, (path, body, *headers) in enumerate(requests):
            nursery.start_soon(one, number, path, body, *headers or [None])
    return responses


async def test_two_hundred_at_once(nursery, autojump_clock, peak):
    """Eight of 40 tokens fit, 120 wait: exactly 72 are refused, all others get their answer, and nothing is left."""
    world = await make_world(nursery, engine={"pace_s": 0.01}, config=flow(8 * 40, 120))
    kinds = ({}, {"stream": True})
    got = await gather(world, *((TEXT, text(output=20, **kinds[i % 2])) for i in range(200)))
    statuses = [response.status for response in got]
    assert (statuses.count(200), statuses.count(429)) == (128, 72)
    for response in got:
        if response.status == 429:
            assert response.error["stage"] == "admission"
            assert int(response.headers["retry-after"]) >= 1
            assert "x-should-retry" not in response.headers
        else:
            assert response.answer.error is None
            assert response.answer.choices[0].finish_reason == "length"
            assert response.answer.usage.get("completion_tokens", 20) == 20
    assert peak() == 8 * 40
    assert len(world.seen()) == 128
    await world.check()


async def test_a_mixture_of_sizes(nursery, autojump_clock, peak):
    """Nobody starves, whatever the sizes and however many prompts and choices."""
    world = await make_world(nursery, engine={"pace_s": 0.01}, config=flow(300, 500))
    bodies = []
    for i in range(200):
        body = text(prompt=5 + i % 40, output=1 + i % 17, stream=bool(i % 2))
        if i % 10 == 0:
            body = text(prompt=90, output=90, n=2)
        elif i % 7 == 0:
            body["prompt"] = [body["prompt"], ids("b", 3)]
        bodies.append((TEXT, body))
    got = await gather(world, *bodies)
    assert {response.status for response in got} == {200}
    assert 200 < peak() <= 300
    await world.check()


async def test_a_large_one_is_not_overtaken(nursery, autojump_clock):
    world = await make_world(nursery, engines=1, engine={"pace_s": 0.1}, config=flow(100))
    nursery.start_soon(world.ask, TEXT, text("a", 20, 20))
    await trio.sleep(0.05)
    nursery.start_soon(world.ask, TEXT, text("L", 50, 50))
    for letter in "bcd":
        await trio.sleep(0.05)
        nursery.start_soon(world.ask, TEXT, text(letter, 10, 10))
    await trio.sleep(1)
    assert len(world.seen()) == 1
    await trio.sleep(30)
    assert asked(world)[:2] == "aL"
    assert len(world.seen()) == 5
    await world.check()


async def test_the_line_can_be_seen(nursery, autojump_clock):
    world = await make_world(nursery, engine={"pace_s": 0.1}, config=flow(100))
    for letter in "abcd":
        nursery.start_soon(world.ask, TEXT, text(letter))
    await trio.sleep(0.5)
    got = series(world)
    assert (got["motor_flow_queue_requests"], got['motor_flow_leases{kind="flow_tokens"}']) == (2, 80)
    assert got['motor_flow_machines{machine="request",state="admitted"}'] == 2
    await trio.sleep(10)
    got = series(world)
    assert (got["motor_flow_queue_requests"], got['motor_flow_leases{kind="flow_tokens"}']) == (0, 0)
    assert got['motor_flow_phase_duration_seconds_count{outcome="ok",phase="flow_control"}'] == 4
    assert got['motor_flow_phase_duration_seconds_sum{outcome="ok",phase="flow_control"}'] > 3
    await world.check()


async def test_who_has_waited_too_long_is_told_so(nursery, autojump_clock):
    world = await make_world(nursery, engine={"pace_s": 1.0}, config=flow(100, wait_ms=1500))
    nursery.start_soon(world.ask, TEXT, text("a", 50, 50))
    await trio.sleep(0.1)
    began = trio.current_time()
    for body in (text("b"), text("b", stream=True)):
        got = await world.ask(TEXT, body)
        assert (got.status, got.error["stage"], got.error["type"]) == (503, "admission", "ServiceUnavailableError")
        assert int(got.headers["retry-after"]) >= 1
        assert "x-should-retry" not in got.headers
    assert 3.0 <= trio.current_time() - began < 3.2
    assert len(world.seen()) == 1
    await trio.sleep(0.1)
    got = series(world)
    assert got['motor_flow_phase_duration_seconds_count{outcome="failed",phase="flow_control"}'] == 2
    assert [instance.breaker.state for instance in world.app.registry] == ["available"] * 2
    await trio.sleep(60)
    await world.check()


async def test_waiting_counts_in_the_whole_and_not_in_an_engines_time(nursery, autojump_clock):
    limits = {"first_token_timeout": 2, "stall_timeout": 2, "infer_timeout": 8}
    world = await make_world(nursery, engine={"pace_s": 0.1}, config=flow(100) | {"exception_config": limits})
    nursery.start_soon(world.ask, TEXT, text("a", 50, 50))
    await trio.sleep(0.1)
    began = trio.current_time()
    got = await world.ask(TEXT, text("b"))
    assert (got.status, trio.current_time() - began > 4) == (200, True)
    with closing(await world.app.services.flow.admit("", [Need(100)])):
        got = await world.ask(TEXT, text("d"))
    assert (got.status, got.error["stage"]) == (504, "admission")
    await world.check()


async def test_what_can_never_fit(nursery, autojump_clock):
    world = await make_world(nursery, config=flow(100))
    for body in (
        text(output=81),
        text(prompt=101, output=1),
        text(output=10, n=9),
        text() | {"prompt": [ids("a", 90)] * 2},
    ):
        got = await world.ask(TEXT, body)
        assert (got.status, got.error["stage"], got.error["type"]) == (400, "admission", "BadRequestError"), body
    assert (await world.ask(TEXT, text(output=80))).status == 200
    await world.check()


async def test_a_client_that_leaves_the_line(nursery, autojump_clock):
    """The head of the line too: those behind it need not wait for it."""
    world = await make_world(nursery, engines=1, engine={"pace_s": 0.1}, config=flow(100))
    nursery.start_soon(world.ask, TEXT, text("a", 20, 30))
    await trio.sleep(0.1)
    scopes = [trio.CancelScope() for _ in range(3)]

    async def impatient(scope, body):
        with scope:
            await world.ask(TEXT, body)

    for scope, body in zip(scopes, (text("L", 50, 50), text("b"), text("c", 1, 5, stream=True)), strict=True):
        nursery.start_soon(impatient, scope, body)
        await trio.sleep(0.1)
    assert world.app.services.flow.waiting == 3
    scopes[1].cancel()
    await trio.sleep(0.1)
    assert (world.app.services.flow.waiting, len(world.seen())) == (2, 1)
    scopes[0].cancel()
    await trio.sleep(0.1)
    assert (world.app.services.flow.waiting, len(world.seen())) == (0, 2)
    await trio.sleep(10)
    assert asked(world) == "ac"
    await world.check()


FAILURES = {
    "engine says 400": Fault("status", status=400, on="generate"),
    "engines are down": Fault("reset", times=99, on="generate"),
    "engines are busy": Fault("status", status=503, times=99, on="generate"),
    "cut in the middle": Fault("cut", after=3, times=99, on="generate"),
    "silence": Fault("stall", times=99, on="generate"),
    "no token-only route": Fault("status", status=404, times=1, on="generate"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failure", FAILURES)
async def test_every_failure_gives_everything_back(nursery, autojump_clock, failure, stream, peak):
    limits = {"max_retry": 2, "first_token_timeout": 2, "stall_timeout": 2, "retry_delay": 0.01}
    world = await make_world(nursery, engines=2, config=flow(100) | {"exception_config": limits})
    for engine in world.engines:
        engine.faults.add(FAILURES[failure])
    await world.ask(TEXT, text(prompt=50, output=50, stream=stream))
    assert tokens(world) == 0
    assert peak() == 100
    for engine in world.engines:
        engine.faults.clear()
    began = trio.current_time()
    assert (await world.ask(TEXT, text(prompt=50, output=50))).status == 200
    assert trio.current_time() - began < 1


async def test_derender_fails(nursery, autojump_clock):
    world = await make_world(nursery, config=flow(100))
    world.sidecar.faults.add(Fault("status", status=500, times=2, on="derender"))
    assert (await world.ask(TEXT, text())).status == 502
    assert tokens(world) == 0
    await world.stream(TEXT, text())
    assert tokens(world) == 0
    await world.check()


async def test_a_retried_request_keeps_its_tokens_and_takes_no_more(nursery, autojump_clock, peak):
    """One prompt of a list is done, the other one breaks: all of it starts again, so nothing was given back."""
    world = await make_world(
        nursery, engine={"pace_s": 0.05}, config=flow(200) | {"exception_config": {"max_retry": 3}}
    )
    world.engines[1].faults.add(Fault("cut", after=25, times=1, on="generate"))
    held = []

    async def watch():
        while True:
            held.append(tokens(world))
            await trio.sleep(0.1)

    with trio.CancelScope() as scope:
        nursery.start_soon(watch)
        body = text(output=30) | {"prompt": [ids("a", 20), ids("b", 25)]}
        assert (await world.ask(TEXT, body)).status == 200
        scope.cancel()
    assert peak() == 105
    nursery.cancel_scope.cancel()
    assert set(held) <= {0, 105}


async def test_a_prompt_that_is_done_gives_its_tokens_back(nursery, autojump_clock):
    """While its siblings go on. Here the second prompt's engine is slower."""
    world = await make_world(nursery, engine={"pace_s": 0.05}, config=flow(200))
    world.engines[1].faults.add(Fault("stall", after=10, times=1, on="generate"))
    nursery.start_soon(world.stream, TEXT, text(output=30) | {"prompt": [ids("a", 20), ids("b", 25)]})
    await trio.sleep(1)
    assert tokens(world) == 105
    await trio.sleep(2)
    assert tokens(world) in (50, 55)
    nursery.cancel_scope.cancel()


async def test_what_comes_after_the_engines_keeps_nobody_waiting(nursery, autojump_clock):
    world = await make_world(nursery, config=flow(40) | {"render_config": {"timeout_ms": 3000}})
    world.sidecar.faults.add(Fault("stall", times=1, on="derender"))
    slow = Response(0, {})
    nursery.start_soon(world.read, slow, TEXT, text())
    await trio.sleep(1)
    assert [live["state"] for live in world.app.journal.describe()] == ["derendering"]
    assert (await world.ask(TEXT, text())).status == 200
    assert slow.status == 0
    await trio.sleep(5)
    assert slow.status == 504
    await world.check()


async def test_api_keys_take_turns(nursery, autojump_clock):
    """One client has twenty in line, another one comes: it is next."""
    keys = {"api_key_config": {"enable_api_key": True, "valid_keys": [sha("one"), sha("two")]}}
    world = await make_world(nursery, engines=1, engine={"pace_s": 0.05}, config=flow(40, 50) | keys)
    one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
    for _ in range(21):
        nursery.start_soon(world.ask, TEXT, text("a"), one)
    await trio.sleep(0.1)
    for _ in range(3):
        nursery.start_soon(world.ask, TEXT, text("b"), two)
    await trio.sleep(60)
    assert asked(world) == "aababab" + "a" * 17
    await world.check()


def sha(key):
    return hashlib.sha256(key.encode()).hexdigest()


# --- what is counted ---


COUNTED = {
    "completion": (TEXT, text(output=7), 27),
    "completion without a budget": (TEXT, {"model": "tiny", "prompt": ids("a", 20), "ignore_eos": True}, 36),
    "choices": (TEXT, text(output=7, n=3), 41),
    "prompts": (TEXT, text(output=7) | {"prompt": [ids("a", 20), ids("b", 10)]}, 44),
    "prompts and choices": (TEXT, text(output=7, n=2) | {"prompt": [ids("a", 20), ids("b", 10)]}, 58),
    "native": (TEXT, text(output=7, echo=True), 27),
    "native prompts": (TEXT, text(output=7, echo=True) | {"prompt": [ids("a", 20), ids("b", 10)]}, 44),
}


@pytest.mark.parametrize("case", COUNTED)
async def test_what_a_request_counts(nursery, autojump_clock, case, peak):
    path, body, amount = COUNTED[case]
    world = await make_world(nursery, config=flow(10_000))
    assert (await world.ask(path, body)).status == 200
    assert peak() == amount
    await world.check()


async def test_a_chat_without_a_budget_counts_what_is_configured(nursery, autojump_clock, peak):
    """Render gives it the rest of the context, which it hardly ever uses."""
    world = await make_world(nursery, config=flow(10_000, unasked_output_tokens=100))
    assert (await world.ask(CHAT, chat(ignore_eos=False))).status == 200
    rendered = world.seen()[0].body
    assert rendered["sampling_params"]["max_tokens"] > 1000
    assert peak() == len(rendered["token_ids"]) + 100
    await world.check()


async def test_a_guess_never_makes_a_request_impossible(nursery, autojump_clock, peak):
    world = await make_world(nursery, config=flow(100))
    assert (await world.ask(CHAT, chat(ignore_eos=False))).status == 200
    assert peak() == 100
    await world.check()


@pytest.mark.parametrize(
    ("path", "body", "amount"),
    [
        (TEXT, text(output=7) | {"prompt": "a" * 40}, 42 // 4 + 1 + 7),
        (TEXT, {"model": "tiny", "prompt": "a" * 40}, 42 // 4 + 1 + 16),
        (TEXT, text(output=7, n=2) | {"prompt": ["a" * 40, "b"]}, 49 // 4 + 1 + 28),
        (CHAT, chat("a" * 400, max_tokens=5), len('[{"role": "user", "content": ""}]') // 4 + 100 + 1 + 5),
    ],
)
async def test_without_render_length_is_estimated(nursery, autojump_clock, path, body, amount, peak):
    config = flow(100_000) | {"render_config": {"enable": False}}
    world = await make_world(nursery, config=config)
    assert (await world.ask(path, body)).status == 200
    assert peak() == amount
    await world.check()


async def test_an_estimate_is_no_larger_than_the_context(nursery, autojump_clock, peak):
    """An image in base64 is long and few tokens; here it stands for one."""
    config = flow(100_000) | {"render_config": {"enable": False}}
    world = await make_world(nursery, config=config)
    context = world.sidecar.served.max_model_len
    await world.ask(CHAT, chat("x" * 10 * context, max_tokens=5))
    assert peak() == context + 5
    await world.check()


async def test_what_generates_nothing_has_no_output(nursery, autojump_clock, peak):
    world = await make_world(nursery, config=flow())
    await world.ask("/v1/embeddings", {"model": "tiny", "input": "a" * 38, "max_tokens": 50})
    assert peak() == 11
    await world.ask("/v1/responses", {"model": "tiny", "input": "a" * 38, "max_output_tokens": 50})
    assert peak() == 61
    assert tokens(world) == 0


async def test_switched_off(nursery, autojump_clock, peak):
    world = await make_world(nursery, engine={"pace_s": 0.01}, config=flow(10, 0, enable=False))
    got = await gather(world, *((TEXT, text()) for _ in range(20)))
    assert {response.status for response in got} == {200}
    assert peak() == 0
    assert not any(name.startswith("x-ratelimit") for name in got[0].headers)
    await world.check()


# --- headers and the rate limit ---


async def test_headers_of_flow_control(nursery, autojump_clock):
    world = await make_world(nursery, engine={"pace_s": 0.1}, config=flow(100, 0))
    for body in (text(), text(stream=True)):
        got = await world.ask(TEXT, body)
        assert (got.headers["x-ratelimit-limit-tokens"], got.headers["x-ratelimit-remaining-tokens"]) == ("100", "60")
    nursery.start_soon(world.ask, TEXT, text("a", 35, 35))
    await trio.sleep(0.1)
    got = await world.ask(TEXT, text())
    assert (got.status, got.headers["x-ratelimit-remaining-tokens"]) == (429, "30")
    await trio.sleep(10)
    await world.check()


RATE = {"rate_limit_config": {"enable_rate_limit": True, "max_requests": 4, "window_size": 8.0}}


async def test_the_rate_limit(nursery, autojump_clock):
    world = await make_world(nursery, config=RATE)
    for remaining in (3, 2, 1, 0):
        body = text(output=1, stream=bool(remaining % 2)) if remaining else b"nonsense"
        got = await world.ask(TEXT, body)
        assert got.status == (200 if remaining else 400)
        if remaining:
            assert (got.headers["x-ratelimit-limit"], got.headers["x-ratelimit-remaining"]) == ("4", str(remaining))
    got = await world.ask(CHAT, chat(max_tokens=1), {"x-request-id": "mine"})
    assert (got.status, got.error["stage"], got.error["code"]) == (429, "admission", 429)
    assert (got.headers["retry-after"], got.headers["x-ratelimit-remaining-requests"]) == ("2", "0")
    assert got.headers["x-request-id"] == "mine"
    assert len(world.seen()) == 3
    for path in ("/v1/models", "/health"):
        assert (await world.ask(path, None, method="GET")).status == 200
    assert (await world.ask("/v1/nothing", {})).status == 404
    await trio.sleep(2)
    assert (await world.ask(TEXT, text(output=1))).status == 200
    assert (await world.ask(TEXT, text(output=1))).status == 429
    counted = 'motor_flow_requests_total{api="chat",code="429",path="none",stream="false",topology="none"}'
    assert series(world)[counted] == 1
    await world.check()


async def test_a_wrong_key_is_not_counted(nursery, autojump_clock):
    keys = {"api_key_config": {"enable_api_key": True, "valid_keys": [sha("one")]}}
    world = await make_world(nursery, config=RATE | keys)
    for _ in range(10):
        assert (await world.ask(TEXT, text())).status == 401
    assert (await world.ask(TEXT, text(output=1), {"authorization": "Bearer one"})).status == 200
    await world.check()
