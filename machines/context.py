"""What do the machines know about a request and its streams?

Slotted plain data. The runtime contexts in `motor_flow/effects` extend these by what they hold open; guards and edge
actions see only what is declared here.

```
RequestFacts ─ prompts ─┬ PromptFacts 0 ─ streams ─ StreamFacts 0 (choice 0), 1 (choice 1), ...
                        └ PromptFacts 1 ─ streams ─ StreamFacts n, n+1, ...
```

Source: RFC 请求生命周期 (StreamingRenderSession).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NewType

SemanticIds = NewType("SemanticIds", list[int])
"""Token ids as Render and Derender know them."""

Route = Literal["token_only", "native"]
"""How an attempt talks to its engines: token ids, or the client's OpenAI request."""


@dataclass(slots=True, eq=False)
class TokenizedPrompt:
    """One prompt of a request, as Render returned it (one vLLM GenerateRequest).

    Attributes:
        ids: prompt token ids, at least one, each >= 0.
        sampling: sampling_params as rendered, with vLLM's defaults restored.
        rest: every other field of the GenerateRequest, untouched.
        n: choices this prompt asks for, >= 1.

    """

    ids: SemanticIds
    sampling: dict[str, Any]
    rest: dict[str, Any]
    n: int = 1


@dataclass(slots=True, eq=False)
class PendingChunk:
    """A derendered batch that is not committed yet.

    Attributes:
        ids: the engine tokens it was made from; may be empty.
        state: next stream_state, opaque JSON.
        sse: bytes for the client; may be empty (a token that made no text).
        finish: the finish reason the client sees, on the last chunk.

    """

    ids: list[int]
    state: bytes
    sse: bytes
    finish: str | None


def no_outlet(_: bytes) -> None:
    """The outlet of a stream nobody listens to (pure tests)."""


@dataclass(slots=True, eq=False)
class StreamFacts:
    """One choice of one prompt.

    Attributes:
        index: the client's choice index, prompt_index * n + choice.
        choice: the engine's choice index within the prompt.
        ledger: committed token ids (semantic), 4 bytes each.
        state: committed stream_state, opaque JSON; None before the first commit.
        emit: puts bytes into the client's bounded channel; room was reserved before.
        spoken: a committed chunk of this stream had bytes for the client.

    """

    request: RequestFacts
    prompt: TokenizedPrompt
    index: int
    choice: int
    emit: Callable[[bytes], None] = no_outlet
    ledger: array[int] = field(default_factory=lambda: array("I"))
    state: bytes | None = None
    finish: str | None = None
    spoken: bool = False
    pending: PendingChunk | None = None

    def commit(self) -> None:
        """Move state, ledger and the client's bytes: all of them, or none."""
        pending = self.pending
        if pending is None:
            raise RuntimeError("commit without a derendered chunk")
        self.pending = None
        self.ledger.extend(pending.ids)
        self.state = pending.state
        self.finish = pending.finish
        self.emit(pending.sse)
        if pending.sse:
            self.spoken = True
            self.request.visible = True


@dataclass(slots=True, eq=False)
class RequestFacts:
    """One client request.

    Attributes:
        emit: puts bytes into the client's bounded channel.
        visible: a token-bearing delta is in the client's channel.
        route: of the current attempt.
        attempt: counted from 1.
        answer: the whole answer, before (`pending_answer`) and after its commit.

    """

    emit: Callable[[bytes], None] = no_outlet
    visible: bool = False
    route: Route = "token_only"
    attempt: int = 0
    pending_answer: bytes | None = None
    answer: bytes | None = None

    def commit(self) -> None:
        """The derendered whole answer becomes the client's."""
        if self.pending_answer is None:
            raise RuntimeError("commit without a derendered answer")
        self.accept()

    def accept(self) -> None:
        """The engine's own whole answer becomes the client's; a streamed one was shown chunk by chunk already."""
        if self.pending_answer is not None:
            self.answer, self.pending_answer = self.pending_answer, None
            self.visible = True

    def show(self, chunk: bytes, *, visible: bool) -> None:
        """A chunk of the engine's own stream becomes the client's; room was reserved before.

        Args:
            chunk: bytes for the client.
            visible: it bears tokens, so that the answer cannot be started again.

        """
        self.emit(chunk)
        self.visible |= visible
