"""What does `motor-flow diagram` print, write or find stale?

Source: contract section 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

from machines import TABLES
from motor_flow.views.diagram import COMMITTED, SUFFIXES, NoRenderer, render, stale, write_all
from motor_flow.views.exits import EXIT_FAILED, EXIT_PROBLEMS, EXIT_USAGE

DEFAULT_DIRECTORY = Path("diagrams")


def draw(machine: str | None, form: str, out: Path | None, *, check: bool) -> int:
    """Print one format, write all of them, or compare; returns the exit status."""
    if machine is not None and machine not in TABLES:
        return _usage(f"there is no machine {machine!r}; there are {', '.join(TABLES)}")
    if form not in SUFFIXES:
        return _usage(f"there is no format {form!r}; there are {', '.join(SUFFIXES)}")
    names = [machine] if machine is not None else list(TABLES)
    if check:
        return _check(out or DEFAULT_DIRECTORY, names)
    try:
        if out is not None:
            for path in write_all(out, names, COMMITTED):
                sys.stderr.write(f"wrote {path}\n")
        else:
            for name in names:
                sys.stdout.write(render(TABLES[name], form))
    except NoRenderer as exc:
        sys.stderr.write(f"{exc}\n")
        return EXIT_FAILED
    return 0


def _check(directory: Path, names: list[str]) -> int:
    found = stale(directory, names)
    for line in found:
        sys.stdout.write(f"{line}\n")
    if found:
        sys.stderr.write(f"run: motor-flow diagram --out {directory}\n")
        return EXIT_PROBLEMS
    return 0


def _usage(message: str) -> int:
    sys.stderr.write(f"{message}\n")
    return EXIT_USAGE
