"""What is cut to the context, and what is left alone."""

from __future__ import annotations

import json

import pytest

from machines.tokens import TokenizedPrompt
from motor_flow.render.budget import OutputBudget, asked_output
from motor_flow.render.envelope import Envelope


def envelope(api="completions", **fields):
    return Envelope.parse(api, json.dumps({"model": "m", **fields}).encode())


def prompt(length, **sampling):
    return TokenizedPrompt([1] * length, {"max_tokens": 1, **sampling}, {})


def budget(limit=100, api="completions", **fields):
    return OutputBudget.of(envelope(api, **fields), limit)


@pytest.mark.parametrize(
    ("api", "fields", "asked"),
    [
        ("chat", {"max_tokens": 5}, ("max_tokens", 5)),
        ("chat", {"max_tokens": 5, "max_completion_tokens": 7}, ("max_completion_tokens", 7)),
        ("chat", {"max_tokens": 5, "max_completion_tokens": None}, ("max_tokens", 5)),
        ("chat", {"max_tokens": 5, "max_completion_tokens": "x"}, None),
        ("chat", {}, None),
        ("completions", {"max_tokens": 5}, ("max_tokens", 5)),
        ("completions", {"max_completion_tokens": 5}, None),
        ("other", {"max_output_tokens": 9}, ("max_output_tokens", 9)),
        *(("completions", {"max_tokens": bad}, None) for bad in (0, -1, True, "5", 5.0, None, [], 1e3)),
    ],
)
def test_where_a_request_names_its_budget(api, fields, asked):
    assert asked_output(envelope(api, **fields)) == asked


def test_render_sees_one_and_everybody_else_the_real_budget():
    asked = envelope(max_tokens=500, prompt="x", seed=3)
    cut = OutputBudget.of(asked, 100)
    assert json.loads(cut.for_render(asked)) == {"model": "m", "max_tokens": 1, "prompt": "x", "seed": 3}
    prompts = [prompt(length) for length in (30, 99, 100, 120)]
    cut.write(prompts)
    assert [each.sampling["max_tokens"] for each in prompts] == [70, 1, 500, 500]
    assert json.loads(asked.encode())["max_tokens"] == 500


def test_nothing_is_raised():
    cut = budget(max_tokens=7)
    item = prompt(30)
    cut.write([item])
    assert item.sampling == {"max_tokens": 7}
    assert cut.cut([item]) is None
    assert cut.for_engine([item]) == {}


def test_the_least_goes_along():
    """Render would refuse a min_tokens above its own max_tokens, and so would an engine."""
    asked = envelope(max_tokens=500, min_tokens=80)
    cut = OutputBudget.of(asked, 100)
    sent = json.loads(cut.for_render(asked))
    assert (sent["max_tokens"], sent["min_tokens"]) == (1, 1)
    prompts = [prompt(10, min_tokens=1), prompt(30, min_tokens=1)]
    cut.write(prompts)
    assert [each.sampling for each in prompts] == [
        {"max_tokens": 90, "min_tokens": 80},
        {"max_tokens": 70, "min_tokens": 70},
    ]
    assert cut.for_engine(prompts) == {"max_tokens": 70, "min_tokens": 70}
    assert cut.for_engine(prompts[:1]) == {"max_tokens": 90}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 0},
        {"max_tokens": 5, "min_tokens": 6},
        {"max_tokens": 5, "min_tokens": "1"},
        {"max_tokens": 5, "min_tokens": None},
        {"max_tokens": 5, "truncate_prompt_tokens": -1},
    ],
)
def test_what_is_left_to_render(fields):
    assert budget(**fields) is None


def test_other_truncation_is_no_obstacle():
    assert budget(max_tokens=5, truncate_prompt_tokens=10) is not None


def test_without_a_limit_or_a_rendered_route():
    assert budget(limit=None, max_tokens=5) is None
    assert budget(api="other", max_tokens=5) is None
