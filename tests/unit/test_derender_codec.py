"""Derendered chunks become the events native vLLM would send; engine chunks merge without loss."""

from __future__ import annotations

import json

import pytest

from machines.context import SemanticIds
from motor_flow.derender.answer import client_answer, read_answer
from motor_flow.derender.coalesce import apart, merged, split
from motor_flow.derender.codec import decode_chat, decode_text
from motor_flow.derender.normalise import ChatNormaliser, Frame, TextNormaliser, role_choice
from motor_flow.derender.session import ChunkDerenderer, slim_request
from motor_flow.derender.usage import encoded_usage
from motor_flow.errors import DerenderError
from motor_flow.render.envelope import Envelope


def chat_choice(delta, **more):
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "stop_reason": None, **more}
    body = {"chunk": {"id": "generate-tokens-x", "choices": [choice]}, "stream_state": {}}
    return decode_chat(json.dumps(body).encode()).chunk.choices[0]


def text_choice(text, **more):
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None, "stop_reason": None, **more}
    body = {"chunk": {"choices": [choice]}, "stream_state": {}}
    return decode_text(json.dumps(body).encode()).chunk.choices[0]


def shown(raw):
    return json.loads(raw) if raw else None


EMPTY = {"role": "assistant", "content": None, "reasoning": None}
CHAT = {
    "content": (EMPTY | {"content": "x"}, {}, None, {"index": 4, "delta": {"content": "x"}}),
    "reasoning": (EMPTY | {"reasoning": "x"}, {}, None, {"index": 4, "delta": {"reasoning": "x"}}),
    "nothing to say": (EMPTY, {}, None, None),
    "empty text": (EMPTY | {"content": ""}, {}, None, None),
    "empty tool calls": (EMPTY | {"tool_calls": []}, {}, None, None),
    "finish only": (EMPTY, {}, "stop", {"index": 4, "delta": {}, "finish_reason": "stop", "stop_reason": None}),
    "finish with text": (
        EMPTY | {"content": "x"},
        {"stop_reason": 5},
        "stop",
        {"index": 4, "delta": {"content": "x"}, "finish_reason": "stop", "stop_reason": 5},
    ),
    "tool call": (
        EMPTY
        | {"tool_calls": [{"id": None, "type": None, "index": 0, "function": {"name": None, "arguments": '{"a'}}]},
        {},
        None,
        {"index": 4, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"a'}}]}},
    ),
    "unknown kind of delta": (EMPTY | {"audio": {"d": 1}}, {}, None, {"index": 4, "delta": {"audio": {"d": 1}}}),
    "logprobs without text": (
        EMPTY,
        {"logprobs": {"content": []}},
        None,
        {"index": 4, "delta": {}, "logprobs": {"content": []}},
    ),
    "token ids without text": (EMPTY, {"token_ids": [5]}, None, {"index": 4, "delta": {}, "token_ids": [5]}),
    "no token ids": (EMPTY, {"token_ids": []}, None, None),
}


@pytest.mark.parametrize("case", CHAT)
def test_chat_choice(case):
    delta, more, finish, want = CHAT[case]
    got = shown(ChatNormaliser(4, "reasoning").choice(chat_choice(delta, **more), finish))
    assert got == (None if want is None else {"logprobs": None, "finish_reason": None} | want)


TEXT = {
    "text": ("x", {}, None, b"", {"text": "x"}),
    "nothing": ("", {}, None, b"", None),
    "finish": ("", {"stop_reason": "END"}, "stop", b"", {"text": "", "finish_reason": "stop", "stop_reason": "END"}),
    "prompt ids": ("x", {}, None, b"[1,2]", {"text": "x", "prompt_token_ids": [1, 2]}),
    "ids": ("x", {"token_ids": [7]}, None, b"", {"text": "x", "token_ids": [7]}),
}


@pytest.mark.parametrize("case", TEXT)
def test_text_choice(case):
    text, more, finish, prompt_ids, want = TEXT[case]
    got = shown(TextNormaliser(2).choice(text_choice(text, **more), finish, prompt_ids))
    assert got == (None if want is None else {"index": 2, "logprobs": None, "finish_reason": None} | want)


@pytest.mark.parametrize(
    ("field", "want"),
    [
        ("reasoning", {"reasoning": "r"}),
        ("reasoning_content", {"reasoning_content": "r"}),
        ("both", {"reasoning": "r", "reasoning_content": "r"}),
    ],
)
def test_reasoning_is_called_what_the_clients_read(field, want):
    got = shown(ChatNormaliser(0, field).choice(chat_choice(EMPTY | {"reasoning": "r"}), None))
    assert got["delta"] == want


def test_frame_events():
    frame = Frame('id-"quoted"', "chat.completion.chunk", 17, "m")
    event = frame.event(role_choice(1, "assistant"), encoded_usage(3, 4, 2), b',"x":1')
    assert event.startswith(b"data: ")
    assert event.endswith(b"}\n\n")
    assert json.loads(event[6:]) == {
        "id": 'id-"quoted"',
        "object": "chat.completion.chunk",
        "created": 17,
        "model": "m",
        "choices": [
            {"index": 1, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 4,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
        "x": 1,
    }
    assert json.loads(frame.event(b"", encoded_usage(1, 2))[6:])["choices"] == []


def engine_event(ids, finish=None, logprobs=None, **more):
    choice = {"index": 1, "token_ids": ids, "finish_reason": finish, "stop_reason": None, "logprobs": logprobs, **more}
    return json.dumps({"request_id": "r", "usage": None, "choices": [choice], "future": {"a": 1}}).encode()


def test_one_event_is_passed_as_it_is():
    event = engine_event([1])
    assert merged([event]) is event


def test_merging_concatenates_ids_and_logprobs_and_keeps_the_rest_of_the_last():
    events = [
        engine_event([1, 2], logprobs={"content": [{"token_id": 1}, {"token_id": 2}]}),
        engine_event(None),
        engine_event([3], "stop", {"content": [{"token_id": 3}]}, weight_versions=["v"]),
    ]
    got = json.loads(merged(events))
    assert got["choices"] == [
        {
            "index": 1,
            "token_ids": [1, 2, 3],
            "finish_reason": "stop",
            "stop_reason": None,
            "logprobs": {"content": [{"token_id": 1}, {"token_id": 2}, {"token_id": 3}]},
            "weight_versions": ["v"],
        }
    ]
    assert got["future"] == {"a": 1}
    assert json.loads(merged([engine_event([1]), engine_event([2])]))["choices"][0]["logprobs"] is None


def test_a_marker_is_an_event_of_its_own_and_so_is_the_end():
    spoken = {"content": [{"token_id": token} for token in (1, 9, 9, 2, 3)]}
    event = engine_event([1, 9, 9, 2, 3], "stop", spoken, stop_reason="x", weight_versions=["v"])
    parts = apart(event, [1, 9, 9, 2, 3], frozenset({9}), ended=True)
    assert [ids for _, ids in parts] == [[1], [9], [9], [2], [3]]
    events = [json.loads(part) for part, _ in parts]
    choices = [event["choices"][0] for event in events]
    assert [choice["token_ids"] for choice in choices] == [[1], [9], [9], [2], [3]]
    assert [token for choice in choices for token in choice["logprobs"]["content"]] == spoken["content"]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, None, "stop"]
    assert [choice["stop_reason"] for choice in choices] == [None, None, None, None, "x"]
    assert all((event["request_id"], event["choices"][0]["index"]) == ("r", 1) for event in events)
    assert [event for event in events if "future" in event] == events[:1], "what an event says once is said once"
    assert [choice for choice in choices if "weight_versions" in choice] == choices[-1:]


NOTHING_TO_TAKE_APART = [([1], True, {1}), ([1, 2], False, {9}), ([], True, {9}), ([9], False, {9})]


@pytest.mark.parametrize(("ids", "ended", "markers"), NOTHING_TO_TAKE_APART)
def test_most_events_stay_as_they_are(ids, ended, markers):
    event = engine_event(ids, "stop" if ended else None)
    assert apart(event, ids, frozenset(markers), ended=ended) == [(event, ids)]


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("markers", [{1}, {3}, {1, 2, 3}, {2}])
def test_taken_apart_and_merged_it_is_the_same_choice(markers, ended):
    event = engine_event([1, 2, 3], "length" if ended else None)
    parts = [part for part, _ in apart(event, [1, 2, 3], frozenset(markers), ended=ended)]
    assert len(parts) > 1
    assert json.loads(merged(parts))["choices"] == json.loads(event)["choices"]


def test_an_event_of_two_choices_is_split():
    both = json.dumps({"request_id": "r", "choices": [{"index": 0, "token_ids": [1]}, {"index": 1}]}).encode()
    assert [json.loads(part)["choices"] for part in split(both)] == [[{"index": 0, "token_ids": [1]}], [{"index": 1}]]


def test_the_slim_request_keeps_what_parsers_read():
    messages = [
        {"role": "user", "content": "long " * 100},
        {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]},
        {"role": "tool", "content": "x"},
    ]
    body = {"model": "m", "messages": messages, "tools": [1], "stop": ["x"], "stream": True, "chat_template_kwargs": {}}
    fields = Envelope.parse("chat", json.dumps(body).encode()).fields
    slim = slim_request(fields, chat=True)
    assert set(slim) == {"model", "tools", "chat_template_kwargs", "messages"}
    assert sum(len(message.get("tool_calls", ())) for message in slim["messages"]) == 2
    text = slim_request(Envelope.parse("completions", b'{"prompt": "long", "logprobs": 2}').fields, chat=False)
    assert (set(text), text["prompt"]) == ({"prompt", "logprobs"}, "x")


class Recorder:
    """A derender client that keeps what it is sent."""

    def __init__(self):
        self.bodies = []

    async def chat_chunk(self, body):
        self.bodies.append(json.loads(body))
        choice = {"index": 0, "delta": {}}
        return decode_chat(json.dumps({"chunk": {"choices": [choice]}, "stream_state": {"n": 1}}).encode())

    async def text_chunk(self, body):
        self.bodies.append(json.loads(body))
        return decode_text(b'{"chunk":{"choices":[{"index":0}]},"stream_state":{"n":1}}')


@pytest.mark.parametrize(
    ("chat", "parser", "first", "later"),
    [(True, True, 100, 100), (True, None, 100, 100), (True, False, 64, None), (False, True, 64, None)],
)
async def test_only_as_much_of_the_prompt_as_is_read(chat, parser, first, later):
    client = Recorder()
    derenderer = ChunkDerenderer(
        client, chat=chat, request=b'{"x":1}', model="m", ids=SemanticIds(list(range(100))), parser=parser
    )
    call = derenderer.chat_chunk if chat else derenderer.text_chunk
    _, state = await call(b'{"choices":[]}', None)
    await call(b'{"choices":[]}', state)
    one, two = client.bodies
    field = "chat_request" if chat else "completion_request"
    assert (one["stream"], one["model"], one["prompt_tokens"], one[field]) == (True, "m", 100, {"x": 1})
    assert (len(one["prompt_token_ids"]), one.get("stream_state")) == (first, None)
    assert one["prompt_token_ids"][-1] == 99
    assert two["stream_state"] == {"n": 1}
    assert len(two.get("prompt_token_ids", ())) == (later or 0)


WHOLE = {
    "id": "generate-tokens-x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x", "reasoning": "r"}}
    ],
    "usage": {"prompt_tokens": 0},
    "kv_transfer_params": {"remote_host": "10.0.0.1"},
    "ec_transfer_params": None,
    "future": 1,
}


