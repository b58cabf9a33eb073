"""Which instances have read the beginning of this prompt before?

The KV conductor hears from the engines which blocks they have cached. It is asked while a request waits for its place,
so it gets very little time, and none while it is known to be away: then the scheduler does without. One request at a
time finds out whether it is back.

    POST /query {model, block_size, token_ids}
    {"default": {"vllm-union-1": {"longest_matched": n, "DP": {"0": n or {"matched_tokens": n}}}}}

Source: MindIE Motor's conductor client; the integers are Mooncake's conductor, the objects the one in Rust.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import trio
from msgspec import Raw

from machines.tokens import PhysicalIds
from motor_flow.errors import UNREADABLE
from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import PeerClosed, Reply, TransportFault
from motor_flow.telemetry.log import get_logger
from motor_flow.telemetry.metrics import Metrics

QUERY_TIMEOUT_S = 0.2
PAUSE_S = 2.0
TENANT = "default"
PREFIX = "vllm-"
_log = get_logger()


class Matches(NamedTuple):
    """What is known of a prompt.

    Attributes:
        tokens: by instance name, how many of its first tokens are cached there; None: not known.
        why: not.

    """

    tokens: Mapping[str, int] | None
    why: str = ""


class _Blocks(msgspec.Struct):
    matched_tokens: int


class _Instance(msgspec.Struct):
    longest_matched: int = 0
    DP: dict[str, int | _Blocks] = {}


_tenants = msgspec.json.Decoder(dict[str, Raw]).decode
_instances = msgspec.json.Decoder(dict[str, _Instance]).decode


class Conductor:
    """The client's side of the conductor's queries.

    Args:
        http: connections.
        url: base URL.
        block_size: tokens of a cached block (prefill_kv_event_config.block_size).
        metrics: where queries are counted.

    """

    def __init__(self, http: HttpClient, url: str, block_size: int, metrics: Metrics) -> None:
        self._http = http
        self._url = url
        self._block_size = block_size
        self._metrics = metrics
        self._warned = False
        self._paused_until = 0.0
        self._lost = False

    async def matches(self, model: str, token_ids: PhysicalIds) -> Matches:
        """Ask for a prompt. Never raises and never takes longer than `QUERY_TIMEOUT_S`.

        Args:
            model: as it is served.
            token_ids: as engines see them.

        """
        if len(token_ids) < self._block_size:
            return Matches({})
        now = trio.current_time()
        if now < self._paused_until:
            return Matches(None, "the conductor is away")
        if self._lost:
            self._paused_until = now + PAUSE_S  # the others do not wait for the outcome
        body = {"model": model, "block_size": self._block_size, "token_ids": token_ids}
        found = await self._query(msgspec.json.encode(body), len(token_ids))
        self._metrics.phase("kv_query", trio.current_time() - now, ok=found.tokens is not None)
        return found

    def without_ids(self) -> str:
        """A prompt cannot be asked for; returns why. Told once: it may be every prompt's case."""
        if not self._warned:
            self._warned = True
            _log.warning("conductor.no_token_ids", detail="requests without Render's token ids are placed by load")
        return "no token ids without Render"

    async def _query(self, body: bytes, tokens: int) -> Matches:
        try:
            reply = await self._post("/query", body)
            if reply.status == 404:  # an answer: it is there, and nobody has registered this model
                self._found()
                return Matches(None, "the conductor does not know the model")
            if reply.status != 200:
                return self._lose(f"HTTP {reply.status}")
            found = _read(reply.body, tokens)
        except TransportFault as fault:
            return self._lose(str(fault))
        except UNREADABLE:
            return self._lose("an answer that cannot be read")
        self._found()
        return Matches(found)

    async def _post(self, path: str, body: bytes) -> Reply:
        deadline = trio.current_time() + QUERY_TIMEOUT_S
        try:
            return await self._http.call("POST", self._url + path, body=body, timeout_s=QUERY_TIMEOUT_S)
        except PeerClosed as closed:
            if not closed.untouched:
                raise
        left_s = max(0.0, deadline - trio.current_time())
        return await self._http.call("POST", self._url + path, body=body, timeout_s=left_s)

    def _lose(self, detail: str) -> Matches:
        self._paused_until = trio.current_time() + PAUSE_S
        if not self._lost:
            self._lost = True
            _log.warning("conductor.lost", url=self._url, detail=detail)
        return Matches(None, "the conductor is away")

    def _found(self) -> None:
        self._paused_until = 0.0
        if self._lost:
            self._lost = False
            _log.info("conductor.found", url=self._url)


def _read(body: bytes, limit: int) -> dict[str, int]:
    """Tokens by instance name. Nobody has registered for us when our tenant is missing: nothing is cached."""
    raw = _tenants(body).get(TENANT)
    found = {} if raw is None else _instances(raw)
    return {
        _rank_name(name.removeprefix(PREFIX), rank): min(max(tokens, 0), limit)
        for name, instance in found.items()
        if name.startswith(PREFIX)
        for rank, tokens in _ranks(instance)
    }


def _ranks(instance: _Instance) -> list[tuple[str, int]]:
    """(rank, tokens): a data-parallel rank has a cache of its own."""
    if not instance.DP:
        return [("0", instance.longest_matched)]
    return [(rank, said.matched_tokens if isinstance(said, _Blocks) else said) for rank, said in instance.DP.items()]


def _rank_name(group: str, rank: str) -> str:
    """The name of the instance that is this rank of a group."""
    return group if rank == "0" else f"{group}.{rank}"
