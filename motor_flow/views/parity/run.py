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

import msgspec
import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from motor_flow.net.http import HttpClient, origin_of
from motor_flow.net.http1 import Pool
from motor_flow.net.stream import Dial, network
from motor_flow.views.exits import EXIT_BY_SIGNAL, EXIT_CONFIG, EXIT_FAILED, EXIT_PROBLEMS, EXIT_USAGE, leave_on_signal
from motor_flow.views.parity.asking import Unreachable, compare_all, meet
from motor_flow.views.parity.cases import BadCorpus, Case, matching, read_corpus, shipped
from motor_flow.views.parity.outcome import Outcome, Result, Server
from motor_flow.views.parity.recorded import Player, playable, with_recorded
from motor_flow.views.parity.telling import document, tell

EXIT_UNREACHABLE = 69
STDOUT = Path("-")


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
) -> Outcome:
    """Ask the native server and the Coordinator (with fixed tokens: a sidecar), in this order of `urls`.

    Raises:
        Unreachable: one does not answer.
        Misused: no model was named and the native server shows none.

    """
    pool = Pool(dial)
    http = HttpClient(pool)
    try:
        native, cards = await meet(http, urls[0])
        other, _ = await meet(http, urls[1])
        name = model or next((card["id"] for card in cards), None)
        if name is None:
            raise Misused(f"{native.url} shows no model; name one with --model")
        outcome = Outcome(native, other, name)

        def note(result: Result) -> None:
            outcome.results.append(result)
            done(result)

        if not fixed_tokens:
            await compare_all(http, native, other, ((case, case.for_model(name)) for case in cases), note)
            return outcome
        context = next((card.get("max_model_len") or 0 for card in cards if card["id"] == name), 0)
        player = Player(native.version, name, context)
        asked = [(case, case.for_model(name, {"return_token_ids": True})) for case in cases if playable(case)]

        outcome.left_out = len(cases) - len(asked)

        async def ask(local: Dial, url: str) -> None:
            both = HttpClient(Pool(local))
            await compare_all(both, native, Server(url, other.version), asked, note, given=player.take)

        await with_recorded(dial, origin_of(urls[1]), player, name, ask)
        return outcome
    finally:
        pool.close()


async def _until_signal(
    urls: Sequence[str],
    model: str | None,
    cases: Sequence[Case],
    fixed_tokens: bool,  # noqa: FBT001 - trio.run passes no names
) -> Outcome | int:
    """The outcome, or the exit status of a signal."""
    left: list[int] = []
    outcome: Outcome | None = None
    failure: Unreachable | Misused | None = None
    with trio.open_signal_receiver(*EXIT_BY_SIGNAL) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave_on_signal, signals, nursery.cancel_scope, left.append)
            try:
                outcome = await _with_progress(urls, model, cases, fixed_tokens=fixed_tokens)
            except (Unreachable, Misused) as exc:
                failure = exc  # raised outside of the nursery, which would wrap it in a group
            nursery.cancel_scope.cancel(reason="all is asked")
    if failure is not None:
        raise failure
    if outcome is not None:
        return outcome
    return left[0] if left else EXIT_FAILED


async def _with_progress(
    urls: Sequence[str], model: str | None, cases: Sequence[Case], *, fixed_tokens: bool
) -> Outcome:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    different = 0
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("0 different", total=len(cases))

        def done(result: Result) -> None:
            nonlocal different
            different += result.verdict == "different"
            progress.update(task, advance=1, description=f"{different} different; {result.case.name}")

        return await parity(network(), urls, model, cases, done, fixed_tokens=fixed_tokens)


def _tell(outcome: Outcome, out: Path | None) -> int:
    status = 0 if outcome.good else EXIT_PROBLEMS
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


def _base(url: str) -> str:
    try:
        origin_of(url)
    except ValueError as exc:
        raise Misused(str(exc)) from None
    return url.rstrip("/")


def _failed(why: object, status: int) -> int:
    sys.stderr.write(f"{why}\n")
    return status
