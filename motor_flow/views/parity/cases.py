"""Which requests are sent to both servers?

A corpus is JSON lines files, one file for each kind of request, one line for each request; the package ships one.

    {"name": "hello", "path": "/v1/chat/completions", "body": {"model": "$MODEL", ...}}
    {"name": "no options", "path": "/v1/completions", "form": "stream", "body": {...}}

Without `form` a line is two requests: `whole`, and `stream`, which asks for usage unless the line has `stream_options`
of its own. `$MODEL` becomes the served model's name.

Source: RFC 一致性测试 (the same set of requests to both).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import msgspec

from motor_flow.errors import UNREADABLE

MODEL = "$MODEL"
SUFFIX = ".jsonl"
NOTHING: Mapping[str, Any] = {}
Form = Literal["whole", "stream"]


class BadCorpus(Exception):
    """A corpus that cannot be used; the message names file and line."""


class Line(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One line of a corpus file."""

    name: str
    path: str
    body: dict[str, Any]
    form: Form | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One request.

    Attributes:
        kind: the file it stands in.
        name: kind, name and form: `chat/hello/stream`.
        path: of the URL.
        body: as it is sent, but for the model's name.

    """

    kind: str
    name: str
    path: str
    body: dict[str, Any]

    def for_model(self, model: str, more: Mapping[str, Any] = NOTHING) -> bytes:
        """The body with the model's name filled in, and with these fields."""
        asked = self.body.get("model")
        named = {"model": model} if asked == MODEL else {}
        return msgspec.json.encode({**self.body, **named, **more})


def shipped() -> list[Case]:
    """The corpus of this package."""
    folder = files("motor_flow.views.parity") / "corpus"
    found = [entry for entry in folder.iterdir() if entry.name.endswith(SUFFIX)]
    return [
        case
        for entry in sorted(found, key=lambda one: one.name)
        for case in _cases(entry.name.removesuffix(SUFFIX), entry.name, entry.read_bytes())
    ]


def read_corpus(path: Path) -> list[Case]:
    """The corpus in this file, or in the files of this directory.

    Raises:
        BadCorpus: it cannot be read, or says nothing, or the same twice.

    """
    try:
        names = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        read = [(one, one.read_bytes()) for one in names]
    except OSError as exc:
        raise BadCorpus(f"{path}: {exc.strerror or exc}") from None
    cases = [case for one, raw in read for case in _cases(one.stem, str(one), raw)]
    if not cases:
        raise BadCorpus(f"{path}: holds no requests")
    return cases


def matching(cases: Iterable[Case], pattern: str | None) -> list[Case]:
    """The cases whose name fits; `tools/*` and `*/stream` are such patterns."""
    return [case for case in cases if pattern is None or fnmatchcase(case.name, pattern)]


def _cases(kind: str, where: str, raw: bytes) -> Iterator[Case]:
    seen: set[str] = set()
    for number, text in enumerate(raw.split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=Line)
        except UNREADABLE as exc:
            raise BadCorpus(f"{where}:{number}: {exc}") from None
        if line.name in seen:
            raise BadCorpus(f"{where}:{number}: a second request called {line.name!r}")
        if not line.path.startswith("/"):
            raise BadCorpus(f"{where}:{number}: path {line.path!r} does not begin with /")
        seen.add(line.name)
        for form in ("whole", "stream"):
            if line.form in (None, form):
                yield Case(kind, f"{kind}/{line.name}/{form}", line.path, _body(line, form))


def _body(line: Line, form: str) -> dict[str, Any]:
    if form == "whole":
        # A line for one form is about that form, options of a stream and all.
        dropped = () if line.form else ("stream", "stream_options")
        return {key: value for key, value in line.body.items() if key not in dropped}
    return {"stream_options": {"include_usage": True}} | line.body | {"stream": True}
