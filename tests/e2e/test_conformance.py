"""The checks that the simulators pass hold on real vLLM: so what the other tests rest on is true."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.contract.conformance import CHAIN_CHECKS, ENGINE_CHECKS, SIDECAR_CHECKS

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


def caller(port):
    async def call(method, path, body, headers):
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        async with httpx.AsyncClient(timeout=120) as client:
            reply = await client.request(
                method,
                f"http://127.0.0.1:{port}{path}",
                content=raw,
                headers={"content-type": "application/json", **(headers or {})},
            )
        kind = reply.headers.get("content-type", "")
        if kind.startswith("text/event-stream"):
            said = [data.removeprefix("data: ") for data in reply.text.split("\n\n")[:-1]]
            answer = [json.loads(data) if data.startswith("{") else data for data in said]
        elif kind.startswith("application/json"):
            answer = reply.json()
        else:
            answer = reply.text
        return reply.status_code, {name.lower(): value for name, value in reply.headers.items()}, answer

    return call


@pytest.mark.parametrize("check", SIDECAR_CHECKS, ids=lambda check: check.__name__)
async def test_sidecar(vllm, check):
    await check(caller(vllm.sidecar))


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
async def test_engine(vllm, check):
    await check(caller(vllm.engine))


@pytest.mark.parametrize("check", CHAIN_CHECKS, ids=lambda check: check.__name__)
async def test_chain(vllm, check):
    await check(caller(vllm.sidecar), caller(vllm.engine))
