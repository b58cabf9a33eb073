"""How is a token chunk written?

    data: {"request_id":…,"usage":…,"output_mode":…,"choices":[{…}]}

One choice per event. All of an event but its tokens is the same for a whole stream, so it is encoded once. Key order,
and the keys written though null, are vLLM's. The prompt's ids, if wanted, are on the first event only; the weight
versions on a choice's last.

Source: vllm/entrypoints/scale_out/token_in_token_out/serving.py (0.33).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from motor_flow.sim import shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

encode = msgspec.json.encode


def weight_versions(count: int) -> list[dict[str, Any]]:
    """Which weights made the tokens: always the same ones."""
    return [{"version": "default", "start": 0, "end": count}] if count else []


class TokenEvents:
    """The writer of one stream's events."""

    __slots__ = ("_head", "_mode", "_prompt_ids", "_text_mode")

    def __init__(self, request_id: str, *, mode: str, prompt_ids: Sequence[int] | None) -> None:
        self._head = b'data: {"request_id":' + encode(request_id) + b',"usage":'
        self._prompt_ids = b"" if prompt_ids is None else b',"prompt_token_ids":' + encode(prompt_ids)
        self._mode = b',"output_mode":"' + mode.encode() + b'","choices":['
        self._text_mode = mode == "text"

    def chunk(
        self,
        index: int,
        ids: list[int],
        *,
        finish: str | None = None,
        stop: int | str | None = None,
        total: int = 0,
        usage: dict[str, Any] | None = None,
        logprobs: dict[str, Any] | None = None,
        text: str = "",
    ) -> bytes:
        """One choice's event; `total` is how many tokens it has in all, for its last."""
        prompt_ids, self._prompt_ids = self._prompt_ids, b""
        ending = b'null,"stop_reason":null' if finish is None else encode(finish) + b',"stop_reason":' + encode(stop)
        return b"".join(
            (
                self._head,
                encode(usage),
                prompt_ids,
                self._mode,
                b'{"index":%d,"finish_reason":' % index,
                ending,
                b',"token_ids":',
                encode(ids),
                b',"routed_experts":null,"sampling_mask":null,"weight_versions":',
                b"null" if finish is None else encode(weight_versions(total)),
                b',"text":' + encode(text) if self._text_mode else b"",
                b',"logprobs":',
                encode(logprobs),
                b"}]}\n\n",
            )
        )

    def usage(self, prompt: int, completion: int, *, cached: int | None = None) -> bytes:
        """The last event of a stream that was to tell its usage."""
        plain = shapes.without_nulls(shapes.usage(prompt, completion, cached=cached))
        return b"".join((self._head, encode(plain), self._mode, b"]}\n\n"))
