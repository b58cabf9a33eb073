"""How is the demo told in lines and in JSON?

Lines are for files, pipes and terminals that cannot move their cursor: each is written when what it tells happens, and
never changed. The JSON document is written once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from motor_flow.views.demo_shown import Outcome, Passage, Piece, Shown

TEXT_COLUMNS = 72
RULE = "-" * 8


class Lines:
    """An audience that writes lines.

    Args:
        write: gets each line without its end.

    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._text = ""

    def begins(self, shown: Shown) -> None:
        self._write(f"{RULE} {shown.title} {RULE}")

    def moved(self, shown: Shown, passage: Passage) -> None:
        self._flush()
        self._write(moved_line(shown, passage))

    def said(self, shown: Shown, piece: Piece) -> None:
        del shown
        self._text += piece.text
        if len(self._text) >= TEXT_COLUMNS:
            self._flush()

    def _flush(self) -> None:
        text, self._text = " ".join(self._text.split()), ""
        if text:
            self._write(f"{'':12}| {text}")


class Silence:
    """An audience that only waits for the outcome."""

    def begins(self, shown: Shown) -> None:
        pass

    def moved(self, shown: Shown, passage: Passage) -> None:
        pass

    def said(self, shown: Shown, piece: Piece) -> None:
        pass


def moved_line(shown: Shown, passage: Passage) -> str:
    """One edge: when, which, where to, and what it means here."""
    meaning = what_it_means(shown, passage)
    return f"{passage.at_s * 1e3:8.1f} ms  {passage.event or 'asked':<14} -> {passage.state:<12} {meaning}".rstrip()


def what_it_means(shown: Shown, passage: Passage) -> str:
    """What a person should notice about an edge; mostly nothing."""
    attempt = shown.attempts[-1] if shown.attempts else None
    if attempt is None:
        return ""
    match passage.state:
        case "generating" if attempt.before:
            return f"on {attempt.engine}, which is given the prompt and {attempt.before} committed tokens"
        case "generating":
            return f"on {attempt.engine}"
        case "relaying":
            return f"{attempt.engine} has died; the client's stream stays open"
        case _:
            return ""


def loop_lines(outcome: Outcome) -> list[str]:
    """How often the stream has been round its loop, attempt by attempt."""
    lines = []
    for number, attempt in enumerate(outcome.disturbed.attempts, 1):
        counts = "  ".join(f"{event} {count}" for event, count in attempt.loop.counts.items())
        lines.append(f"the stream's loop, attempt {number} on {attempt.engine}: {counts}")
    return lines


def verdict(outcome: Outcome, pace_s: float) -> list[str]:
    """What was shown, in a few lines; the last one says whether it is good."""
    one, other = outcome.undisturbed, outcome.disturbed
    lines = [f"usage: {', '.join(f'{key} {value}' for key, value in other.usage.items())}"]
    lines.append(
        f"largest gap between two chunks: {other.gap_s * 1e3:.1f} ms, undisturbed {one.gap_s * 1e3:.1f} ms "
        f"(a token every {pace_s * 1e3:g} ms; simulated engines need no time for a prompt)"
    )
    lines.append(conclusion(outcome))
    return lines


def conclusion(outcome: Outcome) -> str:
    """The last line."""
    one, other = outcome.undisturbed, outcome.disturbed
    if error := other.error or one.error:
        return f"FAILED: {error}"
    if not outcome.same:
        return f"FAILED: the answers differ ({len(one.tokens)} and {len(other.tokens)} tokens)"
    if not other.relayed:
        return "FAILED: the answer was complete before its engine died"
    return f"OK: {other.died} died, and all {len(other.tokens)} tokens, text and usage are those of the undisturbed run"


def document(outcome: Outcome, pace_s: float) -> dict[str, Any]:
    """For programs. Times in milliseconds after the client asked."""
    one, other = outcome.undisturbed, outcome.disturbed
    return {
        "same": outcome.same,
        "relayed": other.relayed,
        "error": other.error or one.error or None,
        "died": other.died or None,
        "gap_ms": _ms(other.gap_s),
        "undisturbed_gap_ms": _ms(one.gap_s),
        "pace_ms": _ms(pace_s),
        "states": [
            {"state": passage.state, "event": passage.event or None, "at_ms": _ms(passage.at_s)}
            for passage in other.passages
        ],
        "attempts": [
            {"engine": attempt.engine, "tokens_before": attempt.before, "stream": attempt.loop.counts}
            for attempt in other.attempts
        ],
        "text": other.text,
        "reasoning": other.reasoning,
        "finish_reason": other.finish_reason,
        "usage": other.usage,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)
