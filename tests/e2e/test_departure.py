"""Clients of real processes leave in mid-stream: the engine is free soon, and nothing is held."""

from __future__ import annotations

import json
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.residue import assert_idle

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
FREED_S = 1.0  # the engine's own metrics follow its scheduler, not the connection


def open_stream(base, body):
    """A raw connection with a streaming request on it, read until the first tokens."""
    at = urlsplit(base)
    raw = json.dumps(body | {"stream": True}).encode()
    s = socket.create_connection((at.hostname, at.port), timeout=30)
    s.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (len(raw), raw)
    )
    got = b""
    while got.count(b"data: ") < 5:
        got += s.recv(65536)
    return s


def running(vllm):
    lines = httpx.get(f"{vllm.native}/metrics", timeout=10).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_requests_running"))


def running_stream(vllm, served, body):
    """A stream that the engine says it works on: its gauge follows its scheduler, and may be late for one answer."""
    for _ in range(5):
        stream = open_stream(served.infer, body)
        opened = time.monotonic()
        while time.monotonic() - opened < FREED_S:
            if running(vllm) == len(body["prompt"]):
                return stream
        stream.close()
        assert_idle(served.obs)
    raise AssertionError("the engine does not say that it runs")


@pytest.mark.parametrize("prompts", [["Once upon"], ["Once upon", "Numbers: ", "x"]], ids=["one", "list"])
def test_the_engine_is_freed(vllm, served, prompts):
    body = {"model": "tiny", "prompt": prompts, "max_tokens": 900, "ignore_eos": True, "temperature": 0}
    stream = running_stream(vllm, served, body)
    stream.close()
    left = time.monotonic()
    assert_idle(served.obs, 0.3)
    while running(vllm):
        assert time.monotonic() - left < FREED_S, "the engine still runs for a client that has left"
        time.sleep(0.02)  # noqa: TID251 - another process is finishing
