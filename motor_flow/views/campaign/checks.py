"""What must be true of every answer, and of a world when everything in it is over?

An answer is compared with what a clean engine says natively to the same request: the same model, without us. It is
equal, or it ends with one clear error behind a beginning that is equal. Nothing else is allowed: no silent cut, nothing
twice, nothing lost.

Source: RFC 验收标准, 故障测试.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, get_args

from motor_flow.errors import Stage
from motor_flow.views.campaign.clients import Received
from motor_flow.views.campaign.scenes import Scene
from motor_flow.views.parity.accepted import accepted_as
from motor_flow.views.parity.answers import Answer, read_answer
from motor_flow.views.parity.compare import differences

if TYPE_CHECKING:
    from motor_flow.views.campaign.worlds import World

DONE = b"data: [DONE]"
STAGES = get_args(Stage)


def answer_problems(scene: Scene, want: Received, got: Received, *, deaths: bool) -> list[str]:
    """What is wrong with one answer; empty when it is right.

    Args:
        scene: what was asked.
        want: a clean engine's answer.
        got: ours.
        deaths: engines die in this world.

    """
    if got.left:
        return []
    if got.trouble or not got.ended:
        return [f"the connection broke: {got.trouble or 'no end'}"]
    expected = _answer(want)
    answer = _answer(got)
    found = list(_shape(scene, got, answer))
    if answer.error is None:
        return found + [
            f"differs: {difference}"
            for difference in differences(expected, answer)
            if accepted_as(difference, expected, answer, "") is None
            and not (scene.native and _of_the_engine(difference.field))
        ]
    if scene.must_succeed(deaths=deaths):
        found.append(f"failed although it need not: {answer.error.get('message')}")
    return found + list(_clear_end(got, answer)) + list(_beginning(expected, answer))


def _of_the_engine(field: str) -> bool:
    """On the native route these are the engine's doing, not ours.

    One that dies between the last finish reason and its usage takes the usage along. Logprobs of tokens that made no
    text are dropped or kept by how the engine cut its tokens into events.
    """
    return field in ("usage", "kinds") or field.endswith(".logprobs")


def _answer(received: Received) -> Answer:
    answer = read_answer(received.status, received.media_type, bytes(received.body))
    for choice in answer.choices.values():
        if choice.finish_reason == "length":
            # Cut behind its name, a call gets empty arguments or none, by how the engine cut its tokens into events.
            for call in choice.tool_calls.values():
                call["arguments"] = "" if call.get("arguments") == "{}" else call.get("arguments", "")
    return answer


def _shape(scene: Scene, got: Received, answer: Answer) -> Iterator[str]:
    if not got.media_type.startswith("text/event-stream"):
        if scene.stream and got.status == 200:
            yield "a stream was asked for and not given"
        return
    if got.body.count(DONE) != 1 or not got.body.rstrip().endswith(DONE):
        yield "the stream does not end with one [DONE]"
    if len(answer.ids) > 1:
        yield f"several ids: {sorted(answer.ids)}"


def _clear_end(got: Received, answer: Answer) -> Iterator[str]:
    error = answer.error or {}
    if error.get("stage") not in STAGES or not error.get("message") or not isinstance(error.get("code"), int):
        yield f"an unclear error: {error}"
    if got.status != 200 and got.status != error.get("code"):
        yield f"status {got.status}, but code {error.get('code')}"


def _beginning(expected: Answer, answer: Answer) -> Iterator[str]:
    """What was said before an error is the beginning of what would have been said."""
    for index, choice in answer.choices.items():
        whole = expected.choices.get(index)
        if whole is None:
            yield f"choice {index} was not asked for"
        elif not (whole.content.startswith(choice.content) and whole.reasoning.startswith(choice.reasoning)):
            yield f"choice {index} is no beginning of the right answer: {choice.content!r}"


def world_problems(world: World) -> list[str]:
    """What is left behind, and what the simulators have noticed."""
    app = world.app
    found = [f"a bug: {bug!r}" for bug in world.bugs]
    if app.requests:
        found.append(f"requests are left: {app.journal.describe()}")
    found += [f"lease {kind}: {held}" for kind, held in app.leases.held.items() if held]
    found += [f"{engine.name} still runs {engine.running}" for engine in world.engines if engine.running]
    found += [f"{engine.name}: {what}" for engine in world.engines for what in engine.anomalies]
    found += [f"sidecar: {what}" for what in world.sidecar.anomalies]
    found += [
        f"machine {name}: {count} in {state}"
        for name, state, count in world.population()
        if name in ("request", "stream") and count
    ]
    if not world.engines_fail:
        found += [f"{i.name}: a breaker counted {i.breaker.failures}" for i in app.registry if i.breaker.failures]
    return found
