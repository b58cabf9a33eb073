"""What does an engine do whose weights are permuted?

The same as any other, under other numbers: physical ids come in and go out, and in between is the model that means
tokens. It is told the table, as whoever permuted the weights would know it.

The wire is translated by the names of its fields, in whatever place they are. Text that an engine itself reads or
writes (stop strings, native routes) is not: what a real one makes of that is nonsense, and here it would be right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from motor_flow.sim.protocol import GenerateRequest

_LISTS = frozenset({"token_ids", "prompt_token_ids", "stop_token_ids", "allowed_token_ids", "logprob_token_ids"})
_SINGLE = frozenset({"token_id", "stop_reason"})
_KEYS = frozenset({"logit_bias", "prompt_logprobs"})


class Alphabet:
    """A permuted engine's numbers.

    Args:
        semantic: at each physical id the token it means.

    """

    def __init__(self, semantic: Sequence[int]) -> None:
        self._semantic = dict(enumerate(semantic))
        self._physical = {token: physical for physical, token in self._semantic.items()}

    def understand(self, request: GenerateRequest) -> None:
        """Make a request's ids mean tokens. Ids outside the table stay what they are, for the engine to refuse."""
        request.token_ids = [self._semantic.get(token, token) for token in request.token_ids]
        request.sampling_params = _renamed(request.sampling_params, self._semantic)

    def say(self, answer: Any) -> Any:
        """An answer or event in physical ids."""
        return _renamed(answer, self._physical)


def _renamed(value: Any, table: dict[int, int]) -> Any:
    if isinstance(value, list):
        return [_renamed(item, table) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _field(key, item, table) for key, item in value.items()}


def _field(key: str, value: Any, table: dict[int, int]) -> Any:
    if key in _LISTS and isinstance(value, list):
        return [table.get(token, token) for token in value]
    if key in _SINGLE and isinstance(value, int):
        return table[value]
    if key in _KEYS and isinstance(value, dict):
        return {type(token)(table.get(int(token), int(token))): item for token, item in value.items()}
    return _renamed(value, table)
