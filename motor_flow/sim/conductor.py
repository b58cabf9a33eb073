"""A KV conductor: who has the beginning of this prompt?

    POST /register  /unregister      GET /services  /workers  /health
    POST /query     {model, block_size, token_ids} ──▶ {"default": {instance: {"longest_matched", "DP"}}}
    POST /events    {instance_id, token_ids}: this prompt's blocks are cached there now

The real one hears from engines over ZeroMQ. This one looks into the caches of the simulated engines it is given, and
takes what is posted to `/events` for all others. Whole blocks match, nothing else does. Who is not registered does not
exist, and a model that nobody has registered is unknown.

Source: MindIE Motor's kv-conductor (its HTTP interface).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from motor_flow.sim.exchange import App
from motor_flow.sim.prefix_cache import PrefixCache
from motor_flow.sim.recent import Recent
from motor_flow.sim.refusal import Refusal
from motor_flow.sim.seen import CALLS_MAX, Seen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from motor_flow.sim.exchange import Exchange

BLOCKS_MAX = 1 << 16
Key = tuple[str, int]


class _Service(msgspec.Struct, kw_only=True):
    endpoint: str = ""
    type: str
    modelname: str
    block_size: int
    instance_id: str
    dp_rank: int = 0


class _Query(msgspec.Struct):
    model: str
    block_size: int
    token_ids: list[int]


class _Event(msgspec.Struct):
    instance_id: str
    token_ids: list[int]
    dp_rank: int = 0
    block_size: int = 128


class Conductor(App):
    """An ASGI app.

    Args:
        caches: of the simulated engines, by the ids under which they will be registered.
        objects: answer in the shape of the conductor in Rust, not in Mooncake's.

    """

    def __init__(self, caches: Mapping[str, PrefixCache] | None = None, *, objects: bool = False) -> None:
        super().__init__(api_key=None)
        self.objects = objects
        self.seen: Recent[Seen] = Recent(CALLS_MAX)
        self.services: dict[Key, _Service] = {}
        self._caches: dict[Key, PrefixCache] = {(name, 0): cache for name, cache in (caches or {}).items()}
        self.route("POST", "/register", self.register)
        self.route("POST", "/unregister", self.unregister)
        self.route("POST", "/query", self.query)
        self.route("POST", "/events", self.events)
        for path in ("/services", "/workers"):
            self.route("GET", path, self.show)
        self.route("GET", "/health", self.health)

    async def register(self, call: Exchange) -> None:
        service = await self._read(call, _Service)
        self.services[service.instance_id, service.dp_rank] = service
        await call.reply_json({"status": "ok"})

    async def unregister(self, call: Exchange) -> None:
        service = await self._read(call, _Service)
        self.services.pop((service.instance_id, service.dp_rank), None)
        await call.reply_json({"status": "ok"})

    async def show(self, call: Exchange) -> None:
        await call.reply_json({"services": list(self.services.values())})

    async def health(self, call: Exchange) -> None:
        await call.reply_json({"status": "ok"})

    async def events(self, call: Exchange) -> None:
        event = await self._read(call, _Event)
        cache = self._caches.setdefault(
            (event.instance_id, event.dp_rank), PrefixCache(BLOCKS_MAX, block_tokens=event.block_size)
        )
        cache.take(event.token_ids)
        await call.reply_json({"status": "ok"})

    async def query(self, call: Exchange) -> None:
        query = await self._read(call, _Query)
        serving = [key for key, service in self.services.items() if service.modelname == query.model]
        if not serving:
            raise Refusal(f"model {query.model} is not registered", kind="NotFoundError", status=404)
        found: dict[str, Any] = {}
        for instance_id, rank in serving:
            cache = self._caches.get((instance_id, rank))
            if cache is None or cache.block_tokens != query.block_size or not (n := cache.matched(query.token_ids)):
                continue
            ranks = found.setdefault(instance_id, {"longest_matched": 0, "DP": {}})
            ranks["longest_matched"] = max(ranks["longest_matched"], n)
            ranks["DP"][str(rank)] = {"matched_tokens": n} if self.objects else n
        await call.reply_json({"default": found})

    async def _read(self, call: Exchange, kind: type[Any]) -> Any:
        body = await call.json()
        record = Seen(call.path, body, call.headers, "conductor")
        self.seen.add(record)
        self.meet(call, record)
        try:
            return msgspec.convert(body, kind)
        except msgspec.ValidationError as error:
            raise Refusal(str(error)) from None
