"""Which differences are accepted, and which look like them but are not?"""

from __future__ import annotations

import json
import re

import pytest

from motor_flow.views.parity.accepted import ACCEPTED, accepted_as
from motor_flow.views.parity.answers import Answer, read_answer
from motor_flow.views.parity.asking import read_safely
from motor_flow.views.parity.compare import Difference, differences, envelope_differences

VERSION = "0.33.0"


def name(difference, native=None, chain=None, version=VERSION):
    entry = accepted_as(difference, native or Answer(200), chain or Answer(200), version)
    return entry and entry.name


def test_only_silence_is_accepted():
    field = "system_fingerprint"
    assert name(Difference(field, 7, None)) == field
    assert name(Difference(field, 7, 6)) is None
    assert name(Difference(field, None, 7)) is None


def test_only_a_stream_may_count_too_few_tokens_of_reasoning():
    field, stream = "reasoning_tokens", Answer(200, kinds=["role", "delta", "done"])
    ours = Answer(200, usage={"completion_tokens": 9})
    assert name(Difference(field, 7, 9), stream, ours) == field
    for native, chain in ((9, 7), (7, None), (None, 7), (7, 10)):
        assert name(Difference(field, native, chain), stream, ours) is None
    assert name(Difference(field, 7, 9), chain=ours) is None
    natively = Answer(200, usage={"completion_tokens": 9}, system_fingerprint="vllm")
    assert name(Difference(field, 9, 7), stream, natively) == field


@pytest.mark.parametrize("field", ["usage", "choices[0].content", "error", "status", "kinds", "members"])
def test_other_fields_are_not(field):
    assert name(Difference(field, 7, None)) is None


@pytest.mark.parametrize(
    ("version", "holds"),
    [("0.33.0", True), ("0.33.4+cpu", True), ("", True), ("0.28.0", True), ("0.27.9", False), ("0.34.0", False)],
)
def test_an_entry_holds_for_its_versions_only(version, holds):
    assert (name(Difference("system_fingerprint", 7, None), version=version) is not None) == holds


def late(code=400):
    return Answer(200, error={"message": "x", "code": code}, kinds=["error", "done"])


def test_a_status_instead_of_an_event():
    status = Difference("status", 200, 400)
    early = Answer(400, error={"message": "x", "code": 400})
    assert name(status, late(), early) == "refused before the stream"
    assert name(Difference("kinds", ["error", "done"], []), late(), early) == "refused before the stream"
    assert name(Difference("error", "x", "y"), late(), early) is None
    assert name(status, late(500), early) is None
    assert name(status, late(), Answer(400)) is None
    after_text = Answer(200, error={"code": 400}, kinds=["role", "delta", "error", "done"])
    assert name(status, after_text, early) is None


def test_every_entry_says_why_and_where():
    for entry in ACCEPTED:
        assert entry.reason
        assert "vllm/" in entry.source
        assert entry.since < entry.before
        assert re.fullmatch(r">= 0\.\d\d, < 0\.\d\d", entry.versions)


def body(**changes):
    choice = {"index": 0, "text": "a", "finish_reason": "stop", "logprobs": None}
    whole = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], "usage": {}}
    return json.dumps(whole | changes).encode()


def read(**changes):
    return read_answer(200, "application/json", body(**changes))


def test_the_envelope():
    assert envelope_differences(read(created=5, service_tier=None), read()) == []
    (found,) = envelope_differences(read(), read(kv_transfer_params={"host": "x"}))
    assert found.field == "members"
    assert set(found.chain) - set(found.native) == {"kv_transfer_params"}
    (found,) = envelope_differences(read(), read(created=1.5))
    assert found.field == "created"
    marks = read(system_fingerprint="vllm-0.33.0-0123abcd"), read(system_fingerprint="vllm-0.33.0-89abcdef")
    assert envelope_differences(*marks) == []
    assert len(envelope_differences(marks[0], read())) == 1


def test_prompt_logprobs_are_compared():
    one, other = ([{"5": {"logprob": value, "rank": 1, "decoded_token": None}}] for value in (-1.0, -2.0))
    assert differences(read(prompt_logprobs=one), read(prompt_logprobs=one)) == []
    (found,) = differences(read(prompt_logprobs=one), read(prompt_logprobs=other))
    assert found.field == "prompt_logprobs"


@pytest.mark.parametrize(
    "raw", [b"", b"<html>", b"[]", b"{}", b'{"id": 5}', body(choices=[{}]), body(choices=7), b"\xff"]
)
def test_what_is_no_answer_is_said_and_never_raised(raw):
    assert read_safely(502, "text/html", raw).startswith("status 502, not an OpenAI answer")
    assert read_safely(200, "text/event-stream", b"data: " + (raw or b"x") + b"\n\n").startswith("status 200")
