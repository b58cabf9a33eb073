"""Which engines have a tokenizer?

Asked when an instance is registered, every half minute after that, when a refusal hints that it has changed, and, of
those that could not be asked yet, before the first request that depends on it: an engine without one may do without a
word something else than what it should.

Source: diagrams/decisions/0013; `engine.probe`.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from motor_flow.engine.client import EngineClient
from motor_flow.scheduling.registry import Instance
from motor_flow.telemetry.log import get_logger

AGAIN_S = 1.0
_log = get_logger()


class Tokenizers:
    """The one writer of `Instance.tokenizer`.

    Args:
        engines: who asks.
        instances: all that are registered.

    """

    def __init__(self, engines: EngineClient, instances: Iterable[Instance]) -> None:
        self._engines = engines
        self._instances = instances
        self._asking = trio.Lock()
        self._asked_at = float("-inf")

    async def ask(self, instance: Instance) -> None:
        """One that cannot be asked is what it was."""
        found = await self._engines.has_tokenizer(instance.url)
        if found is not None:
            self._learnt(instance, has=found)

    async def ask_all(self) -> None:
        """Those that are there, at the same time."""
        await self._ask([*self._instances])

    async def ask_unknown(self) -> None:
        """Those that could not be asked before. Who finds another one asking waits for what that one learns."""
        if not self._unknown():
            return
        async with self._asking:
            if trio.current_time() - self._asked_at >= AGAIN_S:
                await self._ask(self._unknown())
                self._asked_at = trio.current_time()

    def refused(self, instance: Instance) -> None:
        """It has said itself that it has none."""
        self._learnt(instance, has=False)

    def _unknown(self) -> list[Instance]:
        return [each for each in self._instances if each.tokenizer is None]

    async def _ask(self, instances: list[Instance]) -> None:
        async with trio.open_nursery() as nursery:
            for instance in instances:
                nursery.start_soon(self.ask, instance)

    @staticmethod
    def _learnt(instance: Instance, *, has: bool) -> None:
        if instance.tokenizer is not has and (instance.tokenizer is not None or not has):
            _log.info("engine.tokenizer", instance=instance.name, has=has)
        instance.tokenizer = has
