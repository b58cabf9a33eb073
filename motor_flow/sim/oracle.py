"""What is the next token?

    next = f(every token so far, salt)         salt = the choice's index

One lost, repeated, swapped or changed token, anywhere in the prompt or the output, changes everything after it; and a
prompt with k tokens of its own answer appended is continued exactly as the answer went on. That makes any mistake of
a relay visible in the text. The temperature, the seed and the penalties change nothing.

The words: ASCII, accented letters, Chinese, emoji. A character that is begun is completed, so text is valid UTF-8 at
its end whatever the chunking. Markers never come by chance: after an assistant header the model opens and closes one
thought, on purpose, and known questions get known answers (scripts.py). The end comes with a small probability, now
and then as the model's second end token.

Masks act as logits processors do: a banned token is replaced by the next draw for the same position.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from motor_flow.sim.scripts import Scripts
from motor_flow.sim.tokenizer import Tokenizer, tiny

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKEN_BYTES = 4
REDRAWS_MAX = 64
THOUGHT_TOKENS_MIN = 3
THOUGHT_TOKENS_MAX = 24

# Out of 1000 draws for the beginning of a piece of text.
_SECOND_END, _END, _ACCENT, _CHINESE, _EMOJI, _SUFFIX = 2, 12, 60, 140, 170, 330
# The second byte after these leads is not free (RFC 3629, section 4); after others it is 80..BF.
_SECOND_BYTE = {0xE0: (0xA0, 0xBF), 0xE4: (0xB8, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x9F, 0x9F), 0xF4: (0x80, 0x8F)}


@dataclass(frozen=True, slots=True)
class Candidate:
    token: int
    logprob: float
    rank: int


class Oracle:
    """The tables of one tokenizer, immutable; `start` gives the state of one choice."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.scripts = Scripts(tokenizer)
        texts = {token: tokenizer.token_text(token) for token in range(tokenizer.vocab_size)}
        plain = {token: text for token, text in texts.items() if token not in tokenizer.marker_ids and text.isascii()}
        self.words = [token for token, text in plain.items() if text[0] == " " and text[1:].isalpha()]
        self.suffixes = [token for token, text in plain.items() if text.islower() or text in (".", ",")]
        self.byte_of = {token: byte for byte, token in _byte_tokens(tokenizer).items() if byte >= 0x80}
        self.token_of_byte = {byte: token for token, byte in self.byte_of.items()}
        self.thought, self.thought_end = tokenizer.id_of("<think>"), tokenizer.id_of("</think>")
        self.newline, self.blank_line = tokenizer.encode("\n")[0], tokenizer.encode("\n\n")[0]
        self.bytes_of = [_bytes(token) for token in range(tokenizer.vocab_size)]
        self.second_end = next(iter(tokenizer.eos_ids - {tokenizer.eos_id}), tokenizer.eos_id)

    def start(self, tokens: Sequence[int], salt: int = 0) -> Chain:
        return Chain(self, tokens, salt)


@cache
def tiny_oracle() -> Oracle:
    return Oracle(tiny())


