"""How does a compiled machine run under trio?

A trampoline: enter a state, await the effect of that state, feed the event it reports to the table, run the edge's
actions, enter the next state.

```
   ┌── state ──► effect (awaits; the only I/O) ──► event ──┐
   └── next state ◄── actions (pure) ◄── guards (pure) ◄───┘
```

A compound state may own a nursery (`Effects.nursery_of`). It is open while the machine is inside, for tasks that
outlive single states; leaving the compound, by whichever edge, cancels and awaits them before the next effect begins.
What a task raises ends the running effect and is mapped like a fault of its own.

Invariant: state, context and trace change together with no await in between, so at every cancellation point the request
is consistent. A cancellation is the `cancel` edge; whatever else escapes an effect is the `fail` edge. A final state
runs one clean-up, shielded and with a deadline.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

import trio

from machines import Edge, Table
from motor_flow.errors import MotorFlowError

Ctx = TypeVar("Ctx")
Effect = Callable[[Ctx], Awaitable[str]]
Cleanup = Callable[[Ctx], Awaitable[None]]
Faults = tuple[tuple[str, type[BaseException]], ...]

CLEANUP_S = 2.0
TRACE_EDGES_MAX = 64


class Overdue(MotorFlowError):
    """The whole request took longer than it may (exception_config.infer_timeout)."""

    default_status = 504


class Census:
    """How many flows of one machine are in each state, and how often each edge was taken since the start.

    Counted by list index, so that it costs nothing on the hot path; metrics read it when they are scraped.
    """

    __slots__ = ("population", "taken")

    def __init__(self, table: Table) -> None:
        self.taken = [0] * len(table.edges)
        self.population = dict.fromkeys(table.states, 0)


class Effects(Generic[Ctx]):
    """The coroutine of each state of one machine, and which exceptions are which events."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.run: dict[str, Effect[Ctx]] = {}
        self.faults: dict[str, Faults] = {}
        self.cleanup: dict[str, Cleanup[Ctx]] = {}
        self.census = Census(table)
        self.untimed: frozenset[str] = frozenset()
        self.spans: dict[str, frozenset[str]] = {}

    def on(self, state: str, **faults: type[BaseException]) -> Callable[[Effect[Ctx]], Effect[Ctx]]:
        """Attach the effect of `state`. Keywords map exceptions to events, in order of precedence."""

        def register(effect: Effect[Ctx]) -> Effect[Ctx]:
            if state not in self.table.states or state in self.run:
                raise TypeError(f"{self.table.name}.{state}: unknown, or has an effect already")
            self.run[state] = effect
            self.faults[state] = tuple(faults.items())
            return effect

        return register

    def final(self, *states: str) -> Callable[[Cleanup[Ctx]], Cleanup[Ctx]]:
        """Attach the clean-up that runs once on entering one of these final states."""

        def register(cleanup: Cleanup[Ctx]) -> Cleanup[Ctx]:
            self.cleanup.update(dict.fromkeys(states, cleanup))
            return cleanup

        return register

    def beyond_deadline(self, *states: str) -> None:
        """The flow's deadline does not end these states: something else bounds them."""
        self.untimed = frozenset(states)

    def nursery_of(self, compound: str) -> None:
        """The tasks in `ctx.nursery` live as long as the machine is inside this compound state."""
        inside = self.table.within[compound]
        self.spans = dict.fromkeys(inside, inside)

    def seal(self) -> None:
        """Refuse to start unless effects and edges name the same events, state by state.

        Raises:
            TypeError: a state without an effect, an event no edge takes, or an edge no effect can ask for.

        """
        for state in self.table.states:
            if state in self.table.finals:
                continue
            if state not in self.run:
                raise TypeError(f"{self.table.name}.{state} has no effect")
            hint = get_type_hints(self.run[state])["return"]
            says = set(get_args(hint)) if get_origin(hint) is Literal else set()
            says |= {event for event, _ in self.faults[state]} | {"fail", "cancel"}
            allows = set(self.table.moves[state])
            if says != allows:
                raise TypeError(
                    f"{self.table.name}.{state}: no edge takes {sorted(says - allows)}, "
                    f"no effect reports {sorted(allows - says)}"
                )


def leaves(exc: BaseException) -> Iterator[BaseException]:
    """The single exceptions in a group, however deep."""
    if isinstance(exc, BaseExceptionGroup):
        for inner in exc.exceptions:
            yield from leaves(inner)
    else:
        yield exc


