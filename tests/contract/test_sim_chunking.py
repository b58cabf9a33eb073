"""However an answer is cut into chunks, and whichever way it takes, a client reads the same."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given, settings, strategies as st

from motor_flow.sim.engine import Engine
from motor_flow.sim.sidecar import Sidecar
from motor_flow.sim.tokenizer import tiny
from tests.contract import conformance
from tests.contract.asking import (
    COMPLETION,
    COMPLETION_DERENDER,
    COMPLETION_RENDER,
    GENERATE,
    MODEL,
    RENDER,
    TOOLS,
    derendered,
    derendered_stream,
    streamed_calls,
    streamed_text,
)
from tests.contract.sim_client import Client

settings.register_profile("sim-wire", derandomize=True, deadline=None, max_examples=25)
SLOW = settings.get_profile("sim-wire")

words = st.text(st.sampled_from("abc xyz.,你好世界👋🌍🇨🇳é-<>{}\"'"), max_size=25)
arguments = st.dictionaries(st.sampled_from(["city", "日"]), words, min_size=1)


@st.composite
def answers(draw: Any) -> tuple[str, str, list[dict[str, str]], str]:
    """(the thought, what is said, the calls, the text that means it)."""
    thought = draw(words)
    # A stream that ends like the beginning of a tool call has that withheld, and lost: vLLM does the same.
    said = draw(words.filter(lambda text: not text.endswith("<")))
    calls = [
        {"name": "get_weather", "arguments": json.dumps(item, ensure_ascii=False)}
        for item in draw(st.lists(arguments, max_size=2))
    ]
    bodies = [f'{{"name": "{call["name"]}", "arguments": {call["arguments"]}}}' for call in calls]
    text = f"<think>{thought}</think>{said}" + "".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
    return thought, said, calls, text


def chunks_of(tokens: list[int], data: Any) -> list[list[int]]:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(tokens) - 1), max_size=12)) | {0, len(tokens)})
    return [tokens[start:stop] for start, stop in itertools.pairwise(cuts)]


@given(answers(), st.data())
@settings(SLOW)
async def test_a_derendered_stream_says_what_the_tokens_mean(answer: Any, data: Any) -> None:
    thought, said, calls, text = answer
    sidecar = Sidecar()
    client = Client(sidecar)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "?"}], "tools": TOOLS}
    rendered = await client.ask(RENDER, body)
    tokens = [*tiny().encode(text), 2]
    chunks = await derendered_stream(client.call, body, rendered["token_ids"], chunks_of(tokens, data))
    assert streamed_text(chunks, "reasoning") == thought
    assert streamed_text(chunks, "content") == said
    assert [(call["name"], json.loads(call["arguments"])) for call in streamed_calls(chunks)] == [
        (call["name"], json.loads(call["arguments"])) for call in calls
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == ("tool_calls" if calls else "stop")
    assert sidecar.anomalies == sidecar.repeats == []


@given(st.lists(words, min_size=1, max_size=3), st.integers(1, 9), st.booleans(), st.integers(1, 200))
@settings(SLOW)
async def test_the_chain_says_what_the_engine_says(
    turns: list[str], chunk_tokens: int, thinking: bool, limit: int
) -> None:
    messages = [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(turns)]
    body = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": limit,
        "chat_template_kwargs": {"enable_thinking": thinking},
    }
    sidecar, engine = Sidecar(), Engine(chunk_tokens=chunk_tokens)
    calls = Client(sidecar).call, Client(engine).call
    await conformance.chain_is_native(*calls, [body])
    await conformance.chain_stream_is_native(*calls, [body])
    assert sidecar.anomalies == engine.anomalies == []


@given(words, st.integers(1, 9), st.integers(1, 60))
@settings(SLOW)
async def test_the_chain_of_a_text_says_what_the_engine_says(prompt: str, chunk_tokens: int, limit: int) -> None:
    body = {"model": MODEL, "prompt": f"A {prompt}", "max_tokens": limit}
    sidecar, engine = Client(Sidecar()), Client(Engine(chunk_tokens=chunk_tokens))
    native = (await engine.ask(COMPLETION, body))["choices"][0]
    (rendered,) = await sidecar.ask(COMPLETION_RENDER, body)
    *events, _ = await engine.ask(GENERATE, conformance.told(rendered) | {"stream": True})
    rest = {"prompt_token_ids": rendered["token_ids"], "completion_request": body}
    choices = [item["choices"][0] for item in await derendered(sidecar.call, COMPLETION_DERENDER, events, rest)]
    assert "".join(choice["text"] for choice in choices) == native["text"]
    assert choices[-1]["finish_reason"] == native["finish_reason"]
