"""Which prompt is a conversation?

    messages ── normalise ──▶ {role, content: str, tool_calls} ── jinja ──▶ text

Normalising is what vLLM does before it hands messages to a template that takes strings: content parts are joined by
newlines, `developer` becomes `system` where the template does not know it, tool-call arguments are objects. The jinja
environment is the one that transformers' apply_chat_template builds: sandboxed, blocks trimmed, `tojson` without
ASCII escapes.

Source: vllm/renderers/hf.py, vllm/renderers/chat_utils/chat_message.py (0.33);
transformers/utils/chat_template_utils.py (5).
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from motor_flow.sim.refusal import Refusal, invalid
from motor_flow.sim.tokenizer import model_dir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_END = "\ue000"  # marks the end of the message to be continued; private use, so no prompt holds it by accident


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


class ChatTemplate:
    """One compiled chat template, immutable; share it freely."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._template = environment.from_string(source)
        self._knows_developer = "'developer'" in source or '"developer"' in source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        model: str,
    ) -> str:
        """The prompt's text.

        Args:
            messages: OpenAI messages, as they came.
            tools: the tools' definitions, or None.
            variables: what the template sees besides; `add_generation_prompt` and `continue_final_message` act here.
            model: the name in the error about pictures.

        Raises:
            Refusal: no message at all, content that is not text, a template that raises.

        """
        if not messages:
            raise Refusal("Cannot apply chat template to an empty conversation. Provide at least one message.")
        continued = bool(variables.get("continue_final_message"))
        if continued and variables.get("add_generation_prompt"):
            raise Refusal(
                "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message "
                "when you want the model to continue the final message, and add_generation_prompt when you want to "
                "add a header that will prompt it to start a new assistant message instead."
            )
        conversation = [_normalise(message, model) for message in messages]
        if not self._knows_developer:
            conversation = _developer_to_system(conversation)
        if continued:
            conversation[-1]["content"] += _END
        try:
            text = self._template.render({"messages": conversation, "tools": tools, "documents": None, **variables})
        except jinja2.TemplateError as error:
            raise Refusal(str(error)) from None
        return text[: text.rindex(_END)] if continued and _END in text else text


@cache
def tiny_template() -> ChatTemplate:
    """The shipped template."""
    return ChatTemplate(model_dir().joinpath("chat_template.jinja").read_text(encoding="utf-8"))


def _normalise(message: Mapping[str, Any], model: str) -> dict[str, Any]:
    role = message["role"]
    plain: dict[str, Any] = {"role": role, "content": _text(message.get("content"), model)}
    if isinstance(name := message.get("name"), str):
        plain["name"] = name
    if role == "tool" and "tool_call_id" in message:
        plain["tool_call_id"] = message["tool_call_id"]
    if role == "assistant":
        if reasoning := message.get("reasoning") or message.get("reasoning_content"):
            plain["reasoning"] = plain["reasoning_content"] = reasoning
        if calls := message.get("tool_calls"):
            plain["tool_calls"] = [_call(call) for call in calls]
    return plain


def _text(content: Any, model: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif part.get("type") in ("text", "input_text", "output_text", "refusal"):
            texts.append(part.get("text") or part.get("refusal") or "")
        else:
            raise Refusal(f"{model} is not a multimodal model")
    return "\n".join(text for text in texts if text)


def _call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise invalid("chat completions only support assistant tool_calls of type 'function'.", "tool_calls")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    return {**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}


def _developer_to_system(conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not any(message["role"] == "developer" for message in conversation):
        return conversation
    system = [m["content"] for m in conversation if m["role"] in ("developer", "system") and m["content"]]
    others = [m for m in conversation if m["role"] not in ("developer", "system")]
    return [{"role": "system", "content": "\n\n".join(system)}, *others]
