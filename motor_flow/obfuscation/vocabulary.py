"""How large is the vocabulary, and which of its ids do engines know by number?

The size is that of the model's embedding, as `config.json` says it: the same that its weights were permuted with. An
engine ends answers by the end-of-text ids of its own configuration, which nobody permutes: they belong on the white
list.

Source: Hugging Face config.json, generation_config.json.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

FILES = ("config.json", "generation_config.json")


class UnknownVocabulary(Exception):
    """Nobody says how large it is."""


class _Model(msgspec.Struct):
    vocab_size: int | None = None
    text_config: _Model | None = None
    eos_token_id: int | list[int] | None = None

    def size(self) -> int | None:
        """Of the language model, also inside one that sees."""
        return self.vocab_size or (self.text_config.size() if self.text_config is not None else None)

    def ends(self) -> set[int]:
        """All end-of-text ids."""
        own = self.eos_token_id
        found = set(own) if isinstance(own, list) else set() if own is None else {own}
        return found | (self.text_config.ends() if self.text_config is not None else set())


def vocab_size(model_path: str) -> int:
    """As config.json says.

    Raises:
        UnknownVocabulary: it is not there, or does not say.

    """
    if not model_path:
        raise UnknownVocabulary("is 0 and model_config.model_path is empty: give one of them")
    path = Path(model_path) / FILES[0]
    try:
        size = _read(path).size()
    except (OSError, msgspec.DecodeError) as exc:
        raise UnknownVocabulary(f"is 0 and {path} cannot be read: {exc}") from exc
    if not size or size < 0:
        raise UnknownVocabulary(f"is 0 and {path} names no vocab_size")
    return size


def exposed_ends(model_path: str, white_list: Collection[int]) -> list[int]:
    """End-of-text ids that would be hidden, so that engines no longer recognise them; as far as files tell."""
    ends: set[int] = set()
    for name in FILES if model_path else ():
        try:
            ends |= _read(Path(model_path) / name).ends()
        except (OSError, msgspec.DecodeError):
            continue
    return sorted(ends.difference(white_list))


def _read(path: Path) -> _Model:
    return msgspec.json.decode(path.read_bytes(), type=_Model)
