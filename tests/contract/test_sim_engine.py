"""What the simulated engine has beyond the protocol: its clock, its slow readers, its aborts, and what it saw.

Time is virtual. An engine with `pace_s` makes token k of a choice at `first_token_s + (k - 1) * pace_s`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from motor_flow.sim.clock import MERGED_TOKENS_MAX
from motor_flow.sim.engine import Engine
from tests.contract.asking import ABORT, CHAT, COMPLETION, GENERATE, HELLO, STORY
from tests.contract.sim_client import Client, Ongoing

PROMPT = [5, 6, 7]


def body(*, stream: bool = True, name: str = "r", prompt: Any = PROMPT, **sampling: Any) -> dict[str, Any]:
    params = {"ignore_eos": True} | sampling
    return {"token_ids": prompt, "stream": stream, "request_id": name, "sampling_params": params}


def tokens_in(event: Any) -> list[int]:
    return [token for choice in event["choices"] for token in choice["token_ids"]]


def sizes(events: list[Any]) -> list[int]:
    return [len(tokens_in(event)) for event in events if event != "[DONE]"]


async def timed(stream: Ongoing) -> list[tuple[float, Any]]:
    """The events that are left, and when each came."""
    started, came = trio.current_time(), []
    while (event := await stream.event()) != "[DONE]":
        came.append((round(trio.current_time() - started, 3), event))
    return came


# The clock


async def test_tokens_come_by_the_clock(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    engine = Engine(first_token_s=2.0, pace_s=0.5)
    stream = await Client(engine).open(nursery, GENERATE, body(max_tokens=4))
    assert [at for at, _ in await timed(stream)] == [2.0, 2.5, 3.0, 3.5]


async def test_a_whole_answer_takes_as_long(autojump_clock: MockClock) -> None:
    client = Client(Engine(first_token_s=2.0, pace_s=0.5))
    for path, request in (
        (GENERATE, body(stream=False, max_tokens=4)),
        (COMPLETION, STORY | {"max_tokens": 4}),
        (CHAT, HELLO | {"max_tokens": 4}),
    ):
        started = trio.current_time()
        await client.ask(path, request)
        assert trio.current_time() - started == pytest.approx(3.5)


async def test_chunks_hold_one_token_then_more(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    engine = Engine(pace_s=1.0, chunk_tokens=3)
    stream = await Client(engine).open(nursery, GENERATE, body(max_tokens=9))
    came = await timed(stream)
    assert sizes([event for _, event in came]) == [1, 3, 3, 2]
    # The rest that does not fill a chunk is not kept waiting.
    assert [at for at, _ in came] == [0, 3, 6, 8]


async def test_the_pace_can_be_changed(autojump_clock: MockClock) -> None:
    engine = Engine()
    client = Client(engine)
    await client.ask(GENERATE, body(max_tokens=4))
    assert trio.current_time() == 0
    engine.pace_s = 1.0
    await client.ask(GENERATE, body(max_tokens=4))
    assert trio.current_time() == pytest.approx(3.0)


@pytest.mark.parametrize(("path", "request_"), [(GENERATE, body(max_tokens=30)), (COMPLETION, STORY)])
async def test_a_slow_reader_gets_larger_chunks(
    path: str, request_: Any, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    client = Client(Engine(pace_s=1.0))
    quick = await client.ask(path, request_ | {"stream": True})
    stream = await client.open(nursery, path, request_ | {"stream": True})
    events = [await stream.event()]
    await trio.sleep(10.5)
    events += await stream.rest()
    # The second token was waiting to be taken, the others were made meanwhile.
    assert len(events) < len(quick) - 5
    assert said(events) == said(quick)


def said(events: list[Any]) -> Any:
    """All tokens, or all text, and the finish."""
    choices = [event["choices"][0] for event in events if event != "[DONE]" and event["choices"]]
    parts = [choice["token_ids"] if choice.get("token_ids") else list(choice.get("text", "")) for choice in choices]
    return [item for part in parts for item in part], choices[-1]["finish_reason"]


async def test_a_merged_chunk_is_bounded(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    count = MERGED_TOKENS_MAX * 2
    client = Client(Engine(pace_s=1.0, max_model_len=count + 100))
    stream = await client.open(nursery, GENERATE, body(max_tokens=count))
    await trio.sleep(count)
    found = sizes(await stream.rest())
    assert max(found) == MERGED_TOKENS_MAX
    assert sum(found) == count


# Aborts and departures


async def test_an_abort_ends_what_bears_the_name(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    engine = Engine(pace_s=1.0)
    client = Client(engine)
    aborted = await client.open(nursery, GENERATE, body(name="a", n=2, max_tokens=50))
    other = await client.open(nursery, GENERATE, body(name="b", max_tokens=6))
    for _ in range(4):
        await aborted.event()
    await client.ask(ABORT, {"request_ids": ["generate-tokens-a", "generate-tokens-nobody"]})
    *events, done = await aborted.rest()
    assert done == "[DONE]"
    assert [choice["finish_reason"] for event in events[-2:] for choice in event["choices"]] == ["abort", "abort"]
    assert trio.current_time() < 3
    *events, _ = await other.rest()
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert engine.running == 0


async def test_an_abort_of_a_native_request(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    client = Client(Engine(pace_s=1.0))
    request = STORY | {"stream": True, "request_id": "x", "ignore_eos": True, "max_tokens": 500}
    stream = await client.open(nursery, COMPLETION, request)
    first = await stream.event()
    await client.ask(ABORT, {"request_ids": [f"{first['id']}-0"]})
    *events, done = await stream.rest()
    assert done == "[DONE]"
    assert events[-1]["choices"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        (GENERATE, body(max_tokens=50)),
        (GENERATE, body(stream=False, max_tokens=50)),
        (CHAT, HELLO | {"stream": True}),
        (CHAT, HELLO),
        (COMPLETION, STORY | {"prompt": ["a", "b"], "stream": True}),
    ],
)
async def test_a_client_that_leaves_frees_its_request(
    path: str, request_: Any, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    engine = Engine(pace_s=1.0)
    call = Client(engine).start(nursery, path, request_)
    if request_.get("stream"):
        await call.head()
        await call.event()
    await trio.sleep(2.5)
    assert engine.running == len(request_["prompt"] if path == COMPLETION else [0])
    await call.leave()
    assert engine.running == 0
    (record,) = engine.seen
    assert record.peer_closed
    assert not record.finished
    assert (await Client(engine).call("GET", "/load"))[2] == {"server_load": 0}


# What it saw


async def test_what_it_has_seen() -> None:
    engine = Engine()
    client = Client(engine)
    request = body(max_tokens=7, n=2)
    await client.ask(GENERATE, request, {"X-Request-Id": "one", "X-Other": "2"})
    await client.ask(CHAT, HELLO | {"max_tokens": 3})
    await client.call("POST", GENERATE, body(max_tokens=0))
    token, native, refused = engine.seen
    assert (token.kind, token.path, token.id, token.status) == ("generate", GENERATE, "generate-tokens-one", 200)
    assert (token.tokens, token.finished, token.peer_closed) == (14, True, False)
    assert token.body == request
    assert token.headers["x-other"] == "2"
    assert (native.kind, native.tokens, native.finished) == ("native", 3, True)
    assert native.id.startswith("chatcmpl-")
    assert (refused.status, refused.tokens, refused.finished) == (400, 0, True)
    assert engine.tokens_total == 17


async def test_an_id_that_is_in_use(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    engine = Engine(pace_s=1.0)
    client = Client(engine)
    await client.ask(GENERATE, body(name="same", max_tokens=3))
    await client.ask(GENERATE, body(name="same", max_tokens=3))
    assert engine.anomalies == []
    streams = [await client.open(nursery, GENERATE, body(name="same", max_tokens=3)) for _ in range(2)]
    for stream in streams:
        await stream.rest()
    (anomaly,) = engine.anomalies
    assert anomaly.startswith("generate-tokens-same")


async def test_load_and_metrics(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    client = Client(Engine(pace_s=1.0, model_name="m"))
    stream = await client.open(nursery, GENERATE, body(max_tokens=3))
    assert (await client.call("GET", "/load"))[2] == {"server_load": 1}
    text = (await client.call("GET", "/metrics"))[2]
    assert 'vllm:num_requests_running{engine="0",model_name="m"} 1.0' in text
    await stream.rest()
    text = (await client.call("GET", "/metrics"))[2]
    assert 'vllm:num_requests_running{engine="0",model_name="m"} 0.0' in text
    assert 'vllm:generation_tokens_total{engine="0",model_name="m"} 3.0' in text


# Options


async def test_without_scale_out() -> None:
    client = Client(Engine(scale_out=False))
    for path, request in ((GENERATE, body()), (ABORT, {"request_ids": []})):
        status, _, said = await client.call("POST", path, request)
        assert (status, said["error"]["type"]) == (403, "PermissionDeniedError")
    assert (await client.call("POST", CHAT, HELLO))[0] == 200


async def test_a_key() -> None:
    client = Client(Engine(api_key="secret"))
    for path in (GENERATE, CHAT):
        status, _, said = await client.call("POST", path, body(), {"Authorization": "Bearer other"})
        assert (status, said) == (401, {"error": "Unauthorized"})
    assert (await client.call("POST", GENERATE, body(), {"Authorization": "Bearer secret"}))[0] == 200
    assert (await client.call("GET", "/health"))[0] == 200


async def test_without_parsers_all_text_is_content() -> None:
    answer = await Client(Engine(parsers=False)).ask(CHAT, HELLO)
    assert answer["choices"][0]["message"]["content"] == (
        "<think>\nA greeting. Greet back.\n</think>\n\nHello! How can I help you today?"
    )


async def test_a_minimal_response() -> None:
    answer = await Client(Engine()).ask("/v1/responses", {"model": "tiny", "input": "Hello!"})
    assert answer["object"] == "response"
    assert answer["status"] == "completed"
    assert "Hello! How can I help you today?" in json.dumps(answer["output"])


# How an answer ends, where the conformance checks cannot know it


@pytest.mark.parametrize("stream", [False, True])
async def test_rules_of_sampling(*, stream: bool) -> None:
    client = Client(Engine())

    async def ids(**sampling: Any) -> tuple[list[int], str, Any]:
        said = await client.ask(GENERATE, body(stream=stream, **sampling))
        events = said[:-1] if stream else [said]
        choice = events[-1]["choices"][0]
        return [token for event in events for token in tokens_in(event)], choice["finish_reason"], choice["stop_reason"]

    plain, finish, _ = await ids(max_tokens=40)
    assert (len(plain), finish) == (40, "length")
    third = plain[2]
    assert await ids(max_tokens=40, stop_token_ids=[third]) == (plain[: plain.index(third) + 1], "stop", third)
    # A token that would end it too early is not drawn at all, so the answer is another one from there.
    late, finish, reason = await ids(max_tokens=40, stop_token_ids=[third], min_tokens=10)
    at = plain.index(third)
    assert late[:at] == plain[:at]
    assert third not in late[:10]
    assert (finish, reason) == (("stop", third) if third in late else ("length", None))
    allowed, finish, _ = await ids(max_tokens=2000, ignore_eos=False)
    assert finish == "stop"
    assert allowed[-1] in (0, 2)
    assert not {0, 2} & set(allowed[:-1])
    # Where an end is ignored it is not drawn either, so there is text to the last token.
    longer, finish, _ = await ids(max_tokens=2000)
    assert longer[: len(allowed) - 1] == allowed[:-1]
    assert (len(longer), finish) == (2000, "length")
    assert not {0, 2} & set(longer)


async def test_choices_differ_and_the_first_is_the_only_ones() -> None:
    client = Client(Engine())
    choices = (await client.ask(GENERATE, body(stream=False, max_tokens=20, n=3)))["choices"]
    (alone,) = (await client.ask(GENERATE, body(stream=False, max_tokens=20)))["choices"]
    assert choices[0]["token_ids"] == alone["token_ids"]
    assert len({tuple(choice["token_ids"]) for choice in choices}) == 3


async def test_all_the_room_is_the_default_and_the_limit() -> None:
    client = Client(Engine(max_model_len=50))
    for sampling in ({}, {"max_tokens": 1000}):
        (choice,) = (await client.ask(GENERATE, body(stream=False, **sampling)))["choices"]
        assert (len(choice["token_ids"]), choice["finish_reason"]) == (47, "length")
