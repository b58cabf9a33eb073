"""How does an engine answer the Responses route?

As little as a proxy needs to see that it passed it through: one message, no stream, no state. Streaming is refused.

Source: vllm/entrypoints/openai/responses/protocol.py (0.33), the fields of a completed response.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from motor_flow.sim import render, shapes
from motor_flow.sim.parsers import parse_whole
from motor_flow.sim.protocol import read
from motor_flow.sim.refusal import Refusal
from motor_flow.sim.requests import ChatCompletionRequest

if TYPE_CHECKING:
    from motor_flow.sim.engine import Engine
    from motor_flow.sim.seen import Seen


async def response(engine: Engine, body: Any, record: Seen) -> dict[str, Any]:
    """A completed response to one text or a list of messages."""
    if not isinstance(body, dict) or "input" not in body:
        raise Refusal("input is required", param="input")
    if body.get("stream"):
        raise Refusal("Streaming responses are not simulated.", status=501, kind="NotImplementedError")
    given = body["input"]
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    request = read(
        ChatCompletionRequest,
        {"model": body.get("model"), "messages": messages, "max_tokens": body.get("max_output_tokens")},
    )
    engine.served.check_model(request.model)
    prompt = render.prompt_of_chat(engine.served, request)
    record.id = f"resp_{secrets.token_hex(8)}"
    live = engine.start(prompt.ids, prompt.sampling, with_text=True)
    with engine.known_as(record.id, live):
        await live.complete()
    choice = live.choices[0]
    ids, _, text, finish = choice.take(len(choice.tokens))
    record.tokens = len(ids)
    parts = parse_whole(engine.served, request, render.template_variables(request), text, prompt.ids)
    content: dict[str, Any] = {"type": "output_text", "text": parts["content"] or "", "annotations": []}
    return {
        "id": record.id,
        "object": "response",
        "created_at": shapes.now(),
        "status": "completed" if finish == "stop" else "incomplete",
        "model": engine.served.model_name,
        "output": [
            {
                "id": f"msg_{secrets.token_hex(8)}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [content],
            }
        ],
        "usage": {
            "input_tokens": len(prompt.ids),
            "output_tokens": len(ids),
            "total_tokens": len(prompt.ids) + len(ids),
        },
    }
