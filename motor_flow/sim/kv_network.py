"""How do simulated engines in processes of their own hand KV over?

The fabric of each engine holds its own blocks; others reach them over HTTP, at the engine's address, which tickets and
callbacks carry as a connector's would.

    POST /sim/kv/pull   a decode engine takes a ticket's blocks
    POST /sim/kv/push   a prefill engine has written the blocks of a prompt
    GET  /sim/kv        tickets that nobody has used or given back, and what was done wrong
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import TransportFault
from motor_flow.sim.kv import CALLBACK_S, Call, Fabric

if TYPE_CHECKING:
    from motor_flow.sim.engine import Engine
    from motor_flow.sim.exchange import Exchange

ASK_TIMEOUT_S = 5.0


def callbacks_over(http: HttpClient) -> Call:
    """How a decode engine of Trigger calls back."""

    async def call(url: str, body: dict[str, Any]) -> None:
        with suppress(TransportFault):  # vllm-ascend takes whatever comes of it for delivered
            await http.call("POST", url, body=msgspec.json.encode(body), timeout_s=CALLBACK_S)

    return call


class NetworkFabric(Fabric):
    """The blocks of one engine process.

    Args:
        http: the network.
        host, port: where this engine listens.

    """

    def __init__(self, http: HttpClient, host: str, port: int) -> None:
        super().__init__()
        self._http = http
        self._host, self._port = host, port

    def serve(self, engine: Engine) -> None:
        """Let others reach it."""
        engine.route("POST", "/sim/kv/pull", self._pulled)
        engine.route("POST", "/sim/kv/push", self._pushed)
        engine.route("GET", "/sim/kv", self._state)

    def keep(self, engine: str, request_id: str, ids: Sequence[int]) -> dict[str, Any]:
        return super().keep(engine, request_id, ids) | self.address()

    def address(self) -> dict[str, Any]:
        return {"remote_host": self._host, "remote_port": self._port}

    async def pull(self, ticket: dict[str, Any], ids: Sequence[int]) -> bool:
        body = await self._ask(ticket, "pull", {"ticket": ticket, "ids": list(ids)})
        return bool(body and body.get("held"))

    async def push(self, kv: dict[str, Any]) -> None:
        await self._ask(kv, "push", {"request_id": kv["request_id"]})

    async def _ask(self, where: dict[str, Any], what: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """None: that engine is gone, and its blocks with it."""
        url = f"http://{where.get('remote_host')}:{where.get('remote_port')}/sim/kv/{what}"
        try:
            reply = await self._http.call("POST", url, body=msgspec.json.encode(body), timeout_s=ASK_TIMEOUT_S)
            return msgspec.json.decode(reply.body, type=dict[str, Any])
        except (TransportFault, ValueError) as gone:
            self.anomalies.append(f"{url}: {gone}")
            return None

    async def _pulled(self, call: Exchange) -> None:
        body = await call.json()
        await call.reply_json({"held": self.take(body["ticket"], body["ids"])})

    async def _pushed(self, call: Exchange) -> None:
        body = await call.json()
        self.arrived(body["request_id"])
        await call.reply_json({})

    async def _state(self, call: Exchange) -> None:
        await call.reply_json({"outstanding": self.outstanding, "anomalies": self.anomalies})
