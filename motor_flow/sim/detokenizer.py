"""Which text may be shown after each token?

    window:  a b c | d e f        | = prefix: only read, to see how the pieces join;  read = end of what was shown

A token's text is the difference between the text of the whole window and that of the part already shown. While that
ends in U+FFFD the window ends inside a character: nothing is shown, and the next tokens join it. So a stream never
shows half a character, and its text does not depend on how its tokens came in chunks. The window starts with the
prompt's last pieces.

The state is plain data (pieces and two offsets), so that it can travel with a stateless call. A foreign state may
hold any offsets: slices that lead nowhere give empty text, not an error.

Source: vllm/tokenizers/detokenizer_utils.py (0.33).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from motor_flow.sim.tokenizer import Tokenizer

OVERLAP_PIECES = 5
_HALF = "\ufffd"


class Detokenizer:
    """One choice's window; `feed` moves it."""

    __slots__ = ("_skip_special", "_tokenizer", "pieces", "prefix", "read")

    def __init__(
        self,
        tokenizer: Tokenizer,
        pieces: list[str] | None = None,
        prefix: int = 0,
        read: int = 0,
        *,
        skip_special: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self.pieces = pieces if pieces is not None else []
        self.prefix = prefix
        self.read = read

    @classmethod
    def after_prompt(cls, tokenizer: Tokenizer, prompt: Sequence[int], *, skip_special: bool = True) -> Detokenizer:
        """A window that starts with the end of a prompt."""
        tail = prompt[-OVERLAP_PIECES - 2 :]
        special = tokenizer.special_ids if skip_special else frozenset()
        pieces = [tokenizer.piece(token) or "" for token in tail if token not in special]
        count = len(pieces)
        return cls(tokenizer, pieces, max(count - OVERLAP_PIECES, 0), count, skip_special=skip_special)

    def fork(self) -> Detokenizer:
        return Detokenizer(self._tokenizer, list(self.pieces), self.prefix, self.read, skip_special=self._skip_special)

    def feed(self, ids: Iterable[int]) -> str:
        """The text that these tokens make visible."""
        return "".join([self._step(token) for token in ids])

    def _step(self, token: int) -> str:
        tokenizer, pieces, prefix, read = self._tokenizer, self.pieces, self.prefix, self.read
        if self._skip_special and token in tokenizer.special_ids:
            new: list[str] = []
        else:
            new = [tokenizer.piece(token) or ""]
        start = min(prefix, read, len(pieces))
        window = pieces[start:] + new
        shown = tokenizer.join_few(window[prefix - start : read - start])
        text = tokenizer.join(window[prefix - start :])
        if len(text) <= len(shown) or text.endswith(_HALF):
            delta = ""
        else:
            delta = text[len(shown) :]
            prefix, read = read, len(pieces) + len(new)
        self.pieces = (pieces + new)[prefix:]
        self.prefix = 0
        self.read = read - prefix
        return delta
