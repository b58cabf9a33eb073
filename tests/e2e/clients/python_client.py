"""What does openai-python read? Prints one JSON object: kind -> what the client's user sees.

Usage: python_client.py BASE sync|async|helper. Runs on openai 2.x and 3.x; no other import than the client.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the loop that the client's users run
import json
import sys
from pathlib import Path

import openai

KINDS = json.loads(Path(__file__).with_name("kinds.json").read_text())
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def asked(body):
    """The request of a kind, for `create`."""
    body = {"model": "tiny", "temperature": 0, **body}
    if "tools" in body:
        body["tools"] = [TOOL]
    return body


def seen(choices):
    """What a user reads, by choice."""
    return {str(index): {key: value for key, value in choice.items() if value} for index, choice in choices.items()}


def of_whole(answer):
    choices = {}
    for choice in answer.choices:
        message = getattr(choice, "message", None)
        entry = choices[choice.index] = {"finish": choice.finish_reason}
        if message is None:
            entry |= {"text": choice.text, "logprobs": len(choice.logprobs.tokens) if choice.logprobs else 0}
            continue
        entry["text"] = message.content
        entry["reasoning"] = getattr(message, "reasoning", None)
        entry["calls"] = [[call.function.name, call.function.arguments] for call in message.tool_calls or ()]
        entry["logprobs"] = len(choice.logprobs.content or ()) if choice.logprobs else 0
    return {"choices": seen(choices), "usage": answer.usage.completion_tokens}


class Joined:
    """A stream, joined as users do it."""

    def __init__(self):
        self.choices, self.usage, self.ids = {}, None, set()

    def add(self, chunk):
        self.ids.add(chunk.id)
        if chunk.usage is not None:
            self.usage = chunk.usage.completion_tokens
        for choice in chunk.choices:
            entry = self.choices.setdefault(choice.index, {"text": "", "reasoning": "", "calls": [], "logprobs": 0})
            entry["finish"] = choice.finish_reason or entry.get("finish")
            delta = getattr(choice, "delta", None)
            if delta is None:
                entry["text"] += choice.text
                entry["logprobs"] += len(choice.logprobs.tokens) if choice.logprobs else 0
                continue
            entry["text"] += delta.content or ""
            entry["reasoning"] += getattr(delta, "reasoning", None) or ""
            entry["logprobs"] += len(choice.logprobs.content or ()) if choice.logprobs else 0
            for call in delta.tool_calls or ():
                if call.index == len(entry["calls"]):
                    entry["calls"].append([call.function.name, ""])
                entry["calls"][call.index][1] += call.function.arguments or ""

    def result(self):
        assert len(self.ids) == 1, self.ids
        return {"choices": seen(self.choices), "usage": self.usage}


def failure(error):
    body = error.body if isinstance(error.body, dict) else {}
    return {"error": [type(error).__name__, error.status_code, body.get("type"), bool(body.get("message"))]}


def sync(base):
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none") as client:
        for kind, (create, body) in each(client):
            try:
                yield kind, "whole", of_whole(create(**{k: v for k, v in body.items() if k != "stream_options"}))
            except openai.APIStatusError as error:
                yield kind, "whole", failure(error)
            joined = Joined()
            try:
                for chunk in create(stream=True, **body):
                    joined.add(chunk)
                yield kind, "stream", joined.result()
            except openai.APIStatusError as error:
                yield kind, "stream", failure(error)


async def asynchronous(base):
    found = []
    async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none") as client:
        for kind, (create, body) in each(client):
            try:
                answer = await create(**{k: v for k, v in body.items() if k != "stream_options"})
                found.append((kind, "whole", of_whole(answer)))
            except openai.APIStatusError as error:
                found.append((kind, "whole", failure(error)))
            joined = Joined()
            try:
                async for chunk in await create(stream=True, **body):
                    joined.add(chunk)
                found.append((kind, "stream", joined.result()))
            except openai.APIStatusError as error:
                found.append((kind, "stream", failure(error)))
    return found


def helper(base):
    """`.stream()` accumulates chunks itself, and is strict about them."""
    with openai.OpenAI(base_url=f"{base}/v1", api_key="none") as client:
        for kind, (_, body) in each(client):
            if KINDS[kind]["api"] != "chat":
                continue
            try:
                with client.chat.completions.stream(**body) as stream:
                    for _ in stream:
                        pass
                    final = stream.get_final_completion()
                usage = final.usage.completion_tokens if final.usage else None
                final.usage = final.usage or openai.types.CompletionUsage(
                    completion_tokens=0, prompt_tokens=0, total_tokens=0
                )
                yield kind, "stream", of_whole(final) | {"usage": usage}
            except openai.LengthFinishReasonError:
                yield kind, "stream", {"choices": {"0": {"finish": "length"}}, "usage": None}
            except openai.APIStatusError as error:
                yield kind, "stream", failure(error)


def each(client):
    for kind, entry in KINDS.items():
        create = client.chat.completions.create if entry["api"] == "chat" else client.completions.create
        yield kind, (create, asked(entry["body"]))


def main(base, how):
    found = asyncio.run(asynchronous(base)) if how == "async" else {"sync": sync, "helper": helper}[how](base)
    answers = {}
    for kind, form, answer in found:
        answers.setdefault(kind, {})[form] = answer
    print(json.dumps({"version": openai.__version__, "answers": answers}))


if __name__ == "__main__":
    main(*sys.argv[1:])
