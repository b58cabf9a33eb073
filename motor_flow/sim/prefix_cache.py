"""Which prompt blocks does an engine have cached?

Whole blocks only, each known by everything up to its end; the least recently used ones are given up first, the end of a
prompt before its beginning. As in vLLM a block counts as cached from the moment in which its prompt is scheduled.

Source: vllm/v1/core/kv_cache_manager.py, block_pool.py (0.33).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BLOCK_TOKENS = 16


class PrefixCache:
    """The blocks of one engine.

    Args:
        blocks_max: how many it holds.
        block_tokens: the size of each.

    Attributes:
        asked: prompt tokens that were looked up.
        hit: of those, how many were there.

    """

    def __init__(self, blocks_max: int, block_tokens: int = BLOCK_TOKENS) -> None:
        self.block_tokens = block_tokens
        self.asked = self.hit = 0
        self._blocks_max = blocks_max
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def matched(self, prompt: Sequence[int]) -> int:
        """How many first tokens of a prompt are there. Looking does not count as use."""
        count = 0
        for key in self._keys(prompt):
            if key not in self._blocks:
                break
            count += self.block_tokens
        return count

    def take(self, prompt: Sequence[int]) -> int:
        """A prompt is scheduled: how many of its first tokens need not be computed. The last one always is."""
        found = min(self.matched(prompt), (len(prompt) - 1) // self.block_tokens * self.block_tokens)
        self.asked += len(prompt)
        self.hit += found
        for key in reversed(list(self._keys(prompt))):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)
        return found

    def _keys(self, prompt: Sequence[int]) -> Iterator[bytes]:
        key = b""
        for end in range(self.block_tokens, len(prompt) + 1, self.block_tokens):
            block = array("q", prompt[end - self.block_tokens : end])
            key = blake2b(key + block.tobytes(), digest_size=16).digest()
            yield key
