"""Which requests is an engine working on?

One `Live` per prompt: its choices, its clock, its name. `LiveRequests` knows them by name: a name that is in use
twice at the same time is noted (an engine would run both), an abort ends all of that name, and names must be whole:
the one that the engine gave, prefix included.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from motor_flow.sim.clock import MERGED_TOKENS_MAX, Clock, Pace
from motor_flow.sim.decoding import Decoding
from motor_flow.sim.recent import Recent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from motor_flow.sim.oracle import Oracle
    from motor_flow.sim.sampling import Sampling
    from motor_flow.sim.served import Served

REPORTS_MAX = 1000
STEPS_PER_CHECKPOINT = 256


class Live:
    """One prompt that is being answered."""

    def __init__(
        self,
        served: Served,
        oracle: Oracle,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        pace: Pace,
        interval: int,
        with_text: bool,
        cached: int | None = None,
    ) -> None:
        self.prompt = prompt
        self.cached = cached
        self.sampling = sampling
        self.clock: Clock = pace.start()
        self.choices = [
            Decoding(served, oracle, prompt, sampling, index=index, with_text=with_text) for index in range(sampling.n)
        ]
        self._interval = max(interval, sampling.stream_interval or 1)
        self._next = 1

    async def more(self) -> int | None:
        """Wait for the next chunk. How many tokens of each choice exist then, or None when all choices are done."""
        open_ = [choice for choice in self.choices if not choice.done]
        if not open_:
            return None
        wanted = self._next
        for choice in open_:
            choice.decode(wanted)
        # A choice that ends before the chunk is full does not wait for the rest of it.
        await self.clock.until(min(wanted, max(len(choice.tokens) for choice in open_)))
        count = max(wanted, min(self.clock.due(wanted), self._sent + MERGED_TOKENS_MAX))
        if self.clock.aborted:
            self._cut()
            return count
        for choice in open_:
            choice.decode(count)
        self._next = count + self._interval
        return count

    async def complete(self) -> None:
        """Wait until every choice is over."""
        longest = 0
        for choice in self.choices:
            while choice.finish is None:
                choice.decode(len(choice.tokens) + STEPS_PER_CHECKPOINT)
                await self.clock.until(0)
            longest = max(longest, len(choice.tokens))
        await self.clock.until(longest)
        if self.clock.aborted:
            self._cut()

    @property
    def _sent(self) -> int:
        return max(choice.sent for choice in self.choices)

    def _cut(self) -> None:
        for choice in self.choices:
            if not choice.done:
                choice.abort(self.clock.due(len(choice.tokens)))


class LiveRequests:
    def __init__(self) -> None:
        self.anomalies: Recent[str] = Recent(REPORTS_MAX)
        self._by_id: dict[str, list[Live]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_id.values()))

    @contextmanager
    def running(self, request_id: str, live: Live) -> Iterator[Live]:
        """Known under this name while the block runs."""
        same = self._by_id.setdefault(request_id, [])
        if same:
            self.anomalies.add(f"{request_id}: the id is in use")
        same.append(live)
        try:
            yield live
        finally:
            same.remove(live)
            if not same:
                del self._by_id[request_id]

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            for live in self._by_id.get(request_id, ()):
                live.clock.abort()
