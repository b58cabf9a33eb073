"""Provider `permutation`: how does a seed become a permutation of the vocabulary?

Frozen: engines' weights are permuted by the same rule, so the table of a seed must never change.

    stream = SHAKE-256("motor-flow/permutation/1" NUL seed as UTF-8), read as big-endian 64-bit numbers r0, r1, ...
    free   = ids that are not on the white list, ascending; slots = free
    for k = 0, 1, ... and last = len(free) - 1 down to 1:  swap slots[last] and slots[rk * last >> 64]
    physical(free[i]) = slots[i];  physical(white-listed id) = itself

This is Sattolo's form of the shuffle: one cycle through all free ids, so that no hidden id keeps its number. A draw is
multiplied into its range; the bias, below 2**-40, hides nothing less.

Source: S. Sattolo, An algorithm to generate a random cyclic permutation (1986); FIPS 202 (SHAKE).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection

DOMAIN = b"motor-flow/permutation/1\0"
DRAW_BYTES = 8


def permutation(vocab_size: int, white_list: Collection[int], seed: str) -> list[int]:
    """At each semantic id its physical one."""
    fixed = frozenset(white_list)
    free = [token for token in range(vocab_size) if token not in fixed]
    slots = free.copy()
    draws = max(len(free) - 1, 0)
    stream = hashlib.shake_256(DOMAIN + seed.encode()).digest(DRAW_BYTES * draws)
    for last, draw in zip(range(draws, 0, -1), struct.unpack(f">{draws}Q", stream), strict=True):
        other = draw * last >> 64
        slots[last], slots[other] = slots[other], slots[last]
    table = list(range(vocab_size))
    for token, slot in zip(free, slots, strict=True):
        table[token] = slot
    return table
