"""Every capture of real vLLM 0.33 that applies, played through the simulators.

The captures were made with the simulators' own tokenizer, so values are compared exactly: token ids, texts, error
messages, the states of streams, the order of keys. `null` and an absent key are different things here.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from motor_flow.sim.engine import Engine
from motor_flow.sim.sidecar import Sidecar
from tests.contract import captures
from tests.contract.sim_client import Client

NOT_EXCHANGES = {
    "abort_nonstream": "what a request answered that an abort ended: test_an_aborted_answer_is_a_partial_one",
    "abort_stream": "the end of a stream that an abort ended: test_an_aborted_stream_ends_as_captured",
    "abort_stream_bare_id": "the end of a stream whose abort missed: test_a_bare_id_aborts_nothing",
    "der_chat_stream_tool_session": "test_sessions",
    "der_chat_stream_utf8_session": "test_sessions",
    "der_cmpl_stream_session": "test_sessions",
    "prompt_of_chat_tools": "data of other captures",
}
# What cannot be equal, and why. Status, content type and the shape of these are compared all the same.
VALUES_DIFFER = {
    "err_gen_stream_bad_structured": "the message is the grammar compiler's own",
    "err_gen_sum_over": "a prompt nobody knows by heart: the real model's answer comes from its weights",
    "gen_logprobs": "log-probabilities come from the weights",
    "gen_stream_logprobs": "log-probabilities come from the weights",
    "gen_prompt_logprobs": "log-probabilities come from the weights, and so do the likeliest others",
    "gen_stream_n2": "how the events of two choices are interleaved is chance",
}
SIDECAR_PREFIXES = ("render_", "err_render_", "der_", "ders_")
MARK = "sim-check:"


def client_of(name: str) -> Client:
    if name.startswith(SIDECAR_PREFIXES):
        return Client(Sidecar(max_model_len=captures.CONTEXT_TOKENS))
    return Client(Engine(max_model_len=captures.CONTEXT_TOKENS, choices_max=captures.CHOICES_MAX))


def unmarked(answer: Any) -> Any:
    """An answer whose stream state, if it has one, is without the simulators' own mark."""
    state = answer.get("stream_state") if isinstance(answer, dict) else None
    if state is None:
        return answer
    plain = {name: [item for item in state[name] if not item.startswith(MARK)] for name in MARKED}
    assert sum(len(state[name]) - len(plain[name]) for name in MARKED) == 1
    return answer | {"stream_state": state | plain}


MARKED = ("prev_tokens", "last_tool_call_ids")


def test_every_capture_is_played_or_explained() -> None:
    files = {file.stem for file in captures.WIRE.glob("*.json")}
    assert files == {*captures.names(), *NOT_EXCHANGES}
    assert set(VALUES_DIFFER) < set(captures.names())


@pytest.mark.parametrize("name", captures.names())
async def test_exchange(name: str) -> None:
    capture = captures.load(name)
    status, headers, answer = await client_of(name).call(capture.method, capture.path, capture.body, capture.headers)
    assert status == capture.status, answer
    assert headers.get("content-type", "") == capture.content_type
    assert headers.get("allow") == capture.allow
    if name in VALUES_DIFFER:
        assert shape(answer) == shape(capture.answer)
    else:
        assert captures.differences(capture.answer, unmarked(answer)) == []


def shape(value: Any) -> Any:
    """The keys in their order and the kinds of values; a list is the set of its items' shapes."""
    if isinstance(value, dict):
        if all(key.isdigit() for key in value):
            return ["by token", shape(list(value.values()))]
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return sorted({repr(shape(item)) for item in value if not captures.cut(item)})
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


