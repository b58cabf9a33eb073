"""Shared by all tests: which edges were taken, and the lockstep with python-statemachine.

pytest --all-edges    fails when an edge of a machine was never taken by this run
pytest --shadow       every running flow drives a library instance beside the table
"""

from __future__ import annotations

import pytest

from machines import TABLES
from motor_flow.effects.instance import instance_effects
from motor_flow.effects.request import request_effects
from motor_flow.effects.sidecar import sidecar_effects
from motor_flow.effects.stream import stream_effects
from motor_flow.flow import Flow

EFFECTS = {
    "request": request_effects,
    "stream": stream_effects,
    "instance": instance_effects,
    "sidecar": sidecar_effects,
}


def pytest_addoption(parser):
    parser.addoption("--all-edges", action="store_true", help="fail when an edge of a machine is never taken")
    parser.addoption("--shadow", action="store_true", help="run python-statemachine beside every flow")


def pytest_sessionfinish(session):
    if not session.config.getoption("--all-edges") or session.config.option.collectonly:
        return
    missing = [
        str(edge)
        for name, table in TABLES.items()
        for edge in table.edges
        if not EFFECTS[name].census.taken[edge.index]
    ]
    total = sum(len(table.edges) for table in TABLES.values())
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    reporter.write_line(f"\nedges taken: {total - len(missing)} of {total}")
    for edge in missing:
        reporter.write_line(f"  never taken: {edge}")
    if missing:
        session.exitstatus = 1


class Seen:
    """A context as guards see it, with its actions switched off: the table's run acts, the library's only watches."""

    def __init__(self, ctx):
        self.__dict__["_ctx"] = ctx

    def __getattr__(self, name):
        return getattr(self._ctx, name)

    def commit(self):
        """Acted on by the table's run."""

    accept = begin = blame = renew = rollback = go_native = grow = put_on_trial = commit


@pytest.fixture(autouse=True)
def shadow(request, monkeypatch):
    if not request.config.getoption("--shadow"):
        return
    take = Flow.take
    libraries = {}

    def lockstep(self, event):
        if self.effects not in EFFECTS.values():
            return take(self, event)  # a machine of a test of the trampoline itself
        library = libraries.get(id(self))
        if library is None:
            library = libraries[id(self)] = self.table.machine(start_value=self.state)
        edge = self.table.step(self.state, event, self.ctx)
        library.send(event, ctx=Seen(self.ctx))
        # Guards may read what actions change, so both decide before either acts.
        target = take(self, event)
        assert edge.target == target == next(s.id for s in library.configuration if s.is_atomic)
        if target in self.table.finals:
            del libraries[id(self)]
        return target

    monkeypatch.setattr(Flow, "take", lockstep)
