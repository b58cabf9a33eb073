"""What is true of the machines, whatever the effects report."""

from __future__ import annotations

import itertools
from dataclasses import astuple, dataclass

import pytest

from machines import REQUEST, STREAM, TABLES
from machines.proofs import disagreements, endless, explore, findings, only_via, reach

ATTEMPTS_MAX = 3


@dataclass
class AbstractRequest:
    """The smallest request in which every guard and action can make a difference.

    Attributes:
        curable: the fault is one that another attempt may cure.
        movable: a visible answer may go on elsewhere.
        late: a sibling becomes visible in the very moment in which a prompt breaks.
        native_offered: an engine may answer in OpenAI form.

    """

    visible: bool = False
    obfuscated: bool = False
    stream: bool = False
    route: str = "token_only"
    curable: bool = True
    movable: bool = True
    late: bool = False
    native_offered: bool = True
    attempts: int = 0
    committed: bool = False

    @property
    def may_retry(self) -> bool:
        return self.curable and self.attempts < ATTEMPTS_MAX

    @property
    def may_relay(self) -> bool:
        return self.movable and self.may_retry

    def begin(self) -> None:
        self.attempts += 1

    def blame(self) -> None:
        self.visible |= self.late

    def renew(self) -> None:
        """Only prompts move."""

    rollback = renew

    def go_native(self) -> None:
        self.route = "native"

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


@dataclass
class AbstractInstance:
    """Counts what its machine does to it."""

    openings: int = 0
    on_trial: bool = False

    def grow(self) -> None:
        self.openings = min(self.openings + 1, 2)

    def put_on_trial(self) -> None:
        self.on_trial = True


REQUESTS = [
    AbstractRequest(visible, obfuscated, stream, route, curable, movable, late, offered)
    for visible, obfuscated, stream, curable, movable, late, offered in itertools.product((False, True), repeat=7)
    for route in ("token_only", "native")
]
STREAMS = [AbstractStream(finish, commits) for finish, commits in itertools.product((None, "stop"), (0, 1))]
CONTEXTS = {
    "request": REQUESTS,
    "stream": STREAMS,
    "instance": [AbstractInstance()],
    "sidecar": [AbstractInstance()],
}


@pytest.mark.parametrize("name", TABLES)
def test_machine_is_sound(name):
    """Reachable, a good end from everywhere, cancel and fail from everywhere, no dead edge, no refusable event."""
    assert findings(TABLES[name]) == []


@pytest.mark.parametrize("name", TABLES)
def test_table_is_the_library(name):
    few = CONTEXTS[name][:: max(1, len(CONTEXTS[name]) // 16 | 1)]  # the library is slow; guards see each value often
    assert disagreements(TABLES[name], few, key=astuple) == []


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
    assert only_via(REQUEST, "committed", lambda edge: edge.event in ("derendered", "generated"))
    for edge in REQUEST.edges:
        if edge.target == "committed" and edge.event == "generated":
            assert [guard.__name__ for guard in edge.guards] in (["is_native"], ["is_streamed"])


def test_no_engine_is_asked_before_admission_and_placement():
    assert only_via(REQUEST, "generating", lambda edge: edge.event == "granted")
    assert only_via(REQUEST, "generating", lambda edge: edge.event == "placed")


def test_a_derender_fault_never_returns_to_an_engine():
    asks_engines = {"scheduled", "generating", "relaying", "rolling_back"}
    assert reach(REQUEST, ["derendering"]).isdisjoint(asks_engines)
    after_fault = {edge.target for edge in STREAM.edges if edge.source == "derendering" and edge.event == "fail"}
    assert reach(STREAM, after_fault) == {"failed"}


def test_what_was_visible_is_never_rolled_back():
    """And every way back to an engine passes a guard that counts attempts, or changes the route for good."""
    for edge in REQUEST.edges:
        if edge.target == "scheduled" and edge.source == "rolling_back":
            assert "nothing_visible" in [guard.__name__ for guard in edge.guards]

    def never_back(state, ctx, trail):
        if trail and trail[-1].event == "restored" and trail[-1].target == "scheduled":
            assert not ctx.visible
        assert ctx.attempts <= ATTEMPTS_MAX
        if ctx.obfuscated and REQUESTS[0].route == "token_only":
            assert "go_native" not in [a.__name__ for edge in trail for a in edge.actions if edge.event != "bypassed"]

    explore(REQUEST, REQUESTS, key=astuple, invariant=never_back)


def test_a_new_attempt_starts_only_outside_the_nursery_or_for_a_broken_prompt():
    """A rollback leaves the compound that owns the attempts; a relay stays in it, for its siblings."""
    assert REQUEST.within["running"] == {"scheduled", "generating", "relaying"}
    assert "rolling_back" not in REQUEST.within["running"]


def test_every_request_ends():
    graph, _ = explore(REQUEST, REQUESTS, key=astuple)
    assert endless(graph) is None


def test_every_stream_ends_when_its_engine_stops_sending():
    graph, _ = explore(STREAM, STREAMS, key=astuple)
    assert endless(graph) is not None
    assert endless(graph, progress=lambda edge: edge.event == "chunk") is None
