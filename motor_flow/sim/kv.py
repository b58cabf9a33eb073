"""How does KV pass from a prefill engine to a decode engine?

A fabric that all simulated engines share, with what makes a mistake visible: a ticket that is used twice, late or
never is noted, and a decode without its KV sees other tokens, as stale blocks would make it.

Source: vLLM 0.33 NixlConnector, vllm-ascend mooncake_connector and mooncake_layerwise_connector (fields and behaviour).
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

HELD_S = 480.0
CALLBACK_S = 600.0
Call = Callable[[str, dict[str, Any]], Awaitable[None]]
STALE = 1  # a token that nobody has sent


@dataclass(slots=True)
class Held:
    """Blocks of one prompt on a prefill engine."""

    engine: str
    request_id: str
    ids: tuple[int, ...]
    until: float


class Fabric:
    """The tickets of all engines.

    Args:
        held_s: how long blocks are kept for who does not come.

    Attributes:
        anomalies: tickets that were used wrongly, or never.

    """

    def __init__(self, held_s: float = HELD_S) -> None:
        self._held_s = held_s
        self._held: dict[str, Held] = {}
        self._pushes: dict[str, trio.Event] = {}
        self._numbers = itertools.count(1)
        self.anomalies: list[str] = []

    @property
    def outstanding(self) -> int:
        """Tickets that nobody has used or given back."""
        return len(self._held)

    def keep(self, engine: str, request_id: str, ids: Sequence[int]) -> dict[str, Any]:
        """A prefill engine keeps blocks; returns its ticket."""
        number = next(self._numbers)
        self._held[request_id] = Held(engine, request_id, tuple(ids), trio.current_time() + self._held_s)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[number, number + 1]],
            "remote_engine_id": engine,
            "remote_request_id": request_id,
            "remote_host": "10.0.0.1",
            "remote_port": 20000 + number,
        }

    async def pull(self, ticket: dict[str, Any], ids: Sequence[int]) -> bool:
        """A decode engine takes the blocks; false: what it gets is not this prompt's."""
        await trio.lowlevel.checkpoint()
        return self.take(ticket, ids)

    def take(self, ticket: dict[str, Any], ids: Sequence[int]) -> bool:
        """The blocks are used; false: not for this prompt."""
        request_id = str(ticket.get("remote_request_id"))
        held = self._held.pop(request_id, None)
        if held is None:
            self.anomalies.append(f"{request_id}: a ticket that is not held was used")
            return False
        if trio.current_time() > held.until:
            self.anomalies.append(f"{request_id}: a ticket was used after its time")
            return False
        if held.ids != tuple(ids):
            self.anomalies.append(f"{request_id}: a ticket was used for another prompt")
            return False
        return True

    async def pushed(self, request_id: str) -> None:
        """A decode engine of Trigger waits until its prefill engine has pushed; for ever, if nobody does."""
        await self._pushes.setdefault(request_id, trio.Event()).wait()
        self._pushes.pop(request_id, None)

    async def push(self, kv: dict[str, Any]) -> None:
        """A prefill engine of Trigger writes its blocks into the memory of the decode engine that has called."""
        await trio.lowlevel.checkpoint()
        self.arrived(kv["request_id"])

    def arrived(self, request_id: str) -> None:
        """A prompt's blocks have been written."""
        self._pushes.setdefault(request_id, trio.Event()).set()

    def address(self) -> dict[str, Any]:
        """Where a decode engine's memory is, for callbacks."""
        return {"remote_host": "10.0.0.2", "remote_port": 30000}

    def abort(self, request_ids: Sequence[str]) -> None:
        """A prefill engine drops blocks."""
        for request_id in request_ids:
            self._held.pop(request_id, None)


class Transfers:
    """The KV connector of one engine.

    Args:
        engine: its name.
        fabric: the others.
        call: posts a callback; returns when it was answered.

    """

    def __init__(self, engine: str, fabric: Fabric, call: Call) -> None:
        self._engine = engine
        self._fabric = fabric
        self._call = call

    async def fetch(self, kv: dict[str, Any], request_id: str, ids: list[int]) -> list[int]:
        """Get a prompt's KV before decoding; returns the tokens that the model then sees."""
        if url := kv.get("metaserver"):
            await self._call(
                url,
                {
                    "token_ids": [],
                    "request_id": request_id,
                    "do_remote_prefill": False,
                    "do_remote_decode": True,
                    "remote_block_ids": [[7, 8]],
                    "remote_engine_id": self._engine,
                    **self._fabric.address(),
                },
            )
            await self._fabric.pushed(request_id)
            return ids
        if kv.get("do_remote_prefill"):
            return ids if await self._fabric.pull(kv, ids) else [*ids, STALE]
        return ids

    async def offer(
        self, kv: dict[str, Any], request_id: str, ids: list[int], finish: str | None
    ) -> dict[str, Any] | None:
        """What a prefill engine says at the end: a ticket, if the answer was cut short by its length."""
        if not kv.get("do_remote_decode") or finish != "length":
            return None
        if "request_id" in kv:
            await self._fabric.push(kv)
            return None
        return self._fabric.keep(self._engine, request_id, ids)

    def abort(self, request_ids: Sequence[str]) -> None:
        self._fabric.abort(request_ids)
