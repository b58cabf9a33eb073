"""What do the effects need from the outside?

`Responder` is the client's side of one request; `Services` is the process they run in. The composition root makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from motor_flow.derender.client import DerenderClient
from motor_flow.derender.normalise import ReasoningField
from motor_flow.effects.errands import Errands
from motor_flow.effects.tokenizers import Tokenizers
from motor_flow.engine.client import EngineClient
from motor_flow.engine.events import Patience
from motor_flow.obfuscation.codec import TokenCodec
from motor_flow.render.capability import Capability
from motor_flow.render.client import RenderClient
from motor_flow.render.local import LocalTokenizer
from motor_flow.scheduling.admission import FlowControl
from motor_flow.scheduling.callbacks import Callbacks
from motor_flow.scheduling.conductor import Conductor
from motor_flow.scheduling.leases import LeaseLedger
from motor_flow.scheduling.scheduler import Scheduler
from motor_flow.telemetry.metrics import Metrics


class Responder(Protocol):
    """The response to one request. Only it writes to the client."""

    @property
    def sealed(self) -> bool:
        """HTTP 200 and the stream's head are on their way; failures are events from here on."""

    def seal(self, first: bytes, media_type: str) -> None:
        """Commit to a streamed 200 that starts with these bytes."""

    async def reserve(self) -> None:
        """Wait for room for one chunk in the client's bounded channel."""

    def put(self, chunk: bytes) -> None:
        """Put a chunk into reserved room; an empty one gives the room back."""

    def unreserve(self) -> None:
        """Give reserved room back."""

    async def finish(self, tail: bytes) -> None:
        """End a sealed stream with these bytes, and wait until everything has left. The first end counts."""

    def warn(self, text: str) -> None:
        """Tell the client something beside the answer, in a header: before the head is sent."""

    def explain(self, text: str) -> None:
        """Tell the client why its engines were chosen, in a header; the last word before the head is sent counts."""

    def show_tokens(self, limit: int, remaining: int) -> None:
        """Tell the client how many tokens the server admits, and how many of them are free, in headers."""

    async def answer(self, status: int, body: bytes, media_type: str) -> None:
        """Send a whole good answer, and wait until it has left."""


@dataclass(slots=True, eq=False)
class Services:
    """The process that requests run in.

    Attributes:
        capability: of the sidecars, as found so far.
        attempts_max: per prompt, the first included.
        retry_delay_s: before a failed instance is asked again (exception_config.retry_delay).
        per_prompt_relay: stream_config.per_prompt_relay.
        conductor: who knows what instances have cached; None: the policy does not go by it.
        flow: admission in tokens; None: every request is granted at once.
        unasked_output_tokens: what a choice that names no budget counts (flow_control_config.unasked_output_tokens).
        context_budget: cut output budgets to what the context leaves (context_budget_mode).
        context_tokens: prompt and output of one request, as far as anybody has said; None: nobody has.
        obfuscated: engines must not see semantic ids (token_obfuscation_config.enable).
        codec: how token ids cross the border to engines.
        choices_max: prompts x n of one request (stream_config.choices_max).
        wall: Unix time in seconds; only for `created`.

    """

    capability: Capability
    render: RenderClient
    derender: DerenderClient
    engines: EngineClient
    tokenizers: Tokenizers
    scheduler: Scheduler
    callbacks: Callbacks
    local: LocalTokenizer
    leases: LeaseLedger
    conductor: Conductor | None
    errands: Errands
    flow: FlowControl | None
    unasked_output_tokens: int
    context_budget: bool
    context_tokens: Callable[[], int | None]
    metrics: Metrics
    patience: Patience
    coalesce: bool
    choices_max: int
    attempts_max: int
    retry_delay_s: float
    per_prompt_relay: bool
    obfuscated: bool
    codec: TokenCodec
    reasoning_field: ReasoningField
    keep_alive_s: float
    infer_timeout_s: float
    wall: Callable[[], float]
    shown_model: Callable[[str], str]
