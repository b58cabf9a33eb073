"""What the process says of its requests: stable events, exact counts, never content.

RFC 可观测性; contract section 5.
"""

from __future__ import annotations

import io
import json
import re

import pytest
import structlog
import trio

from motor_flow.telemetry.log import configure
from tests.scripted import CUT, SSE_HEAD, Scripted, error, event, reply, tokens
from tests.world import CHAT, TEXT, make_world

SECRET = "xyzzy"
QUOTING = (
    # what an upstream may answer that repeats its input
    [error(400, f"odd {SECRET}", "BadRequestError")],
    [error(404, f"odd {SECRET}", "NotFoundError")],
    [error(500, f"odd {SECRET}")],
    [reply(404, {"detail": SECRET})],
    [reply(200, {SECRET: SECRET})],
    [reply(500, SECRET.encode(), "text/plain")],
    [SSE_HEAD, event({"error": {"message": SECRET, "type": "InternalServerError", "param": None, "code": 500}})],
    [SSE_HEAD, event(f"{{{SECRET}".encode())],
)
BODY = {"model": "tiny", "messages": [{"role": "user", "content": f"Tell me of {SECRET}"}], "max_tokens": 20}


@pytest.fixture
def lines():
    """Log lines so far, as objects."""
    out = io.StringIO()
    configure(stream=out)
    yield lambda *events: [
        line for line in map(json.loads, out.getvalue().splitlines()) if not events or line["event"] in events
    ]
    structlog.reset_defaults()


def series(world):
    """{series: value} of everything that is exposed."""
    text = world.app.metrics.exposition().decode()
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


async def test_a_request_leaves_its_lines(nursery, autojump_clock, lines):
    world = await make_world(nursery, engine={"pace_s": 0.1})
    await world.stream(CHAT, BODY, {"x-request-id": "r1"})
    await world.check()
    render, leg, end = lines("render.ok", "engine.leg", "request.end")
    assert {line["request_id"] for line in (render, leg, end)} == {"r1"}
    assert (render["model"], render["tokens"], render["tokenizer_source"]) == ("tiny", end["prompt_tokens"], "render")
    assert render["latency_ms"] >= 0
    assert (leg["phase"], leg["outcome"], leg["attempt"], leg["prompt"]) == ("union", "ok", 1, 0)
    assert leg["tokens"] == 20
    assert leg["instance"] in ("union-1", "union-2")
    assert (end["outcome"], end["status"], end["completion_tokens"]) == ("completed", 200, 20)
    assert (end["ttft_ms"], end["latency_ms"]) == (pytest.approx(100), pytest.approx(1900))


async def test_the_reason_of_the_native_route_is_logged(nursery, autojump_clock, lines):
    world = await make_world(nursery)
    await world.stream(TEXT, {"model": "tiny", "prompt": "x", "echo": True})
    (render,) = lines("render.ok")
    assert (render["route"], render["reason"]) == ("native", "echo")


async def test_faults_name_instance_attempt_and_kind(nursery, autojump_clock, lines):
    world = await make_world(nursery, engines=1, config={"exception_config": {"max_retry": 1}})
    Scripted(world, "engine-1", {"/generate": [[SSE_HEAD, tokens(630), 0.1, CUT]]})
    await world.stream(TEXT, {"model": "tiny", "prompt": SECRET, "max_tokens": 20})
    await world.check()
    leg, end = lines("engine.leg", "request.end")
    assert (leg["instance"], leg["outcome"], leg["status"]) == ("union-1", "failed", 502)
    assert (leg["attempt"], leg["fault"]) == (1, "reset")
    assert "connection" in leg["detail"]
    assert (end["outcome"], end["status"], end["stage"]) == ("failed", 502, "generate")


async def test_derender_faults_name_prompt_choice_and_attempt(nursery, autojump_clock, lines):
    world = await make_world(nursery)
    Scripted(world, "sidecar", {"/derender": [[error(500, "secret words")]]})
    for stream in (True, False):
        await world.ask(TEXT, {"model": "tiny", "prompt": "x", "max_tokens": 3, "stream": stream})
    streamed, whole = lines("derender.error")
    assert (streamed["prompt"], streamed["choice"], streamed["attempt"], streamed["status"]) == (0, 0, 1, 502)
    assert (whole["attempt"], whole["status"]) == (1, 502)


