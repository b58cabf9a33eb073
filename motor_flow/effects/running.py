"""How do the attempts of a request run, and what happens when one of them breaks?

`generating` waits for reports: a prompt has broken, or all are done. Attempts are tasks in the nursery of the compound
state `running`, so siblings stream on while a broken prompt is relayed, and all of them are closed before anything that
follows: a rollback, a derender of whole answers, the end.

Source: RFC 流式 replay 与重调度, 多 prompt; contract section 7.
"""

from __future__ import annotations

from typing import Literal

import trio

from motor_flow.derender.normalise import role_choice
from motor_flow.derender.usage import encoded_usage
from motor_flow.effects.attempt import run_attempt
from motor_flow.effects.context import Barrier, PromptRun, RequestRun
from motor_flow.effects.placing import divisible, wanted_by
from motor_flow.effects.registered import request_effects
from motor_flow.errors import EngineError, Unsupported
from motor_flow.scheduling.scheduler import Experience

BACK_OFF_S_MAX = 10.0
SSE_MEDIA_TYPE = "text/event-stream; charset=utf-8"


@request_effects.on("generating", unsupported=Unsupported, engine_failed=EngineError)
async def generate(run: RequestRun) -> Literal["generated"]:
    """Start what was placed, and wait for what the attempts report."""
    nursery = run.nursery
    assert nursery is not None
    barrier = run.barrier
    if barrier is not None and not barrier.watched:
        barrier.watched = True
        nursery.start_soon(_seal_when_ready, run, barrier)
    for prompt in run.prompts:
        attempt = prompt.attempt
        if prompt.progress == "running" and attempt is not None and not attempt.started:
            attempt.started = True
            nursery.start_soon(run_attempt, run, prompt, attempt)
    while True:
        for prompt in run.prompts:
            if prompt.progress == "broken":
                assert prompt.attempt is not None
                assert prompt.attempt.error is not None
                raise prompt.attempt.error
        if all(prompt.progress == "done" for prompt in run.prompts):
            if run.grant is not None:
                run.grant.close()  # a slow client, or Derender, keeps nobody else waiting
            return "generated"
        await run.reports.wait()


async def _seal_when_ready(run: RequestRun, barrier: Barrier) -> None:
    """HTTP 200 once every engine stream has answered; see `Barrier`."""
    await barrier.all_heads.wait()
    if run.services.keep_alive_s:
        with trio.move_on_after(run.services.keep_alive_s):
            await barrier.all_firsts.wait()
    else:
        await barrier.all_firsts.wait()
    run.responder.seal(_role_events(run), SSE_MEDIA_TYPE)
    barrier.open.set()


def _role_events(run: RequestRun) -> bytes:
    """The first events of a chat: the roles of all choices, in order. Prompt ids go out once, with the first."""
    if not run.chat or run.route == "native":
        return b""
    events = []
    for stream in run.streams:
        thought = None if run.thought is None else 0
        usage = encoded_usage(len(stream.prompt.ids), 0, reasoning_tokens=thought) if run.continuous_usage else None
        top = b',"prompt_token_ids":%b' % stream.prompt_ids if stream.prompt_ids else b""
        events.append(run.frame.event(role_choice(stream.index, run.envelope.role), usage, top))
    return b"".join(events)


@request_effects.on("relaying")
async def relay(run: RequestRun) -> Literal["planned"]:
    """Broken prompts are about to go on elsewhere."""
    await _back_off(run, [prompt for prompt in run.prompts if prompt.progress == "broken"])
    return "planned"


@request_effects.on("rolling_back")
async def roll_back(run: RequestRun) -> Literal["restored"]:
    """Every attempt is closed by now."""
    await _back_off(run, run.prompts)
    return "restored"


async def _back_off(run: RequestRun, prompts: list[PromptRun]) -> None:
    """Wait before an instance is asked again that has failed already: twice as long with every attempt."""
    services = run.services

    def fresh(prompt: PromptRun) -> bool:
        return services.scheduler.has_fresh(
            wanted_by(run, prompt), Experience(prompt.shaken, prompt.avoid), pairs=divisible(prompt)
        )

    if all(prompt.spent or fresh(prompt) for prompt in prompts):
        await trio.lowlevel.checkpoint()
        return
    attempts = max(prompt.attempts for prompt in prompts)
    await trio.sleep(min(services.retry_delay_s * 2 ** (attempts - 1), BACK_OFF_S_MAX))
