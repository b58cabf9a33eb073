"""What does a prompt ask of the instance that it is given, and which instances have read its beginning before?

Answered once for every attempt, before it is placed: what flow control counts for the prompt, without what is committed
already, and what the KV conductor knows. The conductor is asked for the longest prompt of a list alone. That says
something of the others too: as far as they begin with the same tokens, whoever has the one has the other.

Without Render there are no token ids that an engine would agree with, so the conductor is not asked.

Source: RFC Router、Scheduler 和 KV Conductor (the query uses Render's ids, as engines see them).
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from machines.tokens import SemanticIds
from motor_flow.effects.context import PromptRun, RequestRun
from motor_flow.effects.demand import needs
from motor_flow.scheduling.conductor import Conductor, Matches
from motor_flow.scheduling.policy import Demand


async def survey(run: RequestRun) -> None:
    """Set the demand of every prompt that waits for an engine. Always a checkpoint."""
    await trio.lowlevel.checkpoint()
    waiting = [each for each in run.prompts if each.progress == "waiting" and not (each.attempts and each.spent)]
    if not waiting:
        return
    tokens = [need.known + need.guessed for need in needs(run, run.services.unasked_output_tokens)]
    conductor = run.services.conductor
    if conductor is None:
        known = [Matches(None, "no conductor")] * len(waiting)
    else:
        known = await _matches(run, conductor, [_ids(run, prompt) for prompt in waiting])
    for prompt, matches in zip(waiting, known, strict=True):
        read = run.prompt_tokens if prompt.prompt is None else len(prompt.prompt.ids) + prompt.committed
        wanted = sum(tokens) if prompt.prompt is None else tokens[prompt.index]  # natively one leg does all of them
        prompt.demand = Demand(read, max(0, wanted - read), matches.tokens, matches.why)


def _ids(run: RequestRun, prompt: PromptRun) -> SemanticIds | None:
    """What an engine is to read; of a whole native request the longest prompt. None: nobody has said it surely."""
    if prompt.prompt is not None:
        ids = prompt.prompt.ids
        return SemanticIds([*ids, *prompt.streams[0].ledger]) if prompt.committed else ids
    if run.tokens is None or run.tokens.source != "render":
        return None
    return max((each.ids for each in run.tokens.prompts), key=len)


async def _matches(run: RequestRun, conductor: Conductor, prompts: Sequence[SemanticIds | None]) -> list[Matches]:
    """For each prompt."""
    longest = max((ids for ids in prompts if ids is not None), key=len, default=None)
    if longest is None:
        why = conductor.without_ids() if run.envelope.api != "other" else "this route has no token ids"
        return [Matches(None, why)] * len(prompts)
    services = run.services
    known = await conductor.matches(services.shown_model(run.envelope.model), services.codec.physical(longest))
    return [known if ids is longest or ids is None else _cut(known, _shared(ids, longest)) for ids in prompts]


def _cut(known: Matches, tokens: int) -> Matches:
    if known.tokens is None:
        return known
    return Matches({name: min(matched, tokens) for name, matched in known.tokens.items()})


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first tokens are the same."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(at for at in range(length) if one[at] != other[at])