async def test_nothing_that_a_client_said_is_ever_logged(nursery, autojump_clock, lines):
    """Not on success, refusal (vLLM's messages repeat the input), failure or departure."""
    world = await make_world(nursery, engine={"pace_s": 0.1})
    await world.ask(CHAT, BODY)
    await world.stream(CHAT, BODY | {"stop": [SECRET]})
    await world.ask(CHAT, BODY | {"max_tokens": SECRET})
    await world.ask(CHAT, BODY | {"tools": SECRET})
    await world.ask(CHAT, SECRET.encode())
    with trio.move_on_after(0.5):
        await world.stream(CHAT, BODY)
    await world.check()
    assert len(lines("request.end")) == 6
    check_silence(lines)


@pytest.mark.parametrize("at", [("engine-1", "/generate"), ("sidecar", "/derender"), ("sidecar", "/render")])
@pytest.mark.parametrize("script", range(len(QUOTING)))
async def test_nothing_that_an_upstream_repeats_is_logged(nursery, autojump_clock, lines, at, script):
    world = await make_world(nursery, engines=1)
    Scripted(world, at[0], {at[1]: [QUOTING[script]]})
    for stream in (False, True):
        await world.ask(CHAT, BODY | {"stream": stream})
    await world.check()
    assert len(lines("request.end")) == 2
    check_silence(lines)


def check_silence(lines):
    timeless = [{k: v for k, v in line.items() if k not in ("ts", "latency_ms", "ttft_ms")} for line in lines()]
    said = json.dumps(timeless)
    assert SECRET not in said
    assert not re.search(r"\b(630|595)\b", said)
    assert lines("bug") == []


async def test_counters_are_exact(nursery, autojump_clock):
    world = await make_world(nursery, engines=1, engine={"pace_s": 0.1})
    await world.stream(TEXT, {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 5, "ignore_eos": True})
    await world.ask(CHAT, BODY)
    await world.ask(CHAT, BODY | {"temperature": -1})
    with trio.move_on_after(0.5):
        await world.ask(CHAT, BODY)
    await world.check()
    got = series(world)

    def requests(api, stream, path, code):
        labels = f'api="{api}",code="{code}",path="{path}",stream="{stream}",topology="union"'
        return got[f"motor_flow_requests_total{{{labels}}}"]

    assert requests("completions", "true", "token_only", 200) == 1
    assert requests("chat", "false", "token_only", 200) == 1
    assert requests("chat", "false", "token_only", 400) == 1
    assert requests("chat", "false", "token_only", 499) == 1
    assert got['motor_flow_attempts_total{outcome="ok",role="union"}'] == 3
    assert got['motor_flow_derender_total{kind="stream",outcome="ok"}'] == 10
    assert got['motor_flow_derender_total{kind="full",outcome="ok"}'] == 1
    assert got['motor_flow_phase_duration_seconds_count{outcome="ok",phase="render"}'] == 3
    assert got["gen_ai_server_time_to_first_token_seconds_count"] == 1
    assert got["gen_ai_server_request_duration_seconds_count"] == 2


async def test_everything_is_exported_from_the_start(nursery, autojump_clock):
    world = await make_world(nursery)
    got = series(world)
    kinds = ("flow_tokens", "instance_slots", "engine_streams", "producers", "contexts", "kv_tickets")
    for name in (
        "motor_flow_inflight_requests",
        "motor_flow_queue_requests",
        *(f'motor_flow_leases{{kind="{kind}"}}' for kind in kinds),
        *(f'motor_flow_breaker_state{{instance="union-{i}"}}' for i in (1, 2)),
        'motor_flow_render_fallback_total{reason="timeout"}',
        'motor_flow_relay_total{outcome="ok"}',
        "motor_flow_derender_coalesced_chunks_total",
        'motor_flow_machines{machine="stream",state="derendering"}',
    ):
        assert got[name] == 0, name


async def test_requests_in_flight_can_be_looked_at(nursery, autojump_clock):
    """States, times and counts; never text or ids."""
    world = await make_world(nursery, engine={"pace_s": 1.0})
    nursery.start_soon(
        world.stream, TEXT, {"model": "tiny", "prompt": [SECRET, "b"], "max_tokens": 10, "ignore_eos": True}
    )
    await trio.sleep(3.5)
    (live,) = world.app.journal.describe()
    assert (live["state"], live["attempt"], live["streams"], live["sealed"]) == ("generating", 1, 2, True)
    assert live["completion_tokens"] == 8
    assert live["dwell_s"] == live["age_s"] == 3.5
    assert SECRET not in json.dumps(live)
    assert series(world)["motor_flow_inflight_requests"] == 1
    assert series(world)['motor_flow_leases{kind="engine_streams"}'] == 2
    await trio.sleep(20)
    await world.check()
