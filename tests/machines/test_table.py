"""What the compiler accepts, what it refuses, and what a step means."""

from __future__ import annotations

import pytest
from statemachine import State, StateMachine

from machines import STREAM, IllegalEvent, Table
from machines.proofs import disagreements, findings
from machines.table import CompileError


def yes(_ctx):
    return True


def no(_ctx):
    return False


def test_step_returns_the_edge_and_runs_no_action():
    class Context:
        finish = None

        def commit(self):
            raise AssertionError("a step must not act")

    edge = STREAM.step("derendering", "derendered", Context())
    assert (edge.target, [action.__name__ for action in edge.actions]) == ("committed", ["commit"])


@pytest.mark.parametrize("event", ["chunk", "no_such_event"])
def test_an_event_the_state_does_not_allow_is_a_bug(event):
    with pytest.raises(IllegalEvent, match=r"StreamMachine: event '.*' is not allowed in 'opening'"):
        STREAM.step("opening", event, None)


def test_guards_are_tried_in_declaration_order():
    class Choice(StateMachine):
        a = State(initial=True)
        b = State(final=True)
        c = State(final=True)
        go = a.to(b, cond=no) | a.to(c, cond=[yes, yes])

    assert Table.of(Choice).step("a", "go", None).target == "c"


def test_all_guards_of_an_edge_must_hold():
    class Refusing(StateMachine):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b, cond=[yes, no])

    table = Table.of(Refusing)
    with pytest.raises(IllegalEvent):
        table.step("a", "go", None)
    assert "a may refuse go: its last edge is guarded" in findings(table)


def test_inner_transitions_win_over_outer_ones():
    class Nested(StateMachine):
        class outer(State.Compound):
            a = State(initial=True)
            b = State()
            stop = a.to(b)

        end = State(final=True)
        stop = outer.to(end)

    table = Table.of(Nested)
    assert table.step("a", "stop", None).target == "b"
    assert table.step("b", "stop", None).target == "end"
    assert disagreements(table, [()], key=lambda ctx: ctx) == []


def _by_name():
    class ByName(StateMachine):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b, cond="allowed")

        def allowed(self):
            return True

    return ByName


def _on_enter():
    class OnEnter(StateMachine):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

        def on_enter_b(self):
            """Would silently not run."""

    return OnEnter


def _internal():
    class Internal(StateMachine):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)
        stay = a.to.itself(internal=True)

    return Internal


def _unless():
    class Unless(StateMachine):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b, unless=yes)

    return Unless


def _parallel():
    class Parallel(StateMachine):
        class both(State.Parallel):
            class one(State.Compound):
                a = State(initial=True)
                b = State(final=True)
                go = a.to(b)

            class two(State.Compound):
                c = State(initial=True)
                d = State(final=True)
                run = c.to(d)

    return Parallel


@pytest.mark.parametrize("make", [_by_name, _on_enter, _internal, _unless, _parallel])
def test_what_a_table_cannot_mean_exactly_is_refused(make):
    with pytest.raises(CompileError):
        Table.of(make())


def test_findings_name_what_is_wrong():
    """Also what the library accepts: a trap inside a compound state, a shadowed edge."""

    class Broken(StateMachine):
        class active(State.Compound):
            a = State(initial=True)
            trap = State()
            go = a.to(trap)
            loop = trap.to.itself()

        done = State(final=True)
        failed = State(final=True)
        go = active.a.to(done)
        fail = active.a.to(failed)

    found = findings(Table.of(Broken))
    assert any(line.startswith("dead edge, shadowed: a --go--> done") for line in found)
    assert "trap cannot end well" in found
    assert any(line.startswith("fail from trap is not unconditional") for line in found)
    assert any(line.startswith("cancel from a is not unconditional") for line in found)