def finished(body, **more):
    values = {
        "identity": "chatcmpl-1",
        "created": 9,
        "model": "shown",
        "usage": {"prompt_tokens": 5},
        "reasoning_field": "reasoning",
    }
    answer = read_answer(json.dumps(body).encode(), choices=more.pop("choices", 1))
    return json.loads(client_answer(answer, **values | more))


def test_a_whole_answer_is_ours_and_tells_nothing_of_the_engine():
    got = finished(WHOLE)
    want = WHOLE | {"id": "chatcmpl-1", "created": 9, "model": "shown", "usage": {"prompt_tokens": 5}}
    assert got == {key: value for key, value in want.items() if "transfer" not in key}


def test_reasoning_of_a_whole_answer_is_renamed():
    message = finished(WHOLE, reasoning_field="reasoning_content")["choices"][0]["message"]
    assert (message.get("reasoning"), message["reasoning_content"]) == (None, "r")


@pytest.mark.parametrize(
    "body",
    [
        WHOLE | {"choices": []},
        WHOLE | {"choices": [{"index": 1, "finish_reason": "stop"}]},
        WHOLE | {"choices": [{"index": 0, "finish_reason": None}]},
        {"unexpected": True},
        [],
    ],
)
def test_an_incomplete_whole_answer_is_derenders_fault(body):
    with pytest.raises(DerenderError) as caught:
        finished(body)
    assert caught.value.status == 502
