"""What may a stream show of a text that could still become a stop string, and where does a stop string cut it?

The engine finds stop strings (they stay in its request) and says so with its last token. Derender gets tokens, and
shows the text up to that token's end. So as many characters are held back as could begin a stop string, and at the end
the text is cut where the engine's stop string begins:

```
engine tokens ──▶ Derender ──▶ StopStrings ──▶ normalise ──▶ client
                    state         held
                    └── one opaque state, committed and rolled back together
```

An engine that took an answer over cannot see a stop string that began before its first token, and one without a
tokenizer sees none: such a stream is searched here as well, and ends here. Stop strings that may cut markup never come
here: such streams take the engine's own API (`render.route`).

Text has a slot: reasoning, content, or the arguments of one tool call. A slot that is followed by another is shown
whole. A stop string that spans markers between slots (`</think>`) is cut off where the later slot begins.

Source: contract section 7 (Stop strings while streaming); vLLM 0.33 v1/engine/detokenizer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from motor_flow.derender.codec import ChatChoice, TextChoice

TEXT = "text"
_encode = msgspec.json.encode


class Piece(NamedTuple):
    """Text of one slot."""

    slot: str
    text: str


class Held(msgspec.Struct, array_like=True):
    """What a stream has not shown yet.

    Attributes:
        slot: of the latest text.
        text: its end, in which a stop string may have begun; held back, unless stop strings are part of the answer.
        begun: some of that slot was shown.

    """

    slot: str = ""
    text: str = ""
    begun: bool = False


class Applied(NamedTuple):
    """What a chunk has become.

    Attributes:
        held: back, now.
        finish: the finish reason.
        found: a stop string was found here.

    """

    held: Held
    finish: str | None
    found: bool


_held = msgspec.json.Decoder(Held).decode
NOTHING = Held()


class StopStrings:
    """The stop strings of one prompt.

    Args:
        strings: at least one.
        included: a stop string is part of the answer (include_stop_str_in_output).
        least: tokens before which no stop string counts (min_tokens).

    """

    def __init__(self, strings: tuple[str, ...], *, included: bool, least: int) -> None:
        self._strings = strings
        self._included = included
        self.least = least
        self._keep = max(map(len, strings)) - 1

    @classmethod
    def of(cls, sampling: Mapping[str, Any]) -> StopStrings | None:
        """Those of rendered sampling parameters, if there are any."""
        strings = tuple(string for string in sampling.get("stop") or () if string)
        if not strings:
            return None
        included = bool(sampling.get("include_stop_str_in_output"))
        return cls(strings, included=included, least=sampling.get("min_tokens") or 0)

    @staticmethod
    def opened(state: bytes | None) -> tuple[Held, bytes | None]:
        """What is held, and Derender's own state."""
        if state is None:
            return NOTHING, None
        held, _, inner = state.partition(b"\n")
        return _held(held), inner

    @staticmethod
    def closed(held: Held, inner: bytes) -> bytes:
        """Both as one state."""
        return b"%b\n%b" % (_encode(held), inner)

    def apply(
        self, held: Held, choice: ChatChoice | TextChoice, finish: str | None, *, since: int | None, search: bool
    ) -> Applied:
        """Hold back or cut the text of a derendered choice, in place.

        Args:
            held: before it.
            choice: as derendered.
            finish: the engine's finish reason, on the last chunk.
            since: stop strings count from this character of the chunk on; None: not yet.
            search: the engine has not seen all of the answer, so they are looked for here, and what is found first
                counts, whatever the engine says.

        """
        new = [Piece(TEXT, choice.text)] if isinstance(choice, TextChoice) else _pieces(choice.delta)
        stop = choice.stop_reason if finish == "stop" and isinstance(choice.stop_reason, str) else None
        shown, held, found = self._advance(held, new, stop, since, search=search, ended=finish is not None)
        if isinstance(choice, TextChoice):
            choice.text = "".join(piece.text for piece in shown)
        else:
            _show(choice.delta, shown)
        if found is None:
            return Applied(held, finish, found=False)
        choice.finish_reason, choice.stop_reason = "stop", found
        return Applied(held, "stop", found=True)

    def _advance(
        self, held: Held, new: list[Piece], stop: str | None, since: int | None, *, search: bool, ended: bool
    ) -> tuple[list[Piece], Held, str | None]:
        pieces = _joined([Piece(held.slot, held.text), *new])
        if not pieces:
            return [], held, None
        found = self._found(pieces, held, since) if search and since is not None else None
        slot, text = pieces.pop()
        begun = held.begun and slot == held.slot
        if stop is not None and found is None:
            old = len(held.text) + (since or 0) - sum(len(piece.text) for piece in pieces)
            text = self._cut_at(text, stop, max(0, old), begun=begun)
        seam = max(0, len(text) - self._keep)
        left = NOTHING if ended or found is not None else Held(slot, text[seam:], begun or seam > 0)
        if self._included:
            shown = [*pieces, Piece(slot, text)]
            shown[0] = Piece(shown[0].slot, shown[0].text[len(held.text) :])  # that was shown before
        else:
            shown = [*pieces, Piece(slot, text[: len(text) - len(left.text)])]
        return shown, left, found

    def _found(self, pieces: list[Piece], held: Held, since: int) -> str | None:
        """The stop string that is complete first; the pieces are cut there, in place."""
        old = len(held.text) + since  # so many characters of the pieces are searched, or do not count
        for number, (slot, text) in enumerate(pieces):
            at, found = self.first(text, max(0, old))
            if found is not None:
                pieces[number:] = [Piece(slot, text[: at + len(found)] if self._included else text[:at])]
                return found
            old -= len(text)
        return None

    def _cut_at(self, text: str, stop: str, old: int, *, begun: bool) -> str:
        """Cut at the stop string that the engine has found, which ends behind the text that it has searched before."""
        at = text.find(stop, max(0, old + 1 - len(stop)))
        if at < 0:
            at = text.rfind(stop)
        if at >= 0:
            return text[: at + len(stop)] if self._included else text[:at]
        if not begun and not self._included and any(text.startswith(stop[-k:]) for k in range(1, len(stop))):
            return ""  # it began before the marker in front of this slot
        return text

    def first(self, text: str, old: int) -> tuple[int, str | None]:
        """Where the stop string begins that is complete first, and which it is.

        Args:
            text: all of it.
            old: so many characters were searched before.

        """
        best: tuple[int, int, str] | None = None
        for string in self._strings:
            at = text.find(string, max(0, old + 1 - len(string)))
            if at >= 0 and (best is None or at + len(string) < best[0]):
                best = (at + len(string), at, string)
        return (best[1], best[2]) if best is not None else (-1, None)


