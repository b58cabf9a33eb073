"""What does a running request hold?

The machines' facts plus what is open. Everything that belongs to one attempt of one prompt is made new for it and never
reset, so that an old attempt's fault cannot reach a new one.

```
RequestRun ─ prompts ─┬ PromptRun 0 ─ streams ─ StreamRun (choice 0), StreamRun (choice 1) ...
                      │            └ attempt ─ leg, one inbox per choice
                      └ PromptRun 1 ...
```
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import trio

from machines.context import PromptFacts, RequestFacts, StreamFacts
from machines.faults import Fault
from machines.replay import RetryRequestPlan
from machines.tokens import SemanticIds, SemanticJson, Thought
from machines.topology import UNION, Topology
from motor_flow.bell import Bell
from motor_flow.derender.normalise import ChatNormaliser, Frame, TextNormaliser
from motor_flow.derender.reasoning import Shown, reasoning_tokens
from motor_flow.derender.session import ChunkDerenderer
from motor_flow.derender.stops import StopStrings
from motor_flow.effects.inbox import Inbox
from motor_flow.effects.ports import Responder, Services
from motor_flow.engine.ticket import Ticket
from motor_flow.errors import EngineError
from motor_flow.render.budget import OutputBudget
from motor_flow.render.capability import Capability
from motor_flow.render.envelope import Envelope
from motor_flow.render.tokenization import TokenizedRequest
from motor_flow.scheduling.admission import Grant
from motor_flow.scheduling.policy import Demand
from motor_flow.scheduling.registry import Instance, Wanted

NOTHING = SemanticJson(b"")
NO_IDS = SemanticIds([])


@dataclass(slots=True, eq=False)
class Identity:
    """The names of a request.

    Attributes:
        request_id: the client's x-request-id, or ours.
        response_id: `chatcmpl-...` or `cmpl-...`; one for the whole response.
        engine_base: unique in this process, also when clients repeat their ids; the stem of every leg id.
        created: Unix time, seconds; one for the whole response.
        client: who asks, for fairness: the name of the API key, never the key; empty: there are no keys.

    """

    request_id: str
    response_id: str
    engine_base: str
    created: int
    client: str = ""


@dataclass(slots=True, eq=False)
class StreamRun(StreamFacts):
    """One choice of a streamed request.

    Attributes:
        inbox: of the current attempt.
        stops: the prompt's stop strings, if it has any.
        prompt_ids: encoded prompt ids that go out with this stream's first choice object; empty: not asked for.
        shown: what Derender has made of it.

    """

    request: RequestRun
    inbox: Inbox = field(default_factory=Inbox)
    derenderer: ChunkDerenderer | None = None
    chat: ChatNormaliser | None = None
    text: TextNormaliser | None = None
    stops: StopStrings | None = None
    prompt_ids: bytes = b""
    shown: Shown = field(default_factory=Shown)

    def reasoning_tokens(self, more: SemanticIds = NO_IDS) -> int:
        """Of what is committed, and of these."""
        run = self.request
        assert run.thought is not None
        ids = array("I", [*self.ledger, *more]) if more else self.ledger
        return reasoning_tokens(self.prompt.ids, ids, run.thought, self.shown, hidden=run.hides_reasoning)

    @property
    def searched(self) -> bool:
        """Stop strings must be looked for here: the current engine has not seen all of the answer, or cannot look."""
        return self.stops is not None and (self.snapshot.tokens > 0 or self.inbox.blind)


@dataclass(slots=True, eq=False)
class Leg:
    """One request to one engine. The choices of a prompt share one engine stream.

    Attributes:
        prompt: the prompt's index.
        attempt: its attempt, counted from 1.
        request_id: the engine's id, without the prefix vLLM adds.
        plan: what is asked for; None on the native route.
        wanted: what it asks of the instance.
        inboxes: one per choice, when the answer is streamed through the chain.
        kv: what this engine is told about KV; None: nothing.
        ticket: the KV that this decode leg was given.
        whole: the engine's complete answer, when it is not streamed.
        completion_tokens: tokens the engine has sent; what is committed of them is in the streams' ledgers.
        cached_tokens: prompt tokens the engine had cached, if it says so.
        held: what is given back when it ends, or hands over.
        reason: why this instance, for people.
        blind: the engine does not look for stop strings.
        ends: the tokens that the client wants answers to end at; None: Derender is too old to judge others.
        error: what it failed with.

    """

    prompt: int
    attempt: int
    instance: Instance
    request_id: str
    plan: RetryRequestPlan | None
    inboxes: list[Inbox]
    wanted: Wanted
    kv: Mapping[str, Any] | None = None
    ticket: Ticket | None = None
    whole: SemanticJson = NOTHING
    completion_tokens: int = 0
    cached_tokens: int | None = None
    held: ExitStack = field(default_factory=ExitStack)
    reason: str = ""
    since: float = 0.0
    blind: bool = False
    ends: Collection[int] | None = None
    error: EngineError | None = None

    def is_finished(self) -> bool:
        """Nothing more is expected of any choice."""
        return all(inbox.finished for inbox in self.inboxes)

    def hand_over(self) -> None:
        """Its work is done although its attempt goes on: it does not weigh on its instance any more."""
        self.held.close()
        self.instance.breaker.succeeded()


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt of one prompt.

    Attributes:
        leg: the one that answers, or is to hand over to it; None when no engine is needed: only the finish was lost,
            and it is said without one.
        topology: how its legs follow each other.
        prefill: the leg that the answering one depends on.
        committed: tokens of the answer that were there when it began.
        held: what is given back when the attempt ends, however it ends.
        started: its task runs.
        error: what it broke with.

    """

    leg: Leg | None
    committed: int
    held: ExitStack
    topology: Topology = UNION
    prefill: Leg | None = None
    started: bool = False
    error: EngineError | None = None

    @property
    def legs(self) -> list[Leg]:
        return [leg for leg in (self.prefill, self.leg) if leg is not None]


