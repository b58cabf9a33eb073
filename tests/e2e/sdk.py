"""What the official client does with our answers, against any base URL."""

from __future__ import annotations

import openai
import pytest

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


def user(text):
    return [{"role": "user", "content": text}]


def sync_chat(base):
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none") as client:
        whole = client.chat.completions.create(model="tiny", messages=user("Hello!"), temperature=0, max_tokens=100)
        text = whole.choices[0].message.content
        assert text
        chunks = list(
            client.chat.completions.create(
                model="tiny",
                messages=user("Hello!"),
                temperature=0,
                max_tokens=100,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def sync_completions(base):
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none") as client:
        whole = client.completions.create(model="tiny", prompt=["Once upon", "x"], temperature=0, max_tokens=12)
        parts = {0: "", 1: ""}
        for chunk in client.completions.create(
            model="tiny", prompt=["Once upon", "x"], temperature=0, max_tokens=12, stream=True
        ):
            for choice in chunk.choices:
                parts[choice.index] += choice.text
    assert parts == {choice.index: choice.text for choice in whole.choices}


async def async_tools(base):
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none") as client:
        whole = await client.chat.completions.create(
            model="tiny", messages=user("Weather in Paris?"), tools=TOOLS, temperature=0, max_tokens=200
        )
    (call,) = whole.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Paris"}')
    assert whole.choices[0].finish_reason == "tool_calls"


async def helper(base):
    """`.stream()` accumulates chunks and checks each of them."""
    async with (
        openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none") as client,
        client.chat.completions.stream(
            model="tiny", messages=user("Weather in Paris and 北京?"), tools=TOOLS, temperature=0, max_tokens=300
        ) as stream,
    ):
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert [call.function.arguments for call in calls] == ['{"city": "Paris"}', '{"city": "北京"}']


def typed_errors(base):
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none") as client:
        with pytest.raises(openai.BadRequestError, match="emperature"):
            client.chat.completions.create(model="tiny", messages=user("x"), temperature=-1)
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="nope", messages=user("x"))
        assert (caught.value.param, caught.value.type) == ("model", "NotFoundError")


def models(base):
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").id == "tiny"


SYNC = [sync_chat, sync_completions, typed_errors, models]
ASYNC = [async_tools, helper]
