"""Which fields of a body name engines' KV memory?

Hosts, ports and block ids of one engine for another. They are ours to write between legs: a client that could send them
could kill an engine, and one that sees them learns what is none of its business.

Source: vLLM 0.33 openai protocols, scale_out/token_in_token_out/protocol.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

TRANSFER_KEYS = frozenset({"kv_transfer_params", "ec_transfer_params"})

Value = TypeVar("Value")


def without_transfer(fields: Mapping[str, Value]) -> dict[str, Value]:
    """A body without them."""
    return {key: value for key, value in fields.items() if key not in TRANSFER_KEYS}
