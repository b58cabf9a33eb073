"""Did the client carry the state as it should?

A stateless server trusts its client with everything it knows, and a wrong state gives wrong text without an error.
The witness sees such mistakes. Each state that leaves gets one more string, in whichever of the two string lists its
mode leaves empty, so that vLLM would not mind it:

    "sim-check:<calls so far>:<finished>:<hash of the state>"

The hash needs no secret: sidecars check each other's states, and a client that forges one is not who this is for.

`anomalies` are mistakes. `repeats` are calls that came twice with the same state and chunk: right after a failure,
wrong otherwise; whoever caused the failures can tell. Both, and what is remembered to find them, are bounded.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from motor_flow.sim.recent import Recent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from motor_flow.sim.protocol import DerenderStreamState, GenerateTokensStreamResponse

REPORTS_MAX = 1000
REMEMBERED_MAX = 100_000
_MARK = "sim-check:"
_PLACES = ("prev_tokens", "last_tool_call_ids")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stream was when a call came."""

    calls: int = 0
    finished: bool = False


class Remembered:
    """A bounded set of hashes that knows whether it has forgotten anything."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._items: dict[bytes, None] = {}
        self.complete = True

    def add(self, item: bytes) -> bool:
        """Whether it is new."""
        if item in self._items:
            return False
        self._items[item] = None
        if len(self._items) > self._size_max:
            del self._items[next(iter(self._items))]
            self.complete = False
        return True

    def __contains__(self, item: bytes) -> bool:
        return item in self._items


class Witness:
    def __init__(self) -> None:
        self.anomalies: Recent[str] = Recent(REPORTS_MAX)
        self.repeats: Recent[str] = Recent(REPORTS_MAX)
        self._prompts = Remembered(REMEMBERED_MAX)
        self._calls = Remembered(REMEMBERED_MAX)

    def rendered(self, prompt: Sequence[int]) -> None:
        self._prompts.add(_hash(prompt))

    def arrived(
        self,
        state: DerenderStreamState | None,
        chunk: GenerateTokensStreamResponse,
        *,
        prompt: Sequence[int] | None,
    ) -> tuple[DerenderStreamState | None, Progress]:
        """(the state as it was before it was marked, how far its stream was). Mistakes are noted on the way.

        Args:
            state: the client's.
            chunk: the call's chunk.
            prompt: the prompt that Render must have returned; None where any beginning of a window will do.

        """
        name = chunk.request_id
        if prompt is not None and self._prompts.complete and _hash(prompt) not in self._prompts:
            self.anomalies.add(f"{name}: a prompt that Render never returned ({len(prompt)} tokens)")
        progress, mark = Progress(), ""
        if state is not None:
            state, mark = _unmarked(state)
            if not mark:
                self.anomalies.add(f"{name}: a state that no sidecar made")
            else:
                calls, finished, seal = mark.removeprefix(_MARK).split(":")
                progress = Progress(int(calls), finished == "1")
                if seal != _seal(state.model_dump(), progress):
                    self.anomalies.add(f"{name}: the state was altered")
        if progress.finished and any(choice.token_ids for choice in chunk.choices):
            self.anomalies.add(f"{name}: tokens after the finish")
        if not self._calls.add(_hash([mark, name, [choice.model_dump() for choice in chunk.choices]])):
            self.repeats.add(f"{name}: call {progress.calls}")
        return state, progress

    def departing(
        self, state: dict[str, Any], chunk: GenerateTokensStreamResponse, progress: Progress, *, parsed: bool
    ) -> dict[str, Any]:
        """The new state with its mark."""
        finished = progress.finished or any(choice.finish_reason is not None for choice in chunk.choices)
        # A chunk that only tells the usage leaves the state as it is.
        progress = Progress(progress.calls + bool(chunk.choices), finished)
        place = _PLACES[0] if parsed else _PLACES[1]
        mark = f"{_MARK}{progress.calls}:{finished:d}:{_seal(state, progress)}"
        return state | {place: [*state[place], mark]}


def _unmarked(state: DerenderStreamState) -> tuple[DerenderStreamState, str]:
    for place in _PLACES:
        items: list[str] = getattr(state, place)
        if items and items[-1].startswith(_MARK) and items[-1].count(":") == 3:
            return state.model_copy(update={place: items[:-1]}), items[-1]
    return state, ""


def _seal(state: dict[str, Any], progress: Progress) -> str:
    return _hash([state, progress.calls, progress.finished]).hex()


def _hash(value: Any) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=8).digest()
