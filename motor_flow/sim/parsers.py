"""How is a chat model's output handed out?

    text, ids ── ThoughtStream ──▶ reasoning      ── CallStream ──▶ content, tool calls

One `ChatStream` per choice, fed once per engine chunk with the text that chunk made visible; its steps are what
native streaming and Derender both send, so the two cannot differ. `ChatWhole` does the same for a complete output.
Without parsers, text is content.

A delta is a dict of the keys that were set: native serving writes exactly those, Derender all of them.

Source: vllm/parser/abstract_parser.py, vllm/entrypoints/openai/chat_completion/{stream_processor,message_assembly}.py
(0.33).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from motor_flow.sim import hermes
from motor_flow.sim.reasoning import CLOSE, OPEN, ThoughtStream, ends_in_prompt, split_whole
from motor_flow.sim.requests import NamedToolChoice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from motor_flow.sim.requests import ChatCompletionRequest
    from motor_flow.sim.served import Served

Delta = dict[str, Any]


class ChatStream:
    """One choice of a streamed chat."""

    def __init__(
        self, served: Served, request: ChatCompletionRequest, variables: Mapping[str, Any], prompt: Sequence[int]
    ) -> None:
        thinking = bool(variables.get("enable_thinking", True))
        closed = not served.parsers or ends_in_prompt(served.tokenizer, prompt, thinking=thinking)
        self._request = request
        self._parsers = served.parsers
        self._thought = None if closed else ThoughtStream(served.tokenizer)
        self._calls = hermes.CallStream()
        self.tokens = 0
        self.reasoning_tokens = 0
        self.tools_streamed = False

    @property
    def hides_metadata(self) -> bool:
        """Whether log-probabilities and token ids would tell a thought that was not asked for."""
        return self._parsers and not self._request.include_reasoning

    def step(self, text: str, ids: Sequence[int], finish: str | None) -> tuple[Delta | None, str | None]:
        """(delta, finish reason). No delta: this chunk has nothing to show yet."""
        delta: Delta | None
        if not text and not ids and not self.tokens:
            delta = {}
        elif self._parsers:
            delta = self._parse(text, ids, finished=finish is not None)
        else:
            delta = {"content": text}
        self.tokens += len(ids)
        if delta and delta.get("tool_calls") and self._request.parallel_tool_calls is False:
            delta["tool_calls"] = [call for call in delta["tool_calls"] if call["index"] == 0]
        return delta, finish and finish_reason(finish, self._request, tools=self.tools_streamed)

    def _parse(self, text: str, ids: Sequence[int], *, finished: bool) -> Delta | None:
        reasoning = ""
        after: str | None = text
        if self._thought is not None:
            reasoning, after = self._thought.feed(text, ids)
            if finished and not self._thought.ended:
                reasoning += self._thought.finish()
            self.reasoning_tokens = self._thought.tokens
            if self._thought.ended:
                self._thought = None
            else:
                after = None
        delta = self._answer(after, finished=finished) if after is not None else None
        if reasoning:
            delta = {**(delta or {}), "reasoning": reasoning}
        if delta is not None and not self._request.include_reasoning:
            delta["reasoning"] = None
            if not delta.get("content") and not delta.get("tool_calls"):
                return None
        return self._kept(delta)

    def _answer(self, text: str, *, finished: bool) -> Delta | None:
        if self._request.tool_choice == "none":
            return {"content": text} if text else None
        content, calls = self._calls.feed(text)
        if not content and not calls:
            return None
        if finished and calls:
            function = calls[-1]["function"]
            function["arguments"] = function.get("arguments", "") + self._calls.remaining()
        return {"content": content, "tool_calls": calls}

    def _kept(self, delta: Delta | None) -> Delta | None:
        if delta is None or not delta.get("tool_calls"):
            return delta
        if self._request.keeps_tool_calls:
            self.tools_streamed = True
            return delta
        delta["tool_calls"] = []
        return delta if delta.get("content") or delta.get("reasoning") else None


def parse_whole(
    served: Served,
    request: ChatCompletionRequest,
    variables: Mapping[str, Any],
    text: str,
    prompt: Sequence[int] | None,
) -> Delta:
    """The message of a complete output: content, reasoning, and tool calls as OpenAI shapes (perhaps none)."""
    if not served.parsers:
        return {"content": text, "reasoning": None, "tool_calls": []}
    thinking = bool(variables.get("enable_thinking", True))
    inside = thinking and (prompt is None or not ends_in_prompt(served.tokenizer, prompt, thinking=True))
    reasoning, content = split_whole(served.tokenizer, text, inside=inside) if thinking else (None, text)
    calls: list[tuple[str, str]] = []
    if request.tool_choice != "none":
        calls, content = hermes.extract(content) if content else ([], None)
        if content and not content.strip() and (calls or request.forces_tool):
            content = None
    if not request.keeps_tool_calls:
        calls = []
    elif request.forces_tool:
        content = content or ""
    if request.parallel_tool_calls is False:
        calls = calls[:1]
    return {
        "content": content,
        "reasoning": reasoning if request.include_reasoning else None,
        "tool_calls": [
            {"id": hermes.call_id(), "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls
        ],
    }


def reasoning_tokens(served: Served, ids: Sequence[int], prompt: Sequence[int], variables: Mapping[str, Any]) -> int:
    """How many tokens of a complete output are thought, markers not counted."""
    thinking = bool(variables.get("enable_thinking", True))
    if not served.parsers or ends_in_prompt(served.tokenizer, prompt, thinking=thinking):
        return 0
    end, start = served.tokenizer.id_of(CLOSE), served.tokenizer.id_of(OPEN)
    inside = list(ids)
    inside = inside[: inside.index(end)] if end in inside else inside
    return sum(token != start and token not in served.tokenizer.special_ids for token in inside)


def finish_reason(engine: str | None, request: ChatCompletionRequest | None, *, tools: bool) -> str:
    """The chat finish reason: calls are told only when the model ended by itself and was not forced to one tool."""
    named = request is not None and isinstance(request.tool_choice, NamedToolChoice)
    return "tool_calls" if tools and (engine or "stop") == "stop" and not named else engine or "stop"