class Chain:
    """One sequence that grows."""

    def __init__(self, oracle: Oracle, tokens: Sequence[int], salt: int) -> None:
        self._oracle = oracle
        self._salt = salt.to_bytes(TOKEN_BYTES, "little")
        self._hash = hashlib.blake2b(b"".join([oracle.bytes_of[token] for token in tokens]), digest_size=8)
        question, answered = oracle.scripts.turn(tokens)
        self._script = oracle.scripts.rest(question, answered)
        self._at = 0
        # How many tokens of an open thought there are; None outside a thought.
        self._thinking: int | None = None
        self._opening = question is not None and not answered
        if question is not None and answered[:1] == [oracle.thought] and oracle.thought_end not in answered:
            self._thinking = len(answered)
        self._last = tokens[-1] if tokens else -1
        self._lead, self._have = self._unfinished(tokens)
        self._draw = 0

    def next(self, banned: frozenset[int] = frozenset()) -> int:
        """The next token, which is then part of the sequence."""
        self._draw = self._digest(0)
        token = self._choose(self._draw)
        if token in banned:
            self._script = None
            token = self._redraw(banned)
        self._append(token)
        return token

    def force(self, token: int) -> None:
        """Make this the next token, as a prompt does."""
        self._draw = self._digest(0)
        self._script = None
        self._append(token)

    def candidates(self, count: int) -> list[Candidate]:
        """The last token first, then the likeliest others: `count` entries, or one more when it was not among those."""
        token, draw = self._last, self._draw
        best = -(draw % 997) / 4096
        outside = count > 0 and self._script is None and draw % 11 == 0
        step = 0.25 + (draw >> 16) % 64 / 64
        rank = count + 2 if outside else 1
        sampled = Candidate(token, best - step * (rank - 1), rank)
        others: list[Candidate] = []
        words = self._oracle.words
        at = draw
        while len(others) < (count if outside else count - 1):
            at += 1
            other = words[at % len(words)]
            if other != token:
                place = len(others) + (1 if outside else 2)
                others.append(Candidate(other, best - step * (place - 1), place))
        return [sampled, *others]

    def _choose(self, draw: int) -> int:
        oracle = self._oracle
        if self._script is not None:
            if self._at < len(self._script):
                return self._script[self._at]
            self._script = None
        if self._lead:
            return oracle.token_of_byte[self._continuation(draw)]
        if self._opening:
            return oracle.thought
        if self._thinking is not None:
            return self._thought_token(draw)
        if self._last == oracle.thought_end:
            return oracle.blank_line
        share = draw % 1000
        if share < _END:
            return oracle.second_end if share < _SECOND_END else oracle.tokenizer.eos_id
        return self._piece(share, draw >> 10)

    def _thought_token(self, draw: int) -> int:
        oracle, size = self._oracle, self._thinking or 0
        if size == 1:
            return oracle.newline
        if size >= THOUGHT_TOKENS_MAX or (size >= THOUGHT_TOKENS_MIN and draw % 8 == 0):
            return oracle.thought_end
        return self._piece(_END + draw % (1000 - _END), draw >> 10)

    def _piece(self, share: int, bits: int) -> int:
        oracle = self._oracle
        if share < _ACCENT:
            return oracle.token_of_byte[0xC3]
        if share < _CHINESE:
            return oracle.token_of_byte[0xE4 + bits % 6]
        if share < _EMOJI:
            return oracle.token_of_byte[0xF0]
        pool = oracle.suffixes if share < _SUFFIX else oracle.words
        return pool[bits % len(pool)]

    def _continuation(self, draw: int) -> int:
        if self._have == 1:
            low, high = _SECOND_BYTE.get(self._lead, (0x80, 0xBF))
        elif self._lead == 0xF0 and self._have == 2:
            low, high = 0x98, 0x98
        else:
            low, high = 0x80, 0xBF
        return low + draw % (high - low + 1)

    def _redraw(self, banned: frozenset[int]) -> int:
        inside = bool(self._lead)
        words = self._oracle.words
        for attempt in range(1, REDRAWS_MAX):
            draw = self._digest(attempt)
            token = self._choose(draw) if inside else words[draw % len(words)]
            if token not in banned:
                return token
        return next(token for token in words if token not in banned)

    def _append(self, token: int) -> None:
        oracle = self._oracle
        self._hash.update(oracle.bytes_of[token])
        if self._script is not None:
            self._at += 1
        if self._thinking is not None:
            self._thinking = None if token == oracle.thought_end else self._thinking + 1
        elif self._opening and token == oracle.thought:
            self._thinking = 1
        self._opening = False
        self._last = token
        byte = oracle.byte_of.get(token)
        if byte is None:
            self._lead = 0
        elif byte >= 0xC2:
            self._lead, self._have = byte, 1
        elif self._lead:
            self._have += 1
            if self._have == _size(self._lead):
                self._lead = 0

    def _unfinished(self, tokens: Sequence[int]) -> tuple[int, int]:
        """The lead byte of a character that the sequence ends inside of, and how many of its bytes there are."""
        for back in range(1, min(3, len(tokens)) + 1):
            byte = self._oracle.byte_of.get(tokens[-back])
            if byte is None:
                break
            if byte >= 0xC2:
                return (byte, back) if _size(byte) > back else (0, 0)
        return 0, 0

    def _digest(self, attempt: int) -> int:
        state = self._hash.copy()
        state.update(self._salt)
        if attempt:
            state.update(_bytes(attempt))
        return int.from_bytes(state.digest(), "little")


def _size(lead: int) -> int:
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _bytes(token: int) -> bytes:
    return token.to_bytes(TOKEN_BYTES, "little")


def _byte_tokens(tokenizer: Tokenizer) -> dict[int, int]:
    """The token of each single byte. In its alphabet printable bytes stand for themselves, others are shifted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(0x100) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + n) for n, byte in enumerate(shifted)}
    return {byte: tokenizer.id_of(letter) for byte, letter in letters.items()}
