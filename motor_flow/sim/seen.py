"""What did a simulator see?

One record per call that asked for work, made when its body has been read and updated until it ends. Tests read them;
nothing else does.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from motor_flow.sim.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from motor_flow.sim.exchange import Exchange

CALLS_MAX = 4096


@dataclass(slots=True)
class Seen:
    path: str
    body: Any
    headers: dict[str, str]
    kind: str
    """`render`, `derender`, `generate` or `native`."""
    id: str = ""
    """The engine's name for the request, prefix included."""
    status: int | None = None
    tokens: int = 0
    """Output tokens of all choices that were handed to the client's connection."""
    finished: bool = False
    """The answer was complete, whatever it said."""
    peer_closed: bool = False
    """It was cut short: the client went, or the server was told to stop."""
    fault: str = ""
    """What was planned to go wrong with it."""


@contextmanager
def noted(record: Seen, call: Exchange) -> Iterator[None]:
    """Note in the record how the block ended. A refusal is an end like any other; no end means the client went."""
    try:
        yield
        record.finished = True
    except Refusal as refusal:
        record.status, record.finished = refusal.status, True
        raise
    finally:
        record.status = record.status or call.status
        record.peer_closed = not record.finished and not record.fault
