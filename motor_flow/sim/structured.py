"""How is a model held to calling a tool?

A forced tool choice becomes a grammar over the tool-call markup, which Render puts into the sampling parameters.
Whether it is in force matters to a client: a grammar restarts with the request, so such a stream cannot be continued
elsewhere.

Source: vllm/parser/abstract_parser.py, vllm/tool_parsers/structural_tag_registry.py (0.33); the `hermes` tags.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from motor_flow.sim.refusal import invalid
from motor_flow.sim.requests import NamedToolChoice

if TYPE_CHECKING:
    from motor_flow.sim.requests import Asked, ChatCompletionRequest, Tool


def constraint(request: Asked) -> dict[str, Any] | None:
    """`structured_outputs` and `response_format` of a request as one constraint."""
    given = dict(request.structured_outputs) if request.structured_outputs is not None else None
    form = request.response_format or {}
    kind = form.get("type")
    if kind == "json_object":
        given = {**(given or {}), "json_object": True}
    elif kind == "json_schema":
        schema = form.get("json_schema")
        if not isinstance(schema, dict):
            raise invalid(
                "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
                "response_format",
            )
        given = {**(given or {}), "json": schema.get("schema")}
    elif kind == "structural_tag":
        given = {**(given or {}), "structural_tag": json.dumps(form)}
    return given


def chat_constraint(request: ChatCompletionRequest, *, parsers: bool) -> dict[str, Any] | None:
    """A chat's constraint: a forced or strict tool call takes the place of any other."""
    given = constraint(request)
    tools = request.tools or []
    if not parsers or not tools or request.tool_choice in (None, "none"):
        return given
    single = request.parallel_tool_calls is False
    if isinstance(request.tool_choice, NamedToolChoice):
        name = request.tool_choice.function.name
        tags = _tags([tool for tool in tools if tool.function.name == name])
        form = _separated(tags, single=True)
    elif request.tool_choice == "required":
        form = _separated(_tags(tools), single=single)
    elif given is not None or not (single or any(tool.function.strict for tool in tools)):
        return given
    else:
        form = {
            "type": "triggered_tags",
            "triggers": ["<tool_call>"],
            "tags": _tags(tools),
            "at_least_one": False,
            "stop_after_first": single,
            "excludes": [],
        }
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": form})}


def _separated(tags: list[dict[str, Any]], *, single: bool) -> dict[str, Any]:
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": "",
        "at_least_one": True,
        "stop_after_first": single,
    }


def _tags(tools: list[Tool]) -> list[dict[str, Any]]:
    return [
        {
            "type": "tag",
            "begin": f'<tool_call>{gap}{{"name": "{tool.function.name}", "arguments": ',
            "content": {
                "type": "json_schema",
                "json_schema": tool.function.parameters if tool.function.strict else True,
                "style": "json",
                "any_order": False,
                "max_whitespace_cnt": None,
                "excludes": [],
            },
            "end": f"}}{gap}</tool_call>",
        }
        for tool in tools
        for gap in ("\n", "")
    ]
