"""What does the process say while it runs, and in which words?

JSON lines on stderr, one event a line, with stable event names. Never content: no prompt, no completion, no token
id, no stream_state, at any level. One summary line per request; nothing per chunk.

| event | when | fields beside `request_id` |
|---|---|---|
| render.ok | tokens are there | model, tokens, latency_ms, tokenizer_source, route, reason |
| engine.leg | an engine leg has ended | instance, phase, attempt, prompt, outcome, tokens |
| derender.error | derender failed | prompt, choice, attempt, status, type, detail |
| cancel | the request was cancelled | phase, reason, siblings |
| request.end | always, once | outcome, status, stage, model, tokens, ttft_ms, latency_ms |
| sidecar.found, sidecar.unreachable | a sidecar came or went | url, version |
| engine.found, engine.unreachable | at the start | instance, url, version |
| drain.begin, .done, .forced, .ended | shutdown | requests |

A failure of an upstream or of ours is a warning; what a client did wrong is information. A line that cannot be written
(the disk is full, the reader has died) is dropped and counted: serving goes on.

Source: RFC 可观测性.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from io import TextIOBase
from typing import Any, TextIO, cast

import msgspec
import structlog

_encode = msgspec.json.encode


def _render(_logger: object, _name: str, event: MutableMapping[str, Any]) -> str:
    return _encode(event, enc_hook=str).decode()


def configure(level: str = "info", stream: TextIO = sys.stderr) -> None:
    """Send every line of this process, the libraries' included, to `stream`."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", key="ts"),
            structlog.processors.format_exc_info,
            _render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", Surviving(stream))),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(handlers=[_Bridge()], level=logging.WARNING, force=True)


class Surviving(TextIOBase):
    """A stream whose failures are nobody's problem.

    Attributes:
        lost: lines that could not be written.

    """

    lost = 0

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except (OSError, ValueError):
            Surviving.lost += 1
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


class _Bridge(logging.Handler):
    """Lines of libraries that use the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno, "library", source=record.name, message=record.getMessage(), exc_info=record.exc_info
        )


def get_logger() -> Any:
    """The process's logger; call `.info("event.name", field=...)`."""
    return structlog.get_logger()
