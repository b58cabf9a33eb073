"""What do the machines know about a request, its prompts and its streams?

Slotted plain data, and the edge actions that move it. The runtime contexts in `motor_flow/effects` extend these by what
they hold open; guards and edge actions see only what is declared here.

```
RequestFacts ─ prompts ─┬ PromptFacts 0 ─ streams ─ StreamFacts 0 (choice 0), 1 (choice 1), ...
                        └ PromptFacts 1 ─ streams ─ StreamFacts n, n+1, ...
```

An attempt belongs to a prompt: a list of prompts is several of them, a single prompt is a list of one.

    waiting --begin--> running --reported--> done
       ^                  └--reported--> broken
       └──── renew (relay), rollback ───────┘

Source: RFC 请求生命周期 (StreamingRenderSession), 流式 replay 与重调度.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from machines.faults import TREATMENTS, Fault
from machines.replay import obstacle, remaining_tokens
from machines.tokens import SemanticIds, TokenizedPrompt

__all__ = [
    "PendingChunk",
    "PromptFacts",
    "RequestFacts",
    "Route",
    "SemanticIds",
    "StreamFacts",
    "TokenizedPrompt",
]

Route = Literal["token_only", "native"]
"""How an attempt talks to its engines: token ids, or the client's OpenAI request."""

Progress = Literal["waiting", "running", "broken", "done"]


@dataclass(slots=True, eq=False)
class PendingChunk:
    """A derendered batch that is not committed yet.

    Attributes:
        ids: the engine tokens it was made from; may be empty.
        state: next stream_state, opaque JSON.
        sse: bytes for the client; may be empty (a token that made no text).
        finish: the finish reason the client sees, on the last chunk.

    """

    ids: SemanticIds
    state: bytes
    sse: bytes
    finish: str | None


class Snapshot(NamedTuple):
    """What an attempt found: where a rollback returns to."""

    tokens: int
    state: bytes | None
    finish: str | None
    spoken: bool


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
        snapshot: taken when the attempt began.

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
    snapshot: Snapshot = Snapshot(0, None, None, spoken=False)  # noqa: RUF009 - immutable

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

    def remember(self) -> None:
        """An attempt begins."""
        self.snapshot = Snapshot(len(self.ledger), self.state, self.finish, spoken=self.spoken)

    def restore(self) -> None:
        """Forget what the attempt has committed; none of it was visible."""
        tokens, self.state, self.finish, self.spoken = self.snapshot
        del self.ledger[tokens:]
        self.pending = None

    @property
    def spent(self) -> bool:
        """Every token of the budget is committed: only the finish can be missing."""
        return remaining_tokens(self.prompt.sampling, len(self.ledger)) == 0


@dataclass(slots=True, eq=False)
class PromptFacts:
    """One prompt of a request; on the native route the whole request is one.

    Attributes:
        prompt: in tokens; None on the native route.
        streams: one per choice; empty when the answer is not streamed through the chain.
        attempts: begun so far.
        fault: of the attempt that broke.
        instance: id of the instance of the current attempt; None: it needs none, or has none yet.
        tried: ids of instances that have had an attempt.
        avoid: ids of instances that this prompt's later attempts avoid.
        shaken: ids of instances that broke its connection once.

    """

    prompt: TokenizedPrompt | None
    streams: Sequence[StreamFacts] = ()
    progress: Progress = "waiting"
    attempts: int = 0
    fault: Fault | None = None
    instance: int | None = None
    tried: set[int] = field(default_factory=set)
    avoid: set[int] = field(default_factory=set)
    shaken: set[int] = field(default_factory=set)

    @property
    def spent(self) -> bool:
        """No token may follow in any choice: what is missing can be said without an engine."""
        return bool(self.streams) and all(stream.finish is not None or stream.spent for stream in self.streams)

    @property
    def may_continue(self) -> bool:
        """A new attempt can go on where the visible answer is."""
        return self.spent or (bool(self.streams) and self.prompt is not None and obstacle(self.prompt) is None)

    def begin(self) -> None:
        """A new attempt runs from here."""
        self.progress = "running"
        self.attempts += 1
        if self.instance is not None:
            self.tried.add(self.instance)
        for stream in self.streams:
            stream.remember()

    def blame(self) -> None:
        """The instance of the broken attempt is judged by its fault."""
        if self.fault is None or self.instance is None:
            return
        if TREATMENTS[self.fault].excludes or self.instance in self.shaken:
            self.avoid.add(self.instance)
        self.shaken.add(self.instance)

    def renew(self) -> None:
        """What is broken waits for another attempt; what was committed stays."""
        self.progress, self.fault, self.instance = "waiting", None, None

    def restore(self) -> None:
        """The same, from where the attempt began."""
        self.renew()
        for stream in self.streams:
            stream.restore()


@dataclass(slots=True, eq=False)
class RequestFacts:
    """One client request.

    Attributes:
        emit: puts bytes into the client's bounded channel.
        visible: a token-bearing delta is in the client's channel.
        route: of the current attempts.
        obfuscated: engines must not see semantic ids, so the native route is closed.
        native_offered: an engine that is there may answer in OpenAI form.
        stream: the client wants events.
        attempts_max: per prompt (exception_config.max_retry); 1 when rescheduling is off.
        per_prompt_relay: stream_config.per_prompt_relay.
        engine_asked: an attempt has begun: from here on the client must not retry.
        answer: the whole answer, before (`pending_answer`) and after its commit.

    """

    emit: Callable[[bytes], None] = no_outlet
    visible: bool = False
    route: Route = "token_only"
    obfuscated: bool = False
    native_offered: bool = True
    stream: bool = False
    attempts_max: int = 1
    per_prompt_relay: bool = True
    prompts: Sequence[PromptFacts] = ()
    engine_asked: bool = False
    pending_answer: bytes | None = None
    answer: bytes | None = None

    # --- guards read ---

    @property
    def broken(self) -> Iterator[PromptFacts]:
        return (prompt for prompt in self.prompts if prompt.progress == "broken")

    @property
    def may_retry(self) -> bool:
        """All of it may be asked again, from the start."""
        return all(prompt.attempts < self.attempts_max for prompt in self.prompts) and all(map(_curable, self.broken))

    @property
    def may_relay(self) -> bool:
        """Each broken prompt may go on elsewhere, for itself."""
        if len(self.prompts) > 1 and not self.per_prompt_relay:
            return False
        return any(self.broken) and all(
            prompt.spent or (prompt.attempts < self.attempts_max and _curable(prompt) and prompt.may_continue)
            for prompt in self.broken
        )

    # --- actions move ---

    def begin(self) -> None:
        """Every prompt that waits has its place: its attempt runs."""
        self.engine_asked = True
        for prompt in self.prompts:
            if prompt.progress == "waiting":
                prompt.begin()

    def blame(self) -> None:
        """What has broken is held against its instances."""
        for prompt in self.broken:
            prompt.blame()

    def renew(self) -> None:
        """What has broken waits for its next attempt."""
        for prompt in self.broken:
            prompt.renew()

    def rollback(self) -> None:
        """Everything waits, as if nothing had been asked."""
        for prompt in self.prompts:
            prompt.restore()

    def go_native(self) -> None:
        """From here on engines get the client's own request."""
        self.route = "native"

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


def _curable(prompt: PromptFacts) -> bool:
    return prompt.fault is None or TREATMENTS[prompt.fault].retried
