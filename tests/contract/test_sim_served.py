"""The simulators under the project's own server: real HTTP on a stream, and a client that hangs up."""

from __future__ import annotations

import json
from typing import Any

import trio
from trio.testing import MockClock, memory_stream_pair

from motor_flow.edge.server import Server
from motor_flow.sim.engine import Engine
from motor_flow.sim.sidecar import Sidecar
from tests.contract.asking import GENERATE, HELLO, RENDER
from tests.contract.sim_client import Client, events

Pipe = trio.StapledStream[Any, Any]


def served(app: Any, nursery: trio.Nursery) -> tuple[Pipe, list[BaseException]]:
    bugs: list[BaseException] = []
    ours, theirs = memory_stream_pair()
    nursery.start_soon(Server(app, on_bug=bugs.append).serve_stream, theirs)
    return ours, bugs


def post(path: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


async def until(stream: Pipe, end: bytes, got: bytes = b"") -> bytes:
    while end not in got:
        more = await stream.receive_some()
        assert more, got
        got += more
    return got


def dechunked(data: bytes) -> str:
    text = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        text, data = text + data[:count], data[count + 2 :]
    return text.decode()


async def test_a_whole_answer(nursery: trio.Nursery) -> None:
    stream, bugs = served(Sidecar(), nursery)
    await stream.send_all(post(RENDER, HELLO))
    head, _, body = (await until(stream, b"}}")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < size:
        body += await stream.receive_some()
    assert json.loads(body)["token_ids"] == (await Client(Sidecar()).ask(RENDER, HELLO))["token_ids"]
    assert bugs == []


async def test_a_stream(nursery: trio.Nursery) -> None:
    request = {"token_ids": [5, 6], "stream": True, "request_id": "r", "sampling_params": {"max_tokens": 20}}
    stream, bugs = served(Engine(), nursery)
    await stream.send_all(post(GENERATE, request))
    head, _, body = (await until(stream, b"\r\n0\r\n\r\n")).partition(b"\r\n\r\n")
    assert b"text/event-stream" in head
    assert events(dechunked(body)) == await Client(Engine()).ask(GENERATE, request)
    assert bugs == []


async def test_a_client_that_hangs_up(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    engine = Engine(pace_s=1.0)
    stream, bugs = served(engine, nursery)
    request = {"token_ids": [5, 6], "stream": True, "sampling_params": {"max_tokens": 900, "ignore_eos": True}}
    await stream.send_all(post(GENERATE, request))
    await until(stream, b"data: ")
    await trio.sleep(2.5)
    assert engine.running == 1
    await stream.aclose()
    await trio.sleep(1.5)
    assert engine.running == 0
    assert engine.seen[0].peer_closed
    assert bugs == []
