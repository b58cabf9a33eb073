"""What does LangChain read? Prints one JSON object: kind -> what the client's user sees.

Usage: langchain_client.py BASE
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import openai
from langchain_openai import ChatOpenAI
from python_client import TOOL, failure

KINDS = json.loads(Path(__file__).with_name("kinds.json").read_text())
ARGUMENTS = ("max_tokens", "logprobs", "top_logprobs", "n", "stop")


def model(base, body):
    """LangChain names most of the parameters itself."""
    more = {key: body[key] for key in ARGUMENTS if key in body}
    chat = ChatOpenAI(
        base_url=f"{base}/v1",
        api_key="none",
        model=body.get("model", "tiny"),
        temperature=body.get("temperature", 0),
        stream_usage="stream_options" in body,
        max_retries=0,
        **more,
    )
    return chat.bind_tools([TOOL]) if "tools" in body else chat


def seen(message):
    """Of one choice; LangChain drops reasoning, and so does this."""
    calls = [[call["name"], call["args"]] for call in message.tool_calls]
    entry = {
        "text": message.content,
        "finish": message.response_metadata.get("finish_reason"),
        "calls": calls,
        "logprobs": len((message.response_metadata.get("logprobs") or {}).get("content") or ()),
    }
    usage = message.usage_metadata
    return {
        "choices": {"0": {key: value for key, value in entry.items() if value}},
        "usage": usage["output_tokens"] if usage else None,
    }


def whole(base, body):
    return seen(model(base, body).invoke(body["messages"]))


def streamed(base, body):
    total = None
    for chunk in model(base, body).stream(body["messages"]):
        total = chunk if total is None else total + chunk
    return seen(total)


def main(base):
    answers = {}
    for kind, entry in KINDS.items():
        body = entry["body"]
        if entry["api"] != "chat" or body.get("n"):
            continue  # LangChain's chat model reads the first choice only
        answers[kind] = {}
        for form, read in (("whole", whole), ("stream", streamed)):
            try:
                answers[kind][form] = read(base, body)
            except openai.APIStatusError as error:
                answers[kind][form] = failure(error)
    print(json.dumps({"version": version("langchain-openai"), "answers": answers}))


if __name__ == "__main__":
    main(*sys.argv[1:])
