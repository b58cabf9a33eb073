"""Is this configuration fit to serve, and is everything it names?

Source: contract sections 1 and 7 (check, Probe).
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import msgspec
import trio
from rich.console import Console
from rich.table import Table as RichTable

from motor_flow.app import start_warnings
from motor_flow.config import BadConfiguration, load
from motor_flow.net.stream import network
from motor_flow.views.examine import Finding, Status, examine
from motor_flow.views.exits import EXIT_CONFIG, EXIT_PROBLEMS

PIPED_COLUMNS = 4096
STYLES: dict[Status, str] = {"ok": "green", "note": "yellow", "bad": "bold red"}


def run_check(path: Path, *, as_json: bool) -> int:
    """Check, print, and return the exit status."""
    try:
        loaded = load(path)
    except BadConfiguration as exc:
        findings = [Finding("configuration", str(path), "bad", fault) for fault in exc.faults]
        _print(findings, as_json=as_json)
        return EXIT_CONFIG
    findings = [Finding("configuration", str(path), "ok", f"valid; sets {len(loaded.given)} keys")]
    findings += [
        Finding("configuration", str(path), "note", warning)
        for warning in (*loaded.warnings, *start_warnings(loaded.config, loaded.given))
    ]
    findings += trio.run(examine, loaded.config, network())
    _print(findings, as_json=as_json)
    return EXIT_PROBLEMS if any(finding.status == "bad" for finding in findings) else 0


def _print(findings: list[Finding], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode({"findings": [asdict(finding) for finding in findings]}).decode() + "\n")
        return
    table = RichTable(box=None, pad_edge=False)
    for column in ("", "what", "where", "found"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        style = STYLES[finding.status]
        table.add_row(f"[{style}]{finding.status}[/]", finding.about, finding.where, finding.text)
    console = Console()
    if not console.is_terminal:
        console.width = PIPED_COLUMNS  # nothing is folded that a program may search
    console.print(table)
