"""How many tokens may an answer have, when the context has less room than the client asks for?

Without a context budget that is for Render and engines to say: some versions refuse such a request, others cut it. With
`context_budget_mode` on it is cut here, to what the context leaves:

```
client    max_tokens 500 ─┬─► Render    max_tokens 1      so that it never refuses prompt + max_tokens
                          └─► prompt 103 of 200 ──► min(500, 200 - 103) = 97
                              written into every item's sampling_params, and read there by all:
                              flow control, engines, relay
```

Nothing is raised and nothing is invented: a request that names no budget, or one that is no budget (0, true, "many"),
is not touched, and Render answers it in its own words. A prompt that leaves no room keeps what was asked, for the
engine to refuse. `min_tokens` goes along, because it must not be larger than `max_tokens`.

Source: RFC context budget; vLLM 0.33 renderers/params.py, sampling_params.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from machines.tokens import TokenizedPrompt
from motor_flow.errors import UNREADABLE
from motor_flow.render.envelope import NULL, Api, Envelope

KEYS: dict[Api, tuple[str, ...]] = {
    "chat": ("max_completion_tokens", "max_tokens"),
    "completions": ("max_tokens",),
    "other": ("max_output_tokens", "max_completion_tokens", "max_tokens"),
}
"""Where a request names its output budget; the first field that is not null counts."""

TRUNCATE_TO_CONTEXT = -1
"""`truncate_prompt_tokens`: some versions cut to what max_tokens leaves, so Render must see the real one."""

RENDER_TOKENS = 1

_strict = msgspec.json.Decoder(int).decode
_encode = msgspec.json.encode


def asked_output(envelope: Envelope) -> tuple[str, int] | None:
    """The field that names the client's output budget of one choice, and its value; None: it names none."""
    key = next((key for key in KEYS[envelope.api] if envelope.fields.get(key, NULL) != NULL), None)
    if key is None:
        return None
    tokens = _whole(envelope.fields[key])
    return None if tokens is None or tokens <= 0 else (key, tokens)


@dataclass(frozen=True, slots=True)
class OutputBudget:
    """What a client asks for, and what the context allows.

    Attributes:
        key: the request's field.
        asked: its value.
        least: the request's min_tokens.
        limit: tokens of the context, prompt and output.

    """

    key: str
    asked: int
    least: int
    limit: int

    @classmethod
    def of(cls, envelope: Envelope, limit: int | None) -> OutputBudget | None:
        """None: there is nothing to cut, or it is not ours to judge."""
        asked = asked_output(envelope)
        if asked is None or limit is None or envelope.api == "other":
            return None
        key, tokens = asked
        least = _whole(envelope.fields.get("min_tokens", Raw(b"0")))
        truncate = envelope.fields.get("truncate_prompt_tokens", NULL)
        if least is None or not 0 <= least <= tokens or _whole(truncate) == TRUNCATE_TO_CONTEXT:
            return None
        return cls(key, tokens, least, limit)

    def fit(self, prompt_tokens: int) -> int:
        """Tokens that each choice of a prompt may have."""
        room = self.limit - prompt_tokens
        return min(self.asked, room) if room > 0 else self.asked

    def cut(self, prompts: Sequence[TokenizedPrompt]) -> int | None:
        """What the choices of the longest prompt are left with; None: every prompt gets what was asked."""
        fitting = min(self.fit(len(prompt.ids)) for prompt in prompts)
        return fitting if fitting < self.asked else None

    def for_render(self, envelope: Envelope) -> bytes:
        """The request for Render."""
        fields: dict[str, object] = {**envelope.fields, self.key: RENDER_TOKENS}
        if self.least > RENDER_TOKENS:
            fields["min_tokens"] = RENDER_TOKENS
        return _encode(fields)

    def write(self, prompts: Sequence[TokenizedPrompt]) -> None:
        """Put the real budget where Render put the one it was told."""
        for prompt in prompts:
            prompt.sampling["max_tokens"] = fitting = self.fit(len(prompt.ids))
            if self.least > RENDER_TOKENS:
                prompt.sampling["min_tokens"] = min(self.least, fitting)

    def for_engine(self, prompts: Sequence[TokenizedPrompt]) -> dict[str, int]:
        """Fields of the client's own request that must change on the native route, where all prompts share one."""
        fitting = self.cut(prompts)
        if fitting is None:
            return {}
        return {self.key: fitting} | ({"min_tokens": fitting} if self.least > fitting else {})


def _whole(raw: Raw) -> int | None:
    """A JSON integer and nothing that merely could be read as one."""
    try:
        return _strict(raw)
    except UNREADABLE:
        return None
