"""Where are token ids in an engine's answer, and how are they translated there?

    choices[]: token_ids, stop_reason (when it is a token), logprobs.content[].token_id, …top_logprobs[].token_id
    prompt_token_ids

Everything else stays the bytes it was. What would show physical ids and is never asked for is taken out, so that no
client learns which id stands for which token.

Source: vLLM 0.33 scale_out/token_in_token_out/protocol.py (GenerateTokensResponse, GenerateTokensStreamResponse).
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, UnsetType

from machines.tokens import PhysicalIds, SemanticJson
from motor_flow.obfuscation.tables import Obfuscator

UNASKED = ("prompt_logprobs", "prompt_token_id_logprobs")
UNASKED_OF_CHOICE = ("sampling_mask",)
_NULL = Raw(b"null")


class _LogProb(msgspec.Struct):
    token_id: int
    logprob: Raw
    rank: Raw | UnsetType = UNSET
    top_logprobs: list[_LogProb] | UnsetType = UNSET


class _LogProbs(msgspec.Struct):
    content: list[_LogProb] | None = None


_encode = msgspec.json.encode
_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_choices = msgspec.json.Decoder(list[dict[str, Raw]]).decode
_ids = msgspec.json.Decoder(list[int] | None).decode
_reason = msgspec.json.Decoder(int | str | None).decode
_logprobs = msgspec.json.Decoder(_LogProbs | None).decode


def translated(raw: bytes, tables: Obfuscator) -> SemanticJson:
    """An event or a whole answer, in semantic ids.

    Raises:
        msgspec.DecodeError: it is not what engines are documented to answer.
        OutsideVocabulary: it holds an id that no token has.

    """
    fields = _fields(raw)
    answer: dict[str, object] = {key: value for key, value in fields.items() if key not in UNASKED}
    if "prompt_token_ids" in fields:
        answer["prompt_token_ids"] = _translated_ids(fields["prompt_token_ids"], tables)
    if "choices" in fields:
        answer["choices"] = [_choice(choice, tables) for choice in _choices(fields["choices"])]
    return SemanticJson(_encode(answer))


def _choice(choice: dict[str, Raw], tables: Obfuscator) -> dict[str, object]:
    out: dict[str, object] = {key: value for key, value in choice.items() if key not in UNASKED_OF_CHOICE}
    if "token_ids" in choice:
        out["token_ids"] = _translated_ids(choice["token_ids"], tables)
    if "stop_reason" in choice and isinstance(reason := _reason(choice["stop_reason"]), int):
        out["stop_reason"] = _one(reason, tables)
    if (logprobs := _logprobs(choice.get("logprobs", _NULL))) is not None:
        for entry in logprobs.content or ():
            _translate(entry, tables)
        out["logprobs"] = logprobs
    return out


def _translate(entry: _LogProb, tables: Obfuscator) -> None:
    entry.token_id = _one(entry.token_id, tables)
    for other in entry.top_logprobs or ():
        _translate(other, tables)


def _translated_ids(raw: Raw, tables: Obfuscator) -> list[int] | None:
    ids = _ids(raw)
    return None if ids is None else tables.semantic(PhysicalIds(ids))


def _one(token: int, tables: Obfuscator) -> int:
    return tables.semantic(PhysicalIds([token]))[0]
