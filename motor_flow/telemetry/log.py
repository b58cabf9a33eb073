"""What does the process say while it runs, and in which words?

JSON lines on stderr, one event a line, with stable event names. Never content: no prompt, no completion, no token
id, no stream_state, at any level. One summary line per request; nothing per chunk.

| event | when | fields beside `request_id` |
|---|---|---|
| render.ok | tokens are there | model, tokens, latency_ms, tokenizer_source, route, reason |
| engine.leg | an engine leg has ended | instance, phase, attempt, prompt, outcome, tokens |
| derender.error | derender failed | prompt, choice, attempt, status, reason |
| cancel | the request was cancelled | phase, reason, siblings |
| request.end | always, once | outcome, status, stage, tokens, ttft_ms, latency_ms |

Source: RFC 可观测性.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import msgspec
import structlog

_encode = msgspec.json.encode


def _render(_logger: object, _name: str, event: MutableMapping[str, Any]) -> str:
    return _encode(event, enc_hook=str).decode()


def configure(level: str = "info", stream: TextIO = sys.stderr) -> None:
    """Send every line of this process, the libraries' included, to `stream`."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", key="ts"),
            structlog.processors.format_exc_info,
            _render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(handlers=[_Bridge()], level=logging.WARNING, force=True)


class _Bridge(logging.Handler):
    """Lines of libraries that use the standard library's logging."""

    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno, "library", source=record.name, message=record.getMessage(), exc_info=record.exc_info
        )


def get_logger() -> Any:
    """The process's logger; call `.info("event.name", field=...)`."""
    return structlog.get_logger()
