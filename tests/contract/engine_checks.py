"""What an engine must do. See conformance.py."""

from __future__ import annotations

from tests.contract.asking import (
    ABORT,
    BODIES,
    CHAT,
    COMPLETION,
    EOS,
    GENERATE,
    HELLO,
    MODEL,
    SECOND_EOS,
    STORY,
    Call,
    generate_request,
    post,
    refused,
    streamed_calls,
    streamed_text,
    tokens_of,
)


async def generate_whole(call: Call) -> None:
    prompt = await tokens_of(call, "Once upon a ")
    body = generate_request(prompt, max_tokens=5) | {"request_id": "in-the-body"}
    said = await post(call, GENERATE, body, {"X-Request-Id": "in-the-head"})
    assert said["request_id"] == "generate-tokens-in-the-head"
    (choice,) = said["choices"]
    assert len(choice["token_ids"]) == 5
    assert choice["finish_reason"] == "length"
    assert said["usage"]["prompt_tokens"] == len(prompt)
    assert said["usage"]["completion_tokens"] == 5
    assert (await post(call, GENERATE, body))["request_id"] == "generate-tokens-in-the-body"


async def generate_streams_the_same(call: Call) -> None:
    prompt = await tokens_of(call, "Once upon a ")
    whole = (await post(call, GENERATE, generate_request(prompt, max_tokens=9)))["choices"][0]
    body = generate_request(prompt, max_tokens=9) | {"stream": True, "stream_options": {"include_usage": True}}
    *events, usage, done = await post(call, GENERATE, body)
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 9
    choices = [event["choices"][0] for event in events]
    assert [token for choice in choices for token in choice["token_ids"]] == whole["token_ids"]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert len({event["request_id"] for event in [*events, usage]}) == 1
    assert all(event["usage"] is None for event in events)


async def generate_counts_as_it_goes(call: Call) -> None:
    prompt = await tokens_of(call, "Once upon a ")
    options = {"include_usage": True, "continuous_usage_stats": True}
    *events, _, _ = await post(
        call, GENERATE, generate_request(prompt, max_tokens=6) | {"stream": True, "stream_options": options}
    )
    count = 0
    for event in events:
        count += len(event["choices"][0]["token_ids"])
        assert event["usage"]["completion_tokens"] == count
    assert count == 6


async def generate_continues(call: Call) -> None:
    """A prompt with the first tokens of its answer goes on as the answer went on."""
    prompt = await tokens_of(call, "Once upon a ")
    answer = (await post(call, GENERATE, generate_request(prompt, max_tokens=8)))["choices"][0]["token_ids"]
    for done in (1, 3, 7):
        body = generate_request(prompt + answer[:done], max_tokens=8 - done)
        assert (await post(call, GENERATE, body))["choices"][0]["token_ids"] == answer[done:]


async def generate_ends(call: Call) -> None:
    """How an answer ends: the end token, the second one, a stop token, a stop string."""
    prompt = await tokens_of(call, "Once upon a ")
    answer = (await post(call, GENERATE, generate_request(prompt, max_tokens=200)))["choices"][0]
    tokens = answer["token_ids"]
    assert answer["finish_reason"] == "stop"
    assert (tokens[-1], answer["stop_reason"]) in ((EOS, None), (SECOND_EOS, SECOND_EOS))
    third = tokens[2]
    stopped = (await post(call, GENERATE, generate_request(prompt, max_tokens=9, stop_token_ids=[third])))["choices"][0]
    assert stopped["token_ids"] == tokens[: tokens.index(third) + 1]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", third)
    stop = (await post(call, "/detokenize", {"model": MODEL, "tokens": tokens[3:4]}))["prompt"]
    stopped = (await post(call, GENERATE, generate_request(prompt, max_tokens=9, stop=[stop])))["choices"][0]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", stop)
    assert stopped["token_ids"] == tokens[: len(stopped["token_ids"])]
    assert len(stopped["token_ids"]) <= 4


async def generate_choices(call: Call) -> None:
    prompt = await tokens_of(call, "Once upon a ")
    body = generate_request(prompt, max_tokens=4) | {"sampling_params": {"n": 3, "temperature": 1.0, "max_tokens": 4}}
    said = await post(call, GENERATE, body)
    assert [choice["index"] for choice in said["choices"]] == [0, 1, 2]
    *events, done = await post(call, GENERATE, body | {"stream": True})
    assert done == "[DONE]"
    finished = [event["choices"][0]["index"] for event in events if event["choices"][0]["finish_reason"]]
    assert sorted(finished) == [0, 1, 2]


