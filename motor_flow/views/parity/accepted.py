"""Which differences from native vLLM are known and accepted, and why?

A difference that no entry covers fails the comparison. Entries are counted and shown with their reason, never hidden,
and hold for the versions that were looked at only.

Source: vLLM 0.33 (files named per entry); RFC 一致性测试.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from motor_flow.views.parity.answers import Answer
from motor_flow.views.parity.compare import Difference

EMPTY_PROMPT_OF_RENDER = "No token_ids rendered"
Holds = Callable[[Difference, Answer, Answer], bool]


@dataclass(frozen=True, slots=True)
class Accepted:
    """One accepted difference.

    Attributes:
        name: for tables and JSON.
        fields: the fields it covers, as `compare.py` names them, without the choice.
        requests: which requests it is about, for a person.
        reason: why the Coordinator may differ.
        source: where that can be looked up.
        since: the first vLLM version that was looked at.
        before: the first that was not.
        holds: is this difference between the native and the Coordinator's answer such a one?

    """

    name: str
    fields: frozenset[str]
    requests: str
    reason: str
    source: str
    since: tuple[int, int]
    before: tuple[int, int]
    holds: Holds

    @property
    def versions(self) -> str:
        """The range, for a person."""
        return ">= {}.{}, < {}.{}".format(*self.since, *self.before)

    def at(self, version: str) -> bool:
        """Does it hold for a native server of this version? One that does not say is taken for fitting."""
        found = re.match(r"(\d+)\.(\d+)", version)
        if found is None:
            return True
        return self.since <= (int(found[1]), int(found[2])) < self.before


def _not_told(difference: Difference, _: Answer, __: Answer) -> bool:
    """The Coordinator says nothing of it. Another value would be a fault."""
    return difference.native is not None and difference.chain is None


def _counts_more(difference: Difference, native: Answer, chain: Answer) -> bool:
    """Of a stream; no more than there are tokens. Over the engine's own API, another cut counts otherwise."""
    few, more = difference.native, difference.chain
    if not (native.kinds and isinstance(few, int) and isinstance(more, int)):
        return False
    if chain.system_fingerprint is not None:
        return True
    return few < more <= int(chain.usage.get("completion_tokens", 0))


def _status_instead_of_event(_: Difference, native: Answer, chain: Answer) -> bool:
    """The same error, by status 4xx or 5xx instead of as the only event of a 200."""
    return (
        native.status == 200
        and native.kinds == ["error", "done"]
        and native.error is not None
        and chain.error is not None
        and chain.kinds == []
        and chain.status == native.error.get("code")
    )


def _renders_words(difference: Difference, _: Answer, __: Answer) -> bool:
    """The same refusal, in Render's words instead of the engine's."""
    native, chain = difference.native, difference.chain
    if not (isinstance(native, dict) and isinstance(chain, dict)) or chain["message"] != EMPTY_PROMPT_OF_RENDER:
        return False
    return bool(native | {"message": ""} == chain | {"message": ""})


ACCEPTED = (
    Accepted(
        name="reasoning_tokens",
        fields=frozenset({"reasoning_tokens"}),
        requests="streamed chats with reasoning",
        reason="in streams native vLLM leaves out tokens that bring no text of their own (all but the last of a "
        "character's, and what a stop string could begin in), how many depends on how the stream was cut; the "
        "Coordinator counts what native vLLM counts for whole answers",
        source="vllm/parser/engine/streaming_parser_engine.py: token_count of what has text",
        since=(0, 28),
        before=(0, 34),
        holds=_counts_more,
    ),
    Accepted(
        name="system_fingerprint",
        fields=frozenset({"system_fingerprint"}),
        requests="all that are not answered by the engine's own OpenAI API",
        reason="it describes the engine's build and settings; neither the token-only answer nor the derender endpoint "
        "carries it, so the Coordinator has none to pass on",
        source="vllm/entrypoints/openai/chat_completion/serving.py and completion/serving.py set it, nothing under "
        "vllm/entrypoints/scale_out does",
        since=(0, 28),
        before=(0, 34),
        holds=_not_told,
    ),
    Accepted(
        name="which token ended it",
        fields=frozenset({"stop_reason"}),
        requests="streamed completions that end at another token than the model's first end",
        reason="engines before 0.32 do not say which token or string has ended an answer",
        source="vllm/entrypoints/scale_out/token_in_token_out/protocol.py of 0.28: no stop_reason",
        since=(0, 28),
        before=(0, 32),
        holds=_not_told,
    ),
    Accepted(
        name="refused before the stream",
        fields=frozenset({"status", "kinds"}),
        requests="streams that are refused by the engine",
        reason="native vLLM has sent status 200 when the engine refuses, and reports it as an event; the Coordinator "
        "looks at the engine's answer first and says the same error by its status",
        source="vllm/entrypoints/generate/base/serving.py: create_streaming_error_response",
        since=(0, 28),
        before=(0, 34),
        holds=_status_instead_of_event,
    ),
    Accepted(
        name="an empty prompt in Render's words",
        fields=frozenset({"error"}),
        requests="lists of prompts that hold an empty one",
        reason="Render refuses it before any engine is asked, with the same status, type and param, and a message of "
        "its own",
        source="vllm/entrypoints/scale_out/render/serving.py against v1/engine/input_processor.py",
        since=(0, 28),
        before=(0, 34),
        holds=_renders_words,
    ),
)


def accepted_as(
    difference: Difference, native: Answer, chain: Answer, version: str, entries: tuple[Accepted, ...] = ACCEPTED
) -> Accepted | None:
    """The entry that covers this difference, if one does."""
    for entry in entries:
        if (
            difference.field.rpartition("].")[2] in entry.fields
            and entry.at(version)
            and entry.holds(difference, native, chain)
        ):
            return entry
    return None
