"""What do the simulated caches and the simulated conductor say of a prompt?"""

from __future__ import annotations

import json

import pytest

from motor_flow.config import load_embedded
from motor_flow.config.load import BadConfiguration
from motor_flow.edge.server import Server
from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import Pool
from motor_flow.net.memory import MemoryNet
from motor_flow.sim.conductor import Conductor
from motor_flow.sim.prefix_cache import PrefixCache


def cache(blocks=100):
    return PrefixCache(blocks, block_tokens=4)


def test_whole_blocks_from_the_beginning_match():
    one = cache()
    one.take(list(range(10)))
    assert one.matched(list(range(10))) == 8
    assert one.matched([*range(6), 99]) == 4
    assert one.matched([99, *range(1, 10)]) == 0
    assert one.matched([0, 1, 2, 3, 99, 5, 6, 7]) == 4
    assert one.matched([4, 5, 6, 7]) == 0  # a block is its place too


def test_the_last_token_is_always_computed():
    one = cache()
    assert one.take(list(range(8))) == 0
    assert one.take(list(range(8))) == 4
    assert one.take(list(range(9))) == 8
    assert (one.asked, one.hit) == (25, 12)


def test_the_least_recently_used_blocks_are_given_up_ends_first():
    one = cache(blocks=3)
    one.take(list(range(8)))
    one.take(list(range(100, 108)))
    assert one.matched(list(range(100, 108))) == 8
    assert one.matched(list(range(8))) == 4


async def ask(nursery, conductor, method, path, body=None):
    net = MemoryNet(nursery)
    net.listen("conductor", 80, Server(conductor).serve_stream)
    raw = None if body is None else json.dumps(body).encode()
    reply = await HttpClient(Pool(net.dial)).call(method, f"http://conductor{path}", body=raw, timeout_s=1)
    return reply.status, json.loads(reply.body)


SERVICE = {"type": "vLLM", "modelname": "tiny", "block_size": 4, "instance_id": "vllm-union-1", "dp_rank": 0}
QUERY = {"model": "tiny", "block_size": 4, "token_ids": list(range(10))}


@pytest.mark.parametrize(("objects", "said"), [(False, 8), (True, {"matched_tokens": 8})])
async def test_a_conductor_knows_who_is_registered(nursery, autojump_clock, objects, said):
    one = Conductor(objects=objects)
    assert (await ask(nursery, one, "POST", "/query", QUERY))[0] == 404
    assert (await ask(nursery, one, "POST", "/register", {"endpoint": "tcp://x:1", **SERVICE}))[0] == 200
    assert await ask(nursery, one, "POST", "/query", QUERY) == (200, {"default": {}})
    event = {"instance_id": "vllm-union-1", "token_ids": list(range(9)), "block_size": 4}
    await ask(nursery, one, "POST", "/events", event)
    found = {"vllm-union-1": {"longest_matched": 8, "DP": {"0": said}}}
    assert await ask(nursery, one, "POST", "/query", QUERY) == (200, {"default": found})
    assert await ask(nursery, one, "POST", "/query", {**QUERY, "block_size": 8}) == (200, {"default": {}})
    _, shown = await ask(nursery, one, "GET", "/services")
    assert [service["instance_id"] for service in shown["services"]] == ["vllm-union-1"]
    await ask(nursery, one, "POST", "/unregister", SERVICE)
    assert (await ask(nursery, one, "POST", "/query", QUERY))[0] == 404
    assert (await ask(nursery, one, "POST", "/query", {"model": "tiny"}))[0] == 400


@pytest.mark.parametrize(
    "section",
    [
        {"conductor_service": "http://conductor"},
        {"conductor_service": "a b"},
        {"conductor_service": "conductor", "http_server_port": 0},
    ],
)
def test_a_conductor_that_cannot_be_reached_by_this_name(section):
    with pytest.raises(BadConfiguration, match="prefill_kv_event_config"):
        load_embedded({"prefill_kv_event_config": section}, {})


@pytest.mark.parametrize(("host", "url"), [("kv", "http://kv:13333"), ("::1", "http://[::1]:13333")])
def test_where_the_conductor_is(host, url):
    config = load_embedded({"prefill_kv_event_config": {"conductor_service": host}}, {}).config
    assert config.conductor.url == url
