"""The simulated model makes any mistake with its tokens visible, and text that is whole however it is cut."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from motor_flow.sim.detokenizer import Detokenizer
from motor_flow.sim.oracle import Oracle, tiny_oracle
from motor_flow.sim.scripts import DIALOGUES, TEXTS
from motor_flow.sim.template import tiny_template

ORACLE: Oracle = tiny_oracle()
TOKENIZER = ORACLE.tokenizer
ENDS = TOKENIZER.eos_ids
settings.register_profile("sim", derandomize=True, deadline=None, max_examples=60)


def chat(question: str, **variables: Any) -> list[int]:
    messages = [{"role": "user", "content": question}]
    variables = {"add_generation_prompt": True} | variables
    return TOKENIZER.encode(tiny_template().render(messages, tools=None, variables=variables, model="tiny"))


def answer(prompt: list[int], salt: int = 0, count: int = 400) -> list[int]:
    """What follows, the end token included."""
    chain, tokens = ORACLE.start(prompt, salt), []
    while len(tokens) < count and not (tokens and tokens[-1] in ENDS):
        tokens.append(chain.next())
    return tokens


plain_prompts = st.lists(
    st.sampled_from([token for token in range(10, 600) if "\ufffd" not in TOKENIZER.token_text(token)]),
    min_size=1,
    max_size=30,
)
broken_prompts = st.lists(st.integers(10, 600), min_size=1, max_size=10)
questions = st.text(st.sampled_from("abc defg hi?!你好🌍é\n"), min_size=1, max_size=20)
prompts = st.one_of(
    plain_prompts,
    questions.map(chat),
    st.sampled_from(list(DIALOGUES)).map(chat),
    st.sampled_from([beginning for beginning, _, _ in TEXTS]).map(TOKENIZER.encode),
)
salts = st.integers(0, 3)


@given(st.one_of(prompts, broken_prompts), salts, st.data())
@settings(settings.get_profile("sim"))
def test_a_prompt_with_a_part_of_its_answer_is_continued(prompt: list[int], salt: int, data: Any) -> None:
    tokens = answer(prompt, salt)
    done = data.draw(st.integers(0, len(tokens) - 1))
    assert answer(prompt + tokens[:done], salt, len(tokens) - done) == tokens[done:]


def changed(tokens: list[int], at: int, how: str) -> list[int]:
    if how == "lost":
        return tokens[:at] + tokens[at + 1 :]
    if how == "repeated":
        return tokens[: at + 1] + tokens[at:]
    if how == "swapped":
        return tokens[:at] + tokens[at + 1 : at + 2] + [tokens[at]] + tokens[at + 2 :]
    return [*tokens[:at], 10 + (tokens[at] + 1) % 590, *tokens[at + 1 :]]


@given(plain_prompts, st.sampled_from(["lost", "repeated", "swapped", "other"]), st.data())
@settings(settings.get_profile("sim"))
def test_one_wrong_token_changes_what_follows(prompt: list[int], how: str, data: Any) -> None:
    """Most of what follows, that is: two texts may agree in a word by chance."""
    before = prompt + answer(prompt, count=20)
    at = data.draw(st.integers(0, len(before) - 1))
    wrong = changed(before, at, how)
    if wrong == before:
        return
    chains = [ORACLE.start(tokens) for tokens in (before, wrong)]
    pairs = [tuple(chain.next(ENDS) for chain in chains) for _ in range(40)]
    # A character that was begun has to be completed in both.
    assert sum(first == second for first, second in pairs) < 20


def test_choices_have_different_answers() -> None:
    assert len({tuple(answer(chat("What?"), salt)) for salt in range(8)}) == 8


@given(st.one_of(plain_prompts, questions.map(chat)), salts)
@settings(settings.get_profile("sim"))
def test_answers_are_whole_text_without_chance_markers(prompt: list[int], salt: int) -> None:
    tokens = answer(prompt, salt, 3000)
    assert tokens[-1] in ENDS
    assert not ENDS & set(tokens[:-1])
    text = TOKENIZER.decode(tokens[:-1])
    assert "\ufffd" not in text
    markers = [token for token in tokens[:-1] if token in TOKENIZER.marker_ids]
    assert markers in ([], [ORACLE.thought, ORACLE.thought_end])
    # A chat thinks once, at the beginning; a text does not.
    assert bool(markers) == (prompt[:1] == [1])
    assert not markers or tokens[0] == ORACLE.thought


def test_text_is_of_every_kind() -> None:
    text = "".join(TOKENIZER.decode(answer([number])[:-1]) for number in range(10, 60))
    for low, high in (("a", "z"), ("\u00c0", "\u00ff"), ("\u4e00", "\u9fff"), ("\U0001f300", "\U0001ffff")):
        assert any(low <= letter <= high for letter in text), low


@pytest.mark.parametrize("question", DIALOGUES)
def test_known_questions_get_known_answers(question: str) -> None:
    thought, said = DIALOGUES[question]
    tokens = answer(chat(question))
    assert tokens[-1] == TOKENIZER.eos_id
    assert TOKENIZER.decode(tokens) == f"<think>\n{thought}\n</think>\n\n{said}<|im_end|>"
    tokens = answer(chat(question, enable_thinking=False))
    assert TOKENIZER.decode(tokens) == f"{said}<|im_end|>"


@pytest.mark.parametrize(("beginning", "rest", "end"), TEXTS)
def test_known_texts_go_on(beginning: str, rest: str, end: str) -> None:
    assert TOKENIZER.decode(answer(TOKENIZER.encode(beginning))) == rest + end


@given(prompts, salts, st.data())
@settings(settings.get_profile("sim"))
def test_text_comes_out_whole_however_tokens_are_cut(prompt: list[int], salt: int, data: Any) -> None:
    tokens = [token for token in answer(prompt, salt, 120) if token not in ENDS]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(tokens)), max_size=20)) | {0, len(tokens)})
    window = Detokenizer.after_prompt(TOKENIZER, prompt)
    shown = [window.feed(tokens[start:stop]) for start, stop in itertools.pairwise(cuts)]
    assert all("\ufffd" not in part for part in shown)
    one_by_one = Detokenizer.after_prompt(TOKENIZER, prompt)
    assert "".join(shown) == "".join(one_by_one.feed([token]) for token in tokens)
    # What is held back at the end is at most one unfinished character.
    whole = TOKENIZER.decode(tokens)
    assert whole.startswith("".join(shown))
    assert set(whole[len("".join(shown)) :]) <= {"\ufffd"}


@given(st.lists(st.integers(0, 645), max_size=40))
@settings(settings.get_profile("sim"))
def test_any_tokens_at_all_are_shown_the_same_in_pieces_and_at_once(tokens: list[int]) -> None:
    at_once = Detokenizer.after_prompt(TOKENIZER, []).feed(tokens)
    window = Detokenizer.after_prompt(TOKENIZER, [])
    assert "".join(window.feed([token]) for token in tokens) == at_once


def test_nothing_is_begun_that_cannot_be_banned() -> None:
    """A ban holds: the draw goes on until it finds another token, and the same bans give the same token."""
    prompt = [10, 11]
    free = ORACLE.start(prompt).next()
    banned = frozenset({free, *ENDS})
    first, second = (ORACLE.start(prompt).next(banned) for _ in range(2))
    assert first == second
    assert first not in banned
