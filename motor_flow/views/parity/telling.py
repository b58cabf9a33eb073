"""How is a comparison told: two tables and a list for a person, one document for a program?

Source: contract section 1 (parity).
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from motor_flow.views.parity.accepted import ACCEPTED
from motor_flow.views.parity.outcome import Outcome

DIFFERENCES_SHOWN_MAX = 50
PIPED_COLUMNS = 4096


def document(outcome: Outcome) -> dict[str, Any]:
    """Everything, for a program."""
    counted = outcome.verdicts()
    uses = outcome.uses()
    return {
        "native": {"url": outcome.native.url, "version": outcome.native.version},
        "coordinator": {"url": outcome.coordinator.url},
        "model": outcome.model,
        "planned": outcome.planned,
        "ended_early": outcome.ended or None,
        "requests": len(outcome.results),
        "left_out": outcome.left_out,
        **_verdicts(counted),
        "kinds": {kind: _verdicts(outcome.verdicts(kind)) for kind in outcome.kinds},
        "fields": {
            "different": dict(sorted(outcome.fields(accepted=False).items())),
            "accepted": dict(sorted(outcome.fields(accepted=True).items())),
        },
        "accepted_differences": [
            {
                "name": entry.name,
                "fields": sorted(entry.fields),
                "requests": entry.requests,
                "reason": entry.reason,
                "source": entry.source,
                "versions": entry.versions,
                "applies": entry.at(outcome.native.version),
                "count": uses[entry.name],
            }
            for entry in ACCEPTED
        ],
        "differences": [
            {
                "request": case.name,
                "field": judged.difference.field,
                "native": judged.difference.native,
                "coordinator": judged.difference.chain,
                "accepted": judged.accepted.name if judged.accepted else None,
            }
            for case, judged in outcome.judged
        ],
    }


def tell(outcome: Outcome, console: Console) -> None:
    """The same, for a person."""
    if not console.is_terminal:
        console.width = PIPED_COLUMNS  # nothing is folded that a program may search
    console.print(_kinds(outcome))
    if outcome.judged:
        console.print(_fields(outcome))
    console.print(_accepted(outcome))
    different = [(case, judged) for case, judged in outcome.judged if judged.accepted is None]
    for case, judged in different[:DIFFERENCES_SHOWN_MAX]:
        console.print(f"{case.name}: {judged.difference}", markup=False, highlight=False)
    if len(different) > DIFFERENCES_SHOWN_MAX:
        console.print(f"... and {len(different) - DIFFERENCES_SHOWN_MAX} more; --json FILE has all", markup=False)
    for reason, names in outcome.left_out.items():
        console.print(f"{len(names)} requests were left out: {reason}", markup=False, highlight=False)
    if outcome.ended:
        done = f"{len(outcome.results)} of {outcome.planned}"
        console.print(f"ended at {done}: {outcome.ended}", style="bold red", markup=False, highlight=False)
    counted = outcome.verdicts()
    console.print(
        f"{len(outcome.results)} requests: {counted['equal']} equal, {counted['accepted']} with accepted differences "
        f"only, {counted['different']} different",
        style="bold green" if outcome.good else "bold red",
        highlight=False,
    )


def _verdicts(counted: Any) -> dict[str, int]:
    return {verdict: counted[verdict] for verdict in ("equal", "accepted", "different")}


def _kinds(outcome: Outcome) -> Table:
    version = outcome.native.version or "of unknown version"
    table = Table(title=f"native vLLM {version} and the Coordinator, model {escape(outcome.model)}", box=None)
    table.add_column("kind of request")
    for column in ("requests", "equal", "accepted", "different"):
        table.add_column(column, justify="right")
    for kind in outcome.kinds:
        counted = outcome.verdicts(kind)
        table.add_row(escape(kind), str(counted.total()), *(str(count) for count in _verdicts(counted).values()))
    return table


def _fields(outcome: Outcome) -> Table:
    table = Table(box=None)
    table.add_column("field")
    table.add_column("accepted", justify="right")
    table.add_column("different", justify="right")
    accepted, different = outcome.fields(accepted=True), outcome.fields(accepted=False)
    for field in sorted({*accepted, *different}):
        table.add_row(escape(field), str(accepted[field]), str(different[field]))
    return table


def _accepted(outcome: Outcome) -> Table:
    table = Table(box=None)
    table.add_column("accepted difference")
    table.add_column("count", justify="right")
    for column in ("which requests", "why", "source", "vLLM"):
        table.add_column(column, overflow="fold")
    uses = outcome.uses()
    for entry in ACCEPTED:
        fits = "" if entry.at(outcome.native.version) else " (not this one)"
        row = (entry.name, str(uses[entry.name]), entry.requests, entry.reason, entry.source, entry.versions + fits)
        table.add_row(*(escape(cell) for cell in row))
    return table
