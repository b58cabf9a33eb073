"""What counts as reasoning follows from the ids, and from what Derender has made of them.

Contract sections 6 and 7; vLLM 0.33 reasoning/basic_parsers.py (between the markers) and parser/engine (until its end).
"""

from __future__ import annotations

import pytest

from machines.tokens import Thought
from motor_flow.derender.reasoning import Shown, reasoning_tokens

START, END, CALL, EOS = 90, 91, 92, 93
MARKERS = frozenset({START, END, CALL})
UNTIL = Thought(END, frozenset({END, CALL}), MARKERS)
BETWEEN = Thought(END, frozenset({END}), MARKERS, START)
BOTH, REASONING, ANSWER = Shown(True, True), Shown(reasoning=True), Shown(answer=True)
CASES = [
    # ids, what was shown, until the end, between the markers
    ([1, 2, END, 3], BOTH, 2, 0),
    ([START, 1, 2, END, 3], BOTH, 2, 2),
    ([START, 1, END, 2, START, 3, 4, END], BOTH, 1, 3),
    ([START, 1, START, 2, END, 3, END, 4], BOTH, 2, 3),
    ([1, END, 2, END, 3], BOTH, 1, 0),
    ([START, 1, 2], REASONING, 2, 2),
    ([1, 2, 3], REASONING, 3, 0),
    ([1, 2, 3], ANSWER, 0, 0),
    ([1, CALL, 2], BOTH, 1, 0),
    ([], Shown(), 0, 0),
]


@pytest.mark.parametrize(("ids", "shown", "until", "between"), CASES)
def test_parsers_count_in_two_ways(ids, shown, until, between):
    assert reasoning_tokens([1, START], ids, UNTIL, shown, hidden=False) == until
    assert reasoning_tokens([1, START], ids, BETWEEN, shown, hidden=False) == between


def test_the_token_that_ended_an_answer_is_no_reasoning():
    shown = Shown(reasoning=True)
    shown.finish("stop", None)
    assert reasoning_tokens([START], [1, 2, EOS], UNTIL, shown, hidden=False) == 2
    assert reasoning_tokens([START], [START, 1, 2, EOS], BETWEEN, shown, hidden=False) == 3, "vLLM counts it here"


def test_hidden_reasoning_counts():
    assert reasoning_tokens([START], [1, 2, END, 3], UNTIL, ANSWER, hidden=True) == 2
    assert reasoning_tokens([START], [3], UNTIL, ANSWER, hidden=True) == 0


def test_with_nothing_shown_the_template_says_whether_it_began():
    assert reasoning_tokens([START], [1], UNTIL, Shown(), hidden=False) == 1
    assert reasoning_tokens([START, END], [1], UNTIL, Shown(), hidden=False) == 0
