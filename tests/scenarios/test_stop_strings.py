"""A streamed request with stop strings gives the text that native vLLM would give.

Contract sections 3 and 7 (Stop strings while streaming); RFC 流式能力. The right answer is the same engine's own.
"""

from __future__ import annotations

import pytest
import trio

from motor_flow.sim.faults import Fault
from motor_flow.sim.tokenizer import tiny
from tests.scripted import CUT, HANG, SSE_HEAD, Scripted, tokens
from tests.world import CHAT, TEXT, make_world, unexplained

USAGE = {"stream_options": {"include_usage": True}}
PLAIN = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True} | USAGE
TALK = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me"}], "max_tokens": 80} | USAGE
CALL = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Weather in Paris?"}],
    "max_tokens": 200,
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}],
} | USAGE
SHAPES = {
    "completion": (TEXT, PLAIN),
    "logprobs": (TEXT, PLAIN | {"logprobs": 2}),
    "ids": (TEXT, PLAIN | {"return_token_ids": True}),
    "chat": (CHAT, TALK),
    "chat logprobs": (CHAT, TALK | {"logprobs": True, "top_logprobs": 2}),
    "Chinese and emoji": (CHAT, TALK | {"messages": [{"role": "user", "content": "Say hello in Chinese."}]}),
    "thinking off": (CHAT, TALK | {"chat_template_kwargs": {"enable_thinking": False}}),
}


async def told(world, path, body):
    """What the answer says without stop strings."""
    answer = (await world.stream(path, body)).answer
    return answer.choices[0]


def pieces(text):
    """Stop strings that occur: short and long ones, at every place; none that markers of reasoning hold already."""
    found = [text[at : at + size] for at in range(0, len(text) - 12, 5) for size in (1, 3, 9)]
    return [stop for stop in found if stop not in "<think></think>"]


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize(("coalesce", "chunk_tokens"), [(False, 1), (True, 1), (True, 7)])
@pytest.mark.parametrize("shape", SHAPES)
async def test_the_text_ends_where_the_engine_would_end_it(
    nursery, autojump_clock, shape, coalesce, chunk_tokens, included
):
    path, body = SHAPES[shape]
    engine, config = {"pace_s": 0.001, "chunk_tokens": chunk_tokens}, {"stream_config": {"coalesce": coalesce}}
    world = await make_world(nursery, engine=engine, config=config)
    said = await told(world, path, body)
    cut = 0
    for stop in pieces(said.content)[:: 1 if shape == "completion" else 4]:
        asked = body | {"stop": [stop, "never said"], "include_stop_str_in_output": included}
        want = await world.native(path, asked, stream=True)
        got = await world.stream(path, asked)
        assert unexplained(want.answer, got.answer) == [], stop
        cut += got.answer.choices[0].stop_reason == stop
    assert cut
    assert not any(record.body.get("stop") for record in world.seen("derender"))
    await world.check()


@pytest.mark.parametrize("chunk_tokens", [1, 7, 40])
async def test_until_min_tokens_no_stop_string_counts(nursery, autojump_clock, chunk_tokens):
    """Nor where the engine sends what comes before and behind them in one event."""
    world = await make_world(nursery, engine={"chunk_tokens": chunk_tokens})
    said = await told(world, TEXT, PLAIN)
    asked = PLAIN | {"stop": [" "], "min_tokens": 25}
    want, got = await world.native(TEXT, asked, stream=True), await world.stream(TEXT, asked)
    assert unexplained(want.answer, got.answer) == []
    assert said.content.startswith(got.answer.choices[0].content)
    assert got.answer.usage["completion_tokens"] > 25
    await world.check()


async def test_a_sibling_is_untouched(nursery, autojump_clock):
    """Each choice of each prompt ends for itself."""
    world = await make_world(nursery, engine={"pace_s": 0.001})
    asked = PLAIN | {
        "prompt": ["Once upon a time", "Numbers: "],
        "n": 2,
        "temperature": 1.0,
        "seed": 5,
        "stop": ["add "],
    }
    want, got = await world.native(TEXT, asked, stream=True), await world.stream(TEXT, asked)
    assert unexplained(want.answer, got.answer) == []
    assert {choice.finish_reason for choice in got.answer.choices.values()} == {"stop", "length"}
    await world.check()


