"""What is a clear end?

Exactly one of two things: the whole good answer, or one error that says where and why. A stream ends with `[DONE]`
after either of them, and with nothing behind it.
"""

from __future__ import annotations

from motor_flow.views.parity.compare import differences

DONE = b"[DONE]"


def said(got):
    """The error that the client was told as (code, stage), None for a good answer; a stream is checked for its form."""
    error = got.error
    if got.events:
        assert got.status == 200
        assert got.ended
        data = [data for _, data in got.events]
        assert data.count(DONE) == 1
        assert data[-1] == DONE
        errors = [at for at, each in enumerate(data) if each.startswith(b'{"error"')]
        assert errors == ([len(data) - 2] if error else [])
    elif error is None:
        assert got.status == 200
    else:
        assert got.status == error["code"]
    return None if error is None else (error["code"], error["stage"])


def check_same(got, want):
    """The undisturbed answer, nothing lost and nothing twice."""
    assert said(got) is None, got.error
    assert list(map(str, differences(want.answer, got.answer))) == []


def check_beginning(got, want):
    """What was said before an error is the beginning of the undisturbed answer, and no choice has ended by itself."""
    if not got.events:
        return
    for index, choice in got.answer.choices.items():
        whole = want.answer.choices[index]
        assert whole.content.startswith(choice.content)
        assert whole.reasoning.startswith(choice.reasoning)
        assert choice.finish_reason in (None, whole.finish_reason)
