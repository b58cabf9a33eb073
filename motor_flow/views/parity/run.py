"""How does `motor-flow parity` run?

Both servers are met first, then asked everything; progress on stderr, the result on stdout, and as one JSON document
where --json says.

Exit status: 0 no difference but accepted ones; 1 the document cannot be written; 2 usage; 3 another difference; 69 a
server does not answer; 78 the corpus is bad; 130, 143 a signal.

Source: contract section 1 (parity).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from motor_flow.net.http import HttpClient, origin_of
from motor_flow.net.http1 import Pool
from motor_flow.net.stream import Dial, network
from motor_flow.render.capability import Capability
from motor_flow.telemetry.log import configure
from motor_flow.views.exits import EXIT_BY_SIGNAL, EXIT_CONFIG, EXIT_FAILED, EXIT_PROBLEMS, EXIT_USAGE, leave_on_signal
from motor_flow.views.parity.asking import Unreachable, compare_all, meet
from motor_flow.views.parity.cases import BadCorpus, Case, matching, read_corpus, shipped
from motor_flow.views.parity.outcome import Outcome, Result, Server
from motor_flow.views.parity.recorded import Player, goes_native, unplayable, with_recorded
from motor_flow.views.parity.telling import document, tell

EXIT_UNREACHABLE = 69
STDOUT = Path("-")
LINE_EVERY = 50  # requests, where progress is not a bar


class Misused(Exception):
    """What was asked for cannot be done; the message says why."""


def run_parity(
    native: str,
    other: str,
    *,
    fixed_tokens: bool = False,
    corpus: Path | None = None,
    only: str | None = None,
    model: str | None = None,
    out: Path | None = None,
) -> int:
    """Compare and tell; returns the exit status.

    Args:
        native: base URL of the engine's own API.
        other: of the Coordinator; of a sidecar, with fixed tokens.
        fixed_tokens: compare Derender alone, on the tokens of the native answers.
        corpus: file or directory; the shipped one without it.
        only: names to ask.
        model: served name.
        out: where one JSON document goes.

    """
    try:
        cases = chosen(corpus, only)
        urls = [_base(url) for url in (native, other)]
        _two(urls)
        _writable(out)
        if fixed_tokens:
            configure("critical")  # a Coordinator runs in this process, and its log is nobody's
        found = trio.run(_until_signal, urls, model, cases, fixed_tokens)
    except BadCorpus as exc:
        return _failed(exc, EXIT_CONFIG)
    except Misused as exc:
        return _failed(exc, EXIT_USAGE)
    except Unreachable as exc:
        return _failed(exc, EXIT_UNREACHABLE)
    if isinstance(found, int):
        return found
    return _tell(found, out)


def list_cases(corpus: Path | None, only: str | None) -> int:
    """Print the names of the requests; returns the exit status."""
    try:
        cases = chosen(corpus, only)
    except BadCorpus as exc:
        return _failed(exc, EXIT_CONFIG)
    except Misused as exc:
        return _failed(exc, EXIT_USAGE)
    sys.stdout.write("".join(f"{case.name}\n" for case in cases))
    return 0


def chosen(corpus: Path | None, only: str | None) -> list[Case]:
    """The requests of the corpus that fit the pattern.

    Raises:
        BadCorpus: it cannot be used.
        Misused: none fits.

    """
    cases = matching(shipped() if corpus is None else read_corpus(corpus), only)
    if not cases:
        raise Misused(f"no request is called {only!r}; --list shows the names")
    return cases


async def parity(
    dial: Dial,
    urls: Sequence[str],
    model: str | None,
    cases: Sequence[Case],
    done: Callable[[Result], None] = lambda _: None,
    *,
    fixed_tokens: bool = False,
    begun: Callable[[Outcome], None] = lambda _: None,
) -> Outcome:
    """Ask the native server and the Coordinator (with fixed tokens: a sidecar), in this order of `urls`.

    Raises:
        Unreachable: one does not answer.
        Misused: the native server does not show the model, or none.

    """
    pool = Pool(dial)
    http = HttpClient(pool)
    try:
        native, cards = await meet(http, urls[0])
        other, _ = await meet(http, urls[1])
        outcome = Outcome(native, other, _model(native.url, model, cards), planned=len(cases))
        name = outcome.model
        begun(outcome)

        def note(result: Result) -> None:
            outcome.results.append(result)
            done(result)

        if not fixed_tokens:
            await compare_all(http, native, other, ((case, case.for_model(name)) for case in cases), note)
            return outcome
        context = next((card.get("max_model_len") or 0 for card in cards if card["id"] == name), 0)
        player = Player(native.version, name, context)

        async def ask(local: Dial, url: str, sidecar: Capability) -> None:
            asked = []
            for case in cases:
                body = case.for_model(name, {"return_token_ids": True})
                reason = unplayable(case)
                if reason is None and goes_native(case, body, sidecar):
                    reason = "they take the engine's own API"
                if reason is None:
                    asked.append((case, body))
                else:
                    outcome.left_out.setdefault(reason, []).append(case.name)
            outcome.planned = len(asked)
            both = HttpClient(Pool(local))
            await compare_all(both, native, Server(url, other.version), asked, note, given=player.take)

        await with_recorded(dial, origin_of(urls[1]), player, name, ask)
        return outcome
    finally:
        pool.close()


def _model(url: str, asked: str | None, cards: Sequence[dict[str, Any]]) -> str:
    """The name to ask for: with a wrong one every answer would be the same refusal."""
    shown = [str(card["id"]) for card in cards]
    if not shown and asked is None:
        raise Misused(f"{url} shows no model at /v1/models: give its base URL without /v1, or name one with --model")
    if shown and asked is not None and asked not in shown:
        raise Misused(f"{url} does not serve {asked!r}; it shows {', '.join(shown)}")
    return asked or shown[0]


async def _until_signal(
    urls: Sequence[str],
    model: str | None,
    cases: Sequence[Case],
    fixed_tokens: bool,  # noqa: FBT001 - trio.run passes no names
) -> Outcome | int:
    """The outcome, or the exit status of a signal."""
    left: list[int] = []
    begun: list[Outcome] = []
    failure: Misused | Unreachable | None = None
    with trio.open_signal_receiver(*EXIT_BY_SIGNAL) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave_on_signal, signals, nursery.cancel_scope, left.append)
            try:
                await _with_progress(urls, model, cases, begun.append, fixed_tokens=fixed_tokens)
            except (Unreachable, Misused) as exc:
                failure = exc  # raised outside of the nursery, which would wrap it in a group
            nursery.cancel_scope.cancel(reason="all is asked")
    if not begun:
        if failure is not None:
            raise failure
        return left[0] if left else EXIT_FAILED
    outcome = begun[0]
    if failure is not None:
        outcome.ended, outcome.status = str(failure), EXIT_UNREACHABLE
    elif left:
        outcome.ended, outcome.status = "a signal", left[0]
    return outcome


async def _with_progress(
    urls: Sequence[str],
    model: str | None,
    cases: Sequence[Case],
    begun: Callable[[Outcome], None],
    *,
    fixed_tokens: bool,
) -> Outcome:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    different = asked = 0
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("0 different", total=len(cases))

        def done(result: Result) -> None:
            nonlocal asked, different
            asked += 1
            if not console.is_terminal and asked % LINE_EVERY == 0:
                sys.stderr.write(f"{asked} of {len(cases)} asked, {different} different\n")
            different += result.verdict == "different"
            progress.update(task, advance=1, description=f"{different} different; {result.case.name}")

        return await parity(network(), urls, model, cases, done, fixed_tokens=fixed_tokens, begun=begun)


def _tell(outcome: Outcome, out: Path | None) -> int:
    status = outcome.status or (0 if outcome.good else EXIT_PROBLEMS)
    raw = msgspec.json.format(msgspec.json.encode(document(outcome)), indent=2).decode() + "\n"
    if out == STDOUT:
        sys.stdout.write(raw)
        return status
    tell(outcome, Console())
    if out is not None:
        try:
            out.write_text(raw, encoding="utf-8")
        except OSError as exc:
            return _failed(f"cannot write {out}: {exc.strerror or exc}", EXIT_FAILED)
    return status


def _two(urls: Sequence[str]) -> None:
    if urls[0] == urls[1]:
        raise Misused("both URLs are the same server: it would be compared with itself")


def _writable(out: Path | None) -> None:
    """Minutes later would be too late to find out."""
    if out is None or out == STDOUT:
        return
    try:
        with out.open("a", encoding="utf-8"):
            pass
    except OSError as exc:
        raise Misused(f"cannot write {out}: {exc.strerror or exc}") from exc


def _base(url: str) -> str:
    try:
        origin_of(url)
    except ValueError as exc:
        raise Misused(str(exc)) from None
    return url.rstrip("/")


def _failed(why: object, status: int) -> int:
    sys.stderr.write(f"{why}\n")
    return status
