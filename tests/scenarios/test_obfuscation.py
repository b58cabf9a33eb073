"""Engines see permuted ids only; clients see no difference; what cannot be permuted is refused.

RFC Token 混淆适配; contract section 7 (Obfuscating). The engines' weights are permuted too: they understand physical
ids, and take semantic ones for other tokens.

MOTOR_FLOW_OBFUSCATION_PROVIDER names another provider than `permutation` (see tests/e2e/test_obfuscation_sdk.py).
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys

import pytest

from motor_flow.config import load_embedded
from motor_flow.net.stream import Origin
from motor_flow.obfuscation.providers import PROVIDERS
from motor_flow.obfuscation.tables import Obfuscator
from motor_flow.render.route import Decision
from motor_flow.sim.faults import Fault
from motor_flow.sim.tokenizer import tiny
from motor_flow.views.examine import examine
from motor_flow.views.parity.compare import differences
from tests.scenarios.test_chain import NATIVE, REQUESTS
from tests.scenarios.test_relay import KINDS, LIST, SHAPES, check_same
from tests.scripted import DONE, SSE_END, SSE_HEAD, Scripted, error, reply, tokens
from tests.world import CHAT, TEXT, make_world

PROVIDER = os.environ.get("MOTOR_FLOW_OBFUSCATION_PROVIDER", "permutation")
SEED = "0123456789abcdef0123456789abcdef"
WHITE = sorted(tiny().marker_ids | tiny().eos_ids)
SIZE = tiny().vocab_size
TABLES = Obfuscator(PROVIDERS[PROVIDER](SIZE, WHITE, SEED), WHITE)
SECTION = {
    "enable": True,
    "provider": PROVIDER,
    "seed_content": SEED,
    "vocab_size": SIZE,
    "token_white_list": WHITE,
}
BEYOND = {
    "stop token": (TEXT, {"model": "tiny", "prompt": "Once upon", "max_tokens": 25, "stop_token_ids": [0]}),
    "logit bias": (TEXT, {"model": "tiny", "prompt": "Once", "max_tokens": 9, "logit_bias": {"300": 5, "2": -9}}),
    "allowed tokens": (TEXT, {"model": "tiny", "prompt": "Once", "max_tokens": 9, "allowed_token_ids": [300, 2, 301]}),
}
ALL = REQUESTS | BEYOND


async def hidden_world(nursery, *, engine=None, config=None, **more):
    """A world with permuted engines."""
    engine = {"permutation": TABLES.semantic(list(range(SIZE))), "pace_s": 0.01} | (engine or {})
    return await make_world(
        nursery, engine=engine, config={"token_obfuscation_config": SECTION} | (config or {}), **more
    )


async def plain_world(nursery, **more):
    return await make_world(nursery, engine={"pace_s": 0.01}, **more)


def physical(ids):
    return TABLES.physical(list(ids))


def said_in(response):
    """The choice objects of a stream, as they were cut; tool call ids are drawn by the sidecar."""
    told = [re.sub("chatcmpl-tool-[0-9a-f]+", "", json.dumps(chunk["choices"])) for chunk in response.chunks]
    return sorted(told) if len({text[:13] for text in told}) > 1 else told


class Wiretap:
    """All bytes that were sent to engines."""

    def __init__(self, world):
        self.sent = b""
        connect = world.net.connect

        async def tapped(host, port):
            stream = await connect(host, port)
            if host.startswith("engine-"):
                send_all = stream.send_all

                async def send(data):
                    self.sent += bytes(data)
                    await send_all(data)

                stream.send_all = send
            return stream

        world.net.connect = tapped
        world.app.pool.close()  # or idle connections would not be tapped

    def holds(self, *texts):
        return [text for text in texts if text.encode() in self.sent]

    def holds_ids(self, ids, size=3):
        """Neighbours in this order, as JSON writes them; those that the table does not move say nothing."""
        runs = [ids[at : at + size] for at in range(len(ids) - size + 1)]
        lists = self.sent.translate(bytes.maketrans(b"[]", b",,"))  # or 95,6 would be found in 295,6
        return [run for run in runs if run != physical(run) and f",{','.join(map(str, run))},".encode() in lists]


# --- the same answers -----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", [name for name in ALL if name not in NATIVE and "stop" not in ALL[name][1]])
async def test_clients_see_no_difference(nursery, autojump_clock, name, stream):
    path, body = ALL[name]
    if stream:
        body = body | {"stream_options": {"include_usage": True}}
    plain, hidden = await plain_world(nursery), await hidden_world(nursery)
    ask = [(one.stream if stream else one.ask) for one in (plain, hidden)]
    want, got = await ask[0](path, body), await ask[1](path, body)
    assert (want.status, got.status) == (200, 200), got.body
    assert list(map(str, differences(want.answer, got.answer))) == []
    if stream:
        assert said_in(got) == said_in(want)
    told, asked = ([record.body for record in one.seen()] for one in (plain, hidden))
    assert sorted(body["token_ids"] for body in asked) == sorted(physical(body["token_ids"]) for body in told)
    assert hidden.seen("native") == []
    assert [record.body for record in hidden.seen("derender")] != []
    await hidden.check()


async def test_ids_in_sampling_parameters(nursery, autojump_clock):
    """The token that ends the answer is named as the client named it."""
    plain, hidden = await plain_world(nursery), await hidden_world(nursery)
    body = {"model": "tiny", "prompt": "Once upon", "max_tokens": 25, "return_token_ids": True}
    said = (await plain.ask(TEXT, body)).json["choices"][0]["token_ids"]
    body |= {"stop_token_ids": [said[6]], "logit_bias": {"300": 5, "2": -9}, "allowed_token_ids": [*said, 300]}
    for stream in (False, True):
        want = await (plain.stream if stream else plain.ask)(TEXT, body)
        got = await (hidden.stream if stream else hidden.ask)(TEXT, body)
        assert list(map(str, differences(want.answer, got.answer))) == []
        assert (got.answer.choices[0].finish_reason, got.answer.choices[0].stop_reason) == ("stop", said[6])
    sampling = hidden.seen()[0].body["sampling_params"]
    assert sampling["logit_bias"] == {str(physical([300])[0]): 5.0, "2": -9.0}
    assert sampling["allowed_token_ids"] == physical([*said, 300])
    # Render adds the model's second end token; it is on the white list.
    assert sorted(sampling["stop_token_ids"]) == sorted(
        physical(plain.seen()[-1].body["sampling_params"]["stop_token_ids"])
    )
    await hidden.check()


@pytest.mark.parametrize("after", [1, 7, 20])
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_relay_is_hidden_again(nursery, autojump_clock, shape, after):
    path, body = SHAPES[shape]
    plain, hidden = await plain_world(nursery), await hidden_world(nursery)
    want = await plain.stream(path, body | {"return_token_ids": True})
    tap = Wiretap(hidden)
    hidden.engines[0].faults.add(Fault("cut", after=after, on="generate"))
    got = await hidden.stream(path, body | {"return_token_ids": True})
    assert got.error is None, got.error
    check_same(got, want)
    first, second = (record.body["token_ids"] for record in hidden.seen())
    (told,) = (record.body["token_ids"] for record in plain.seen())
    said = [token for chunk in want.chunks for choice in chunk["choices"] for token in choice.get("token_ids") or ()]
    assert first == physical(told)
    assert second == physical([*told, *said[: len(second) - len(told)]])
    assert len(second) > len(first)
    assert tap.holds_ids([*told, *said]) == []
    await hidden.check()
    assert hidden.sidecar.repeats == []


@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_of_a_list_fail_and_go_on(nursery, autojump_clock, stream):
    plain, hidden = await plain_world(nursery, engines=3), await hidden_world(nursery, engines=3)
    body = LIST if stream else {key: value for key, value in LIST.items() if key != "stream_options"}
    want = await (plain.stream if stream else plain.ask)(TEXT, body)
    for engine in hidden.engines:
        engine.faults.add(Fault("cut", after=5, on="generate", only=lambda r: ".a1.p1." in r.body["request_id"]))
    got = await (hidden.stream if stream else hidden.ask)(TEXT, body)
    assert list(map(str, differences(want.answer, got.answer))) == []
    assert hidden.seen("native") == []
    await hidden.check()


@pytest.mark.parametrize("profile", ["handoff", "trigger"])
@pytest.mark.parametrize("stream", [False, True])
async def test_prefill_and_decode_see_the_same_physical_prompt(nursery, autojump_clock, profile, stream):
    path, body = REQUESTS["chat"]
    plain = await plain_world(nursery)
    hidden = await hidden_world(nursery, roles=("prefill", "decode"), profile=profile)
    tap = Wiretap(hidden)
    want = await (plain.stream if stream else plain.ask)(path, body)
    got = await (hidden.stream if stream else hidden.ask)(path, body)
    assert list(map(str, differences(want.answer, got.answer))) == []
    (told,) = (record.body["token_ids"] for record in plain.seen())
    assert [record.body["token_ids"] for record in hidden.seen()] == [physical(told)] * 2
    assert tap.holds_ids(told) == []
    await hidden.check()


# --- what engines get to see ----------------------------------------------------------------------

PLANTED = "The password of the north gate is swordfish, tell nobody."
TOOL = {"type": "function", "function": {"name": "open_gate", "description": "Opens the north gate.", "parameters": {}}}
SECRETS = ("password", "swordfish", "north", "open_gate", "gate", "messages", "secret_switch")


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_of_a_request_can_be_read_on_the_wire(nursery, autojump_clock, stream):
    hidden = await hidden_world(nursery)
    tap = Wiretap(hidden)
    hidden.engines[1].faults.add(Fault("cut", after=9, on="generate"))
    chat = {
        "model": "tiny",
        "messages": [{"role": "system", "content": PLANTED}, {"role": "user", "content": "Tell me"}],
        "tools": [TOOL],
        "chat_template_kwargs": {"secret_switch": True},
        "max_tokens": 40,
        "return_token_ids": True,
        "session_id": "s-1",
    }
    text = {"model": "tiny", "prompt": [PLANTED, PLANTED[::-1]], "max_tokens": 30, "return_token_ids": True}
    for path, body in ((CHAT, chat), (TEXT, text), (TEXT, text | {"return_token_offsets": True})):
        got = await (hidden.stream if stream else hidden.ask)(path, body)
        assert got.status == 200
        assert got.error is None
    assert tap.sent.count(b"POST /inference/v1/generate") >= 6  # one chat, two lists of two, and what was broken
    assert tap.holds(*SECRETS) == []
    rendered = [
        ids for record in hidden.seen("derender") if isinstance(ids := record.body.get("prompt_token_ids"), list)
    ]
    prompts = [ids for ids in rendered if isinstance(ids[0], int)]
    prompts += itertools.chain.from_iterable(ids for ids in rendered if isinstance(ids[0], list))
    assert len(prompts) >= 3
    for ids in [*prompts, tiny().encode(PLANTED)]:
        assert len(ids) > 20
        assert tap.holds_ids(ids) == []
    await hidden.check()


async def test_without_obfuscation_the_same_tap_finds_everything(nursery, autojump_clock):
    """The check above can fail."""
    plain = await plain_world(nursery)
    tap = Wiretap(plain)
    body = {"model": "tiny", "messages": [{"role": "user", "content": PLANTED}], "tools": [TOOL], "max_tokens": 5}
    await plain.ask(CHAT, body)
    assert tap.holds("open_gate") == ["open_gate"]
    assert len(tap.holds_ids(tiny().encode(PLANTED))) > 20


# --- what is refused ------------------------------------------------------------------------------

TALK = {"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 5}
PROSE = {"model": "tiny", "prompt": "Once upon", "max_tokens": 5}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "open_gate"}}
REFUSALS = {
    "schema": (CHAT, TALK | {"response_format": SCHEMA}, "structured_outputs"),
    "regex": (TEXT, PROSE | {"structured_outputs": {"regex": "[a-z]+"}}, "structured_outputs"),
    "bad words": (TEXT, PROSE | {"bad_words": ["swordfish"]}, "bad_words"),
    "stop": (TEXT, PROSE | {"stop": ["x"]}, "stop"),
    "stop in a chat": (CHAT, TALK | {"stop": "x"}, "stop"),
    "prompt logprobs of a chat": (CHAT, TALK | {"prompt_logprobs": 1}, "prompt_logprobs"),
    "extra arguments": (TEXT, PROSE | {"vllm_xargs": {"plug-in": "swordfish"}}, "extra_args"),
    "echo": (TEXT, PROSE | {"echo": True}, None),
    "prompt logprobs": (TEXT, PROSE | {"prompt_logprobs": 1}, None),
    "beam search": (TEXT, PROSE | {"use_beam_search": True, "n": 2, "temperature": 0}, None),
    "forced tool": (CHAT, TALK | {"tools": [TOOL], "tool_choice": NAMED}, "structured_outputs"),
    "responses": ("/v1/responses", {"model": "tiny", "input": "Hello!"}, None),
    "messages": ("/v1/messages", {"model": "tiny", "messages": []}, None),
    "embeddings": ("/v1/embeddings", {"model": "tiny", "input": "Hello!"}, None),
}
WHOLE_ONLY = ("prompt logprobs", "prompt logprobs of a chat", "beam search")  # in a stream vLLM itself refuses them


@pytest.mark.parametrize(
    ("name", "stream"),
    [(name, stream) for name in REFUSALS for stream in (False, True) if not (stream and name in WHOLE_ONLY)],
)
async def test_what_cannot_be_hidden_is_refused_before_an_engine_is_asked(nursery, autojump_clock, name, stream):
    path, body, param = REFUSALS[name]
    hidden = await hidden_world(nursery)
    tap = Wiretap(hidden)
    got = await (hidden.stream if stream else hidden.ask)(path, body)
    assert (got.status, got.error["type"], got.error["code"]) == (501, "NotImplementedError", 501)
    assert "token obfuscation is on" in got.error["message"]
    if param is not None and not (stream and param == "stop"):
        assert got.error["param"] == param
    assert tap.sent == b""
    assert "x-should-retry" not in got.headers
    await hidden.check()


@pytest.mark.parametrize("field", ["features", "content_parts"])
async def test_pictures_are_refused(nursery, autojump_clock, field):
    hidden = await hidden_world(nursery)
    rendered = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 3}, field: {"mm_hashes": {"image": ["a"]}}}
    Scripted(hidden, "sidecar", {"/render": [[reply(200, rendered)]]})
    tap = Wiretap(hidden)
    got = await hidden.ask(CHAT, TALK)
    assert (got.status, got.error["param"], tap.sent) == (501, field, b"")
    await hidden.check()


@pytest.mark.parametrize(("stream", "version"), [(True, "0.26.0"), (True, "0.32.0"), (False, "0.23.0")])
async def test_an_old_sidecar_leaves_no_way(nursery, autojump_clock, stream, version):
    hidden = await hidden_world(nursery, sidecar={"version": version})
    tap = Wiretap(hidden)
    got = await (hidden.stream if stream else hidden.ask)(CHAT, TALK)
    assert (got.status, tap.sent) == (501, b"")
    assert "the sidecar cannot derender" in got.error["message"]


async def test_ids_that_the_vocabulary_does_not_have(nursery, autojump_clock):
    hidden = await hidden_world(nursery)
    tap = Wiretap(hidden)
    for body in (PROSE | {"prompt": [5, SIZE]}, PROSE | {"stop_token_ids": [SIZE]}):
        got = await hidden.ask(TEXT, body)
        assert (got.status, got.error["type"], tap.sent) == (400, "BadRequestError", b"")
    await hidden.check()


# --- the native route is unreachable --------------------------------------------------------------


async def no_way_out(hidden, tap, path, body):
    """However it ends, no engine has read it."""
    got = await hidden.ask(path, body)
    assert tap.holds("POST /v1/", "swordfish", "messages") == []
    assert hidden.seen("native") == []
    hidden.sidecar.faults.clear()
    await hidden.check()
    return got


SECRET_TALK = TALK | {"messages": [{"role": "user", "content": PLANTED}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, "reset", "status", "oversized", "lost", "bytes"])
async def test_under_every_fault_of_an_engine(nursery, autojump_clock, kind, stream):
    config = {"exception_config": {"stall_timeout": 2, "first_token_timeout": 3, "max_retry": 2, "infer_timeout": 60}}
    hidden = await hidden_world(nursery, engines=1, config=config)
    tap = Wiretap(hidden)
    for engine in hidden.engines:
        engine.faults.add(Fault(kind, after=2, times=99, seconds=1e6, on="generate"))
    got = await no_way_out(hidden, tap, CHAT, SECRET_TALK | {"stream": stream})
    assert got.error is not None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [403, 404, 405, 415, 501])
async def test_without_a_token_only_route(nursery, autojump_clock, status, stream):
    hidden = await hidden_world(nursery, engines=1)
    tap = Wiretap(hidden)
    lacks = reply(404, {"detail": "Not Found"}) if status == 404 else error(status, "x", "PermissionDeniedError")
    Scripted(hidden, "engine-1", {"/generate": [[lacks]]})
    for _ in range(2):  # found out, and known
        got = await no_way_out(hidden, tap, CHAT, SECRET_TALK | {"stream": stream})
        assert (got.status, got.error["stage"]) == (501, "schedule")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["reset", "status", "stall", "garbage", "cut", "die"])
async def test_under_every_fault_of_render(nursery, autojump_clock, kind, stream):
    hidden = await hidden_world(nursery)
    tap = Wiretap(hidden)
    hidden.sidecar.faults.add(Fault(kind, times=99, status=500, seconds=30, on="render"))
    got = await no_way_out(hidden, tap, CHAT, SECRET_TALK | {"stream": stream})
    assert (got.status, got.error["stage"], got.headers["retry-after"]) == (503, "render", "1")
    assert tap.sent == b""


@pytest.mark.parametrize("answer", [reply(404, {"detail": "Not Found"}), error(501), reply(200, {"token_ids": []})])
async def test_without_render(nursery, autojump_clock, answer):
    hidden = await hidden_world(nursery)
    tap = Wiretap(hidden)
    Scripted(hidden, "sidecar", {"/render": [[answer]]})
    got = await no_way_out(hidden, tap, CHAT, SECRET_TALK)
    assert (got.status, got.error["stage"], tap.sent) == (503, "render", b"")


@pytest.mark.parametrize("stream", [False, True])
async def test_when_derender_fails(nursery, autojump_clock, stream):
    hidden = await hidden_world(nursery)
    tap = Wiretap(hidden)
    hidden.sidecar.faults.add(Fault("status", times=99, status=500, on="derender"))
    got = await no_way_out(hidden, tap, CHAT, SECRET_TALK | {"stream": stream})
    assert got.error["stage"] == "derender"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_is_not_permuted_alike(nursery, autojump_clock, stream):
    """Ids that no token has end the attempt; another instance answers."""
    hidden = await hidden_world(nursery)
    want = await hidden.ask(TEXT, PROSE)
    script = [SSE_HEAD, tokens(5), tokens(SIZE, finish="stop"), DONE, SSE_END]
    if not stream:
        choice = {"index": 0, "token_ids": [5, SIZE], "finish_reason": "stop"}
        script = [reply(200, {"request_id": "x", "choices": [choice]})]
    odd = Scripted(hidden, "engine-1", {"/generate": [script]})
    got = [await (hidden.stream if stream else hidden.ask)(TEXT, PROSE) for _ in range(2)]
    assert len(odd.requests) == 1
    if stream:
        assert [one.error for one in got] == [None, None]  # its first token was good: the rest goes on from there
    else:
        assert [one.answer.choices for one in got] == [want.answer.choices] * 2
    await hidden.check()


async def test_a_bug_does_not_open_the_native_route(nursery, autojump_clock, monkeypatch):
    """Were some guard wrong, the bytes would still not be made."""
    hidden = await hidden_world(nursery)
    tap = Wiretap(hidden)
    wrong = Decision("native", render=False, reason="a bug")
    monkeypatch.setattr("motor_flow.effects.rendering._decide", lambda _: wrong)
    got = await hidden.ask(CHAT, SECRET_TALK)
    assert got.status == 500
    assert tap.sent == b""


async def test_models_are_still_shown(nursery, autojump_clock):
    hidden = await hidden_world(nursery)
    assert (await hidden.ask("/v1/models", None, method="GET")).json["data"][0]["id"] == "tiny"
    got = await hidden.ask("/metrics", None, method="GET", to=Origin("engine-1", 80))
    assert got.status == 200
    assert json.dumps(SECTION["seed_content"]) not in repr(hidden.app.config)


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"provider": "permutation"}, "ok", "undo each other"),
        ({"vocab_size": 0}, "bad", "token_obfuscation_config.vocab_size: is 0"),
        ({"provider": "ai_asset_obfuscate"}, "bad", "ai-asset-obfuscate"),
        (None, None, ""),
    ],
)
async def test_check_tells_whether_the_tables_can_be_made(nursery, autojump_clock, monkeypatch, changes, status, says):
    monkeypatch.setitem(sys.modules, "ai_asset_obfuscate", None)
    world = await make_world(nursery, engines=1)
    section = {} if changes is None else {"token_obfuscation_config": SECTION | changes}
    config = load_embedded(world.cluster.configuration() | section, {}).config
    found = [finding for finding in await examine(config, world.net.dial) if finding.about == "token obfuscation"]
    assert [finding.status for finding in found] == ([] if changes is None else [status])
    assert all(says in finding.text for finding in found)
