"""What does each policy gain where prompts begin alike? In virtual time, so the numbers are the same everywhere.

Many conversations with a few long beginnings (system prompts, documents), on engines whose caches hold a few of them.
Reading a prompt token that is not cached takes an engine a fixed time, and prompts are read one after another.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass, field

import pytest
import trio

from motor_flow.edge.server import Server
from motor_flow.scheduling import policy
from motor_flow.scheduling.registration import REGISTER_INTERVAL_S
from motor_flow.sim.conductor import Conductor
from motor_flow.sim.prefix_cache import BLOCK_TOKENS
from tests.world import TEXT, Response, make_world

ENGINES, BEGINNINGS, BEGINNING_TOKENS, OWN_TOKENS, REQUESTS = 4, 12, 1024, 64, 120
CACHED_BEGINNINGS = 4
PREFILL_S, RATE = 0.0004, 14.0
CONDUCTOR = {"conductor_service": "conductor", "http_server_port": 13333, "block_size": BLOCK_TOKENS}


@dataclass
class Run:
    ttft_s: list[float] = field(default_factory=list)
    prompt: int = 0
    cached: int = 0

    @property
    def hits(self):
        return self.cached / self.prompt

    @property
    def p50(self):
        return statistics.median(self.ttft_s)

    @property
    def p95(self):
        return statistics.quantiles(self.ttft_s, n=20)[-1]


async def measure(kind, seed=7):
    luck, result = random.Random(seed), Run()
    async with trio.open_nursery() as nursery:
        world = await make_world(
            nursery,
            engines=ENGINES,
            engine={
                "cache_blocks": CACHED_BEGINNINGS * (BEGINNING_TOKENS + OWN_TOKENS) // BLOCK_TOKENS,
                "prefill_s": PREFILL_S,
                "pace_s": 0.01,
            },
            config={"scheduler_config": {"scheduler_type": kind}, "prefill_kv_event_config": CONDUCTOR},
        )
        caches = {f"vllm-union-{number}": engine.cache for number, engine in enumerate(world.engines, 1)}
        world.net.listen("conductor", 13333, Server(Conductor(caches)).serve_stream)
        await trio.sleep(REGISTER_INTERVAL_S * 1.5)
        beginnings = [[luck.randrange(300, 600) for _ in range(BEGINNING_TOKENS)] for _ in range(BEGINNINGS)]

        async def ask(prompt, at):
            await trio.sleep_until(at)
            response, body = Response(0, {}), {"model": "tiny", "prompt": prompt, "max_tokens": 16, "ignore_eos": True}
            await world.read(response, TEXT, body | {"stream": True, "stream_options": {"include_usage": True}})
            first = next(time for (time, _), chunk in zip(response.events, response.chunks, strict=False) if chunk)
            result.ttft_s.append(first - at)
            usage = response.answer.usage
            result.prompt += usage["prompt_tokens"]
            result.cached += usage["prompt_tokens_details"]["cached_tokens"]

        async with trio.open_nursery() as clients:
            at = trio.current_time()
            for _ in range(REQUESTS):
                at += luck.expovariate(RATE)
                own = [luck.randrange(300, 600) for _ in range(OWN_TOKENS)]
                clients.start_soon(ask, luck.choice(beginnings) + own, at)
        assert [instance.load_tokens for instance in world.app.registry] == [0] * ENGINES
        await world.check()
        nursery.cancel_scope.cancel()
    return result


@pytest.mark.bench
@pytest.mark.timeout(300)
async def test_affinity_reads_less_and_answers_sooner(autojump_clock, capsys, monkeypatch):
    runs = {kind: await measure(kind) for kind in ("round_robin", "load_balance", "kv_cache_affinity")}
    monkeypatch.setattr(policy, "KvAffinity", policy.GatedKvAffinity)
    runs["kv_cache_affinity, gated"] = await measure("kv_cache_affinity")
    with capsys.disabled():
        print(f"\n{'policy':<26}{'prefix hits':>12}{'TTFT p50':>12}{'p95':>12}")
        for kind, run in runs.items():
            print(f"{kind:<26}{run.hits:>12.1%}{run.p50 * 1e3:>9.0f} ms{run.p95 * 1e3:>9.0f} ms")
    turns, balance, affinity = (runs[kind] for kind in ("round_robin", "load_balance", "kv_cache_affinity"))
    assert affinity.hits > 2 * max(turns.hits, balance.hits)
    assert affinity.p50 < 0.5 * min(turns.p50, balance.p50)
    assert affinity.p95 < min(turns.p95, balance.p95)
