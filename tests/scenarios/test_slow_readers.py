"""Clients that never read, ten thousand tokens each: what is held for them is bounded, and then let go.

    engine ──socket──> inbox (bytes) ──> derender ──> channel (chunks) ──socket──> client that does not read
           <───────────────────── each of them full, back to the engine ──────────────────────

In virtual time, and a few of them; what a process weighs with fifty is measured in `tests/e2e/test_slow_readers.py`.

RFC 背压, 有界队列.
"""

from __future__ import annotations

import json

import trio

from motor_flow.effects.inbox import INBOX_BYTES_MAX
from motor_flow.net.memory import WINDOW_BYTES
from motor_flow.net.stream import RECEIVE_BYTES
from tests.world import CHAT, TEXT, make_world

CLIENTS, TOKENS, CONTEXT = 2, 10_000, 16_384
CHUNKS_MAX, CHUNK_BYTES_MAX = 16, 4096
STALL_S = 30
BODIES = [
    (TEXT, {"model": "tiny", "prompt": "Once upon"}),
    (CHAT, {"model": "tiny", "messages": [{"role": "user", "content": "Tell me"}]}),
]


async def send_and_never_read(world, path, body):
    """A client's end of a connection with a request on it."""
    body = json.dumps(body | {"stream": True, "max_tokens": TOKENS, "ignore_eos": True}).encode()
    near = await world.net.connect("coordinator", 80)
    await near.send_all(
        b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
    )
    return near


def held(world):
    """Bytes that wait in our memory for each client: (channel, inbox)."""
    running = [(each._responder, each._request.streams) for each in world.app._inference._live]
    return [
        (sum(map(len, responder._waiting)), sum(stream.inbox._bytes for stream in streams))
        for responder, streams in running
    ]


async def test_clients_that_never_read(nursery, autojump_clock, capsys):
    world = await make_world(
        nursery,
        engine={"max_model_len": CONTEXT},
        sidecar={"max_model_len": CONTEXT},
        parsers=False,
        config={"stream_config": {"client_stall_timeout": STALL_S, "queue_chunks_max": CHUNKS_MAX}},
    )
    clients = [await send_and_never_read(world, *BODIES[number % 2]) for number in range(CLIENTS)]
    await trio.sleep(STALL_S / 2)
    written = [record.tokens for record in world.seen()]
    assert len(written) == CLIENTS
    assert 0 < max(written) < TOKENS / 2
    before = held(world)
    for channel, inbox in before:
        assert channel <= CHUNKS_MAX * CHUNK_BYTES_MAX
        assert inbox <= INBOX_BYTES_MAX + RECEIVE_BYTES
    for client in clients:
        assert len(client._incoming.data) <= WINDOW_BYTES
    await trio.sleep(STALL_S / 3)
    assert [record.tokens for record in world.seen()] == written  # the engines wait
    assert held(world) == before
    assert world.app.requests == CLIENTS
    with capsys.disabled():
        channel, inbox = (max(column) for column in zip(*before, strict=True))
        print(
            f"\n{CLIENTS} clients that never read, {TOKENS} tokens each: engines have written at most "
            f"{max(written)} tokens a stream; at most {channel / 1024:.0f} KiB wait in a channel, "
            f"{inbox / 1024:.0f} KiB in an inbox"
        )
    await trio.sleep(STALL_S)
    assert world.app.requests == 0
    assert all(record.peer_closed for record in world.seen())
    await world.check()
    for client in clients:
        client.close()