class Flow(Generic[Ctx]):
    """One running machine.

    Attributes:
        state: where it is; final when `run` has returned.
        trace: the last edges with the time each was taken (trio clock, seconds).
        fault: what ended it badly, or was mapped to an event last.
        reason: why it was cancelled, as given to `CancelScope.cancel(reason=...)`.

    """

    __slots__ = ("ctx", "deadline", "effects", "fault", "reason", "started", "state", "table", "trace")

    def __init__(self, effects: Effects[Ctx], ctx: Ctx, *, deadline: float = math.inf) -> None:
        self.effects = effects
        self.table = effects.table
        self.ctx = ctx
        self.deadline = deadline
        self.state = self.table.initial
        self.started = trio.current_time()
        self.trace: deque[tuple[Edge, float]] = deque(maxlen=TRACE_EDGES_MAX)
        self.fault: BaseException | None = None
        self.reason: str | None = None

    def take(self, event: str) -> str:
        """Take the edge of `event`: guards, actions, next state, all without an await."""
        edge = self.table.step(self.state, event, self.ctx)
        for action in edge.actions:
            action(self.ctx)  # may raise: then the state has not changed
        census = self.effects.census
        census.taken[edge.index] += 1
        census.population[self.state] -= 1
        census.population[edge.target] += 1
        self.state = edge.target
        self.trace.append((edge, trio.current_time()))
        return edge.target

    async def run(self) -> str:
        """Run to a final state and return it; a cancellation passes through after its clean-up.

        An end other than a good one leaves its cause in `fault`.
        """
        finals, spans = self.table.finals, self.effects.spans
        population = self.effects.census.population
        population[self.state] += 1
        try:
            while self.state not in finals:
                if self.state in spans:
                    await self._within(spans[self.state])
                else:
                    await self._step()
        except Exception as bug:  # noqa: BLE001 - in an edge action or the machine itself; told by `fault`
            self.fault = bug
            if self.state not in finals:
                self.take("fail")
        except BaseException as exc:
            if self.state not in finals:
                self._end(exc)
            raise
        finally:
            population[self.state] -= 1
            cleanup = self.effects.cleanup.get(self.state)
            if cleanup is not None:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + CLEANUP_S):
                    await cleanup(self.ctx)
        return self.state

    async def _step(self) -> None:
        """The effect of one state, and the edge of what it reported."""
        state, effects = self.state, self.effects
        try:
            if self.deadline == math.inf or state in effects.untimed:
                event = await effects.run[state](self.ctx)
            else:
                event = await self._perform_in_time(effects.run[state])
        except (Exception, BaseExceptionGroup) as exc:  # noqa: BLE001 - classified, never dropped
            event = self._classify(exc, effects.faults[state])
        self.take(event)

    async def _within(self, inside: frozenset[str]) -> None:
        """All steps inside one compound state, with its nursery."""
        try:
            async with trio.open_nursery() as nursery:
                self.ctx.nursery = nursery  # type: ignore[attr-defined]  # who asks for a nursery has a place for it
                while self.state in inside:
                    await self._step()
                nursery.cancel_scope.cancel(reason=f"the request is {self.state}")
        except (Exception, BaseExceptionGroup) as exc:  # noqa: BLE001 - classified, never dropped
            event = self._classify(exc, self.effects.faults.get(self.state, ()))
            if self.state not in self.table.finals:
                self.take(event)

    async def _perform_in_time(self, effect: Effect[Ctx]) -> str:
        with trio.CancelScope(deadline=self.deadline) as scope:
            return await effect(self.ctx)
        assert scope.cancelled_caught
        raise Overdue("the request took longer than exception_config.infer_timeout allows")

    def _end(self, exc: BaseException) -> None:
        """Something escaped that no effect may map: a cancellation or an interrupt."""
        cancelled = next((e for e in leaves(exc) if isinstance(e, trio.Cancelled)), None)
        if cancelled is not None:
            self.reason = cancelled.reason or cancelled.source
            self.take("cancel")
        else:
            self.fault = exc
            self.take("fail")

    def _classify(self, exc: BaseException, faults: Faults) -> str:
        """Map what an effect raised to one event.

        A nursery may hand over an engine's fault and a cancellation of the same tick in one group. Only the cancelled
        part may travel on, or the group escapes its cancel scope. A bug beside a fault wins over the fault.
        """
        if isinstance(exc, BaseExceptionGroup):
            gone, _ = exc.split((trio.Cancelled, KeyboardInterrupt, SystemExit))
            if gone is not None:
                raise gone from None
        errors = list(leaves(exc))
        bug = next((e for e in errors if not isinstance(e, MotorFlowError)), None)
        if bug is not None:
            self.fault = bug
            return "fail"
        for event, kind in faults:
            for error in errors:
                if isinstance(error, kind):
                    self.fault = error
                    return event
        self.fault = errors[0]
        return "fail"
