"""The client leaves, at any point, or does not read: everything that was done for it ends.

RFC 故障处理 (客户端断开), 背压.
"""

from __future__ import annotations

import json

import pytest
import trio
import trio.lowlevel

from tests.scripted import HANG, SSE_HEAD, Scripted, event
from tests.world import CHAT, TEXT, Response, make_world

CHAT_BODY = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Tell me"}],
    "max_tokens": 200,
    "ignore_eos": True,
}
TEXT_BODY = {"model": "tiny", "prompt": "Once upon", "max_tokens": 200, "ignore_eos": True}
SOON_S = 0.3

PHASES = {
    # world's simulators, seconds after which the client leaves, state it is in then
    "rendering": ({"sidecar": {"render_s": 50.0}}, 2.0, "rendering"),
    "prefilling": ({"engine": {"first_token_s": 50.0}}, 2.0, "generating"),
    "streaming": ({"engine": {"pace_s": 0.25}}, 5.1, "generating"),
    "derendering": ({"sidecar": {"derender_s": 50.0}, "config": {"render_config": {"timeout_ms": 90000}}}, 2.0, None),
}


KINDS = ("stream", "whole", "list", "n = 2", "native")
DERENDERED = KINDS[:-1]


@pytest.mark.parametrize(
    ("phase", "kind"), [(p, k) for p in PHASES for k in (DERENDERED if p == "derendering" else KINDS)]
)
async def test_a_client_that_leaves_is_forgotten_at_once(nursery, autojump_clock, phase, kind):
    simulators, leave_s, state = PHASES[phase]
    world = await make_world(nursery, engines=3, **simulators)
    path, body = {
        "stream": (CHAT, CHAT_BODY | {"stream": True}),
        "whole": (CHAT, CHAT_BODY),
        "list": (TEXT, TEXT_BODY | {"prompt": ["a", "b", "c"], "stream": True}),
        "n = 2": (CHAT, CHAT_BODY | {"n": 2, "stream": True}),
        "native": (TEXT, TEXT_BODY | {"echo": True, "stream": True}),
    }[kind]
    client = trio.CancelScope()
    nursery.start_soon(_client, world, client, path, body)
    await trio.sleep(leave_s)
    assert world.app.requests == 1
    if state is not None:
        assert world.app.journal.describe()[0]["state"] == state
    client.cancel()
    await trio.sleep(SOON_S)
    assert world.app.requests == 0
    assert world.app.leases.idle
    assert [engine.running for engine in world.engines] == [0, 0, 0]
    if phase == "rendering":
        assert world.seen("generate") == world.seen("native") == []
    await world.check()


async def _client(world, scope, path, body):
    with scope:
        await world.read(Response(0, {}), path, body)


async def test_a_client_of_a_passed_through_stream_leaves(nursery, autojump_clock):
    world = await make_world(nursery, engines=1)
    engine = Scripted(world, "engine-1", {"/v1/responses": [[SSE_HEAD, event({"type": "response.created"}), HANG]]})
    response = Response(0, {})
    with trio.move_on_after(3):
        await world.read(response, "/v1/responses", {"input": "x", "stream": True})
    assert response.events[0][1] == b'{"type": "response.created"}'
    await trio.sleep(SOON_S)
    assert (world.app.requests, engine.open) == (0, 0)
    await world.check()


async def test_the_reason_is_logged(nursery, autojump_clock, capsys):
    world = await make_world(nursery, engine={"pace_s": 0.2})
    with trio.move_on_after(2):
        await world.stream(TEXT, TEXT_BODY | {"prompt": ["a", "b"]})
    await world.check()
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if "] cancel " in line]
    assert "reason='client disconnected'" in line
    assert "phase=generating" in line
    assert "siblings=2" in line


async def test_leaving_after_the_end_is_not_a_failure(nursery, autojump_clock):
    """The connection is closed on `[DONE]`: the request has completed."""
    world = await make_world(nursery)
    response = Response(0, {})
    with trio.CancelScope() as scope:

        async def watch():
            while not any(data == b"[DONE]" for _, data in response.events):
                await trio.lowlevel.checkpoint()
            scope.cancel()

        async with trio.open_nursery() as both:
            both.start_soon(world.read, response, TEXT, TEXT_BODY | {"stream": True})
            both.start_soon(watch)
    await world.check()
    text = world.app.metrics.exposition().decode()
    assert 'code="200"' in text
    assert 'code="499"' not in text


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_client_that_does_not_read_slows_the_engine_and_is_let_go(nursery, autojump_clock, path):
    """Bounded channel, bounded inbox, a full socket: the engine is held back; then the stall deadline frees all."""
    world = await make_world(
        nursery,
        engine={"pace_s": 0.001, "chunk_tokens": 1},
        config={"stream_config": {"client_stall_timeout": 30, "queue_chunks_max": 8, "coalesce": False}},
    )
    body = json.dumps((CHAT_BODY if path == CHAT else TEXT_BODY) | {"stream": True, "max_tokens": 3500}).encode()
    near = await world.net.connect("coordinator", 80)
    await near.send_all(
        b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
    )
    await trio.sleep(20)
    (live,) = world.app.journal.describe()
    committed = live["completion_tokens"]
    assert 0 < committed < 1500  # what 64 KiB of socket and 8 chunks hold
    await trio.sleep(5)
    assert world.app.journal.describe()[0]["completion_tokens"] == committed
    await trio.sleep(30)
    assert world.app.requests == 0
    near.close()
    await world.check()


async def test_a_client_that_reads_slowly_gets_everything(nursery, autojump_clock):
    world = await make_world(nursery, engine={"pace_s": 0.001})
    fast = await world.stream(TEXT, TEXT_BODY | {"max_tokens": 1500})
    near = await world.net.connect("coordinator", 80)
    body = json.dumps(TEXT_BODY | {"stream": True, "max_tokens": 1500}).encode()
    await near.send_all(
        b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (TEXT.encode(), len(body), body)
    )
    raw = b""
    while not raw.endswith(b"0\r\n\r\n"):
        raw += await near.receive_some(5000)
        await trio.sleep(0.5)
    near.close()
    texts = [json.loads(line[6:])["choices"][0]["text"] for line in raw.split(b"\n") if line.startswith(b'data: {"id"')]
    assert "".join(texts) == "".join(c["text"] for chunk in fast.chunks for c in chunk["choices"])
    await world.check()