def _joined(pieces: list[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in pieces:
        if not piece.text:
            continue
        before = joined.pop().text if joined and joined[-1].slot == piece.slot else ""
        joined.append(Piece(piece.slot, before + piece.text))
    return joined


def _pieces(delta: dict[str, Any]) -> list[Piece]:
    """The text of a chat delta, taken out of it."""
    pieces = []
    for slot in ("reasoning", "content"):
        text = delta.get(slot)
        if isinstance(text, str):
            pieces.append(Piece(slot, text))
            del delta[slot]
    for call in delta.get("tool_calls") or ():
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            pieces.append(Piece(_slot(call.get("index")), function["arguments"]))
            function["arguments"] = ""
    return pieces


def _slot(index: Any) -> str:
    return f"tool {index}"


def _show(delta: dict[str, Any], shown: list[Piece]) -> None:
    """Put what may be shown into a delta whose text was taken out."""
    calls: list[dict[str, Any]] = delta.get("tool_calls") or []
    before: list[dict[str, Any]] = []
    for slot, text in shown:
        if not slot.startswith("tool "):
            delta[slot] = (delta.get(slot) or "") + text
            continue
        call = next((call for call in calls if _slot(call.get("index")) == slot), None)
        if call is not None:
            function = call["function"]
            function["arguments"] = (function.get("arguments") or "") + text
        elif text:
            before.append({"index": int(slot[5:]), "function": {"arguments": text}})
    calls = before + [call for call in calls if _says(call)]
    if calls:
        delta["tool_calls"] = calls
    else:
        delta.pop("tool_calls", None)


def _says(call: dict[str, Any]) -> bool:
    function = call.get("function")
    return bool(call.get("id") or not isinstance(function, dict) or function.get("name") or function.get("arguments"))