@dataclass(slots=True, eq=False)
class PromptRun(PromptFacts):
    """One prompt of a request, or the whole request on the native route.

    Attributes:
        index: the prompt's.
        cached_tokens: prompt tokens that the first engine to say so had cached.
        demand: what its next attempt asks of an instance.

    """

    index: int = 0
    streams: list[StreamRun] = field(default_factory=list)
    attempt: Attempt | None = None
    cached_tokens: int | None = None
    demand: Demand = Demand()  # noqa: RUF009 - immutable

    @property
    def committed(self) -> int:
        return sum(len(stream.ledger) for stream in self.streams)

    @property
    def leg(self) -> Leg | None:
        return self.attempt.leg if self.attempt is not None else None


class Barrier:
    """When may HTTP 200 be sent?

    When every engine stream that the answer needs has 2xx headers and its first event, or one keep-alive interval after
    the last headers (from then on comments keep the connection alive).

    Args:
        prompts: how many, numbered from 0; each has one engine stream.

    """

    __slots__ = ("_firsts", "_heads", "all_firsts", "all_heads", "open", "watched")

    def __init__(self, prompts: int) -> None:
        self._heads = set(range(prompts))
        self._firsts = set(range(prompts))
        self.all_heads = trio.Event()
        self.all_firsts = trio.Event()
        self.open = trio.Event()
        self.watched = False

    @property
    def decided(self) -> bool:
        """Nothing can keep the 200 back any more."""
        return self.all_firsts.is_set() or self.open.is_set()

    def head(self, prompt: int) -> None:
        """The engine stream of this prompt has answered."""
        self._heads.discard(prompt)
        if not self._heads:
            self.all_heads.set()

    def first(self, prompt: int) -> None:
        """It has brought an event; may be said again."""
        self._firsts.discard(prompt)
        if not self._firsts:
            self.all_firsts.set()


@dataclass(slots=True, eq=False)
class Marks:
    """When something happened first (or last), in seconds of the trio clock; None: not yet."""

    arrived: float
    rendered: float | None = None
    admitted: float | None = None
    placed: float | None = None
    first_event: float | None = None
    first_chunk: float | None = None
    last_chunk: float | None = None

    def chunk(self, now: float) -> None:
        """A token-bearing chunk has become the client's."""
        if self.first_chunk is None:
            self.first_chunk = now
        self.last_chunk = now


