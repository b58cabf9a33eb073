"""Text is held back while it could become a stop string, and cut where one begins.

Contract section 7 (Stop strings while streaming). The right answer is what the whole text says.
"""

from __future__ import annotations

import random

import pytest

from motor_flow.derender.codec import ChatChoice, TextChoice
from motor_flow.derender.stops import StopStrings

ALPHABET = "ab "


def shown(tokens, stops, *, included=False, least=0, by_engine=True, merged=1):
    """What a client sees of a text that comes in these tokens, and the finish and stop reason.

    With `by_engine` the engine finds the stop string, in its own way; otherwise it never does.
    """
    finder = StopStrings.of({"stop": stops, "include_stop_str_in_output": included, "min_tokens": least})
    state, said, count = None, "", 0
    cut = found(tokens, stops, least) if by_engine else None
    last = len(tokens) if cut is None else cut[0]
    while count < last:
        take = min(merged, last - count)
        text = "".join(tokens[count : count + take])
        counts = None if count + take <= least else len("".join(tokens[count:least]))
        count += take
        finish = None if count < last else "length" if cut is None else "stop"
        reported = cut is not None and finish is not None
        choice = TextChoice(0, text, finish_reason=finish, stop_reason=cut[1] if finish == "stop" else None)
        held, inner = StopStrings.opened(state)
        since = counts if reported or not by_engine else None
        held, finish, _ = finder.apply(held, choice, finish, since=since, search=not by_engine)
        state = StopStrings.closed(held, inner or b"{}")
        said += choice.text
        if finish:
            return said, finish, choice.stop_reason
    raise AssertionError("it never ended")


def found(tokens, stops, least=0):
    """vLLM's own search: the token that completes a stop string first, and which one that is."""
    text = ""
    for number, token in enumerate(tokens, 1):
        old, text = len(text), text + token
        if number <= least:
            continue
        hits = [(at + len(stop), stop) for stop in stops if (at := text.find(stop, max(0, old + 1 - len(stop)))) >= 0]
        if hits:
            return number, min(hits, key=lambda hit: hit[0])[1]  # between equals, the first that was named
    return None


def whole(tokens, stops, *, included=False, least=0):
    cut = found(tokens, stops, least)
    if cut is None:
        return "".join(tokens), "length", None
    number, stop = cut
    before = "".join(tokens[: number - 1])
    text = before + tokens[number - 1]
    at = text.find(stop, max(0, len(before) + 1 - len(stop)))
    return text[: at + len(stop) * included], "stop", stop


@pytest.mark.parametrize("by_engine", [True, False])
@pytest.mark.parametrize("included", [False, True])
def test_the_text_is_that_of_the_whole_answer(by_engine, included):
    luck = random.Random(7)
    cuts = 0
    for _ in range(3000):
        tokens = ["".join(luck.choices(ALPHABET, k=luck.randrange(4))) for _ in range(luck.randrange(1, 12))]
        stops = ["".join(luck.choices(ALPHABET, k=luck.randrange(1, 6))) for _ in range(luck.randrange(1, 4))]
        least = luck.choice([0, 0, 3])
        want = whole(tokens, stops, included=included, least=least)
        merged = luck.choice([1, 2, 5]) if by_engine else 1
        got = shown(tokens, stops, included=included, least=least, by_engine=by_engine, merged=merged)
        assert got == want, (tokens, stops, least, merged)
        cuts += want[1] == "stop"
    assert 500 < cuts < 2900


def test_nothing_is_shown_that_would_have_to_be_taken_back():
    finder = StopStrings.of({"stop": ["END"]})
    choice = TextChoice(0, "some text E")
    held, finish, _ = finder.apply(StopStrings.opened(None)[0], choice, None, since=None, search=False)
    assert (choice.text, held.text, finish) == ("some text", " E", None)


def test_what_is_found_here_first_counts_whatever_the_engine_says():
    """It has taken the answer over behind the X."""
    finder = StopStrings.of({"stop": ["XY", "ZZ"]})
    held = finder.apply(StopStrings.opened(None)[0], TextChoice(0, "a X"), None, since=0, search=False).held
    choice = TextChoice(0, "Y more ZZ", finish_reason="stop", stop_reason="ZZ")
    applied = finder.apply(held, choice, "stop", since=0, search=True)
    assert (choice.text, choice.stop_reason, applied.finish, applied.found) == ("", "XY", "stop", True)


def test_no_stop_strings_no_work():
    assert StopStrings.of({"stop": []}) is None
    assert StopStrings.of({}) is None


def talk(deltas, stops, **more):
    """The deltas a client sees of a chat; the last one ends with the stop string that is named in `by`, if one is."""
    by = more.pop("by", None)
    finder = StopStrings.of({"stop": stops, **more})
    state, seen = None, []
    for number, delta in enumerate(deltas, 1):
        finish = None if number < len(deltas) else "stop"
        choice = ChatChoice(0, delta, finish_reason=finish, stop_reason=by if finish else None)
        held, _ = StopStrings.opened(state)
        held, _, _ = finder.apply(held, choice, finish, since=None, search=False)
        state = StopStrings.closed(held, b"{}")
        seen.append(choice.delta)
    return seen


def joined(deltas, slot):
    return "".join(delta.get(slot) or "" for delta in deltas)


def arguments(deltas, index):
    calls = [call for delta in deltas for call in delta.get("tool_calls") or () if call["index"] == index]
    return "".join(call["function"].get("arguments") or "" for call in calls)


def test_reasoning_is_whole_when_content_follows():
    seen = talk([{"reasoning": "I think", "content": None}, {"content": "So"}, {"content": " it is"}], ["STOP"])
    assert (joined(seen, "reasoning"), joined(seen, "content")) == ("I think", "So it is")


def test_a_stop_string_in_reasoning():
    seen = talk([{"reasoning": "one tw"}, {"reasoning": "o three"}], ["two"], by="two")
    assert joined(seen, "reasoning") == "one "


def test_a_stop_string_across_the_marker_behind_reasoning():
    """`</think>` is no text of either slot: what follows it is cut off."""
    seen = talk([{"reasoning": "one"}, {"content": "\n\n"}], ["</think>\n\n"], by="</think>\n\n")
    assert (joined(seen, "reasoning"), joined(seen, "content")) == ("one", "")


def test_arguments_of_tool_calls_are_held_back_and_cut_like_text():
    def call(index, text, **more):
        return {"tool_calls": [{"index": index, "function": {"arguments": text, **more.pop("function", {})}, **more}]}

    deltas = [
        {"content": "Let me look"},
        call(0, "", id="a", type="function", function={"name": "look"}),
        call(0, '{"x": '),
        call(0, "1}"),
        call(1, "", id="b", type="function", function={"name": "see"}),
        call(1, '{"y": "ha'),
        call(1, 'lt!"}'),
    ]
    seen = talk(deltas, ["halt"], by="halt")
    assert joined(seen, "content") == "Let me look"
    assert (arguments(seen, 0), arguments(seen, 1)) == ('{"x": 1}', '{"y": "')
    names = [call["function"]["name"] for delta in seen for call in delta.get("tool_calls") or () if call.get("id")]
    assert names == ["look", "see"]
