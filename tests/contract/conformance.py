"""What anything that calls itself a vLLM 0.33 sidecar or engine must do, for this project to work with it.

Each check is a function of `call`, so that the same ones run against the simulators in memory and against real
vLLM over sockets:

    await call(method, path, json, headers) -> (status, headers, json)

For an event stream the third is the list of what the events say, and `[DONE]` is a string in it. Header names are
lower case. A body that is bytes is to be sent as it is.

The checks know the tokenizer and the chat template of the tiny model, not its weights. What an engine generates is
compared only with what the same engine generates elsewhere: greedily, so that it must be the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.contract import engine_checks, sidecar_checks
from tests.contract.asking import (
    BODIES,
    CHAT,
    DERENDER,
    GENERATE,
    MODEL,
    RENDER,
    Call,
    derendered,
    post,
    streamed_calls,
    streamed_text,
)


async def health_and_version(call: Call) -> None:
    status, _, _ = await call("GET", "/health", None, None)
    assert status == 200
    status, _, said = await call("GET", "/version", None, None)
    assert status == 200
    assert said["version"].startswith("0.33")


async def models(call: Call) -> None:
    status, _, said = await call("GET", "/v1/models", None, None)
    assert status == 200
    assert said["object"] == "list"
    (model,) = said["data"]
    assert model["id"] == MODEL
    assert isinstance(model["max_model_len"], int)


async def unknown_route(call: Call) -> None:
    status, _, said = await call("POST", "/v1/nothing/here", {}, None)
    assert (status, said) == (404, {"detail": "Not Found"})


async def text_to_tokens_and_back(call: Call) -> None:
    for text in ("Hello!", "你好，世界！👋", " a\n\nb "):
        said = await post(call, "/tokenize", {"model": MODEL, "prompt": text, "add_special_tokens": False})
        assert said["count"] == len(said["tokens"])
        back = await post(call, "/detokenize", {"model": MODEL, "tokens": said["tokens"]})
        assert back["prompt"] == text


async def chain_is_native(sidecar: Call, engine: Call, bodies: Iterable[Any] = BODIES) -> None:
    """Render, Generate and Derender make of a request what the engine makes of it alone."""
    for body in bodies:
        native = (await post(engine, CHAT, body))["choices"][0]
        rendered = await post(sidecar, RENDER, body)
        generated = await post(engine, GENERATE, told(rendered))
        request = {
            "model": MODEL,
            "generate_response": generated,
            "prompt_tokens": len(rendered["token_ids"]),
            "prompt_token_ids": rendered["token_ids"],
            "chat_request": body,
        }
        chain = (await post(sidecar, DERENDER, request))["choices"][0]
        for part in ("content", "reasoning"):
            assert chain["message"][part] == native["message"][part]
        assert [call["function"] for call in chain["message"].get("tool_calls") or ()] == [
            call["function"] for call in native["message"].get("tool_calls") or ()
        ]
        assert (chain["finish_reason"], chain["stop_reason"]) == (native["finish_reason"], native["stop_reason"])


async def chain_stream_is_native(sidecar: Call, engine: Call, bodies: Iterable[Any] = BODIES) -> None:
    for body in bodies:
        *native, done = await post(engine, CHAT, body | {"stream": True})
        assert done == "[DONE]"
        rendered = await post(sidecar, RENDER, body | {"stream": True})
        *events, _ = await post(engine, GENERATE, told(rendered))
        chain = await derendered(
            sidecar, DERENDER, events, {"prompt_token_ids": rendered["token_ids"], "chat_request": body}
        )
        for part in ("content", "reasoning"):
            assert streamed_text(chain, part) == streamed_text(native, part)
        assert streamed_calls(chain) == streamed_calls(native)
        assert chain[-1]["choices"][0]["finish_reason"] == native[-1]["choices"][0]["finish_reason"]


def told(rendered: Any) -> Any:
    """What Render said, with the `max_tokens` that it leaves out when they are sixteen."""
    return rendered | {"sampling_params": {"max_tokens": 16} | rendered["sampling_params"]}


BOTH_CHECKS = (health_and_version, models, unknown_route, text_to_tokens_and_back)
SIDECAR_CHECKS = (*BOTH_CHECKS, *sidecar_checks.CHECKS)
ENGINE_CHECKS = (*BOTH_CHECKS, *engine_checks.CHECKS)
CHAIN_CHECKS = (chain_is_native, chain_stream_is_native)
