"""What a Render/Derender sidecar must do. See conformance.py."""

from __future__ import annotations

from typing import Any

from tests.contract.asking import (
    CHINESE,
    COMPLETION_DERENDER,
    COMPLETION_RENDER,
    DERENDER,
    HELLO,
    MODEL,
    RENDER,
    STORY,
    WEATHER,
    Call,
    chunk_request,
    derender_request,
    derendered,
    derendered_stream,
    generate_chunk,
    post,
    refused,
    streamed_calls,
    streamed_text,
    tokens_of,
    two_calls,
)


async def render_chat(call: Call) -> None:
    said = await post(call, RENDER, HELLO | {"max_tokens": 7}, {"X-Request-Id": "abc"})
    assert said["request_id"] == "chatcmpl-abc"
    assert said["token_ids"] == [1, 402, 201, 364, 3, 2, 201, 1, 431, 201]
    assert said["sampling_params"]["max_tokens"] == 7
    assert said["stream"] is False
    assert said["output_mode"] == "tokens"


async def render_gives_the_room_as_max_tokens(call: Call) -> None:
    _, _, listed = await call("GET", "/v1/models", None, None)
    said = await post(call, RENDER, HELLO)
    assert said["sampling_params"]["max_tokens"] == listed["data"][0]["max_model_len"] - len(said["token_ids"])


async def render_leaves_out_sixteen(call: Call) -> None:
    """`max_tokens` 16 is a default of the dump's, so it is not there; Generate then has to be told."""
    said = await post(call, RENDER, HELLO | {"max_tokens": 16})
    assert "max_tokens" not in said["sampling_params"]


async def render_of_prompts_is_a_list(call: Call) -> None:
    (one,) = await post(call, COMPLETION_RENDER, STORY)
    first, second = await post(call, COMPLETION_RENDER, STORY | {"prompt": ["Once upon a ", "从前有座山"]})
    assert one["token_ids"] == second["token_ids"]
    assert first["request_id"].endswith("-0")
    assert second["request_id"].endswith("-1")
    assert first["request_id"].removesuffix("-0") == second["request_id"].removesuffix("-1")


async def render_refusals(call: Call) -> None:
    error = await refused(call, RENDER, HELLO | {"model": "nope"}, 404)
    assert (error["type"], error["param"]) == ("NotFoundError", "model")
    error = await refused(call, RENDER, HELLO | {"temperature": -1}, 400)
    assert error["type"] == "BadRequestError"
    error = await refused(call, RENDER, b'{"model": ', 400)
    assert error["type"] == "Bad Request"
    await refused(call, RENDER, HELLO | {"messages": []}, 400)


async def derender_whole(call: Call) -> None:
    rendered = await post(call, RENDER, HELLO)
    said = await post(
        call, DERENDER, await derender_request(call, HELLO, rendered, "<think>\nHm.\n</think>\n\nHi 你👋!")
    )
    (choice,) = said["choices"]
    assert said["id"] == "generate-tokens-x"
    assert said["object"] == "chat.completion"
    assert choice["message"]["reasoning"] == "\nHm.\n"
    assert choice["message"]["content"] == "\n\nHi 你👋!"
    assert choice["finish_reason"] == "stop"


