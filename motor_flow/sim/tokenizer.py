"""Which tokens is a text, and which text are tokens?

    text ── encode ──▶ ids ── piece ──▶ vocabulary strings ── join ──▶ text

The tokenizer is a real byte-level BPE of 646 tokens, shipped as package data. Only ASCII is merged in it: a Chinese
character is three tokens and an emoji four, so every chunk boundary may fall inside a character. The `<think>` and
`<tool_call>` markers are added tokens but not special ones: skipping special tokens leaves them in the text.

`join` may be given the tokens of half a character; it then ends in U+FFFD. What a stream may show of that is
detokenizer.py's.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as Backend

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.resources.abc import Traversable


def model_dir() -> Traversable:
    """The folder with the tokenizer, the template and the configuration of the simulated model (no weights)."""
    return files("motor_flow.sim").joinpath("model")


def _read_json(name: str) -> Any:
    return json.loads(model_dir().joinpath(name).read_text(encoding="utf-8"))


class Tokenizer:
    """One tokenizer, immutable after construction; share it freely."""

    def __init__(self, backend: Backend, *, eos_id: int, eos_ids: frozenset[int]) -> None:
        self._backend = backend
        vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self.eos_id = eos_id
        """The primary end: what ends with it has no stop reason."""
        self.eos_ids = eos_ids
        """All ends that the model's generation configuration names, the primary one among them."""
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.special_texts = frozenset(token.content for token in added.values() if token.special)
        self.marker_ids = frozenset(added)
        """Every added token, special or not: what a text must not hold by chance."""
        self.chars_per_token_max = max(map(len, vocab))
        self._id_of = vocab
        self._pieces: list[str | None] = [None] * (max(vocab.values()) + 1)
        for piece, token_id in vocab.items():
            self._pieces[token_id] = piece
        self._single: dict[int, str] = {}
        self._joined: dict[str, str] = {}

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    def id_of(self, piece: str) -> int:
        return self._id_of[piece]

    def encode(self, text: str) -> list[int]:
        """The ids of a text; markers and special tokens written out in it become their own ids, none is added."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids, and for each the first and the end character of the text that it covers."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def piece(self, token_id: int) -> str | None:
        """The vocabulary's own spelling of a token (byte-level characters); None outside the vocabulary."""
        return self._pieces[token_id] if 0 <= token_id < len(self._pieces) else None

    def join(self, pieces: Sequence[str]) -> str:
        """The text of vocabulary strings."""
        text: str = self._backend.decoder.decode(pieces)
        return text

    def join_few(self, pieces: Sequence[str]) -> str:
        """The same, remembered for single pieces: the common window of a detokenizer."""
        if len(pieces) != 1:
            return self.join(pieces)
        text = self._joined.get(pieces[0])
        if text is None:
            text = self.join(pieces)
            if pieces[0] in self._id_of:
                self._joined[pieces[0]] = text
        return text

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a whole sequence, special tokens written out, ids outside the vocabulary left out."""
        return self.join([piece for i in ids if (piece := self.piece(i)) is not None])

    def token_text(self, token_id: int) -> str:
        """The text of one token alone: U+FFFD for a piece of a character, empty outside the vocabulary."""
        text = self._single.get(token_id)
        if text is None:
            piece = self.piece(token_id)
            text = self._single[token_id] = self.join([piece]) if piece is not None else ""
        return text


@cache
def tiny() -> Tokenizer:
    """The shipped tokenizer."""
    config = _read_json("tokenizer_config.json")
    backend = Backend.from_str(model_dir().joinpath("tokenizer.json").read_text(encoding="utf-8"))
    eos_ids: list[int] = _read_json("generation_config.json")["eos_token_id"]
    return Tokenizer(backend, eos_id=backend.get_vocab()[config["eos_token"]], eos_ids=frozenset(eos_ids))
