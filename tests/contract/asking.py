"""How the conformance checks ask, and how they read what they are told.

See conformance.py for what `call` is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

Call = Callable[[str, str, Any, Any], Awaitable[tuple[int, Any, Any]]]

MODEL = "tiny"
RENDER = "/v1/chat/completions/render"
DERENDER = "/v1/chat/completions/derender"
COMPLETION_RENDER = "/v1/completions/render"
COMPLETION_DERENDER = "/v1/completions/derender"
GENERATE = "/inference/v1/generate"
ABORT = "/inference/v1/abort_requests"
CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"

HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}
CHINESE = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello in Chinese."}], "temperature": 0}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
WEATHER = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Weather in Paris and 北京?"}],
    "tools": TOOLS,
    "temperature": 0,
}
STORY = {"model": MODEL, "prompt": "从前有座山", "max_tokens": 20, "temperature": 0}
BODIES = (HELLO, CHINESE, WEATHER)
EOS, SECOND_EOS = 2, 0


async def post(call: Call, path: str, body: Any, headers: Any = None) -> Any:
    status, _, said = await call("POST", path, body, headers)
    assert status == 200, (path, status, said)
    return said


async def refused(call: Call, path: str, body: Any, status: int, headers: Any = None) -> Any:
    """The error object of a refusal, whose shape is always the same."""
    got, got_headers, said = await call("POST", path, body, headers)
    assert got == status, (path, got, said)
    assert got_headers["content-type"] == "application/json"
    assert list(said) == ["error"]
    assert list(said["error"]) == ["message", "type", "param", "code"]
    assert said["error"]["code"] == status
    assert said["error"]["message"]
    return said["error"]


async def derendered(call: Call, path: str, events: list[Any], rest: Any) -> list[Any]:
    """What a client would get for these events of an engine."""
    state: Any = None
    said = []
    for event in events:
        answer = await post(call, path, {"stream": True, "generate_chunk": event, "stream_state": state, **rest})
        state = answer["stream_state"]
        said.append(answer["chunk"])
    return said


async def derendered_stream(
    call: Call, body: Any, prompt: list[int], chunks: list[list[int]], finish: str = "stop"
) -> list[Any]:
    """What a client would get for these chunks of tokens."""
    finishes = [None] * (len(chunks) - 1) + [finish]
    events = [generate_chunk(*pair) for pair in zip(chunks, finishes, strict=True)]
    return await derendered(call, DERENDER, events, {"prompt_token_ids": prompt, "chat_request": body})


async def tokens_of(call: Call, text: str) -> list[int]:
    body = {"model": MODEL, "prompt": text, "add_special_tokens": False}
    tokens: list[int] = (await post(call, "/tokenize", body))["tokens"]
    return tokens


def generate_request(prompt: list[int], **sampling: Any) -> dict[str, Any]:
    return {"token_ids": prompt, "sampling_params": {"temperature": 0, **sampling}}


async def derender_request(call: Call, body: Any, rendered: Any, text: str) -> dict[str, Any]:
    """A Derender request for an answer of this text."""
    tokens = [*await tokens_of(call, text), EOS]
    choice = {"index": 0, "token_ids": tokens, "finish_reason": "stop"}
    return {
        "model": MODEL,
        "generate_response": {"request_id": "generate-tokens-x", "choices": [choice]},
        "prompt_tokens": len(rendered["token_ids"]),
        "prompt_token_ids": rendered["token_ids"],
        "chat_request": body,
    }


def generate_chunk(tokens: list[int], finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, "token_ids": tokens, "finish_reason": finish}
    return {"request_id": "generate-tokens-x", "choices": [choice]}


def chunk_request(body: Any, prompt: list[int], tokens: list[int], state: Any, finish: str | None) -> dict[str, Any]:
    return {
        "stream": True,
        "generate_chunk": generate_chunk(tokens, finish),
        "stream_state": state,
        "prompt_token_ids": prompt,
        "chat_request": body,
    }


def _deltas(chunks: list[Any]) -> list[Any]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


def streamed_text(chunks: list[Any], part: str) -> str:
    return "".join(delta.get(part) or "" for delta in _deltas(chunks))


def streamed_calls(chunks: list[Any]) -> list[dict[str, str]]:
    calls: dict[int, dict[str, str]] = {}
    for delta in _deltas(chunks):
        for part in delta.get("tool_calls") or ():
            whole = calls.setdefault(part["index"], {"name": "", "arguments": ""})
            function = part.get("function") or {}
            for key in whole:
                whole[key] += function.get(key) or ""
    return [calls[index] for index in sorted(calls)]


def two_calls() -> str:
    calls = [
        f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'
        for city in ("Paris", "北京")
    ]
    return "<think>\nTwo.\n</think>\n\nBoth.\n" + "\n".join(calls)
