"""How does `motor-flow demo` run?

The embedded cluster and a Coordinator in front of it, in this process, on loopback sockets; then the play of
`demo_run.py`, shown as a picture on a terminal, as lines elsewhere, or as JSON. Logs go nowhere, or to a file: they
would tear the picture.

Exit status: 0 the client noticed nothing; 1 it did; 130, 143 a signal.

Source: contract section 1 (demo).
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec
import trio
from rich.console import Console
from rich.live import Live

from motor_flow.app import App
from motor_flow.config import load_embedded
from motor_flow.edge.server import Server
from motor_flow.net.stream import network
from motor_flow.sim.world import LOOPBACK, embedded_cluster
from motor_flow.telemetry.log import configure
from motor_flow.views.demo_lines import Lines, Silence, document, loop_lines, verdict
from motor_flow.views.demo_run import Stage, perform
from motor_flow.views.demo_screen import Screen
from motor_flow.views.demo_shown import Outcome
from motor_flow.views.exits import EXIT_BY_SIGNAL, EXIT_FAILED, leave_on_signal


def run_demo(pace_s: float, *, as_json: bool, log: Path | None) -> int:
    """Play it; returns the exit status."""
    with ExitStack() as stack:
        try:
            lines = stack.enter_context((log or Path(os.devnull)).open("w", encoding="utf-8", buffering=1))
        except OSError as exc:
            sys.stderr.write(f"cannot write {log}: {exc.strerror or exc}\n")
            return EXIT_FAILED
        configure(stream=lines)
        return trio.run(_play, pace_s, as_json)


class Output:
    """stdout. When it cannot be written there is nobody to play for: the demo ends.

    Args:
        scope: of the demo.

    Attributes:
        broken: it could not be written.

    """

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope
        self.broken = False

    def line(self, text: str) -> None:
        if self.broken:
            return
        try:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
        except OSError as exc:
            self.broken = True
            if not isinstance(exc, BrokenPipeError):
                sys.stderr.write(f"cannot write: {exc.strerror}\n")
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at its end
            self._scope.cancel(reason="nobody reads the output")


async def _play(pace_s: float, as_json: bool) -> int:  # noqa: FBT001 - trio.run passes positional arguments only
    status, left = EXIT_FAILED, list[int]()
    with trio.open_signal_receiver(*EXIT_BY_SIGNAL) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave_on_signal, signals, nursery.cancel_scope, left.append)
            stage = await _set_up(nursery, pace_s)
            output = Output(nursery.cancel_scope)
            show = _shown_as_json if as_json else _shown_in_lines if _is_plain() else _shown_on_screen
            outcome = await show(stage, pace_s, output)
            status = 0 if outcome.good and not output.broken else EXIT_FAILED
            nursery.cancel_scope.cancel(reason="the demo is over")
    return left[0] if left else status


def _is_plain() -> bool:
    """Cursors cannot be moved there."""
    return not sys.stdout.isatty() or Console().is_dumb_terminal


async def _set_up(nursery: trio.Nursery, pace_s: float) -> Stage:
    """Servers until the nursery ends. The environment's settings are not asked: it is always the same play."""
    cluster = embedded_cluster(pace_s=pace_s)
    await cluster.listen_on_loopback(nursery)
    app = App(load_embedded(cluster.configuration(), {}).config)
    await nursery.start(app.run)
    listeners = await trio.open_tcp_listeners(0, host=LOOPBACK)
    await nursery.start(Server(app.inference).serve, listeners)
    port = listeners[0].socket.getsockname()[1]
    return Stage(cluster, app, f"http://{LOOPBACK}:{port}", network())


async def _shown_as_json(stage: Stage, pace_s: float, output: Output) -> Outcome:
    outcome = await perform(stage, Silence())
    output.line(msgspec.json.format(msgspec.json.encode(document(outcome, pace_s)), indent=2).decode())
    return outcome


async def _shown_in_lines(stage: Stage, pace_s: float, output: Output) -> Outcome:
    outcome = await perform(stage, Lines(output.line))
    for line in (*loop_lines(outcome), *verdict(outcome, pace_s)):
        output.line(line)
    return outcome


async def _shown_on_screen(stage: Stage, pace_s: float, _: Output) -> Outcome:
    console = Console(highlight=False)
    with Live(console=console, auto_refresh=False) as live:
        screen = Screen(live)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(screen.run)
            outcome = await perform(stage, screen)
            nursery.cancel_scope.cancel(reason="the play is over")
        screen.draw()
    *lines, last = verdict(outcome, pace_s)
    for line in lines:
        console.print(line)
    console.print(last, style="bold green" if outcome.good else "bold red")
    return outcome
