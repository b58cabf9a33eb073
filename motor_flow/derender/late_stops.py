"""Where does a whole answer reach its first stop string, when its engine cannot look for one?

An engine without a tokenizer (`--tokens-only`) goes on behind a stop string. So the whole text is asked of Derender and
searched, and the token in which the string ends is found by halving: one call when there is none, and log2(tokens)
more when there is. What is left is what another engine would have sent, and goes the ordinary way.

Source: contract section 7 (Stop strings); vLLM 0.33 v1/engine/detokenizer.py, token_in_token_out/serving.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from machines.tokens import SemanticIds, SemanticJson
from motor_flow.derender.client import DerenderClient
from motor_flow.derender.session import ChunkDerenderer
from motor_flow.derender.stops import StopStrings

_encode = msgspec.json.encode
_DECODING = ("skip_special_tokens", "spaces_between_special_tokens")


class LateStops:
    """Looks for the stop strings of one prompt in its whole answer.

    Args:
        client: where Derender is.
        stops: what is looked for.
        ids: the prompt.
        sampling: as rendered: how the engine would have decoded.
        model: as the client named it, or empty.

    """

    def __init__(
        self, client: DerenderClient, stops: StopStrings, ids: SemanticIds, sampling: Mapping[str, Any], model: str
    ) -> None:
        self._stops = stops
        request = _encode({"prompt": "x"} | {key: sampling[key] for key in _DECODING if key in sampling})
        self._derenderer = ChunkDerenderer(client, chat=False, request=request, model=model, ids=ids, parser=False)

    async def cut(self, answer: SemanticJson) -> tuple[SemanticJson, int]:
        """The answer up to its stop strings, and its tokens.

        Args:
            answer: a GenerateResponse that was checked.

        Raises:
            DerenderError: the sidecar failed.

        """
        fields: dict[str, Any] = msgspec.json.decode(answer)
        for choice in fields["choices"]:
            await self._cut(choice)
        tokens = sum(len(choice["token_ids"] or ()) for choice in fields["choices"])
        return SemanticJson(_encode(fields)), tokens

    async def _cut(self, choice: dict[str, Any]) -> None:
        ids: list[int] = choice["token_ids"] or []
        if choice["finish_reason"] == "stop":
            ids = ids[:-1]  # the token that ended it is no text
        text = await self._text(ids)
        seen = await self._text(ids[: self._stops.least])
        at, found = self._stops.first(text, len(seen))
        if found is None:
            return
        few, enough = self._stops.least, len(ids)
        while few + 1 < enough:
            half = (few + enough) // 2
            if len(await self._text(ids[:half])) < at + len(found):
                few = half
            else:
                enough = half
        choice |= {"token_ids": ids[:enough], "finish_reason": "stop", "stop_reason": found}
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
            del logprobs["content"][enough:]

    async def _text(self, ids: Sequence[int]) -> str:
        if not ids:
            return ""
        event = {"request_id": "", "choices": [{"index": 0, "token_ids": ids, "logprobs": None, "finish_reason": None}]}
        choice, _ = await self._derenderer.text_chunk(SemanticJson(_encode(event)), None)
        return choice.text
