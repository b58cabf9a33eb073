"""Which physical id has a token, and which token has a physical id?

Two tables, made once and verified: one is the inverse of the other, and the ids on the white list are themselves in
both. An id outside them is an error, never another token: a negative one would count from the end of a Python list.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from machines.tokens import PhysicalIds, SemanticIds


class BadTable(ValueError):
    """A table that is no usable permutation of the vocabulary."""


class OutsideVocabulary(ValueError):
    """An id that the tables do not have."""


class Obfuscator:
    """A permutation of the vocabulary, and its inverse.

    Args:
        physical: at each semantic id its physical one.
        white_list: ids that must be the same on both sides.

    Raises:
        BadTable: it is no permutation, moves an id of the white list, or moves nothing at all.

    """

    __slots__ = ("_physical", "_semantic")

    def __init__(self, physical: Sequence[int], white_list: Collection[int] = ()) -> None:
        size = len(physical)
        semantic = [-1] * size
        for token, hidden in enumerate(physical):
            if not 0 <= hidden < size:
                raise BadTable(f"id {token} would become {hidden}, outside the vocabulary of {size}")
            if semantic[hidden] != -1:
                raise BadTable(f"ids {semantic[hidden]} and {token} would both become {hidden}")
            semantic[hidden] = token
        for token in white_list:
            if not 0 <= token < size:
                raise BadTable(f"white-listed id {token} is outside the vocabulary of {size}")
            if physical[token] != token:
                raise BadTable(f"white-listed id {token} would become {physical[token]}")
        if all(token == hidden for token, hidden in enumerate(physical)):
            raise BadTable("it hides nothing: every id stays what it is")
        self._physical = list(physical)
        self._semantic = semantic

    @property
    def vocab_size(self) -> int:
        return len(self._physical)

    def physical(self, ids: SemanticIds) -> PhysicalIds:
        """What engines call these tokens."""
        return PhysicalIds(_looked_up(self._physical, ids))

    def semantic(self, ids: PhysicalIds) -> SemanticIds:
        """Which tokens engines mean."""
        return SemanticIds(_looked_up(self._semantic, ids))


def _looked_up(table: list[int], ids: list[int]) -> list[int]:
    if not ids:
        return []
    if (token := min(ids)) < 0 or (token := max(ids)) >= len(table):
        raise OutsideVocabulary(f"token id {token} is outside the vocabulary of {len(table)}")
    return [table[token] for token in ids]
