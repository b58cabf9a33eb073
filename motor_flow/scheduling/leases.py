"""What is held for requests right now, and is it ever given back?

Every resource that a request takes is taken here, by kind and amount, in a `with` block or with a handle that closes
once. Idle means zero for every kind; tests assert it after every scenario, and `/metrics` shows it.

Source: RFC 故障测试 (nothing may be left behind).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

Kind = Literal["flow_tokens", "instance_slots", "engine_streams", "producers", "contexts", "kv_tickets"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Lease:
    """Something taken. Closing it twice gives it back once."""

    __slots__ = ("_amount", "_kind", "_ledger")

    def __init__(self, ledger: LeaseLedger, kind: Kind, amount: int) -> None:
        self._ledger = ledger
        self._kind: Kind = kind
        self._amount = amount

    def close(self) -> None:
        amount, self._amount = self._amount, 0
        self._ledger.held[self._kind] -= amount


class LeaseLedger:
    """The count of everything taken in this process, by kind."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: dict[Kind, int] = dict.fromkeys(KINDS, 0)

    def take(self, kind: Kind, amount: int = 1) -> Lease:
        """Take something. The caller closes the lease on every path."""
        self.held[kind] += amount
        return Lease(self, kind, amount)

    @contextmanager
    def hold(self, kind: Kind, amount: int = 1) -> Iterator[None]:
        """Take something for the length of a block."""
        lease = self.take(kind, amount)
        try:
            yield
        finally:
            lease.close()

    @property
    def idle(self) -> bool:
        """Nothing is held."""
        return not any(self.held.values())