async def generate_logprobs(call: Call) -> None:
    prompt = await tokens_of(call, "Once upon a ")
    said = (await post(call, GENERATE, generate_request(prompt, max_tokens=4, logprobs=2)))["choices"][0]
    content = said["logprobs"]["content"]
    assert [item["token_id"] for item in content] == said["token_ids"]
    for item in content:
        assert item["logprob"] <= 0
        assert len(item["top_logprobs"]) in (2, 3)
        assert item["top_logprobs"][0]["token_id"] == item["token_id"]


async def generate_ignores_what_it_does_not_know(call: Call) -> None:
    prompt = await tokens_of(call, "Once upon a ")
    plain = await post(call, GENERATE, generate_request(prompt, max_tokens=3))
    odd = await post(call, GENERATE, generate_request(prompt, max_tokens=3) | {"no_such_field": [1]})
    assert odd["choices"] == plain["choices"]


async def generate_refusals(call: Call) -> None:
    _, _, listed = await call("GET", "/v1/models", None, None)
    too_long = [5] * (listed["data"][0]["max_model_len"] + 1)
    error = await refused(call, GENERATE, generate_request(too_long, max_tokens=8), 400)
    assert error["type"] == "BadRequestError"
    error = await refused(call, GENERATE, generate_request(too_long), 400)
    assert error["message"].startswith("Input length")
    await refused(call, GENERATE, generate_request([5, 100_000], max_tokens=8), 400)
    error = await refused(call, GENERATE, generate_request([5], max_tokens=8) | {"model": "nope"}, 404)
    assert (error["type"], error["param"]) == ("NotFoundError", "model")
    await refused(call, GENERATE, {"token_ids": [5]}, 400)


async def generate_finds_some_faults_late(call: Call) -> None:
    """A stream has its status before the engine core has looked at the request."""
    body = generate_request([5, 100_000], max_tokens=8) | {"stream": True}
    status, headers, said = await call("POST", GENERATE, body, None)
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    fault, done = said
    assert done == "[DONE]"
    assert fault["error"]["code"] == 400


async def abort_of_nothing(call: Call) -> None:
    status, _, said = await call("POST", ABORT, {"request_ids": ["generate-tokens-nobody"]}, None)
    assert (status, said) == (200, "")
    await refused(call, ABORT, {}, 400)


async def native_chat_streams_the_same(call: Call) -> None:
    for body in BODIES:
        whole = await post(call, CHAT, body)
        message = whole["choices"][0]["message"]
        *chunks, usage, done = await post(
            call, CHAT, body | {"stream": True, "stream_options": {"include_usage": True}}
        )
        assert done == "[DONE]"
        assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert streamed_text(chunks, "content") == (message["content"] or "")
        assert streamed_text(chunks, "reasoning") == (message["reasoning"] or "")
        assert streamed_calls(chunks) == [item["function"] for item in message.get("tool_calls") or ()]
        finishes = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert finishes == [None] * (len(chunks) - 1) + [whole["choices"][0]["finish_reason"]]


async def native_completion_streams_the_same(call: Call) -> None:
    body = STORY | {"prompt": ["Once upon a ", "从前有座山"]}
    whole = await post(call, COMPLETION, body)
    *chunks, done = await post(call, COMPLETION, body | {"stream": True})
    assert done == "[DONE]"
    for choice in whole["choices"]:
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in own) == choice["text"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]


async def native_refusals(call: Call) -> None:
    error = await refused(call, CHAT, HELLO | {"model": "nope"}, 404)
    assert (error["type"], error["param"]) == ("NotFoundError", "model")
    await refused(call, CHAT, HELLO | {"temperature": -1}, 400)
    await refused(call, COMPLETION, {"model": MODEL}, 400)


CHECKS = (
    generate_whole,
    generate_streams_the_same,
    generate_counts_as_it_goes,
    generate_continues,
    generate_ends,
    generate_choices,
    generate_logprobs,
    generate_ignores_what_it_does_not_know,
    generate_refusals,
    generate_finds_some_faults_late,
    abort_of_nothing,
    native_chat_streams_the_same,
    native_completion_streams_the_same,
    native_refusals,
)
