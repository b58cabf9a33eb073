"""What can go wrong, in one vocabulary: who failed (stage), and what the client is told (status, type, message, param).

An error says what happened. Whether anything is retried is the machines' decision, never the error's.
Anything that is not a `MotorFlowError` is a bug and reaches the client as a 500 without detail.

Source: RFC 故障处理 (fault domains); the body's shape is vLLM 0.33's ErrorResponse
(vllm/entrypoints/serve/engine/protocol.py) plus `stage`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Literal

import msgspec

from machines.faults import Fault

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are not what was asked for, with messages that never quote them."""

Stage = Literal["render", "admission", "schedule", "generate", "derender", "client"]

# vLLM's own names; every other status is known by its HTTP phrase, as vLLM does.
_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
MESSAGE_CHARS_MAX = 16384  # an upstream's message is passed on, but not without a bound


def openai_type(status: int) -> str:
    """The `type` of an error with this status."""
    known = _TYPES.get(status)
    if known is not None:
        return known
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


class MotorFlowError(Exception):
    """An expected failure of one request.

    Args:
        message: what happened and what to do, for a person.
        status: the HTTP status before the response is committed; `code` in the body in any case.
        kind: the OpenAI/vLLM error type; by default the one that belongs to `status`.
        param: the offending request field, when there is one.
        retry_after_s: seconds, for 429 and 503.
        detail: for the log only: addresses, statuses, exceptions of ours; never an upstream's text.
        quoted: the message is an upstream's and may repeat the client's input: never logged.

    """

    stage: Stage = "client"
    default_status = 500

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        kind: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        detail: str = "",
        quoted: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message if len(message) <= MESSAGE_CHARS_MAX else message[:MESSAGE_CHARS_MAX] + "…"
        self.status = self.default_status if status is None else status
        self.kind = kind or openai_type(self.status)
        self.param = param
        self.retry_after_s = retry_after_s
        self.detail = detail
        self.quoted = quoted

    def encode(self, stage: Stage | None = None) -> bytes:
        """`{"error": {...}}`, the one shape of every error (contract section 3).

        Args:
            stage: where the request was, for an error that is of no stage itself.

        """
        shape = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status,
            "stage": stage or self.stage,
        }
        return msgspec.json.encode({"error": shape})


class ClientError(MotorFlowError):
    """The request itself cannot be served: unreadable, too large, unknown route, no permission."""

    stage: Stage = "client"
    default_status = 400


class UpstreamError(MotorFlowError):
    """A sidecar or an engine refused, failed, or could not be asked.

    Attributes:
        fault: why.

    """

    default_status = 502

    def __init__(self, message: str, *, fault: Fault = Fault.GARBAGE, **more: Any) -> None:
        super().__init__(message, **more)
        self.fault = fault


class RenderError(UpstreamError):
    """Render refused the request. No engine has been asked."""

    stage: Stage = "render"


class RenderDown(RenderError):
    """Render could not be used, whatever the request."""

    @classmethod
    def and_needed(cls, whose: str, fault: Fault, detail: str = "") -> RenderDown:
        """The request cannot be answered without it.

        Args:
            whose: who allows no other way, with its verb.
            fault: of Render.
            detail: for the log.

        """
        message = f"the Render sidecar cannot be used, and {whose} no other way"
        return cls(message, fault=fault, status=503, retry_after_s=1, detail=detail)


class AdmissionError(MotorFlowError):
    """The request may not run, or not now."""

    stage: Stage = "admission"
    default_status = 429


class ScheduleError(MotorFlowError):
    """No instance can serve the request."""

    stage: Stage = "schedule"
    default_status = 503


class EngineError(UpstreamError):
    """An engine refused the request or failed while serving it."""

    stage: Stage = "generate"


class Unsupported(EngineError):
    """The engine does not offer the route: token-only generate, or OpenAI's API."""


class NoTokenizer(ScheduleError):
    """Every instance that could serve the request is known to have no tokenizer, and the request needs one."""

    default_status = 501


class NoTokenEngine(ScheduleError):
    """Every instance that could serve the request is known to have no token-only route."""

    default_status = 501


class DerenderError(UpstreamError):
    """Engine tokens could not be turned into an answer. Inference is never run again for it."""

    stage: Stage = "derender"
