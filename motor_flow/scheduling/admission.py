"""May this request run now, counted in tokens?

A request takes the tokens of its prompts and the output budget of all its choices from one capacity, before an engine
is asked, and gives them back prompt by prompt as engines are done with them. What does not fit waits.

```
          ┌─ fits, and nobody waits ──────────► granted
arrives ──┼─ does not fit ──► waits its turn ─┬► granted
          ├─ line is full ───► 429            └► 503 after max_queue_wait_ms
          └─ can never fit ──► 400
```

- Nothing overtakes the request whose turn it is: a large one waits only for what runs already. API keys take turns.
- Tokens are handed over at the moment they become free, so that nobody who arrives in between can take them.
- What is a guess (a length that nobody has counted, an output budget that nobody has named) never makes a request
  impossible: it is cut to what the capacity leaves.

Invariant: 0 <= taken <= capacity. What is taken is in the lease ledger, and nowhere else.

Source: RFC 流控; contract section 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from motor_flow.config.sections import FlowControlSection
from motor_flow.errors import AdmissionError
from motor_flow.scheduling.leases import Lease, LeaseLedger
from motor_flow.scheduling.turns import Turns

RETRY_AFTER_S_MIN = 1.0


@dataclass(frozen=True, slots=True)
class Need:
    """Tokens of one prompt and its choices.

    Attributes:
        known: counted, or asked for by the client.
        guessed: nobody has said it.

    """

    known: int
    guessed: int = 0


class Grant:
    """The tokens of an admitted request. Everything is given back once, however often that is said."""

    __slots__ = ("_flow", "_leases")

    def __init__(self, flow: FlowControl, leases: list[Lease]) -> None:
        self._flow = flow
        self._leases = leases

    def give_back(self, prompt: int) -> None:
        """No engine has anything more to do for this prompt, and none will."""
        self._leases[prompt].close()
        self._flow.serve()

    def close(self) -> None:
        """No engine has anything more to do for this request."""
        for lease in self._leases:
            lease.close()
        self._flow.serve()


@dataclass(slots=True, eq=False)
class _Waiter:
    client: str
    amounts: list[int]
    since: float
    decided: trio.Event = field(default_factory=trio.Event)
    grant: Grant | None = None
    crowded_out: bool = False


class FlowControl:
    """The capacity of one process, and who waits for it.

    Args:
        limits: the capacity, and how many may wait how long.
        leases: where what is taken is written down.

    """

    def __init__(self, limits: FlowControlSection, leases: LeaseLedger) -> None:
        self.limits = limits
        self._leases = leases
        self._turns: Turns[_Waiter] = Turns()
        self._wait_s = limits.max_queue_wait_ms / 1e3
        self._last_wait_s = 0.0

    @property
    def capacity(self) -> int:
        """Tokens, in all."""
        return self.limits.max_inflight_tokens

    @property
    def free(self) -> int:
        """Tokens that nobody has taken."""
        return self.capacity - self._leases.held["flow_tokens"]

    @property
    def waiting(self) -> int:
        """Requests."""
        return len(self._turns)

    async def admit(self, client: str, needs: Sequence[Need]) -> Grant:
        """Take what a request needs. The caller closes the grant on every path.

        Args:
            client: whose turn it uses.
            needs: of each prompt.

        Raises:
            AdmissionError: it can never fit (400), too many wait already (429), it has waited too long (503).

        """
        await trio.lowlevel.checkpoint()
        amounts = self._amounts(needs)
        if not self._turns and sum(amounts) <= self.free:
            return self._take(amounts)
        waiter = self._join(client, amounts)
        try:
            with trio.move_on_after(self._wait_s):
                await waiter.decided.wait()
        except BaseException:
            if waiter.grant is not None:  # granted in the moment in which the client left
                waiter.grant.close()
            raise
        finally:
            if not waiter.decided.is_set():
                self._turns.remove(client, waiter)
                self.serve()  # it may have been the head, in the way of smaller ones
        if waiter.grant is not None:
            return waiter.grant
        if waiter.crowded_out:
            raise self._full()
        why = f"the request has waited {self._wait_s:g} s for other requests to end"
        if not self._wait_s:
            why = "no request may wait (max_queue_wait_ms is 0)"
        raise AdmissionError(f"the server is busy: {why}", status=503, retry_after_s=self._patience_s())

    def serve(self) -> None:
        """Hand what is free to those whose turn it is."""
        while (head := self._turns.head) is not None and sum(head.amounts) <= self.free:
            self._turns.take()
            self._last_wait_s = trio.current_time() - head.since
            head.grant = self._take(head.amounts)
            head.decided.set()

    def _take(self, amounts: list[int]) -> Grant:
        return Grant(self, [self._leases.take("flow_tokens", amount) for amount in amounts])

    def _join(self, client: str, amounts: list[int]) -> _Waiter:
        if len(self._turns) >= self.limits.max_queue_requests:
            other = self._turns.crowd_out(client)
            if other is None:
                raise self._full()
            other.crowded_out = True
            other.decided.set()
        waiter = _Waiter(client, amounts, trio.current_time())
        self._turns.add(client, waiter)
        return waiter

    def _amounts(self, needs: Sequence[Need]) -> list[int]:
        known = sum(need.known for need in needs)
        spare = self.capacity - known
        if spare < 0:
            raise AdmissionError(
                f"the request needs {known} tokens (prompts and output budget of all choices); the server admits "
                f"{self.capacity} at once. Ask for fewer output tokens, choices or prompts.",
                status=400,
            )
        amounts = []
        for need in needs:
            guessed = min(need.guessed, spare)
            spare -= guessed
            amounts.append(need.known + guessed)
        return amounts

    def _full(self) -> AdmissionError:
        waiting = len(self._turns)
        full = f"{waiting} requests are waiting already" if waiting else "no request may wait (max_queue_requests is 0)"
        return AdmissionError(f"the server is busy: {full}", retry_after_s=self._patience_s())

    def _patience_s(self) -> float:
        """As long as the request that was served last has waited."""
        return max(RETRY_AFTER_S_MIN, min(self._last_wait_s, self._wait_s))
