"""The client's body is peeked at, stripped of what must not travel, and otherwise untouched."""

from __future__ import annotations

import json

import pytest

from motor_flow.errors import ClientError, RenderError
from motor_flow.render.capability import Capability, by_version, combined
from motor_flow.render.envelope import Envelope
from motor_flow.render.route import decide
from motor_flow.render.tokenization import tokenized


def parse(body, api="chat"):
    return Envelope.parse(api, body if isinstance(body, bytes) else json.dumps(body).encode())


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"5", b"null", b"\xff\xfe", b'{"a": "\\ud800"}x'])
def test_a_body_that_is_no_object_is_the_clients_error(body):
    with pytest.raises(ClientError, match="not a JSON object") as caught:
        parse(body)
    assert (caught.value.status, caught.value.stage) == (400, "client")


def test_unknown_fields_travel_as_they_were_sent():
    body = b'{"model":"m","odd":{"x":null,"big":123456789012345678901234567890,"f":1e-7},"messages":[{"role":"user"}]}'
    assert parse(body).encode() == body


def test_transfer_parameters_never_travel():
    sent = {
        "kv_transfer_params": {"do_remote_prefill": True},
        "ec_transfer_params": {"x": 1},
        "vllm_xargs": {"kv_transfer_params": {"a": 1}, "ec_transfer_params": {}, "mine": 7},
        "model": "m",
    }
    assert json.loads(parse(sent).encode()) == {"vllm_xargs": {"mine": 7}, "model": "m"}


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("a", 1), (["a"], 1), (["a", "b"], 2), ([1, 2], 1), ([[1], [2], [3]], 3), ([], 1), (None, 1), (5, 1)],
)
def test_prompts_are_counted_as_vllm_reads_them(prompt, count):
    assert parse({"prompt": prompt}, "completions").prompts == count


@pytest.mark.parametrize(("value", "stream"), [(True, True), ("true", True), (1, True), (False, False), ("x", False)])
def test_stream_is_read_as_pydantic_would(value, stream):
    assert parse({"stream": value}).stream is stream


def test_usage_options():
    options = {"include_usage": True, "continuous_usage_stats": True}
    envelope = parse({"stream": True, "stream_options": options})
    assert (envelope.include_usage, envelope.continuous_usage) == (True, True)
    envelope = parse({"stream": True, "stream_options": {"continuous_usage_stats": True}})
    assert (envelope.include_usage, envelope.continuous_usage) == (False, False)


ROUTES = [
    ("chat", {}, "token_only", True),
    ("chat", {"stream": True}, "token_only", True),
    ("chat", {"stop": "x"}, "token_only", True),
    ("chat", {"stop": "x", "stream": True}, "token_only", True),
    ("chat", {"return_tokens_as_token_ids": True}, "native", True),
    ("chat", {"stop": [], "stream": True}, "token_only", True),
    ("chat", {"stop": None, "stream": True}, "token_only", True),
    ("chat", {"echo": True}, "native", True),
    ("chat", {"prompt_logprobs": 1}, "token_only", True),
    ("completions", {"prompt_logprobs": 0}, "native", True),
    ("completions", {"prompt_logprobs": None}, "token_only", True),
    ("completions", {"echo": True}, "native", True),
    ("completions", {"echo": False}, "token_only", True),
    ("completions", {"use_beam_search": True}, "native", False),
    ("other", {"stream": True}, "native", False),
]


@pytest.mark.parametrize(("api", "body", "route", "render"), ROUTES)
def test_the_route_is_chosen_before_anything_is_sent(api, body, route, render):
    decision = decide(parse(body, api), Capability(), stream=bool(body.get("stream")))
    assert (decision.route, decision.render) == (route, render)
    assert bool(decision.reason) == (route == "native")


def test_without_render_everything_is_native():
    decision = decide(parse({}), Capability(enabled=False), stream=False)
    assert (decision.route, decision.render) == ("native", False)


