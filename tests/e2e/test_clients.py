"""The official openai client reads everything, from the embedded cluster and from real vLLM."""

from __future__ import annotations

import asyncio  # noqa: TID251 - the loop that the client's users run

import pytest

from tests.e2e import sdk


@pytest.mark.parametrize("use", sdk.SYNC, ids=lambda use: use.__name__)
def test_sync(embedded, use):
    use(embedded.infer)


@pytest.mark.parametrize("use", sdk.ASYNC, ids=lambda use: use.__name__)
def test_async(embedded, use):
    asyncio.run(use(embedded.infer))


@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("use", sdk.SYNC, ids=lambda use: use.__name__)
def test_sync_on_real_vllm(served, use):
    use(served.infer)


@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("use", sdk.ASYNC, ids=lambda use: use.__name__)
def test_async_on_real_vllm(served, use):
    asyncio.run(use(served.infer))
