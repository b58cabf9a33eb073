"""What is true of the machines, whatever the effects report."""

from __future__ import annotations

import itertools
from dataclasses import astuple, dataclass

import pytest

from machines import REQUEST, STREAM, TABLES
from machines.proofs import disagreements, endless, explore, findings, only_via, reach


@dataclass
class AbstractRequest:
    """The smallest request in which every guard and action can make a difference."""

    committed: bool = False

    def commit(self) -> None:
        self.committed = True

    accept = commit


@dataclass
class AbstractStream:
    """The smallest stream in which every guard takes both values."""

    finish: str | None = None
    commits: int = 0

    def commit(self) -> None:
        self.commits = min(self.commits + 1, 2)


REQUESTS = [AbstractRequest(), AbstractRequest(committed=True)]
STREAMS = [AbstractStream(finish, commits) for finish, commits in itertools.product((None, "stop"), (0, 1))]
CONTEXTS = {"request": REQUESTS, "stream": STREAMS}


@pytest.mark.parametrize("name", TABLES)
def test_machine_is_sound(name):
    """Reachable, a good end from everywhere, cancel and fail from everywhere, no dead edge, no refusable event."""
    assert findings(TABLES[name]) == []


@pytest.mark.parametrize("name", TABLES)
def test_table_is_the_library(name):
    assert disagreements(TABLES[name], CONTEXTS[name], key=astuple) == []


@pytest.mark.parametrize("name", TABLES)
def test_every_edge_is_possible(name):
    _, taken = explore(TABLES[name], CONTEXTS[name], key=astuple)
    assert set(TABLES[name].edges) == taken


def test_a_stream_commits_only_what_was_derendered():
    assert only_via(STREAM, "committed", lambda edge: edge.event == "derendered")
    assert only_via(STREAM, "finished", lambda edge: edge.event == "derendered")


def test_commit_sits_on_one_edge_only():
    moving = [str(edge) for edge in STREAM.edges if any(a.__name__ == "commit" for a in edge.actions)]
    assert moving == ["derendering --derendered / commit--> committed"]


def test_a_request_commits_only_what_was_derendered_streamed_or_answered():
    assert only_via(REQUEST, "committed", lambda edge: edge.event in ("derendered", "streamed", "answered"))


def test_no_engine_is_asked_before_admission_and_placement():
    assert only_via(REQUEST, "generating", lambda edge: edge.event == "granted")
    assert only_via(REQUEST, "generating", lambda edge: edge.event == "placed")


def test_a_derender_fault_never_returns_to_an_engine():
    asks_engines = {"scheduled", "generating"}
    assert reach(REQUEST, ["derendering"]).isdisjoint(asks_engines)
    after_fault = {edge.target for edge in STREAM.edges if edge.source == "derendering" and edge.event == "fail"}
    assert reach(STREAM, after_fault) == {"failed"}


def test_every_request_ends():
    graph, _ = explore(REQUEST, REQUESTS, key=astuple)
    assert endless(graph) is None


def test_every_stream_ends_when_its_engine_stops_sending():
    graph, _ = explore(STREAM, STREAMS, key=astuple)
    assert endless(graph) is not None
    assert endless(graph, progress=lambda edge: edge.event == "chunk") is None
