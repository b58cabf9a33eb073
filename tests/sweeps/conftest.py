"""Every sweep is the same in every run: the scheduler's dice are seeded, and nothing is printed a thousand times."""

from __future__ import annotations

import pytest
import structlog
import trio

SEED = 7


@pytest.fixture(autouse=True)
def seeded():
    trio._core._run._r.seed(SEED)


def dropped(*_line):
    raise structlog.DropEvent


@pytest.fixture(autouse=True)
def quiet():
    structlog.configure(processors=[dropped])
    yield
    structlog.reset_defaults()