@pytest.mark.parametrize(
    ("body", "stop"),
    [
        *((CALL, stop) for stop in ("never said", "Par", "}}", '"city', "\n<tool", "</tool_call>", "weather")),
        *((TALK, stop) for stop in ("nk>", "</think>", "k>\n\n", "<th")),
    ],
)
async def test_a_stop_string_that_may_cut_markup_takes_the_engines_own_api(nursery, autojump_clock, body, stop):
    """Native vLLM cuts the text before it parses it, so a half marker is text, and a half call is one."""
    world = await make_world(nursery)
    asked = body | {"stop": [stop]}
    want, got = await world.native(CHAT, asked, stream=True), await world.stream(CHAT, asked)
    assert unexplained(want.answer, got.answer) == []
    assert not world.seen("generate")
    await world.check()


async def test_without_tools_to_call_a_stop_string_goes_through_the_chain(nursery, autojump_clock):
    world = await make_world(nursery)
    await world.stream(CHAT, CALL | {"stop": ["Par"], "tool_choice": "none"})
    await world.stream(CHAT, TALK | {"stop": ["Observation:"]})
    assert len(world.seen("generate")) == 2
    await world.check()


async def test_an_engine_dies_before_inside_and_behind_a_stop_string(nursery, autojump_clock):
    """The engine that takes over cannot see where it began: it is found here, and that engine is told to stop."""
    world = await make_world(nursery, engine={"pace_s": 0.01})
    said = await told(world, TEXT, PLAIN)
    stop = said.content[20:32]
    asked = PLAIN | {"stop": [stop]}
    want = await world.stream(TEXT, asked)
    assert want.answer.choices[0].stop_reason == stop
    end = want.answer.usage["completion_tokens"]
    for after in range(1, end):
        fault = Fault("cut", after=after)
        for one in world.engines:
            one.seen.clear()
            one.faults.add(fault)  # it happens once, wherever the request goes first
        got = await world.stream(TEXT, asked)
        assert unexplained(want.answer, got.answer) == [], after
        assert len(world.seen()) == 2
        for one in world.engines:
            one.faults.clear()
    await world.check()


async def test_what_was_found_here_ends_the_answer_at_once(nursery, autojump_clock):
    """The stop string began before the engine's death; who took over has more to say, and nobody waits for it."""
    world = await make_world(nursery, engines=1)
    before, behind = (tiny().decode([token]) for token in (630, 595))
    stop = before[-1:] + behind[:1]
    scripts = [[SSE_HEAD, tokens(630), 0.1, CUT], [SSE_HEAD, tokens(595), tokens(5), HANG]]
    engine = Scripted(world, "engine-1", {"/generate": scripts})
    started = trio.current_time()
    got = await world.stream(TEXT, PLAIN | {"stop": [stop]})
    assert trio.current_time() - started < 2
    choice = got.answer.choices[0]
    assert (choice.content, choice.finish_reason, choice.stop_reason) == (before[:-1], "stop", stop)
    assert got.answer.usage["completion_tokens"] == 2
    assert got.error is None
    assert engine.open == 0
    await world.check()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("chunk_tokens", [1, 7])
@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
async def test_engines_without_a_tokenizer_refuse_stop_strings_and_nobody_sees_that(
    nursery, autojump_clock, shape, included, chunk_tokens, known
):
    """They are looked for here, in streams and in whole answers; an engine is asked in vain once at most."""
    path, body = SHAPES[shape]
    able = await make_world(nursery, engine={"pace_s": 0.001})
    said = await told(able, path, body)
    world = await make_world(nursery, engine={"pace_s": 0.001, "tokens_only": True, "chunk_tokens": chunk_tokens})
    for instance in world.app.registry:
        instance.tokenizer = not known
    markers = world.app.services.capability.marker_texts
    cut = 0
    for number, stop in enumerate(pieces(said.content)[:: 2 if shape == "completion" else 5]):
        asked = body | {"stop": [stop, "never said"], "include_stop_str_in_output": included}
        if number % 3 == 2:
            asked["min_tokens"] = 12
        for stream in (True, False):
            ask = {name: value for name, value in asked.items() if stream or name != "stream_options"}
            want = await able.native(path, ask, stream=stream)
            got = await (world.stream if stream else world.ask)(path, ask)
            if stream and path == CHAT and any(stop in marker for marker in markers):
                assert got.status == 501  # nobody there can answer it as native vLLM would
                continue
            assert unexplained(want.answer, got.answer) == [], stop
            cut += got.answer.choices[0].stop_reason == stop
    assert cut > 2
    assert sum(bool(record.body["sampling_params"].get("stop")) for record in world.seen()) == (
        0 if known else len(world.engines)
    )
    await world.check()
