"""What real vLLM 0.33 was asked and what it answered: the captures under wire/v0.33, and how to compare with them.

A capture is `{request, status, headers, response}`, a list of exchanges (a Derender session), or the lines of a
stream (`*.sse`). They were made with the tokenizer that the simulators have. Long data was abbreviated when they were
made; `expand` undoes that, and `differences` knows what cannot be undone:

    ["a", "b", "...(900 items)"]     the first eight of so many
    "word ...(10000 chars)"          a word so often that it is that long
    "<100 ids>"                      the prompt that Render made of render_chat_tools.json (prompt_of_chat_tools.json)

Nothing else is forgiven but what is random or a time: `created`, and the sixteen hex digits of an id.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

WIRE = Path(__file__).parent / "wire" / "v0.33"
CONTEXT_TOKENS = 1024
CHOICES_MAX = 8

_CUT = re.compile(r"\.\.\.\((\d+) items\)")
_RANDOM = re.compile(r"[0-9a-f]{16}")
_WORD = "word "


@dataclass(frozen=True)
class Capture:
    name: str
    method: str
    path: str
    headers: dict[str, str]
    body: Any
    """As it goes over the wire: JSON, or bytes."""
    status: int
    content_type: str
    allow: str | None
    answer: Any
    """JSON; the events of a stream; or "" for no body."""


def names() -> list[str]:
    """The captures of one exchange."""
    return sorted(file.stem for file in WIRE.glob("*.json") if "request" in _loaded(file.stem))


def load(name: str) -> Capture:
    raw = _loaded(name)
    request, headers, answer = raw["request"], raw["headers"], raw["response"]
    if isinstance(answer, dict) and "sse_lines" in answer:
        answer = said(answer["sse_lines"])
    return Capture(
        name=name,
        method=request["method"],
        path=request["path"],
        headers=request["headers"],
        body=expand(request["body"]),
        status=raw["status"],
        content_type=headers.get("content-type", ""),
        allow=headers.get("allow"),
        answer=answer,
    )


def session(name: str) -> list[dict[str, Any]]:
    """The exchanges of a Derender session, requests as abbreviated."""
    exchanges: list[dict[str, Any]] = _loaded(name)
    return exchanges


def stream(name: str) -> list[Any]:
    return said((WIRE / f"{name}.sse").read_text().splitlines())


def raw(name: str) -> Any:
    return _loaded(name)


def said(lines: list[str]) -> list[Any]:
    """What the events of a stream say."""
    data = [line.removeprefix("data: ") for line in lines if line]
    return [json.loads(text) if text.startswith("{") else text for text in data]


def tools_prompt() -> list[int]:
    """The 100 tokens of the chat with tools."""
    ids: list[int] = _loaded("prompt_of_chat_tools")
    return ids


def expand(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: expand(item) for key, item in value.items()}
    if isinstance(value, list):
        if value and (size := cut(value[-1])):
            return _filled(value[:-1], size)
        return [expand(item) for item in value]
    if isinstance(value, str):
        if value.startswith("raw:"):
            text: str = ast.literal_eval(value.removeprefix("raw:"))
            return text.encode()
        if value.endswith("...(10000 chars)"):
            assert value.startswith(_WORD)
            return _WORD * (10_000 // len(_WORD))
    return value


def cut(item: Any) -> int:
    """How long the list was that ends with this item; 0 if that is all of it."""
    match = _CUT.fullmatch(item) if isinstance(item, str) else None
    return int(match[1]) if match else 0


def differences(expected: Any, got: Any, at: str = "") -> list[str]:
    """Where two answers differ. The order of keys counts."""
    if isinstance(expected, dict) and isinstance(got, dict):
        wrong = [] if list(expected) == list(got) else [f"{at}: keys {list(expected)} != {list(got)}"]
        common = [key for key in expected if key in got and key != "created"]
        return wrong + [item for key in common for item in differences(expected[key], got[key], f"{at}.{key}")]
    if isinstance(expected, list) and isinstance(got, list):
        if expected and (size := cut(expected[-1])):
            shown = expected[:-1]
            return [] if len(got) == size and got[: len(shown)] == shown else [f"{at}: {expected} != {got[:9]}"]
        if len(expected) != len(got):
            return [f"{at}: {len(expected)} items != {len(got)} items"]
        return [
            item
            for index, pair in enumerate(zip(expected, got, strict=True))
            for item in differences(*pair, f"{at}[{index}]")
        ]
    if isinstance(expected, str) and isinstance(got, str):
        expected, got = _RANDOM.sub("ID", expected), _RANDOM.sub("ID", got)
    same = type(expected) is type(got) and expected == got
    return [] if same else [f"{at}: {expected!r} != {got!r}"]


def _filled(shown: list[Any], size: int) -> list[Any]:
    if all(item == shown[0] for item in shown):
        return shown[:1] * size
    prompt = tools_prompt()
    assert shown == prompt[: len(shown)]
    assert size == len(prompt)
    return prompt


@cache
def _loaded(name: str) -> Any:
    return json.loads((WIRE / f"{name}.json").read_text())