ASKED = {
    # what of it an old sidecar cannot derender as native vLLM would
    "whole chat": ("chat", False, {}),
    "whole": ("completions", False, {}),
    "whole, stop": ("completions", False, {"stop": ["."]}),
    "whole, ids": ("completions", False, {"return_token_ids": True}),
    "text": ("completions", True, {}),
    "text, ids": ("completions", True, {"return_token_ids": True}),
    "text, stop": ("completions", True, {"stop": "."}),
    "text, n": ("completions", True, {"n": 2}),
    "text, logprobs": ("completions", True, {"logprobs": 1}),
    "chat": ("chat", True, {}),
}
SINCE_32 = {"whole", "text", "text, stop", "text, n", "text, logprobs"}
VERSIONS = [
    # version, parser, what goes through the chain
    ("0.23.0", True, set()),
    ("0.24.1", True, set()),
    ("0.28.0", True, {"text"}),
    ("0.28.0", False, {"text", "chat"}),
    ("0.32.0", True, SINCE_32),
    ("0.32.0", None, SINCE_32),
    ("0.33.0", True, set(ASKED)),
    ("0.33.0+cpu", None, set(ASKED)),
    ("1.2", True, set(ASKED)),
    ("dev", True, set(ASKED)),
]


@pytest.mark.parametrize(("version", "parser", "chain"), VERSIONS)
def test_what_a_version_can_do(version, parser, chain):
    sidecar = by_version(version, parser=parser)
    seen = {
        name
        for name, (api, stream, fields) in ASKED.items()
        if decide(parse(fields, api), sidecar, stream=stream).route == "token_only"
    }
    assert seen == chain
    assert bool(sidecar.missing) == (chain != set(ASKED))


def test_the_oldest_sidecar_counts():
    mixed = combined([by_version("0.33.0", parser=True), by_version("0.32.1", parser=True)])
    assert (mixed.release, mixed.version) == ((0, 32), "0.33.0, 0.32.1")


ITEM = {
    "token_ids": [1, 2],
    "sampling_params": {"temperature": 0.5},
    "model": "m",
    "stream": False,
    "new_field": {"a": 1},
}


def render_answer(**changes):
    return json.dumps(ITEM | changes).encode()


def test_the_lost_default_budget_is_restored():
    assert tokenized("chat", render_answer()).prompts[0].sampling == {"temperature": 0.5, "max_tokens": 16}
    kept = tokenized("chat", render_answer(sampling_params={"max_tokens": 3, "n": 2})).prompts[0]
    assert (kept.sampling["max_tokens"], kept.n) == (3, 2)


def test_transfer_parameters_are_removed_from_what_render_returns_too():
    answer = render_answer(
        kv_transfer_params={"a": 1},
        ec_transfer_params=None,
        sampling_params={"extra_args": {"kv_transfer_params": {"b": 1}, "ec_transfer_params": 1, "mine": 7}},
    )
    prompt = tokenized("chat", answer).prompts[0]
    assert prompt.sampling["extra_args"] == {"mine": 7}
    assert not {"kv_transfer_params", "ec_transfer_params"} & set(prompt.rest)
    assert json.loads(bytes(prompt.rest["new_field"])) == {"a": 1}


def test_a_list_of_prompts_is_the_same_model():
    answer = json.dumps([ITEM, ITEM | {"token_ids": [3]}]).encode()
    request = tokenized("completions", answer)
    assert ([prompt.ids for prompt in request.prompts], request.prompt_tokens) == ([[1, 2], [3]], 3)


def test_renders_view_of_the_stream_options_is_taken():
    options = {"include_usage": True, "continuous_usage_stats": True}
    request = tokenized("chat", render_answer(stream=True, stream_options=options))
    assert (request.stream, request.include_usage, request.continuous_usage) == (True, True, True)


BAD = {
    "no ids": render_answer(token_ids=None),
    "empty ids": render_answer(token_ids=[]),
    "booleans": render_answer(token_ids=[True, 1]),
    "negative": render_answer(token_ids=[-1]),
    "text ids": render_answer(token_ids=["1"]),
    "floats": render_answer(token_ids=[1.5]),
    "no sampling": render_answer(sampling_params=None),
    "bad n": render_answer(sampling_params={"n": 0}),
    "missing": b'{"unexpected": true}',
    "a list for a chat": b"[]",
    "html": b"<html>",
    "nothing": b"",
}


@pytest.mark.parametrize("case", BAD)
def test_an_invalid_render_answer_is_renders_fault(case):
    with pytest.raises(RenderError, match="invalid answer") as caught:
        tokenized("chat", BAD[case])
    assert caught.value.status == 502


def test_an_empty_list_is_invalid():
    with pytest.raises(RenderError):
        tokenized("completions", b"[]")
