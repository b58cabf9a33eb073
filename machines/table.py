"""How does a python-statemachine class become a table that costs nothing to step?

`Table.of(cls)` flattens the class into edges, one per leaf state and event alternative, and refuses everything that has
no exact meaning in a table, at import. The class stays the only definition: pictures, docs and proofs are made from the
same table that runs.

Semantics kept from SCXML: a leaf's own transitions come before its ancestors'; alternatives of one event are tried in
declaration order; guards are read before any action; actions run before the state changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from statemachine import State, StateMachine
from statemachine.callbacks import SpecReference

Guard = Callable[[Any], bool]
Action = Callable[[Any], None]


class CompileError(TypeError):
    """The declaration uses something that has no exact meaning in a table."""


class IllegalEvent(Exception):
    """An event arrived in a state that does not allow it: a bug in an effect."""

    def __init__(self, table: Table, state: str, event: str) -> None:
        super().__init__(f"{table.name}: event {event!r} is not allowed in {state!r}")
        self.state = state
        self.event = event


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """One arrow of the flattened machine.

    Attributes:
        index: position in `Table.edges`; observers count by it.
        declared_on: the state the arrow is drawn from: the leaf or an ancestor.

    """

    index: int
    source: str
    event: str
    target: str
    guards: tuple[Guard, ...]
    actions: tuple[Action, ...]
    declared_on: str

    @property
    def label(self) -> str:
        """`event [guard and guard] / action, action`."""
        guards = " and ".join(g.__name__ for g in self.guards)
        actions = ", ".join(a.__name__ for a in self.actions)
        return self.event + (f" [{guards}]" if guards else "") + (f" / {actions}" if actions else "")

    def __str__(self) -> str:
        return f"{self.source} --{self.label}--> {self.target}"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """One compiled machine.

    Attributes:
        states: leaves, in declaration order.
        moves: state -> event -> its only, unguarded edge, or the alternatives in order.
        within: compound -> the leaves inside it, at any depth.

    """

    machine: type[StateMachine]
    name: str
    initial: str
    states: tuple[str, ...]
    finals: frozenset[str]
    events: tuple[str, ...]
    edges: tuple[Edge, ...]
    moves: dict[str, dict[str, Edge | tuple[Edge, ...]]]
    within: dict[str, frozenset[str]]

    def step(self, state: str, event: str, ctx: Any) -> Edge:
        """The edge that `event` takes from `state`. Reads guards, runs no action.

        Raises:
            IllegalEvent: the state does not allow the event.

        """
        move = self.moves[state].get(event)
        if move.__class__ is Edge:
            return move
        if move is not None:
            for edge in move:  # type: ignore[union-attr]
                if all(guard(ctx) for guard in edge.guards):
                    return edge
        raise IllegalEvent(self, state, event)

    def alternatives(self, state: str, event: str) -> tuple[Edge, ...]:
        """Every edge that `event` may take from `state`, in the order in which they are tried."""
        move = self.moves[state].get(event, ())
        return (move,) if isinstance(move, Edge) else move

    @classmethod
    def of(cls, machine: type[StateMachine]) -> Table:
        """Compile a class.

        Raises:
            CompileError: the declaration holds something that a table cannot mean exactly.

        """
        leaves = [state for state in _walk(machine.states) if not state.states]
        within: dict[str, set[str]] = {}
        for leaf in leaves:
            for owner in leaf.ancestors():
                within.setdefault(owner.id, set()).add(leaf.id)
        edges: list[Edge] = []
        moves: dict[str, dict[str, Edge | tuple[Edge, ...]]] = {}
        for leaf in leaves:
            found: dict[str, list[Edge]] = {}
            for owner in (leaf, *leaf.ancestors()):
                for edge in _edges(machine, leaf, owner, first=len(edges)):
                    edges.append(edge)
                    found.setdefault(edge.event, []).append(edge)
            moves[leaf.id] = {
                event: some[0] if len(some) == 1 and not some[0].guards else tuple(some)
                for event, some in found.items()
            }
        _refuse_hidden_callbacks(machine)
        return cls(
            machine=machine,
            name=machine.__name__,
            initial=_enter(machine.initial_state).id,
            states=tuple(leaf.id for leaf in leaves),
            finals=frozenset(leaf.id for leaf in leaves if leaf.final),
            events=tuple(dict.fromkeys(edge.event for edge in edges)),
            edges=tuple(edges),
            moves=moves,
            within={compound: frozenset(inside) for compound, inside in within.items()},
        )


def _walk(states: Any) -> Iterator[State]:
    for state in states:
        if state.parallel or state.history:
            raise CompileError(f"{state.id}: parallel and history states are not compiled")
        yield state
        yield from _walk(state.states)


def _enter(state: State) -> State:
    """The leaf that entering `state` ends in."""
    while state.states:
        state = next(t.target for t in state.transitions if t.initial)
    return state


def _edges(machine: type[StateMachine], leaf: State, owner: State, first: int) -> Iterator[Edge]:
    index = first
    for transition in owner.transitions:
        if transition.initial:
            continue
        _refuse(machine, owner, transition)
        for event in transition.events:
            yield Edge(
                index=index,
                source=leaf.id,
                event=str(event),
                target=_enter(transition.target).id,
                guards=_functions(machine, transition.cond),
                actions=_functions(machine, transition.on),
                declared_on=owner.id,
            )
            index += 1


def _refuse(machine: type[StateMachine], owner: State, transition: Any) -> None:
    reasons = {
        "is eventless": transition.is_eventless,
        "has several targets": len(transition.targets) != 1,
        "is internal": transition.internal,
        "has a delayed or internal event": any(event.delay or event.internal for event in transition.events),
    }
    for reason, holds in reasons.items():
        if holds:
            raise CompileError(f"{machine.__name__}.{owner.id}: transition {transition.event} {reason}")


def _functions(machine: type[StateMachine], group: Any) -> tuple[Callable[[Any], Any], ...]:
    found = []
    for spec in group:
        if spec.is_convention:
            continue
        if spec.reference is not SpecReference.CALLABLE or spec.expected_value is False:
            raise CompileError(f"{machine.__name__}: {spec} must be a plain function, given directly")
        found.append(spec.func)
    return tuple(found)


def _refuse_hidden_callbacks(machine: type[StateMachine]) -> None:
    """Every other hook that the library would call must be empty, or it would silently not run."""
    owners: list[Any] = [machine]
    for state in _walk(machine.states):
        owners += [state, *state.transitions]
    for owner in owners:
        for spec in owner._specs:  # noqa: SLF001 - the library offers no public list of callbacks
            compiled = spec.group.name in ("COND", "ON") and not spec.is_convention
            present = hasattr(machine, spec.attr_name) if spec.is_convention else True
            if present and not compiled:
                raise CompileError(f"{machine.__name__}: callback {spec.attr_name!r} would not run")
    if machine._class_listeners:  # noqa: SLF001 - likewise
        raise CompileError(f"{machine.__name__}: class listeners would not run")
