"""Which tools does the model call?

    text <tool_call> {"name": "f", "arguments": {…}} </tool_call> <tool_call> …

Streamed: text before the first call is content; of each call the name comes first, whole, then its arguments as they
grow. The brace that closes the call, not its arguments, is not streamed: it is left out as soon as the JSON is
complete. Text after a call is dropped.

Source: vllm/tool_parsers/hermes_tool_parser.py (0.33).
"""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

START, END = "<tool_call>", "</tool_call>"
_REGION = re.compile(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*)", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')

Call = dict[str, Any]


def call_id() -> str:
    return f"chatcmpl-tool-{secrets.token_hex(8)}"


def extract(text: str) -> tuple[list[tuple[str, str]], str | None]:
    """The calls of a complete text, as (name, arguments), and the content before them; all is content if none is."""
    if START not in text:
        return [], text
    try:
        parsed = [json.loads(closed or open_) for closed, open_ in _REGION.findall(text)]
        calls = [(call["name"], json.dumps(call["arguments"], ensure_ascii=False)) for call in parsed]
    except (ValueError, KeyError, TypeError):
        return [], text
    return calls, text[: text.index(START)] or None


class CallStream:
    """The calls of one stream; `feed` gives what is new, as parts of an OpenAI delta."""

    __slots__ = ("_args", "_closed_at", "_names", "_sent", "_text")

    def __init__(self) -> None:
        self._text = ""
        self._sent = 0
        # Where to look for the first call that is not closed yet; calls before it need no second look.
        self._closed_at = 0
        self._names: list[str] = []
        self._args: list[str] = []

    def feed(self, text: str) -> tuple[str | None, list[Call]]:
        """(content, calls). Several parts of one call may come at once: its name, then its arguments."""
        self._text += text
        content = self._content()
        calls: list[Call] = []
        at = self._closed_at
        while (start := self._text.find(START, at)) >= 0:
            start += len(START)
            end = self._text.find(END, start)
            body = self._text[start:end] if end >= 0 else self._text[start:].removesuffix(_overlap(self._text, END))
            if not self._part(self._open, body.strip(), closed=end >= 0, calls=calls) or end < 0:
                break
            at = self._closed_at = end + len(END)
        return content, calls

    def remaining(self) -> str:
        """What a last delta with a call has to add: an object, if no arguments of the latest call were seen.

        It is added to the last call of that delta, even when the latest call of all has no name yet and is another one.
        """
        latest = self._text.count(START)
        return "{}" if latest > len(self._names) or (self._args and not self._args[-1]) else ""

    @property
    def _open(self) -> int:
        return self._text.count(START, 0, self._closed_at)

    def _content(self) -> str | None:
        first = self._text.find(START)
        end = first if first >= 0 else len(self._text) - len(_overlap(self._text, START))
        if end <= self._sent:
            return None
        content = self._text[self._sent : end]
        self._sent = end
        return content

    def _part(self, index: int, body: str, *, closed: bool, calls: list[Call]) -> bool:
        """Add what is new of one call. False: its name is not complete, so no later call can be told either."""
        if index >= len(self._names):
            name = _NAME.search(body)
            if name is None:
                return False
            self._names.append(name.group(1))
            self._args.append("")
            calls.append({"id": call_id(), "type": "function", "index": index, "function": {"name": name.group(1)}})
        args = _arguments(body, complete=closed or _is_json(body))
        sent = self._args[index]
        if args is not None and len(args) > len(sent):
            calls.append({"index": index, "function": {"arguments": args[len(sent) :]}})
            self._args[index] = args
        return True


def _arguments(body: str, *, complete: bool) -> str | None:
    match = _ARGUMENTS.search(body)
    if match is None:
        return None
    raw = body[match.end() :]
    return raw.rstrip().removesuffix("}").rstrip() if complete else raw


def _is_json(body: str) -> bool:
    if not body.endswith("}"):
        return False
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def _overlap(text: str, tag: str) -> str:
    """The end of the text that is a proper beginning of the tag."""
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:size]):
            return tag[:size]
    return ""
