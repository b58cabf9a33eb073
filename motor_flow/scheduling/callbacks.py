"""Which decode engine's callback belongs to which attempt?

A decode engine in Trigger calls back with its own request id (which is ours, behind vLLM's prefix) and the attempt
number of the URL it was given. One entry per prompt that runs: a callback of an older attempt finds a newer one and
is stale.

    expect ──► callback ──► answered        the second time the same answer
                  └──────► failed

Source: MindIE Motor's metaserver (400, 404 and 409 rules).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

PATH = "/v1/metaserver"
_PREFIX = re.compile(r"^(generate-tokens-|chatcmpl-|cmpl-)")
_LEG = re.compile(r"^(?P<prompt>.+)\.a(?P<attempt>\d+)\.(?P<index>p\d+)\.d(-\d+)?$")


class Stale(Exception):
    """It is for an attempt that is over."""


class Unknown(Exception):
    """No such request waits for one."""


@dataclass(slots=True, eq=False)
class Expected:
    """One attempt that waits for its decode engine to call back.

    Attributes:
        attempt: its number.
        params: what the decode engine said; None: nothing yet.
        called: it has called.
        answer: the prefill engine's JSON.
        settled: `answer` is there, or the attempt has failed.

    """

    attempt: int
    params: dict[str, Any] | None = None
    called: trio.Event = field(default_factory=trio.Event)
    answer: bytes | None = None
    settled: trio.Event = field(default_factory=trio.Event)

    def resolve(self, answer: bytes) -> None:
        """The prefill leg has answered."""
        self.answer = answer
        self.settled.set()


class Callbacks:
    """All attempts that expect one.

    Attributes:
        url: where decode engines reach us; empty: they cannot, so Trigger is off.

    """

    def __init__(self) -> None:
        self.url = ""
        self._expected: dict[str, Expected] = {}

    def __len__(self) -> int:
        return len(self._expected)

    def url_of(self, attempt: int) -> str:
        return f"{self.url}{PATH}?attempt={attempt}"

    @contextmanager
    def expect(self, leg_id: str, attempt: int) -> Iterator[Expected]:
        """Wait for the callback of this decode leg for the length of the block."""
        key = self._key(leg_id)[0]
        expected = self._expected[key] = Expected(attempt)
        try:
            yield expected
        finally:
            if self._expected.get(key) is expected:
                del self._expected[key]
            expected.settled.set()

    def find(self, request_id: str, attempt: int) -> Expected:
        """The attempt that a callback is for.

        Raises:
            Unknown: nobody expects it.
            Stale: another attempt of the same prompt is expected.

        """
        for name in (request_id, _PREFIX.sub("", request_id)):  # a client's own id may look like a prefix
            key, own = self._key(name)
            expected = self._expected.get(key)
            if expected is not None:
                break
        else:
            raise Unknown
        if expected.attempt != attempt or own != attempt:
            raise Stale
        return expected

    @staticmethod
    def _key(request_id: str) -> tuple[str, int]:
        match = _LEG.match(request_id)
        if match is None:
            raise Unknown
        return f"{match['prompt']}.{match['index']}", int(match["attempt"])
