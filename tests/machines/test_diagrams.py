"""The committed pictures are the machines that run."""

from __future__ import annotations

from pathlib import Path

import pytest
from statemachine import State, StateMachine

from machines import TABLES, Table
from motor_flow.views import diagram
from motor_flow.views.drawing import draw

DIAGRAMS = Path(__file__).parents[2] / "diagrams"


def test_committed_pictures_are_fresh():
    assert diagram.stale(DIAGRAMS, list(TABLES)) == []


def test_check_notices_a_changed_transition(tmp_path, monkeypatch, capsys):
    """The same pictures, one transition more in the code: exit 3, and the files that differ are named."""
    assert draw(None, "mermaid", tmp_path, check=False) == 0
    assert draw(None, "mermaid", tmp_path, check=True) == 0

    class RequestMachine(StateMachine):
        a = State(initial=True)
        b = State(final=True)
        go = a.to(b)

    monkeypatch.setitem(diagram.TABLES, "request", Table.of(RequestMachine))
    assert draw(None, "mermaid", tmp_path, check=True) == 3
    said = capsys.readouterr().out
    assert [f"request.{s}: differs" in said for s in ("mmd", "md", "dot", "svg")] == [True] * 4
    assert "stream." not in said


def test_check_notices_a_missing_picture(tmp_path, capsys):
    assert draw("stream", "mermaid", tmp_path, check=True) == 3
    assert "stream.mmd: missing" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["mermaid", "md", "dot"])
def test_every_state_and_edge_is_drawn(form):
    for table in TABLES.values():
        text = diagram.render(table, form)
        for arrow in diagram.arrows(table):
            assert arrow.label.split(" ")[0] in text
        assert [state for state in table.states if state not in text] == []


def test_pictures_are_deterministic():
    for table in TABLES.values():
        assert diagram.dot(table) == diagram.dot(Table.of(table.machine))


@pytest.mark.parametrize(("machine", "form", "said"), [("nope", "mermaid", "no machine"), (None, "png", "no format")])
def test_wrong_names_are_usage_errors(machine, form, said, capsys):
    assert draw(machine, form, None, check=False) == 2
    assert said in capsys.readouterr().err
