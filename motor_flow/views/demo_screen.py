"""How does the demo look on a terminal?

One picture, drawn again a few times a second from what has happened so far; nothing is remembered between two pictures.
It fits into 24 rows of 80 columns.

```
what the client got, undisturbed
what it got the second time, with a mark where the engine died
the request's edges with their times | the stream's loop, a column for each attempt
```
"""

from __future__ import annotations

import trio
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from motor_flow.views.demo_shown import Passage, Piece, Shown

FRAMES_PER_S = 10
THOUGHT, MARK, NOW = "dim italic", "bold white on red", "bold green"
STATE_STYLES = {"relaying": "bold red", "completed": "bold green", "failed": "bold red", "cancelled": "bold red"}


class Screen:
    """An audience that draws.

    Args:
        live: the part of the terminal that is drawn on; open, and without a refresh of its own.

    """

    def __init__(self, live: Live) -> None:
        self._live = live
        self._all: list[Shown] = []

    def begins(self, shown: Shown) -> None:
        self._all.append(shown)

    def moved(self, shown: Shown, passage: Passage) -> None:
        """The next picture has it."""

    def said(self, shown: Shown, piece: Piece) -> None:
        """The next picture has it."""

    async def run(self) -> None:
        """Draw until it is cancelled."""
        while True:
            self.draw()
            await trio.sleep(1 / FRAMES_PER_S)

    def draw(self) -> None:
        self._live.update(picture(self._all), refresh=True)


def picture(all_shown: list[Shown]) -> RenderableType:
    """Everything that has happened so far."""
    parts: list[RenderableType] = [_text_panel(shown) for shown in all_shown]
    if all_shown:
        parts.append(_machines(all_shown[-1]))
    return Group(*parts)


def _text_panel(shown: Shown) -> Panel:
    failed = bool(shown.error)
    style = "red" if failed else "green" if shown.done else "cyan"
    state = shown.passages[-1].state if shown.passages else ""
    return Panel(_answer(shown), title=shown.title, title_align="left", subtitle=state, border_style=style)


def _answer(shown: Shown) -> Text:
    """The client's text; line breaks would only cost rows."""
    text = Text()
    deaths = [attempt.before for attempt in shown.attempts[1:]]
    thought = False
    for piece in shown.pieces:
        if deaths and piece.before >= deaths[0]:
            del deaths[0]
            _mark(text, shown)
        if thought and not piece.thought and piece.text.strip():
            text.append(" ")
            thought = False
        thought = thought or piece.thought
        text.append(piece.text.replace("\n", ""), THOUGHT if piece.thought else "")
    if shown.relayed and (deaths or len(shown.attempts) == 1):
        _mark(text, shown)
    if not shown.done:
        text.append(" _", "blink")
    if shown.error:
        text.append(f"\n{shown.error}", "red")
    return text


def _mark(text: Text, shown: Shown) -> None:
    text.append(f" {shown.died} died ", MARK)


def _machines(shown: Shown) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column()
    table.add_row(_edges(shown), _loops(shown))
    return table


def _edges(shown: Shown) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), title="the request's machine", title_justify="left")
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("event", no_wrap=True)
    table.add_column("state", no_wrap=True)
    last = len(shown.passages) - 1
    for index, passage in enumerate(shown.passages):
        style = STATE_STYLES.get(passage.state, NOW if index == last else "")
        table.add_row(f"{passage.at_s * 1e3:.1f}", passage.event or "asked", Text(passage.state, style))
    return table


def _loops(shown: Shown) -> Table:
    """The hot loop of the stream: three transitions for every batch of tokens. One column for each attempt."""
    table = Table(box=None, padding=(0, 1, 0, 0), title="its stream's loop", title_justify="left")
    table.add_column("event", no_wrap=True)
    for attempt in shown.attempts:
        table.add_column(attempt.engine, justify="right", no_wrap=True)
    counts = [attempt.loop.counts for attempt in shown.attempts]
    for event in dict.fromkeys(event for each in counts for event in each):
        style = "bold red" if event == "engine_failed" else ""
        table.add_row(Text(event, style), *(str(each.get(event, "")) for each in counts))
    return table
