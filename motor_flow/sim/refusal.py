"""How does vLLM say no?

Three shapes, and a client must tell them apart:

    {"error": {"message", "type", "param", "code"}}   the request is wrong, or the server is
    {"detail": "Not Found"}                           there is no such route, or no such method on it
    {"error": "Unauthorized"}                         no or a wrong key

What a model rejects while it reads a body has type "Bad Request" and lists every fault; what the server's own logic
rejects has type "BadRequestError". Both are 400.

Source: vllm/entrypoints/serve/exception_handling (0.33): error_response.py, handlers/validation.py.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

ERRORS_REPORTED_MAX = 10
INPUT_CHARS_MAX = 200
ERROR_CHARS_MAX = 1000

_TYPES = {403: "PermissionDeniedError", 404: "NotFoundError", 500: "InternalServerError"}
_BRACKETED = re.compile(r"[\[\]{}()]")
# The names that pydantic gives to its own wrappers in an error's path.
_INNER = re.compile(
    "function-(wrap|after|before|plain)|json-or-python|lax-or-strict|chain|default|nullable|(tagged-)?union|call|"
    "arguments|is-(instance|subclass)|callable|str|int|float|bool|bytes|bytearray|list|tuple|dict|set|frozenset|"
    "complex|none|nonetype",
    re.IGNORECASE,
)
_NOTHING = object()


class Refusal(Exception):
    """The answer instead of a result."""

    def __init__(self, message: str, *, status: int = 400, kind: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind or _TYPES.get(status, "BadRequestError")
        self.param = param

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}

    def encode(self) -> bytes:
        return msgspec.json.encode(self.body)


def invalid(message: str, param: str | None = None, value: Any = _NOTHING) -> Refusal:
    """A rejected parameter: its name, and its value if given, are part of the message."""
    extras = [f"parameter={param}"] if param is not None else []
    if value is not _NOTHING:
        extras.append(f"value={value}")
    return Refusal(f"{message} ({', '.join(extras)})" if extras else message, param=param)


def unknown_model(name: str, served: str) -> Refusal:
    return Refusal(f"The model `{name}` does not exist. Valid aliases: {served}.", status=404, param="model")


def unreadable(errors: Iterable[Any]) -> Refusal:
    """A body that does not fit its model: pydantic's errors (or plain strings), told the way vLLM tells them."""
    listed = list(errors)
    noun = "error" if len(listed) == 1 else "errors"
    lines = [f"{len(listed)} validation {noun}:"]
    lines += [f"  {_line(error)}" for error in listed[:ERRORS_REPORTED_MAX]]
    if len(listed) > ERRORS_REPORTED_MAX:
        lines.append(f"  ...and {len(listed) - ERRORS_REPORTED_MAX} more {noun}")
    first = listed[0]
    param = _path(first["loc"]) if isinstance(first, dict) else None
    return Refusal("\n".join(lines), kind=HTTPStatus.BAD_REQUEST.phrase, param=param)


def _line(error: Any) -> str:
    if isinstance(error, dict):
        error = {**error, "loc": _path(error["loc"])}
        if "input" in error:
            error["input"] = _summary(error["input"])
    text = str(error)
    return text if len(text) <= ERROR_CHARS_MAX else text[:ERROR_CHARS_MAX] + "...[truncated]"


def _summary(value: Any) -> str:
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= INPUT_CHARS_MAX else text[:INPUT_CHARS_MAX] + "...[truncated]"


def _path(loc: Iterable[Any]) -> str:
    """Where in the body, without the names that pydantic gives to its own wrappers and union branches."""
    segments = [str(segment) for segment in loc]
    real = [segment for segment in segments if not (_BRACKETED.search(segment) or _INNER.fullmatch(segment))]
    return ".".join(real or segments)
