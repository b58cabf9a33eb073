"""Does the KV conductor know the instances that we schedule?

It learns from engines that somebody has registered with it. We do, for every instance that reads prompts, and we look
again and again: the conductor may have been started anew, instances come and go.

    POST /register   {endpoint, type, modelname, block_size, instance_id, dp_rank}
    POST /unregister {type, modelname, block_size, instance_id, dp_rank}
    GET  /services   whatever it shows: an instance is known when its id is in it

Nothing is unregistered at our end: others may use the same conductor for the same engines.

Source: MindIE Motor's conductor client; vLLM 0.33 config/kv_events.py (the publisher's port, plus the rank).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
import trio

from motor_flow.config.sections import Role
from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import TransportFault
from motor_flow.scheduling.conductor import PREFIX
from motor_flow.scheduling.registry import Instance
from motor_flow.telemetry.log import get_logger

REGISTER_TIMEOUT_S = 2.0
REGISTER_INTERVAL_S = 5.0
KV_EVENTS_PORT = 5557
READERS: tuple[Role, ...] = ("prefill", "union")
_log = get_logger()


@dataclass(frozen=True, slots=True)
class Publisher:
    """One engine's stream of cache events, as it is registered."""

    instance_id: str
    dp_rank: int
    endpoint: str
    modelname: str

    @classmethod
    def of(cls, instance: Instance, model: str) -> Publisher:
        """Of an instance that serves this model."""
        host = f"[{instance.origin.host}]" if ":" in instance.origin.host else instance.origin.host
        return cls(
            instance_id=f"{PREFIX}{instance.role}-{instance.group}",
            dp_rank=instance.dp_rank,
            endpoint=f"tcp://{host}:{KV_EVENTS_PORT + instance.dp_rank}",
            modelname=model,
        )


class Registrar:
    """Keeps the conductor informed.

    Args:
        http: connections.
        url: base URL of the conductor.
        block_size: tokens of a cached block.

    """

    def __init__(self, http: HttpClient, url: str, block_size: int) -> None:
        self._http = http
        self._url = url
        self._block_size = block_size
        self._registered: set[Publisher] = set()
        self._complaint = ""

    async def keep(self, instances: Iterable[Instance], model: Callable[[], str]) -> NoReturn:
        """Compare and repair, for ever.

        Args:
            instances: all there are, each time it is iterated.
            model: name of the served model.

        """
        while True:
            name = model()
            if name:
                await self.compare({Publisher.of(each, name) for each in instances if each.role in READERS})
            await trio.sleep(REGISTER_INTERVAL_S)

    async def compare(self, wanted: set[Publisher]) -> None:
        """Tell the conductor what it does not know yet, and what is no more."""
        complaint = ""
        try:
            known = await self._call("GET", "/services")
            if known is not None:
                self._registered = {each for each in self._registered if f'"{each.instance_id}"'.encode() in known}
            for gone in self._registered - wanted:
                if await self._call("POST", "/unregister", self._describe(gone)) is not None:
                    self._registered.discard(gone)
            for new in sorted(wanted - self._registered, key=lambda each: (each.instance_id, each.dp_rank)):
                body = {"endpoint": new.endpoint, **self._describe(new)}
                if await self._call("POST", "/register", body) is None:
                    complaint = f"{new.instance_id} was not accepted"
                else:
                    self._registered.add(new)
                    _log.info("conductor.registered", instance=new.instance_id, endpoint=new.endpoint)
        except TransportFault as fault:
            complaint = str(fault)
        if complaint and complaint != self._complaint:
            _log.warning("conductor.not_registered", url=self._url, detail=complaint)
        self._complaint = complaint

    def _describe(self, publisher: Publisher) -> dict[str, Any]:
        return {
            "type": "vLLM",
            "modelname": publisher.modelname,
            "block_size": self._block_size,
            "instance_id": publisher.instance_id,
            "dp_rank": publisher.dp_rank,
        }

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes | None:
        raw = None if body is None else msgspec.json.encode(body)
        reply = await self._http.call(method, self._url + path, body=raw, timeout_s=REGISTER_TIMEOUT_S)
        return reply.body if reply.status == 200 else None
