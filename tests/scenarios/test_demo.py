"""The demo's play on the in-memory network: what it shows is what happened, and its verdict can be bad."""

from __future__ import annotations

import io
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from motor_flow.sim.faults import Fault
from motor_flow.views.demo_lines import Lines, Silence, conclusion, document, loop_lines, verdict
from motor_flow.views.demo_run import Stage, perform
from motor_flow.views.demo_screen import picture
from tests.world import COORDINATOR, make_world

PACE_S = 0.03
NUMBERS = " ".join(str(number) for number in range(1, 61))
BEGINNING = ["rendering", "admitted", "scheduled", "generating"]
END = ["committed", "completed"]
RELAY = ["relaying", "scheduled", "generating"]


class Everything(Silence):
    """An audience that keeps what it is told, in order."""

    def __init__(self):
        self.told = []

    def begins(self, shown):
        self.told.append(shown)

    def moved(self, _, passage):
        self.told.append(passage)

    def said(self, _, piece):
        self.told.append(piece)


async def played(nursery, audience=None, **config):
    world = await make_world(nursery, engine={"pace_s": PACE_S}, config=config)
    stage = Stage(world.cluster, world.app, f"http://{COORDINATOR.authority}", world.net.dial)
    return world, stage, await perform(stage, audience or Silence())


def states(shown):
    return [passage.state for passage in shown.passages]


async def test_the_client_notices_nothing(nursery, autojump_clock):
    world, _, outcome = await played(nursery)
    assert (outcome.same, outcome.good) == (True, True)
    one, other = outcome.undisturbed, outcome.disturbed
    assert states(one) == BEGINNING + END
    assert states(other) == BEGINNING + RELAY + END
    assert [passage.event for passage in other.passages] == [
        *("", "rendered", "granted", "placed"),
        *("engine_failed", "planned", "placed", "generated", "delivered"),
    ]
    assert other.text.strip() == NUMBERS
    assert other.reasoning.strip() == "Count to sixty."
    assert other.tokens == one.tokens
    assert other.usage["completion_tokens"] == len(other.tokens) == 71
    assert other.finish_reason == "stop"
    assert other.gap_s == pytest.approx(PACE_S)
    world.engines[1].dead_until = 0.0
    await world.check()


async def test_times_attempts_and_loops_are_those_of_the_request(nursery, autojump_clock):
    world, _, outcome = await played(nursery)
    other = outcome.disturbed
    first, second = other.attempts
    assert (first.engine, second.engine) == ("engine-2", "engine-1")
    assert other.died == "engine-2"
    assert world.engines[1].dead_until > 0 == world.engines[0].dead_until
    assert (first.before, second.before) == (0, 35)
    assert first.loop.counts == {"ready": 1, "chunk": 35, "derendered": 35, "onward": 35, "engine_failed": 1}
    assert second.loop.counts == {"ready": 1, "chunk": 36, "derendered": 36, "onward": 36}
    at = {passage.state: passage.at_s for passage in other.passages}
    assert at["relaying"] == pytest.approx(35 * PACE_S)
    assert at["completed"] == pytest.approx(70 * PACE_S)
    relayed = world.engines[0].seen[-1].body
    rendered = world.engines[1].seen[-1].body["token_ids"]
    assert relayed["token_ids"] == rendered + other.tokens[:35]


async def test_the_audience_is_told_everything_in_order(nursery, autojump_clock):
    audience = Everything()
    _, _, outcome = await played(nursery, audience)
    parts = outcome.undisturbed, outcome.disturbed
    expected = [part for shown in parts for part in (shown, *shown.passages, *shown.pieces)]
    assert {id(one) for one in audience.told} == {id(one) for one in expected}
    assert audience.told.count(outcome.disturbed) == 1
    second = audience.told[audience.told.index(outcome.disturbed) + 1 :]
    assert second == sorted(second, key=lambda part: part.at_s)


async def test_without_relay_the_verdict_is_bad(nursery, autojump_clock):
    _, _, outcome = await played(nursery, exception_config={"reschedule_enabled": False})
    assert (outcome.same, outcome.good) == (False, False)
    assert states(outcome.disturbed)[-1] == "failed"
    assert "cannot go on elsewhere" in outcome.disturbed.error
    assert conclusion(outcome).startswith("FAILED: ")
    assert document(outcome, PACE_S)["same"] is False


