"""What is true of a compiled machine, whatever the effects report?

`findings` lists static faults; `only_via` and `reach` answer path questions; `explore` walks every configuration that
an arbitrary environment can produce; `endless` finds a run that never ends; `disagreements` compares the table with the
library. All of it runs in tests; nothing here runs while serving.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from graphlib import CycleError, TopologicalSorter
from typing import Any

from machines.table import Edge, IllegalEvent, Table

Configuration = tuple[str, Hashable]
Graph = dict[Configuration, list[tuple[Edge, Configuration]]]

BAD_ENDS = frozenset({"failed", "cancelled", "broken"})
ALWAYS = {"cancel": "cancelled", "fail": "failed"}


def reach(table: Table, start: Iterable[str], *, without: Callable[[Edge], bool] = lambda _: False) -> set[str]:
    """States that can follow `start`, `start` included, never taking an edge of `without`."""
    seen = set(start)
    todo = deque(seen)
    while todo:
        state = todo.popleft()
        for edge in table.edges:
            if edge.source == state and edge.target not in seen and not without(edge):
                seen.add(edge.target)
                todo.append(edge.target)
    return seen


def only_via(table: Table, target: str, edge: Callable[[Edge], bool]) -> bool:
    """Dominator check: every path from the start to `target` takes an edge that satisfies `edge`."""
    return target not in reach(table, [table.initial], without=edge)


def findings(table: Table) -> list[str]:
    """Static faults of one machine; empty when it is sound."""
    found = []
    if lost := set(table.states) - reach(table, [table.initial]):
        found.append(f"unreachable: {sorted(lost)}")
    for state in table.states:
        found += _final_findings(table, state) if state in table.finals else _live_findings(table, state)
    return found


def _final_findings(table: Table, state: str) -> list[str]:
    return [f"final {state} has a way out"] if table.moves[state] else []


def _live_findings(table: Table, state: str) -> list[str]:
    found = []
    good_ends = table.finals - BAD_ENDS  # a machine without any runs as long as the process
    if good_ends and not reach(table, [state]) & good_ends:
        found.append(f"{state} cannot end well")
    for event, end in ALWAYS.items():
        edges = table.alternatives(state, event)
        if len(edges) != 1 or edges[0].guards or edges[0].target != end:
            found.append(f"{event} from {state} is not unconditional to {end}")
    for event in table.moves[state]:
        edges = table.alternatives(state, event)
        found += [
            f"dead edge, shadowed: {edge}"
            for i, edge in enumerate(edges)
            if any(set(earlier.guards) <= set(edge.guards) for earlier in edges[:i])
        ]
        if edges[-1].guards:
            found.append(f"{state} may refuse {event}: its last edge is guarded")
    return found


def explore(
    table: Table,
    contexts: Iterable[Any],
    *,
    key: Callable[[Any], Hashable],
    invariant: Callable[[str, Any, tuple[Edge, ...]], None] = lambda _state, _ctx, _trail: None,
    configurations_max: int = 1_000_000,
) -> tuple[Graph, set[Edge]]:
    """Everything the machine can do when the environment may send any allowed event.

    Args:
        table: the machine.
        contexts: initial contexts; they are copied.
        key: makes a context hashable; equal keys are the same configuration.
        invariant: called once for each configuration with the path that led there first.
        configurations_max: more than this means the state space is not finite.

    Returns:
        The configuration graph and the set of edges that were taken.

    """
    graph: Graph = {}
    taken: set[Edge] = set()
    todo: deque[tuple[str, Any, tuple[Edge, ...]]] = deque((table.initial, ctx, ()) for ctx in contexts)
    while todo:
        state, ctx, trail = todo.popleft()
        here = (state, key(ctx))
        if here in graph:
            continue
        graph[here] = []
        if len(graph) > configurations_max:
            raise RuntimeError("the state space is not finite")
        invariant(state, ctx, trail)
        for event in table.moves[state]:
            after = copy.copy(ctx)
            edge = table.step(state, event, after)  # IllegalEvent here is a counterexample
            for action in edge.actions:
                action(after)
            taken.add(edge)
            graph[here].append((edge, (edge.target, key(after))))
            todo.append((edge.target, after, (*trail, edge)))
    return graph, taken


def endless(graph: Graph, *, progress: Callable[[Edge], bool] = lambda _: False) -> list[Configuration] | None:
    """A cycle of configurations that takes no `progress` edge, or None.

    None means: every run ends, as long as the environment supplies finitely many progress events.
    """
    try:
        TopologicalSorter(
            {here: [there for edge, there in out if not progress(edge)] for here, out in graph.items()}
        ).prepare()
    except CycleError as cycle:
        return list(cycle.args[1])
    return None


def disagreements(table: Table, contexts: Iterable[Any], *, key: Callable[[Any], Hashable]) -> list[str]:
    """Where table and library differ, over every state, event (an unknown one too) and context."""
    found = []
    for ctx, state, event in itertools.product(contexts, table.states, (*table.events, "no_such_event")):
        ours, theirs = copy.copy(ctx), copy.copy(ctx)
        table_says = _table_target(table, state, event, ours)
        library_says = _library_target(table, state, event, theirs)
        if (table_says, key(ours)) != (library_says, key(theirs)):
            found.append(f"{state} --{event}--> table {table_says}, library {library_says}")
    return found


def _table_target(table: Table, state: str, event: str, ctx: Any) -> str | None:
    try:
        edge = table.step(state, event, ctx)
    except IllegalEvent:
        return None
    for action in edge.actions:
        action(ctx)
    return edge.target


def _library_target(table: Table, state: str, event: str, ctx: Any) -> str | None:
    machine = table.machine(start_value=state)
    try:
        machine.send(event, ctx=ctx)
    except machine.TransitionNotAllowed:
        return None
    return str(next(s.id for s in machine.configuration if s.is_atomic))
