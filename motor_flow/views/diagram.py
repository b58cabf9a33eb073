"""What do the machines look like?

Deterministic pictures of the compiled tables: Mermaid, Graphviz DOT, SVG and a Markdown page. They are made from
the same tables that run, and committed; `check` says where the committed ones differ from the code.

Source: contract section 1 (diagram); measured reasons against the library's own DOT in
diagrams/decisions/0002-compiled-machines.md.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from machines import TABLES, Table

Format = Literal["mermaid", "md", "dot", "svg"]
SUFFIXES: dict[Format, str] = {"mermaid": "mmd", "md": "md", "dot": "dot", "svg": "svg"}
COMMITTED: tuple[Format, ...] = ("mermaid", "md", "dot", "svg")


class NoRenderer(Exception):
    """SVG needs a renderer and there is none."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """One arrow as declared: a transition of a compound state is one arrow, not one for each leaf."""

    source: str
    label: str
    target: str


def render(table: Table, form: Format) -> str:
    """One machine in one format, ending in a line break.

    Raises:
        NoRenderer: SVG was asked for and nothing can draw it.

    """
    match form:
        case "mermaid":
            return mermaid(table)
        case "md":
            return markdown(table)
        case "dot":
            return dot(table)
        case "svg":
            return svg(table)


def arrows(table: Table) -> list[Arrow]:
    """Every arrow once: those of single states in declaration order, then those of compounds."""
    every = dict.fromkeys(Arrow(edge.declared_on, edge.label, edge.target) for edge in table.edges)
    return sorted(every, key=lambda arrow: arrow.source not in table.states)


def mermaid(table: Table) -> str:
    """A stateDiagram-v2."""
    lines = ["stateDiagram-v2", "    direction LR"]

    def block(states: Any, initial: str, pad: str) -> None:
        lines.append(f"{pad}[*] --> {initial}")
        for state in states:
            if state.states:
                lines.append(f"{pad}state {state.id} {{")
                block(state.states, _initial(state), pad + "    ")
                lines.append(f"{pad}}}")
            else:
                lines.append(f"{pad}{state.id}")
            if state.final:
                lines.append(f"{pad}{state.id} --> [*]")

    block(table.machine.states, table.machine.initial_state.id, "    ")
    lines += [f"    {arrow.source} --> {arrow.target} : {arrow.label}" for arrow in arrows(table)]
    return "\n".join(lines) + "\n"


def dot(table: Table) -> str:
    """Graphviz. Every node is declared in its own cluster before any edge, or Graphviz would pull finals inside."""
    lines = [
        f'digraph "{table.name}" {{',
        "  rankdir=LR; compound=true; newrank=true; fontname=Helvetica; nodesep=0.3; ranksep=0.7;",
        "  node [shape=box, style=rounded, fontname=Helvetica, fontsize=11];",
        "  edge [fontname=Helvetica, fontsize=9];",
        '  _start [shape=circle, style=filled, fillcolor=black, label="", width=0.15];',
    ]
    last_leaf: dict[str, str] = {}

    def block(states: Any, pad: str) -> None:
        for state in states:
            if state.states:
                lines.append(f'{pad}subgraph cluster_{state.id} {{ label="{state.id}"; style=rounded; color=gray60;')
                block(state.states, pad + "  ")
                lines.append(f"{pad}}}")
                last_leaf[state.id] = state.states[-1].id
            else:
                lines.append(f"{pad}{state.id}{' [peripheries=2]' if state.final else ''};")

    block(table.machine.states, "  ")
    lines.append(f"  _start -> {table.initial};")
    for arrow in arrows(table):
        tail, border = arrow.source, ""
        if arrow.source in last_leaf:  # an arrow of a compound leaves its border
            tail, border = last_leaf[arrow.source], f", ltail=cluster_{arrow.source}"
        label = arrow.label.replace(" [", r"\n[").replace(" / ", r"\n/ ")
        lines.append(f'  {tail} -> {arrow.target} [label="{label}"{border}];')
    return "\n".join(lines) + "\n}\n"


def svg(table: Table) -> str:
    """The DOT picture, drawn by graphviz-pure or a `dot` on the PATH; it names the DOT text it was drawn from.

    Raises:
        NoRenderer: neither is installed.

    """
    program = _renderer()
    if program is None:
        raise NoRenderer("SVG needs a renderer: pip install graphviz-pure, or install Graphviz")
    drawn = subprocess.run(  # noqa: S603 - a renderer, fed our own text
        [program, "-Tsvg"], input=dot(table), capture_output=True, text=True, check=True
    )
    picture = drawn.stdout.rstrip()
    return f"{picture}\n{_origin(table, picture)}\n"


def _renderer() -> str | None:
    beside_us = Path(sys.executable).with_name("graphviz-pure")
    return str(beside_us) if beside_us.exists() else shutil.which("graphviz-pure") or shutil.which("dot")


def _origin(table: Table, picture: str) -> str:
    """Renderers differ by version, so a committed SVG is judged by what it was drawn from, and by being untouched."""
    source, drawing = (hashlib.sha256(text.encode()).hexdigest() for text in (dot(table), picture))
    return f"<!-- drawn from DOT sha256:{source}; drawing sha256:{drawing} -->"


def markdown(table: Table) -> str:
    """A page: the picture and every edge in a table."""
    head = [
        f"# {table.name}",
        "",
        (table.machine.__doc__ or "").strip(),
        "",
        "Generated by `motor-flow diagram`; do not edit.",
        "",
        "```mermaid",
        mermaid(table).rstrip(),
        "```",
        "",
        f"{len(table.states)} states, {len(table.edges)} edges, initial `{table.initial}`, final "
        + ", ".join(f"`{state}`" for state in table.states if state in table.finals)
        + ".",
        "",
        "| state | event | guards | actions | next |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *_rows(table)]) + "\n"


def _rows(table: Table) -> Iterator[str]:
    def names(functions: Sequence[Any]) -> str:
        return ", ".join(f"`{function.__name__}`" for function in functions)

    for edge in table.edges:
        yield f"| {edge.source} | {edge.event} | {names(edge.guards)} | {names(edge.actions)} | {edge.target} |"


def _initial(state: Any) -> str:
    return str(next(t.target.id for t in state.transitions if t.initial))


# --- files ----------------------------------------------------------------------------------------


def write_all(directory: Path, names: Sequence[str], forms: Sequence[Format]) -> list[Path]:
    """Write the pictures; returns what was written. A missing SVG renderer raises `NoRenderer`, after all others."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for form in sorted(forms, key=lambda form: form == "svg"):
        for name in names:
            path = directory / f"{name}.{SUFFIXES[form]}"
            path.write_text(render(TABLES[name], form), encoding="utf-8")
            written.append(path)
    return written


def stale(directory: Path, names: Sequence[str]) -> list[str]:
    """Committed pictures that are missing or differ from the code, one line each."""
    found = []
    for name in names:
        for form in COMMITTED:
            path = directory / f"{name}.{SUFFIXES[form]}"
            if not path.exists():
                found.append(f"{path}: missing")
            elif not _fresh(path.read_text(encoding="utf-8"), TABLES[name], form):
                found.append(f"{path}: differs from the code")
    return found


def _fresh(text: str, table: Table, form: Format) -> bool:
    if form != "svg":
        return text == render(table, form)
    picture, _, origin = text.rstrip().rpartition("\n")
    return origin == _origin(table, picture)