async def test_an_answer_that_differs_is_bad(nursery, autojump_clock):
    """One token is wrong, or the text, or the usage: each alone is enough."""
    _, _, outcome = await played(nursery)
    good = outcome.disturbed
    last = good.pieces[-2]
    token = [*good.pieces[:-2], replace(last, tokens=[last.tokens[0] + 1]), good.pieces[-1]]
    text = [*good.pieces[:-2], replace(last, text=" 61"), good.pieces[-1]]
    changes = {"pieces": token}, {"pieces": text}, {"usage": {}}, {"finish_reason": "length"}, {"error": "x"}
    for change in changes:
        changed = replace(outcome, disturbed=replace(good, **change))
        assert not changed.same, change
        assert conclusion(changed).startswith("FAILED: ")


async def test_without_a_death_the_verdict_is_bad(nursery, autojump_clock):
    """The same answer for want of a failure proves nothing."""
    _, _, outcome = await played(nursery)
    vacuous = replace(outcome, disturbed=outcome.undisturbed)
    assert (vacuous.same, vacuous.good) == (True, False)
    assert conclusion(vacuous).startswith("FAILED: ")


async def test_an_engine_that_is_slow_to_begin_shows_in_the_gap(nursery, autojump_clock):
    world = await make_world(nursery, engine={"pace_s": PACE_S})
    world.engines[0].faults.add(Fault("late", seconds=0.5, on="generate", skip=1))
    stage = Stage(world.cluster, world.app, f"http://{COORDINATOR.authority}", world.net.dial)
    outcome = await perform(stage, Silence())
    assert outcome.disturbed.attempts[1].engine == "engine-1"
    assert outcome.disturbed.gap_s >= 0.5
    assert outcome.undisturbed.gap_s == pytest.approx(PACE_S)


async def test_lines(nursery, autojump_clock):
    lines = []
    _, _, outcome = await played(nursery, Lines(lines.append))
    assert "\x1b" not in "".join(lines)
    death = next(at for at, line in enumerate(lines) if "relaying" in line)
    assert (
        lines[death] == "  1050.0 ms  engine_failed  -> relaying     engine-2 has died; the client's stream stays open"
    )
    text = [line.partition("| ")[2] for line in lines if "| " in line]
    assert " ".join(text).split() == 2 * ["Count", "to", "sixty.", *NUMBERS.split()]
    assert lines[death - 1].endswith(" 24 25")
    assert lines[death + 3].partition("| ")[2].startswith("26 27")
    assert loop_lines(outcome)[1] == (
        "the stream's loop, attempt 2 on engine-1: ready 1  chunk 36  derendered 36  onward 36"
    )
    assert verdict(outcome, PACE_S)[-1].startswith("OK: engine-2 died, and all 71 tokens")


async def test_the_picture_fits_and_marks_the_death(nursery, autojump_clock):
    audience = Everything()
    frames = []

    def draw(shown, passage):
        Everything.moved(audience, shown, passage)
        frames.append(drawn([one for one in audience.told if hasattr(one, "passages")]))

    audience.moved = draw
    _, _, outcome = await played(nursery, audience)
    frames.append(drawn([outcome.undisturbed, outcome.disturbed]))
    assert all(len(frame.splitlines()) <= 23 for frame in frames)
    relaying = next(frame for frame in frames if " relaying " in frame)
    assert "24 25 engine-2 died" in relaying
    last = " ".join(frames[-1].replace("│", " ").split())
    assert "24 25 engine-2 died 26 27" in last
    assert last.count("engine-2 died") == 1


def drawn(all_shown):
    console = Console(width=80, height=24, file=io.StringIO(), color_system=None, legacy_windows=False)
    console.print(picture(all_shown))
    return console.file.getvalue()


async def test_the_document(nursery, autojump_clock):
    _, _, outcome = await played(nursery)
    told = msgspec.json.decode(msgspec.json.encode(document(outcome, PACE_S)))
    assert (told["same"], told["relayed"], told["error"], told["died"]) == (True, True, None, "engine-2")
    assert (told["gap_ms"], told["undisturbed_gap_ms"], told["pace_ms"]) == (30.0, 30.0, 30.0)
    assert [each["state"] for each in told["states"]] == BEGINNING + RELAY + END
    assert told["states"][4] == {"state": "relaying", "event": "engine_failed", "at_ms": 1050.0}
    assert told["text"].strip() == NUMBERS
    assert [each["tokens_before"] for each in told["attempts"]] == [0, 35]
