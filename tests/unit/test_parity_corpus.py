"""What is in the corpus, and what is refused as one?"""

from __future__ import annotations

import json

import pytest

from motor_flow.views.parity.cases import BadCorpus, matching, read_corpus, shipped
from tests.e2e import requests

CASES = shipped()


def bodies(prefix):
    return [case.body for case in CASES if case.name.startswith(prefix)]


def test_the_shipped_files_are_those_the_generator_writes():
    assert sorted(path.stem for path in requests.CORPUS.glob("*.jsonl")) == sorted(requests.KINDS)
    for kind in requests.KINDS:
        assert (requests.CORPUS / f"{kind}.jsonl").read_text(encoding="utf-8") == requests.lines(kind), kind


def test_it_is_large_and_has_no_name_twice():
    assert len(CASES) >= 300
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.path for case in CASES} == {requests.CHAT, requests.TEXT}
    assert {case.body["model"] for case in CASES} == {"$MODEL", "nope"}


def test_a_form_asks_for_itself():
    for case in CASES:
        streamed = case.name.endswith("/stream")
        assert case.body.get("stream", False) == streamed, case.name
        if "stream_options" in case.body and not streamed:
            assert case.name == "refused/stream_options without a stream/whole"
    assert bodies("chat/hello/stream")[0]["stream_options"] == {"include_usage": True}
    assert bodies("stream_options/no options/")[0]["stream_options"] is None


@pytest.mark.parametrize(
    "field",
    [
        *("tools", "tool_choice", "parallel_tool_calls", "include_reasoning", "response_format", "structured_outputs"),
        *("logprobs", "top_logprobs", "prompt_logprobs", "n", "seed", "stop", "stop_token_ids", "min_tokens"),
        *("include_stop_str_in_output", "max_completion_tokens", "echo", "suffix", "logit_bias", "bad_words"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos", "skip_special_tokens"),
        *("return_token_ids", "stream_options", "priority", "cache_salt", "request_id", "chat_template_kwargs"),
        *("add_generation_prompt", "continue_final_message", "odd"),
    ],
)
def test_every_field_of_the_list_is_sent_and_answered(field):
    """Not only in requests that are refused."""
    refused_by_vllm = {"suffix"}
    kinds = {case.kind for case in CASES if case.body.get(field) is not None}
    assert kinds - {"refused"} or field in refused_by_vllm


def test_the_models_name_is_filled_in_but_where_it_is_the_point():
    by_name = {case.name: case for case in CASES}
    assert json.loads(by_name["chat/hello/whole"].for_model("mine"))["model"] == "mine"
    assert json.loads(by_name["refused/unknown model/whole"].for_model("mine"))["model"] == "nope"


def test_patterns():
    assert {case.kind for case in matching(CASES, "tools/*")} == {"tools"}
    assert [case.name for case in matching(CASES, "chat/hello/*")] == ["chat/hello/whole", "chat/hello/stream"]
    assert matching(CASES, "nothing") == []


def line(**changes):
    return json.dumps({"name": "a", "path": "/x", "body": {"model": "$MODEL"}} | changes)


def test_a_file_and_a_directory(tmp_path):
    (tmp_path / "mine.jsonl").write_text(f"{line()}\n\n{line(name='b', form='stream')}\n")
    (tmp_path / "other.jsonl").write_text(line())
    (tmp_path / "not-this.txt").write_text("x")
    names = ["mine/a/whole", "mine/a/stream", "mine/b/stream"]
    assert [case.name for case in read_corpus(tmp_path / "mine.jsonl")] == names
    assert [case.name for case in read_corpus(tmp_path)] == [*names, "other/a/whole", "other/a/stream"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "holds no requests"),
        ("{", ":1:"),
        (f"{line()}\n{line()}", ":2: a second request called 'a'"),
        (line(path="x"), ":1: path 'x'"),
        (line(form="both"), ":1:"),
        (line(extra=1), ":1:"),
        (line(body=[]), ":1:"),
    ],
)
def test_a_bad_corpus_is_named_by_line(tmp_path, text, named):
    path = tmp_path / "mine.jsonl"
    path.write_text(text)
    with pytest.raises(BadCorpus) as caught:
        read_corpus(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BadCorpus, match="No such file"):
        read_corpus(tmp_path / "none.jsonl")
