"""How is an OpenAI chunk of a native stream written?

    data: {"id":…,"object":…,"created":…,"model":…,"choices":[…],"usage":…,"system_fingerprint":…,…}

Only the keys that native serving sets are written, in its order; id, model and time are the same for a whole stream.
The fingerprint is on what ends the stream: the usage chunk if there is one, else each choice's last.

Source: vllm/entrypoints/openai/{chat_completion,completion}/serving.py (0.33).
"""

from __future__ import annotations

from typing import Any

import msgspec

from motor_flow.sim import shapes

encode = msgspec.json.encode


class OpenAIEvents:
    """The writer of one native stream's chunks."""

    __slots__ = ("_fingerprint", "_head", "_with_usage")

    def __init__(self, request_id: str, kind: str, model: str, fingerprint: str, *, with_usage: bool) -> None:
        head = {"id": request_id, "object": kind, "created": shapes.now(), "model": model}
        self._head = b"data: " + encode(head)[:-1] + b',"choices":['
        self._fingerprint = b',"system_fingerprint":' + encode(fingerprint)
        self._with_usage = with_usage

    def chunk(self, choice: dict[str, Any], *, last: bool, usage: dict[str, Any] | None, tail: dict[str, Any]) -> bytes:
        """One choice's chunk; `last` is its last, `tail` what follows usage and fingerprint."""
        return b"".join(
            (
                self._head,
                encode(choice),
                b"]",
                b"" if usage is None else b',"usage":' + encode(usage),
                self._fingerprint if last and not self._with_usage else b"",
                b",",
                encode(tail)[1:],
                b"\n\n",
            )
        )

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The chunk without choices that tells the usage."""
        return self._head + b'],"usage":' + encode(shapes.without_nulls(usage)) + self._fingerprint + b"}\n\n"
