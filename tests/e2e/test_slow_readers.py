"""Fifty clients that never read, ten thousand tokens each: what does the process weigh?

The Coordinator is a process of its own; the simulators and the clients run here, so that the tokens which the engines
have written can be counted. What is held for one stream, byte by byte, and when such a client is let go, is in
`tests/scenarios/test_slow_readers.py`.

RFC 背压, 有界队列.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from motor_flow.edge.server import Limits, Server
from motor_flow.sim.engine import Engine
from motor_flow.sim.sidecar import Sidecar
from tests.e2e.residue import assert_idle
from tests.e2e.test_process import READY

CLIENTS, TOKENS, CONTEXT = 50, 10_000, 16_384
QUIET_S = 1.0  # nothing was written for so long: it is blocked
RSS_PER_CLIENT_BYTES_MAX = 1 << 20
BLOCKED_BELOW_TOKENS = 4000
KERNEL_BYTES = 4096  # what the kernel may keep for a client that does not read, and for an engine that writes to us
# Logprobs fill all buffers with fewer tokens, so that the test is not about how fast a simulator is.
BODY = {"model": "tiny", "prompt": "Once upon", "stream": True, "ignore_eos": True, "logprobs": 20}


@pytest.fixture
async def engine(nursery):
    """An engine and a sidecar on loopback ports: `engine.ports`."""
    one = Engine(max_model_len=CONTEXT)
    one.ports = []
    for app, limits in (
        (one, Limits(send_buffer_bytes=KERNEL_BYTES)),
        (Sidecar(max_model_len=CONTEXT, parsers=False), Limits()),
    ):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(Server(app, limits).serve, listeners)
        one.ports.append(listeners[0].socket.getsockname()[1])
    return one


@pytest.fixture
async def coordinator(engine, tmp_path):
    """A serving process: `infer`, `obs` and `pid`."""
    path = tmp_path / "motor.json"
    config = {
        "model_config": {"model_name": "tiny"},
        "api_config": dict.fromkeys(
            ("coordinator_api_infer_port", "coordinator_api_mgmt_port", "coordinator_obs_port"), 0
        ),
        "instances": [{"id": 1, "role": "union", "url": f"http://127.0.0.1:{engine.ports[0]}"}],
        "render_config": {"endpoint": {"host": "127.0.0.1", "port": engine.ports[1]}},
        "stream_config": {"client_stall_timeout": 600},
    }
    path.write_text(json.dumps(config))
    command = [sys.executable, "-m", "motor_flow.cli", "serve", "--config", str(path)]
    with (tmp_path / "log").open("w+") as log:
        child = subprocess.Popen(command, stderr=log, stdout=log)  # noqa: ASYNC220 - takes a millisecond
        try:
            with trio.fail_after(20):
                while (found := READY.search((tmp_path / "log").read_text())) is None:  # noqa: ASYNC110 - a process
                    await trio.sleep(0.05)
            child.infer, _, child.obs = found.groups()
            yield child
        finally:
            child.kill()
            child.wait()


def rss(child):
    """Resident memory, bytes."""
    (line,) = [line for line in Path(f"/proc/{child.pid}/status").read_text().splitlines() if line[:6] == "VmRSS:"]
    return int(line.split()[1]) << 10


async def ask(child, tokens):
    """A connection with a request on it."""
    body = json.dumps(BODY | {"max_tokens": tokens}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
    client = trio.socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
    await client.connect(("127.0.0.1", int(child.infer.rsplit(":", 1)[1])))
    await client.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return client


async def steady(look, seconds):
    """What `look` returns, once it has been the same for so long."""
    seen, since = look(), trio.current_time()
    while trio.current_time() - since < seconds:
        await trio.sleep(0.05)
        if (now := look()) != seen:
            seen, since = now, trio.current_time()
    return seen


@pytest.mark.timeout(170)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
async def test_fifty_clients_that_never_read(engine, coordinator, capsys):
    warm = await ask(coordinator, 50)
    while not (await warm.recv(65536)).endswith(b"0\r\n\r\n"):
        pass
    warm.close()
    engine.seen.clear()
    before = rss(coordinator)
    start = trio.current_time()
    clients = [await ask(coordinator, TOKENS) for _ in range(CLIENTS)]
    written = await steady(lambda: [record.tokens for record in engine.seen], QUIET_S)
    blocked_s = trio.current_time() - start - QUIET_S
    grown = rss(coordinator) - before
    with capsys.disabled():
        print(
            f"\n{CLIENTS} clients that never read, {TOKENS} tokens each: resident memory {before / 2**20:.0f} MiB + "
            f"{grown / 2**20:.0f} MiB ({grown / CLIENTS / 1024:.0f} KiB a client); engine writes were blocked after "
            f"{min(written)}..{max(written)} tokens a stream ({blocked_s:.1f} s)"
        )
    assert len(written) == CLIENTS == engine.running
    assert max(written) < BLOCKED_BELOW_TOKENS
    assert grown < CLIENTS * RSS_PER_CLIENT_BYTES_MAX
    for client in clients:
        client.close()
    with trio.fail_after(5):
        while engine.running:  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.02)
    await trio.to_thread.run_sync(assert_idle, coordinator.obs)
    assert all(record.peer_closed for record in engine.seen)
