"""What goes wrong with a call, and when?

A `Plan` is a list of faults; each call takes the first one that is meant for it. Faults are played where a call's bytes
are written (`exchange.py`), so that every route has them, and on a text line they are `KIND [key=value ...]`:

    cut after=5            the fifth event is the last; then the connection is reset
    status status=503 times=2 on=generate

| kind | what happens |
|---|---|
| reset | the connection is reset before the head |
| status | this status and an error body, instead of an answer |
| late | the head comes `seconds` late |
| cut | after `after` events (or half of a whole answer) the connection is reset |
| bytes | the same after `after` bytes, wherever that is |
| eof | after `after` events the body ends, as if all were well, without a finish reason and `[DONE]` |
| done | the same, with `[DONE]` |
| lost | everything but the event with the finish reason; then a reset |
| stall | after `after` events nothing more, for ever |
| error | after `after` events an error event and `[DONE]` |
| garbage | after `after` events (or instead of a whole answer) something that is no JSON |
| oversized | after `after` events a line that does not end |
| abort | after `after` events an end with finish reason `abort`: what SIGTERM of an engine looks like |
| recomputed | after `after` events finish reason `stop` with stop reason `recomputed` (vllm-ascend) |
| slow | every event in pieces, `seconds` apart |
| die | after `after` events the whole process is gone, for `seconds` |

Source: RFC 故障测试; measured behaviour of vLLM 0.33 and vllm-ascend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

if TYPE_CHECKING:
    from motor_flow.sim.seen import Seen

Kind = Literal[
    "reset",
    "status",
    "late",
    "cut",
    "bytes",
    "eof",
    "done",
    "lost",
    "stall",
    "error",
    "garbage",
    "oversized",
    "abort",
    "recomputed",
    "slow",
    "die",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
EVERY = "any"
OVERSIZED_LINE_BYTES_MAX = 64 << 20


class BadFault(ValueError):
    """A line does not describe a fault."""


def everyone(_: Seen) -> bool:
    """Every call is meant."""
    return True


@dataclass(slots=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        kind: see the table above.
        after: events (bytes for `bytes`) that pass before.
        tokens: beside `after`, tokens that pass before; a busy engine merges several into one event.
        seconds: for `late`, `slow` and `die`.
        status: for `status`.
        times: calls that it happens to.
        skip: calls that are let pass first.
        on: the kind of calls that are meant: generate, native, render, derender, or any.
        only: which of them.

    """

    kind: Kind
    after: int = 0
    tokens: int = 0
    seconds: float = 1.0
    status: int = 500
    times: int = 1
    skip: int = 0
    on: str = EVERY
    only: Callable[[Seen], bool] = everyone

    @classmethod
    def read(cls, line: str) -> Fault:
        """From text.

        Raises:
            BadFault: it is not of the form `KIND [key=value ...]`.

        """
        kind, *pairs = line.split() or [""]
        if kind not in KINDS:
            raise BadFault(f"{kind!r} is no fault; there are: {', '.join(KINDS)}")
        fault = cls(kind)
        known = {field.name for field in fields(cls)} - {"kind", "only"}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if key not in known or not equals:
                raise BadFault(f"{pair!r}: expected key=value with a key of {', '.join(sorted(known))}")
            try:
                setattr(fault, key, type(getattr(fault, key))(value))
            except ValueError:
                raise BadFault(f"{pair!r}: not a number") from None
        return fault


class Plan:
    """What is still to go wrong."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._faults = list(faults)

    def add(self, fault: Fault) -> None:
        self._faults.append(fault)

    def clear(self) -> None:
        """Nothing more goes wrong."""
        self._faults.clear()

    @property
    def left(self) -> int:
        """Faults that have not happened yet."""
        return sum(fault.times for fault in self._faults)

    def take(self, call: Seen) -> Fault | None:
        """The fault of this call, if there is one."""
        for fault in [each for each in self._faults if each.times > 0]:  # it may be in other plans too
            if fault.on not in (EVERY, call.kind) or not fault.only(call):
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            fault.times -= 1
            if fault.times <= 0:
                self._faults.remove(fault)
            return fault
        return None


def ended(data: bytes, finish: str, stop_reason: str | None) -> bytes:
    """An event or a whole answer, with this end instead of its tokens."""
    prefix = b"data: " if data.startswith(b"data: ") else b""
    body = msgspec.json.decode(data.removeprefix(b"data: "))
    if not isinstance(body, dict) or not body.get("choices"):
        return data  # nothing in it ends: Render's answer, or an event that tells the usage
    for choice in body["choices"]:
        choice |= {"finish_reason": finish, "stop_reason": stop_reason}
        for key, empty in (("token_ids", []), ("text", ""), ("delta", {}), ("logprobs", None)):
            if prefix and key in choice:
                choice[key] = empty
    return prefix + msgspec.json.encode(body) + (b"\n\n" if prefix else b"")


def has_finish(data: bytes) -> bool:
    """An event that ends a choice."""
    if not data.startswith(b"data: {"):
        return False
    body = msgspec.json.decode(data.removeprefix(b"data: "))
    return any(choice.get("finish_reason") is not None for choice in body.get("choices") or ())