@dataclass(slots=True, eq=False)
class RequestRun(RequestFacts):
    """One client request.

    Attributes:
        path: the engine's own OpenAI path, for the native route.
        headers: for engines: trace context and session id.
        capability: of the sidecars, as it was when the request came; later findings are for later requests.
        budget: of the output, when the context limits it.
        grant: the tokens of flow control, as long as engines may work for the request.
        native_reason: why the chain cannot answer the request.
        render_fault: why Render could not be used, which may be over for the next request.
        explain: the client wants to know why its instances were chosen.
        reports: rung when an attempt has ended.
        whole_reasoning: reasoning tokens of an answer that is not streamed, once they are counted.
        counted: ids of instances whose failure this request has reported to their breakers.
        held: what is given back when the request ends.

    """

    services: Services = field(kw_only=True)
    envelope: Envelope = field(kw_only=True)
    identity: Identity = field(kw_only=True)
    responder: Responder = field(kw_only=True)
    path: str = field(kw_only=True)
    headers: dict[str, str] = field(kw_only=True)
    frame: Frame = field(kw_only=True)
    marks: Marks = field(kw_only=True)
    capability: Capability = field(kw_only=True)
    prompts: list[PromptRun] = field(default_factory=list)
    tokens: TokenizedRequest | None = None
    native_reason: str = ""
    render_fault: Fault | None = None
    explain: bool = False
    budget: OutputBudget | None = None
    grant: Grant | None = None
    include_usage: bool = False
    continuous_usage: bool = False
    whole_reasoning: int | None = None
    barrier: Barrier | None = None
    reports: Bell = field(default_factory=Bell)
    counted: set[int] = field(default_factory=set)
    nursery: trio.Nursery | None = None
    held: ExitStack = field(default_factory=ExitStack)
    media_type: str = "application/json"
    status: int = 200

    @property
    def chat(self) -> bool:
        return self.envelope.api == "chat"

    @property
    def hides_reasoning(self) -> bool:
        """The client does not want to see it."""
        return self.envelope.declines("include_reasoning")

    @property
    def streams(self) -> list[StreamRun]:
        return [stream for prompt in self.prompts for stream in prompt.streams]

    @property
    def legs(self) -> list[Leg]:
        """Of the current attempts."""
        return [leg for prompt in self.prompts if (leg := prompt.leg) is not None]

    @property
    def topology(self) -> str:
        """Of the latest attempt."""
        attempts = (prompt.attempt for prompt in self.prompts if prompt.attempt is not None)
        return next((attempt.topology.name for attempt in attempts), UNION.name)

    @property
    def attempt(self) -> int:
        """The largest number of attempts that a prompt has had."""
        return max((prompt.attempts for prompt in self.prompts), default=0)

    @property
    def coalesce(self) -> bool:
        """Engine chunks may be merged: wanted, and without hiding a boundary from a parser."""
        return self.services.coalesce and (not self.chat or self.capability.marks_known)

    @property
    def prompt_tokens(self) -> int:
        return self.tokens.prompt_tokens if self.tokens is not None else 0

    @property
    def completion_tokens(self) -> int:
        if any(prompt.streams for prompt in self.prompts):
            return sum(prompt.committed for prompt in self.prompts)
        return sum(leg.completion_tokens for leg in self.legs)

    @property
    def thought(self) -> Thought | None:
        """The tokens around reasoning; None: reasoning is not counted for this request."""
        return self.capability.thought if self.chat and self.route == "token_only" else None

    @property
    def reasoning_tokens(self) -> int | None:
        """Of what is committed; None: not counted."""
        if self.thought is None:
            return None
        streams = self.streams
        return sum(stream.reasoning_tokens() for stream in streams) if streams else self.whole_reasoning

    @property
    def cached_tokens(self) -> int | None:
        """Over all prompts; None when no engine said."""
        known = [prompt.cached_tokens for prompt in self.prompts if prompt.cached_tokens is not None]
        return sum(known) if known else None

    def go_native(self) -> None:
        """From here on the request is one prompt that only the engine can read."""
        # Without super(): slotted dataclasses are made anew, and zero-argument super() would miss that.
        RequestFacts.go_native(self)
        if not self.responder.sealed:  # else the 200 has gone, and nothing keeps the next attempt back
            self.barrier = None
        self.prompts = [PromptRun(None, attempts=self.attempt)]
