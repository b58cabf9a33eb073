"""The simulators do what vLLM does: the conformance checks, in memory."""

from __future__ import annotations

from typing import Any

import pytest

from motor_flow.sim.engine import Engine
from motor_flow.sim.sidecar import Sidecar
from tests.contract import conformance
from tests.contract.sim_client import Client


def named(checks: Any) -> Any:
    return pytest.mark.parametrize("check", checks, ids=lambda check: check.__name__)


@named(conformance.SIDECAR_CHECKS)
async def test_sidecar(check: Any) -> None:
    sidecar = Sidecar()
    await check(Client(sidecar).call)


@named(conformance.ENGINE_CHECKS)
async def test_engine(check: Any) -> None:
    engine = Engine()
    await check(Client(engine).call)
    assert engine.running == 0
    assert list(engine.anomalies) == []


@named(conformance.CHAIN_CHECKS)
async def test_chain(check: Any) -> None:
    sidecar = Sidecar()
    await check(Client(sidecar).call, Client(Engine()).call)
    assert list(sidecar.anomalies) == []
    assert list(sidecar.repeats) == []
