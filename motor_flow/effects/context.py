"""What does a running request hold?

The machines' facts plus what is open: inboxes, legs, the client's channel. Everything that belongs to one attempt
is made new in `scheduled` and never reset, so that an old attempt's fault cannot reach a new one.

```
RequestRun ─ legs ─┬ Leg (prompt 0, one engine stream) ─ StreamRun (choice 0), StreamRun (choice 1) ...
                   └ Leg (prompt 1, one engine stream) ─ ...
```
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field

import trio

from machines.context import RequestFacts, StreamFacts, TokenizedPrompt
from motor_flow.derender.normalise import ChatNormaliser, Frame, TextNormaliser
from motor_flow.derender.session import ChunkDerenderer
from motor_flow.effects.inbox import Inbox
from motor_flow.effects.ports import Responder, Services
from motor_flow.render.capability import Capability
from motor_flow.render.envelope import Envelope
from motor_flow.render.tokenization import TokenizedRequest
from motor_flow.scheduling.registry import Instance


@dataclass(slots=True, eq=False)
class Identity:
    """The names of a request.

    Attributes:
        request_id: the client's x-request-id, or ours.
        response_id: `chatcmpl-...` or `cmpl-...`; one for the whole response.
        engine_base: unique in this process, also when clients repeat their ids; the stem of every leg id.
        created: Unix time, seconds; one for the whole response.

    """

    request_id: str
    response_id: str
    engine_base: str
    created: int


@dataclass(slots=True, eq=False)
class StreamRun(StreamFacts):
    """One choice of a streamed request.

    Attributes:
        prompt_ids: encoded prompt ids that go out with this stream's first choice object; empty: not asked for.

    """

    request: RequestRun
    inbox: Inbox = field(default_factory=Inbox)
    derenderer: ChunkDerenderer | None = None
    chat: ChatNormaliser | None = None
    text: TextNormaliser | None = None
    prompt_ids: bytes = b""


@dataclass(slots=True, eq=False)
class Leg:
    """One prompt on one engine, in one attempt. The choices of a prompt share one engine stream.

    Attributes:
        request_id: the engine's id, without the prefix vLLM adds.
        whole: the engine's complete answer, when the request is not streamed.
        completion_tokens: tokens the engine has sent; what is committed of them is in the streams' ledgers.
        cached_tokens: prompt tokens the engine had cached, if it says so.

    """

    index: int
    instance: Instance
    request_id: str
    prompt: TokenizedPrompt | None
    streams: list[StreamRun]
    whole: bytes = b""
    completion_tokens: int = 0
    cached_tokens: int | None = None


class Barrier:
    """When may HTTP 200 be sent?

    When every engine stream that the answer needs has 2xx headers and its first event, or one keep-alive interval after
    the last headers (from then on comments keep the connection alive).

    Args:
        legs: engine streams, numbered from 0.

    """

    __slots__ = ("_firsts", "_heads", "all_firsts", "all_heads", "open")

    def __init__(self, legs: int) -> None:
        self._heads = legs
        self._firsts = set(range(legs))
        self.all_heads = trio.Event()
        self.all_firsts = trio.Event()
        self.open = trio.Event()

    @property
    def decided(self) -> bool:
        """Nothing can keep the 200 back any more."""
        return self.all_firsts.is_set() or self.open.is_set()

    def head(self) -> None:
        self._heads -= 1
        if self._heads == 0:
            self.all_heads.set()

    def first(self, leg: int) -> None:
        """This leg has brought an event; may be said again."""
        self._firsts.discard(leg)
        if not self._firsts:
            self.all_firsts.set()


@dataclass(slots=True, eq=False)
class Marks:
    """When something happened first (or last), in seconds of the trio clock; None: not yet."""

    arrived: float
    rendered: float | None = None
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
        engine_asked: an engine was asked; from here on a failure must not be retried by the client.
        headers: for engines: trace context and session id.
        capability: of the sidecars, as it was when the request came; later findings are for later requests.

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
    tokens: TokenizedRequest | None = None
    native_reason: str = ""
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    streams: list[StreamRun] = field(default_factory=list)
    legs: list[Leg] = field(default_factory=list)
    barrier: Barrier | None = None
    engine_asked: bool = False
    held: ExitStack = field(default_factory=ExitStack)
    media_type: str = "application/json"
    status: int = 200

    @property
    def chat(self) -> bool:
        return self.envelope.api == "chat"

    @property
    def coalesce(self) -> bool:
        """Engine chunks may be merged: wanted, and without hiding a boundary from a parser."""
        return self.services.coalesce and (not self.chat or self.capability.marks_known)

    @property
    def prompt_tokens(self) -> int:
        return self.tokens.prompt_tokens if self.tokens is not None else 0

    @property
    def completion_tokens(self) -> int:
        if self.streams:
            return sum(len(stream.ledger) for stream in self.streams)
        return sum(leg.completion_tokens for leg in self.legs)

    def prompt_of(self, stream: StreamRun) -> int:
        """The index of a stream's prompt."""
        return stream.index // stream.prompt.n

    @property
    def cached_tokens(self) -> int | None:
        """Over all prompts; None when no engine said."""
        known = [leg.cached_tokens for leg in self.legs if leg.cached_tokens is not None]
        return sum(known) if known else None