CHINESE = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Say hello in Chinese."}],
    "temperature": 0,
    "logprobs": True,
    "top_logprobs": 1,
    "chat_template_kwargs": {"enable_thinking": False},
}


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("der_chat_stream_tool_session", "/v1/chat/completions/derender", "render_chat_tools"),
        ("der_chat_stream_utf8_session", "/v1/chat/completions/derender", CHINESE),
        ("der_cmpl_stream_session", "/v1/completions/derender", None),
    ],
)
async def test_sessions(name: str, path: str, body: Any) -> None:
    """Each answer and each state is the captured one, the client's only part being to carry the state."""
    sidecar = Sidecar(max_model_len=captures.CONTEXT_TOKENS)
    client = Client(sidecar)
    if isinstance(body, str):
        body = captures.load(body).body
    if body is not None:
        await client.ask("/v1/chat/completions/render", body)
    state = None
    for exchange in captures.session(name):
        request = exchange["request"] | {"stream_state": state}
        if body is not None:
            request["chat_request"] = body
        if request["prompt_token_ids"] == "<100 ids>":
            request["prompt_token_ids"] = captures.tools_prompt()
        answer = await client.ask(path, request)
        assert captures.differences(exchange["response"], unmarked(answer)) == []
        state = answer["stream_state"]
    assert list(sidecar.repeats) == []
    # The Chinese session was captured with a prompt that the test renders too, so nothing was made up.
    assert list(sidecar.anomalies) == []


async def test_a_native_stream_with_a_tool_call() -> None:
    body = captures.load("render_chat_tools").body | {"stream": True, "stream_options": {"include_usage": True}}
    events = await client_of("native").ask("/v1/chat/completions", body)
    assert captures.differences(native(captures.stream("native_chat_stream_tool")), native(events)) == []


async def test_a_native_stream_of_two_prompts() -> None:
    body = {
        "model": "tiny",
        "prompt": ["Once upon a ", "从前有座山"],
        "max_tokens": 3,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    events = await client_of("native").ask("/v1/completions", body)
    assert captures.differences(native(captures.stream("native_cmpl_stream")), native(events)) == []


def native(events: list[Any]) -> list[Any]:
    """Without the hash of the server's configuration."""
    assert all(
        event["system_fingerprint"].startswith("vllm-0.33.0-") for event in events if "system_fingerprint" in event
    )
    return [event | {"system_fingerprint": ""} if "system_fingerprint" in event else event for event in events]


PROMPT = captures.load("gen_min").body["token_ids"]


async def test_an_aborted_stream_ends_as_captured(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    capture = captures.raw("abort_stream")
    client = Client(Engine(max_model_len=captures.CONTEXT_TOKENS, pace_s=1.0))
    body = {
        "token_ids": PROMPT,
        "stream": True,
        "stream_options": {"include_usage": True},
        "sampling_params": {"temperature": 0, "ignore_eos": True},
        "request_id": "ab1",
    }
    stream = await client.open(nursery, "/inference/v1/generate", body)
    for _ in range(18):
        await stream.event()
    await client.ask("/inference/v1/abort_requests", {"request_ids": ["generate-tokens-ab1"]})
    # The tail begins with a token, which was the last before the abort took effect.
    assert captures.differences(captures.said(capture["tail"])[1:], await stream.rest()) == []


async def test_a_bare_id_aborts_nothing(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    capture = captures.said(captures.raw("abort_stream_bare_id")["tail"])
    client = Client(Engine(max_model_len=captures.CONTEXT_TOKENS, pace_s=1.0))
    body = {
        "token_ids": PROMPT,
        "stream": True,
        "sampling_params": {"temperature": 0, "ignore_eos": True, "max_tokens": 900},
        "request_id": "ab2",
    }
    stream = await client.open(nursery, "/inference/v1/generate", body)
    await stream.event()
    await client.ask("/inference/v1/abort_requests", {"request_ids": ["ab2"]})
    *_, last, done = await stream.rest()
    (token,) = last["choices"][0].pop("token_ids")
    capture[-2]["choices"][0].pop("token_ids")
    assert isinstance(token, int)
    assert captures.differences(capture[-2:], [last, done]) == []


async def test_an_aborted_answer_is_a_partial_one(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    capture = captures.raw("abort_nonstream")
    client = Client(Engine(max_model_len=captures.CONTEXT_TOKENS, pace_s=1.0))
    body = {"token_ids": PROMPT, "sampling_params": {"temperature": 0, "ignore_eos": True}, "request_id": "ab3"}
    call = client.start(nursery, "/inference/v1/generate", body)
    await trio.sleep(133.5)
    await client.ask("/inference/v1/abort_requests", {"request_ids": ["generate-tokens-ab3"]})
    await call.head()
    answer = captures.json.loads(await call.body())
    assert call.status == 200
    assert captures.differences(capture, answer) == []