async def derender_tool_calls(call: Call) -> None:
    rendered = await post(call, RENDER, WEATHER)
    text = '<think>\n\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "北京"}}\n</tool_call>'
    said = await post(call, DERENDER, await derender_request(call, WEATHER, rendered, text))
    (choice,) = said["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (tool,) = choice["message"]["tool_calls"]
    assert tool["function"] == {"name": "get_weather", "arguments": '{"city": "北京"}'}


async def derender_streams_by_any_chunks(call: Call) -> None:
    """The text of a stream does not depend on how its tokens are cut into chunks, and is the whole answer's."""
    for body, text in (
        (HELLO, "<think>\nA greeting.\n</think>\n\nHello 👋🌍 你好!"),
        (CHINESE, "no thought at all: é中🇨🇳"),
        (WEATHER, two_calls()),
    ):
        rendered = await post(call, RENDER, body)
        request = await derender_request(call, body, rendered, text)
        whole = (await post(call, DERENDER, request))["choices"][0]["message"]
        tokens = request["generate_response"]["choices"][0]["token_ids"]
        for size in (1, 2, 7, len(tokens)):
            chunks = [tokens[at : at + size] for at in range(0, len(tokens), size)]
            streamed = await derendered_stream(call, body, rendered["token_ids"], chunks)
            assert streamed_text(streamed, "content") == (whole["content"] or ""), size
            assert streamed_text(streamed, "reasoning") == (whole["reasoning"] or ""), size
            assert streamed_calls(streamed) == [item["function"] for item in whole.get("tool_calls") or ()], size


async def derender_streams_are_in_the_state(call: Call) -> None:
    """Two streams, one call of each in turn: what one has sent is not in the other, so it must be in the state."""
    rendered = await post(call, RENDER, HELLO)
    texts = ("<think>\nA 你好.\n</think>\n\nOne 👋", "<think>\nB.\n</think>\n\nTwo 中文")
    streams: list[dict[str, Any]] = [{"state": None, "said": []} for _ in texts]
    tokens = [await tokens_of(call, text) for text in texts]
    for at in range(max(map(len, tokens))):
        for stream, ids in zip(streams, tokens, strict=True):
            if at < len(ids):
                body = chunk_request(HELLO, rendered["token_ids"], [ids[at]], stream["state"], None)
                answer = await post(call, DERENDER, body)
                stream["state"] = answer["stream_state"]
                stream["said"].append(answer["chunk"])
    assert [streamed_text(stream["said"], "content") for stream in streams] == ["\n\nOne 👋", "\n\nTwo 中文"]
    assert [streamed_text(stream["said"], "reasoning") for stream in streams] == ["\nA 你好.\n", "\nB.\n"]


async def derender_stream_shapes(call: Call) -> None:
    """The role comes once and first, the id is the engine's, an incomplete character is held back."""
    rendered = await post(call, RENDER, HELLO)
    tokens = await tokens_of(call, "<think>\nA.\n</think>\n\n你")
    chunks = [[token] for token in tokens]
    streamed = await derendered_stream(call, HELLO, rendered["token_ids"], chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed]
    assert [delta["role"] for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert {chunk["id"] for chunk in streamed} == {"generate-tokens-x"}
    assert {chunk["object"] for chunk in streamed} == {"chat.completion.chunk"}
    assert [chunk["choices"][0]["finish_reason"] for chunk in streamed] == [None] * (len(streamed) - 1) + ["stop"]
    assert "\ufffd" not in streamed_text(streamed, "content")


async def derender_usage_chunk(call: Call) -> None:
    """A chunk without choices gives a chunk without choices, and leaves the state alone."""
    rendered = await post(call, RENDER, HELLO)
    first = await post(call, DERENDER, chunk_request(HELLO, rendered["token_ids"], [640], None, None))
    body = chunk_request(HELLO, rendered["token_ids"], [], first["stream_state"], None)
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
    body["generate_chunk"] |= {"choices": [], "usage": usage}
    said = await post(call, DERENDER, body)
    assert said["chunk"]["choices"] == []
    assert {key: said["chunk"]["usage"][key] for key in usage} == usage
    assert said["stream_state"] == first["stream_state"]


async def derender_completion(call: Call) -> None:
    rendered = await post(call, COMPLETION_RENDER, STORY | {"prompt": ["Once upon a ", "从前有座山"]})
    texts = ["time 👋", "，山里"]
    tokens = [await tokens_of(call, text) for text in texts]
    responses = [
        {
            "request_id": f"generate-tokens-x-{index}",
            "choices": [{"index": 0, "token_ids": ids, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": len(ids), "total_tokens": 1 + len(ids)},
        }
        for index, ids in enumerate(tokens)
    ]
    body = {
        "model": MODEL,
        "generate_responses": responses,
        "prompt_tokens": [len(item["token_ids"]) for item in rendered],
        "completion_request": STORY | {"prompt": ["Once upon a ", "从前有座山"]},
    }
    said = await post(call, COMPLETION_DERENDER, body)
    assert said["object"] == "text_completion"
    assert [(choice["index"], choice["text"]) for choice in said["choices"]] == list(enumerate(texts))


async def derender_completion_stream(call: Call) -> None:
    (rendered,) = await post(call, COMPLETION_RENDER, STORY)
    text = "，山里有座庙🏯"
    events = [generate_chunk([token], None) for token in await tokens_of(call, text)]
    rest = {"prompt_token_ids": rendered["token_ids"], "completion_request": STORY}
    said = await derendered(call, COMPLETION_DERENDER, events, rest)
    assert "".join(chunk["choices"][0]["text"] for chunk in said) == text


async def derender_refusals(call: Call) -> None:
    rendered = await post(call, RENDER, HELLO)
    prompt = rendered["token_ids"]
    body = chunk_request(HELLO | {"stop": ["x"]}, prompt, [640], None, None)
    error = await refused(call, DERENDER, body, 400)
    assert error["message"].startswith("stop strings are not supported by streaming derender")
    body = chunk_request(HELLO, prompt, [640], None, None)
    del body["chat_request"]
    assert "chat_request is required" in (await refused(call, DERENDER, body, 400))["message"]
    body = chunk_request(HELLO, prompt, [640], None, None)
    body["generate_chunk"]["choices"] *= 2
    await refused(call, DERENDER, body, 400)
    body = chunk_request(HELLO, prompt, [640], {"read_offset": "no number"}, None)
    await refused(call, DERENDER, body, 400)
    body = chunk_request(HELLO, prompt, [5] * 200_000, None, None)
    assert "exceeds max_model_len" in (await refused(call, DERENDER, body, 400))["message"]


CHECKS = (
    render_chat,
    render_gives_the_room_as_max_tokens,
    render_leaves_out_sixteen,
    render_of_prompts_is_a_list,
    render_refusals,
    derender_whole,
    derender_tool_calls,
    derender_streams_by_any_chunks,
    derender_streams_are_in_the_state,
    derender_stream_shapes,
    derender_usage_chunk,
    derender_completion,
    derender_completion_stream,
    derender_refusals,
)
