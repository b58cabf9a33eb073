"""How are both servers asked, one request after the other?

Never both at once: they may share an engine, and a batch changes the last bits of its logprobs. A broken or late answer
is a difference like any other; a server that cannot be reached ends the comparison.

Source: contract section 1 (parity).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from motor_flow.net.asking import ask_models, ask_version
from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import ConnectFailed, TransportFault
from motor_flow.views.parity.accepted import accepted_as
from motor_flow.views.parity.answers import Answer, read_answer
from motor_flow.views.parity.cases import Case
from motor_flow.views.parity.compare import Difference, differences, envelope_differences
from motor_flow.views.parity.outcome import Judged, Result, Server

ANSWER_TIMEOUT_S = 300.0
SHOWN_CHARS_MAX = 200


class Unreachable(Exception):
    """A server that does not answer; the message names it."""


async def meet(http: HttpClient, url: str) -> tuple[Server, list[dict[str, Any]]]:
    """Who is there, and the cards of its models.

    Raises:
        Unreachable: nobody.

    """
    try:
        version = await ask_version(http, url)
    except TransportFault as fault:
        raise Unreachable(f"{url} does not answer: {fault}") from None
    return Server(url, version), await ask_models(http, url)


async def compare_all(
    http: HttpClient,
    native: Server,
    coordinator: Server,
    cases: Iterable[tuple[Case, bytes]],
    done: Callable[[Result], None],
    *,
    given: Callable[[Answer], None] = lambda _: None,
) -> None:
    """Ask both everything; `done` is told each result as it comes.

    Args:
        http: for both.
        native: whose answers are right.
        coordinator: whose answers are compared.
        cases: with their bodies.
        done: called with each result.
        given: called with each native answer, before the Coordinator is asked.

    Raises:
        Unreachable: one of them is gone.

    """
    for case, body in cases:
        left = await _ask(http, native.url, case.path, body)
        if isinstance(left, Answer):
            given(left)
        right = await _ask(http, coordinator.url, case.path, body)
        done(Result(case, _judge(left, right, native.version)))


def _judge(native: Answer | str, chain: Answer | str, version: str) -> tuple[Judged, ...]:
    if isinstance(native, Answer) and isinstance(chain, Answer):
        found = differences(native, chain)
        if native.error is None and chain.error is None:
            found += envelope_differences(native, chain)
        return tuple(Judged(difference, accepted_as(difference, native, chain, version)) for difference in found)
    # Two servers that break in the same way prove nothing.
    return (Judged(Difference("answer", _brief(native), _brief(chain)), None),)


def _brief(answer: Answer | str) -> str:
    return answer if isinstance(answer, str) else f"status {answer.status}, readable"


async def _ask(http: HttpClient, url: str, path: str, body: bytes) -> Answer | str:
    """The answer, or what is wrong with it."""
    try:
        reply = await http.call("POST", f"{url}{path}", body=body, timeout_s=ANSWER_TIMEOUT_S)
    except ConnectFailed as fault:
        raise Unreachable(f"{url} does not answer any more: {fault}") from None
    except TransportFault as fault:
        return f"broken: {fault}"
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in reply.headers}
    return read_safely(reply.status, headers.get("content-type", ""), reply.body)


def read_safely(status: int, media_type: str, body: bytes) -> Answer | str:
    """The answer, or why it is none: servers that are compared may send anything."""
    try:
        return read_answer(status, media_type, body)
    except (msgspec.DecodeError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
        shown: Any = body[:SHOWN_CHARS_MAX].decode(errors="replace")
        return f"status {status}, not an OpenAI answer ({type(exc).__name__}: {exc}): {shown}"
