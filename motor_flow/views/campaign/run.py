"""How is a campaign run and told?

World after world until enough requests were made; progress on stderr, a summary on stdout, exit status 3 when anything
was wrong. Same seed and number, same campaign: scheduling is seeded too.

Source: contract section 1 (check --sim).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib import import_module
from random import Random
from typing import Any

import structlog
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from trio.testing import MockClock

from motor_flow.views.campaign.worlds import SCENES_PER_WORLD, Problem, Tally, play_world
from motor_flow.views.exits import EXIT_PROBLEMS

PROBLEMS_SHOWN_MAX = 20


@dataclass(slots=True)
class Outcome:
    """What a campaign has found."""

    seed: int
    tally: Tally = field(default_factory=Tally)
    problems: list[Problem] = field(default_factory=list)
    worlds: int = 0
    seconds: float = 0.0


def campaign(requests: int, seed: int, *, progress: Progress | None = None) -> Outcome:
    """Play so many requests."""
    outcome = Outcome(seed)
    started = time.monotonic()
    task = progress.add_task("requests", total=requests) if progress is not None else None
    while outcome.tally.requests < requests:
        scenes = min(SCENES_PER_WORLD, requests - outcome.tally.requests)
        _schedule_by(f"{seed}:{outcome.worlds}")
        world = play_world(seed, outcome.worlds, scenes, _virtual_clock)
        outcome.tally.add(world.tally)
        outcome.problems += world.problems
        outcome.worlds += 1
        if progress is not None and task is not None:
            progress.update(task, completed=outcome.tally.requests)
    outcome.seconds = time.monotonic() - started
    return outcome


def run_campaign(requests: int, seed: int, *, as_json: bool) -> int:
    """Play a campaign and tell what came of it; returns the exit status."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        outcome = campaign(requests, seed, progress=progress)
    if as_json:
        document = asdict(outcome.tally) | {
            "seed": seed,
            "worlds": outcome.worlds,
            "seconds": round(outcome.seconds, 1),
            "problems": [str(problem) for problem in outcome.problems],
        }
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        _print(outcome)
    return EXIT_PROBLEMS if outcome.problems else 0


def _print(outcome: Outcome) -> None:
    tally = outcome.tally
    table = Table(title=f"{tally.requests} requests in {outcome.worlds} worlds, seed {outcome.seed}")
    table.add_column("what")
    table.add_column("how many", justify="right")
    rows = [
        ("faults planned", tally.faults),
        ("engines killed", tally.deaths),
        ("answered, equal to a clean engine's own answer", tally.completed),
        ("client left", tally.left),
        *((f"ended with a clear error, stage {stage}", count) for stage, count in sorted(tally.failed.items())),
        ("engine requests", tally.attempts),
        ("of these, second and later attempts", tally.further_attempts),
        ("of these, on the native route", tally.native),
        ("problems: silent cuts, repeats, losses, things left behind", len(outcome.problems)),
    ]
    for what, count in rows:
        table.add_row(what, str(count))
    console = Console()
    console.print(table)
    for problem in outcome.problems[:PROBLEMS_SHOWN_MAX]:
        console.print(str(problem), markup=False)
    if len(outcome.problems) > PROBLEMS_SHOWN_MAX:
        console.print(f"... and {len(outcome.problems) - PROBLEMS_SHOWN_MAX} more")
    console.print(f"{outcome.seconds:.1f} s; virtual time, so nothing here says how fast serving is", markup=False)


def _virtual_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


def _schedule_by(seed: str) -> None:
    """Make trio's order of tasks follow from the seed: it shuffles, so that nobody relies on an order."""
    scheduler: Any = import_module("trio._core._run")
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # noqa: SLF001 - there is no public way; hypothesis does the same
    scheduler._r = Random(seed)  # noqa: S311, SLF001 - likewise; a seed is the point
