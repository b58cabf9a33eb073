"""Which models are served, and under which names?

The cards that engines and sidecars show on their `/v1/models`, as they are; before anybody was seen, one made from the
configuration.

Source: vLLM 0.33 openai/models/serving.py (a response names the first served name, or the LoRA adapter asked for).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Card = dict[str, Any]


class Models:
    """The served models.

    Args:
        name: model_config.model_name, or empty.
        max_model_len: tokens, or 0 when unknown.
        created: Unix time for a card made here.

    """

    def __init__(self, name: str, max_model_len: int, created: int) -> None:
        self._cards: list[Card] = []
        if name:
            self._cards.append(
                {
                    "id": name,
                    "object": "model",
                    "created": created,
                    "owned_by": "motor_flow",
                    "root": name,
                    "parent": None,
                    "max_model_len": max_model_len or None,
                    "permission": [],
                }
            )
        self._seen = False
        self._lengths: set[int] = {max_model_len} if max_model_len else set()

    def learn(self, cards: Sequence[Card]) -> None:
        """An upstream named its models. The first one to do so replaces the card made from the configuration."""
        if not cards:
            return
        for card in cards:
            length = card.get("max_model_len")
            if isinstance(length, int) and length > 0:
                self._lengths.add(length)
        if not self._seen:
            self._cards = []
            self._seen = True
        known = {card["id"] for card in self._cards}
        self._cards += [card for card in cards if card["id"] not in known]

    @property
    def context_tokens(self) -> int | None:
        """Prompt and output of one request: the least that anybody has named; None: nobody has."""
        return min(self._lengths, default=None)

    @property
    def cards(self) -> list[Card]:
        return self._cards

    def card(self, name: str) -> Card | None:
        return next((card for card in self._cards if card["id"] == name), None)

    def shown(self, asked: str) -> str:
        """The name that responses carry: aliases become the first served name, adapters keep theirs."""
        card = self.card(asked) if asked else None
        if asked and (card is None or card.get("parent")):
            return asked
        base = next((c["id"] for c in self._cards if not c.get("parent")), asked)
        return str(base)
