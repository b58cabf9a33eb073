"""How are engine chunks that wait behind a derender call merged into one, and which are taken apart?

Concatenate token ids and logprobs; everything else is the last chunk's. Only chunks of one choice are merged. The first
chunk of a choice goes alone, and so do every marker token (`</think>`, `<tool_call>` ...) and the token of the finish,
also where the engine sent them in one chunk with others: parsers read the boundaries of their chunks. A merge holds at
most `TOKENS_MAX` ids, because a saturated sidecar would otherwise make the output arrive in bursts. The sidecar's
parsers replay every earlier chunk on each call, so fewer and larger chunks are also what keeps the time per token flat.

Source: measured with qwen3 + hermes and deepseek_r1: equal to one token per chunk, whatever the engine's chunks and the
merging, under these rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
from msgspec import Raw

from machines.tokens import SemanticIds, SemanticJson

TOKENS_MAX = 64
_GOES_ON: Mapping[str, object] = {"finish_reason": None, "stop_reason": None}

_encode = msgspec.json.encode


class _LogProbs(msgspec.Struct):
    content: list[Raw] | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _LogProbs | None = None


class _Peek(msgspec.Struct):
    choices: list[_Choice]


class _Open(msgspec.Struct):
    choices: list[dict[str, Raw]]


_peek = msgspec.json.Decoder(_Peek).decode
_choices = msgspec.json.Decoder(_Open).decode
_fields = msgspec.json.Decoder(dict[str, Raw]).decode


def split(event: SemanticJson) -> list[SemanticJson]:
    """One event per choice: derender takes one choice at a time."""
    rest = _fields(event)
    return [SemanticJson(_encode({**rest, "choices": [choice]})) for choice in _choices(event).choices]


def beginning(event: SemanticJson, tokens: int) -> SemanticJson:
    """An event of one choice without its later tokens, and without its finish."""
    return _Tokens(event).portion(0, tokens, _fields(event), _GOES_ON)


def apart(
    event: SemanticJson, ids: SemanticIds, markers: frozenset[int], *, ended: bool
) -> list[tuple[SemanticJson, SemanticIds]]:
    """An event of one choice as several, with their ids: each marker token is alone, and so is the token of the finish.

    What the event says once, its first part says; what its choice says besides tokens, the last part does.

    Args:
        event: with one choice.
        ids: its token ids.
        markers: the ids that a parser looks for.
        ended: it has the finish reason.

    """
    if len(ids) < 2 or (not ended and markers.isdisjoint(ids)):
        return [(event, ids)]
    last = len(ids) - ended  # where the finish's token begins
    cuts = [at for at in range(1, len(ids)) if at == last or ids[at - 1] in markers or ids[at] in markers]
    tokens, top = _Tokens(event), _fields(event)
    parts = []
    for start, end in pairwise([0, *cuts, len(ids)]):
        part = tokens.portion(start, end, top, None if end == len(ids) else _GOES_ON)
        parts.append((part, SemanticIds(ids[start:end])))
        top = {"request_id": top["request_id"]} if "request_id" in top else {}
    return parts


class _Tokens:
    """An event of one choice, read once to be written in portions."""

    def __init__(self, event: SemanticJson) -> None:
        peeked = _peek(event).choices[0]
        self._choice = _choices(event).choices[0]
        self._ids = peeked.token_ids or []
        self._content = None if peeked.logprobs is None else peeked.logprobs.content or []

    def portion(self, start: int, end: int, top: Mapping[str, Raw], more: Mapping[str, object] | None) -> SemanticJson:
        """Some of its tokens.

        Args:
            start: the first one.
            end: behind the last one.
            top: the event's own fields.
            more: of the choice, besides index and tokens; None: what the event said.

        """
        choice: dict[str, object]
        choice = dict(self._choice) if more is None else {"index": self._choice["index"], **more}
        choice["token_ids"] = self._ids[start:end]
        choice["logprobs"] = None if self._content is None else {"content": self._content[start:end]}
        return SemanticJson(_encode({**top, "choices": [choice]}))


def merged(events: Sequence[SemanticJson]) -> SemanticJson:
    """One engine event that says what these events said, in order.

    Args:
        events: stream events of one choice, each with exactly one choice object.

    """
    if len(events) == 1:
        return events[0]
    ids: list[int] = []
    content: list[Raw] = []
    logprobs = False
    for event in events:
        choice = _peek(event).choices[0]
        ids += choice.token_ids or ()
        if choice.logprobs is not None:
            logprobs = True
            content += choice.logprobs.content or ()
    last = _fields(events[-1])
    choice_fields: dict[str, object] = dict(_choices(events[-1]).choices[0])
    choice_fields["token_ids"] = ids
    choice_fields["logprobs"] = {"content": content} if logprobs else None
    return SemanticJson(_encode({**last, "choices": [choice_fields]}))
