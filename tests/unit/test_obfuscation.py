"""Tables, providers, and what may cross the border to engines."""

from __future__ import annotations

import hashlib
import json
import sys
import types

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from machines.tokens import TokenizedPrompt
from motor_flow.config import BadConfiguration, load_embedded
from motor_flow.config.sections import ObfuscationSection
from motor_flow.errors import ClientError, EngineError, RenderError
from motor_flow.obfuscation.codec import ObfuscatingCodec, PlainCodec
from motor_flow.obfuscation.limits import ID, ID_KEYS, IDS, PLAIN, PLAIN_OF_PROMPT, REFUSED, UNSENT
from motor_flow.obfuscation.permutation import permutation
from motor_flow.obfuscation.providers import codec_of
from motor_flow.obfuscation.tables import BadTable, Obfuscator, OutsideVocabulary
from motor_flow.obfuscation.vocabulary import exposed_ends, vocab_size
from motor_flow.render.tokenization import tokenized
from motor_flow.sim.permuted import Alphabet

SEED = "0123456789abcdef0123456789abcdef"
SIZE = 64
WHITE = (0, 1, 2, 63)
TABLES = Obfuscator(permutation(SIZE, WHITE, SEED), WHITE)
CODEC = ObfuscatingCodec(TABLES)


def p(*ids):
    return TABLES.physical(list(ids))


# --- tables ---------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(size=st.integers(2, 300), white=st.sets(st.integers(0, 299)), seed=st.text(min_size=1, max_size=40))
def test_a_seed_gives_one_cycle_through_all_free_ids(size, white, seed):
    white = {token for token in white if token < size}
    table = permutation(size, white, seed)
    assert sorted(table) == list(range(size))
    assert table == permutation(size, sorted(white, reverse=True), seed)
    free = set(range(size)) - white
    assert {token for token in range(size) if table[token] == token} == (white if len(free) > 1 else set(range(size)))
    if len(free) > 1:
        at, seen = table[min(free)], 1
        while at != min(free):
            at, seen = table[at], seen + 1
        assert seen == len(free)
        tables = Obfuscator(table, white)
        every = list(range(size))
        assert tables.semantic(tables.physical(every)) == tables.physical(tables.semantic(every)) == every


def test_golden_vectors():
    """Frozen: weights are permuted by the same rule, offline, by other programs."""
    assert permutation(16, {0, 1, 5}, SEED) == GOLDEN_SMALL
    assert permutation(8, (), "秘密") == GOLDEN_UNICODE
    large = permutation(151_936, range(100), SEED)
    assert hashlib.sha256(b"".join(token.to_bytes(4, "big") for token in large)).hexdigest() == GOLDEN_LARGE


GOLDEN_SMALL = [0, 1, 3, 4, 6, 5, 12, 8, 14, 15, 13, 2, 9, 7, 11, 10]
GOLDEN_UNICODE = [7, 4, 0, 6, 2, 1, 5, 3]
GOLDEN_LARGE = "17dd148009d1b43f6bd549705a4a555992dd9c2174e61b8b9650a217464dd5b0"


def by_the_page(size, white, seed):
    """The rule once more, from the module's text alone."""
    free = [token for token in range(size) if token not in white]
    shake = hashlib.shake_256(b"motor-flow/permutation/1\0" + seed.encode()).digest(8 * len(free))
    numbers = [int.from_bytes(shake[i : i + 8], "big") for i in range(0, len(shake), 8)]
    slots = list(free)
    for k, last in enumerate(range(len(free) - 1, 0, -1)):
        other = numbers[k] * last // 2**64
        slots[last], slots[other] = slots[other], slots[last]
    to = dict(zip(free, slots, strict=True))
    return [to.get(token, token) for token in range(size)]


@pytest.mark.parametrize("size", [2, 3, 646, 5000])
def test_the_documented_rule_is_the_rule(size):
    assert permutation(size, {1} if size > 3 else (), SEED) == by_the_page(size, {1} if size > 3 else (), SEED)


def test_another_seed_another_table():
    assert permutation(SIZE, WHITE, SEED) != permutation(SIZE, WHITE, SEED[:-1] + "0")


@pytest.mark.parametrize(
    ("table", "white", "says"),
    [
        ([1, 0, 2], [0], "white-listed id 0 would become 1"),
        ([1, 0, 2], [3], "white-listed id 3 is outside"),
        ([1, 0, 2], [-1], "white-listed id -1 is outside"),
        ([1, 0, 1], [], "ids 0 and 2 would both become 1"),
        ([1, 0, 3], [], "id 2 would become 3"),
        ([1, 0, -1], [], "id 2 would become -1"),
        ([0, 1, 2], [], "it hides nothing"),
        ([], [], "it hides nothing"),
    ],
)
def test_what_is_no_permutation_is_no_table(table, white, says):
    with pytest.raises(BadTable, match=says):
        Obfuscator(table, white)


@pytest.mark.parametrize("token", [-1, SIZE, 2**40])
def test_ids_outside_the_vocabulary_are_errors(token):
    for translate in (TABLES.physical, TABLES.semantic):
        with pytest.raises(OutsideVocabulary, match=f"{token} "):
            translate([3, token, 4])
    assert TABLES.physical([]) == TABLES.semantic([]) == []


# --- providers ------------------------------------------------------------------------------------


def section(**more):
    return ObfuscationSection(**{"enable": True, "seed_content": SEED, "vocab_size": SIZE, **more})


def test_switched_off_costs_nothing():
    codec = codec_of(ObfuscationSection(), "")
    assert isinstance(codec, PlainCodec)
    ids, params, raw = [1, 2], {"a": 1}, b"{}"
    assert codec.physical(ids) is codec.semantic(ids) is ids
    assert codec.physical_sampling(params) is codec.physical_rest(params) is params
    assert codec.semantic_event(raw) is raw
    assert codec.admit(None) is None


def write(tmp_path, config, name="config.json"):
    (tmp_path / name).write_text(config if isinstance(config, str) else json.dumps(config))
    return str(tmp_path)


@pytest.mark.parametrize("config", [{"vocab_size": SIZE}, {"vocab_size": None, "text_config": {"vocab_size": SIZE}}])
def test_the_models_own_vocabulary_size(tmp_path, config):
    path = write(tmp_path, config)
    assert vocab_size(path) == SIZE
    codec = codec_of(section(vocab_size=0, token_white_list=list(WHITE)), path)
    assert codec.physical(list(range(SIZE))) == TABLES.physical(list(range(SIZE)))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (None, "model_config.model_path is empty"),
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ({"vocab_size": "many"}, "cannot be read"),
        ({}, "names no vocab_size"),
        ({"vocab_size": -4}, "names no vocab_size"),
    ],
)
def test_nobody_says_how_large_the_vocabulary_is(tmp_path, config, says):
    path = "" if config is None else write(tmp_path, config) if config != "" else str(tmp_path / "nowhere")
    with pytest.raises(BadConfiguration, match=says) as caught:
        codec_of(section(vocab_size=0), path)
    assert caught.value.faults[0].startswith("token_obfuscation_config.vocab_size: is 0 and ")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed_content": ""}, "seed_content is missing"),
        ({"provider": "ai_asset_obfuscate", "seed_content": "x" * 31}, "32 to 112 characters"),
        ({"provider": "ai_asset_obfuscate", "seed_content": "x" * 113}, "32 to 112 characters"),
        ({"token_white_list": [SIZE]}, "64 is no id of 64"),
        ({"token_white_list": [-1]}, "greater than or equal to 0"),
    ],
)
def test_what_cannot_be_is_said_with_its_key(changes, says):
    document = {"enable": True, "seed_content": SEED, "vocab_size": SIZE} | changes
    with pytest.raises(BadConfiguration, match=says) as caught:
        load_embedded({"token_obfuscation_config": document}, {})
    assert "token_obfuscation_config" in str(caught.value)
    assert SEED not in str(caught.value)


def test_obfuscation_needs_render():
    with pytest.raises(BadConfiguration, match=r"needs render_config\.enable"):
        load_embedded(
            {
                "token_obfuscation_config": {"enable": True, "seed_content": SEED, "vocab_size": SIZE},
                "render_config": {"enable": False},
            },
            {},
        )


def test_a_white_list_beyond_the_models_vocabulary(tmp_path):
    with pytest.raises(BadConfiguration, match="token_white_list: 64 is no id of 64"):
        codec_of(section(vocab_size=0, token_white_list=[SIZE]), write(tmp_path, {"vocab_size": SIZE}))
    with pytest.raises(BadConfiguration, match="hides nothing"):
        codec_of(section(token_white_list=list(range(SIZE - 1))), "")


def test_ends_that_would_be_hidden(tmp_path):
    write(tmp_path, {"eos_token_id": 2, "text_config": {"eos_token_id": 9}})
    path = write(tmp_path, {"eos_token_id": [2, 7]}, "generation_config.json")
    assert exposed_ends(path, [2]) == [7, 9]
    assert exposed_ends(path, [2, 7, 9]) == exposed_ends("", []) == []


class FakeSdk(types.ModuleType):
    """The real one's shape: one map for the whole process."""

    table = permutation(SIZE, WHITE, "its own")
    answer = (0, "Success.")

    def __init__(self):
        super().__init__("ai_asset_obfuscate")
        self.calls = []
        outer = self

        class DataAssetObfuscation:
            def __init__(self, vocab_size, token_white_list=None):
                outer.calls.append((vocab_size, token_white_list))

            def set_seed_content(self, seed_content):
                outer.calls.append(seed_content)
                return outer.answer

            def data_1d_obf(self, ids):
                return [outer.table[token] for token in ids]

            def data_1d_deobf(self, ids):
                return [outer.table.index(token) for token in ids]

        self.DataAssetObfuscation = DataAssetObfuscation


@pytest.fixture
def sdk(monkeypatch):
    fake = FakeSdk()
    monkeypatch.setitem(sys.modules, "ai_asset_obfuscate", fake)
    return fake


SDK = {"provider": "ai_asset_obfuscate", "token_white_list": list(WHITE)}


def test_the_sdk_is_asked_once_and_then_left_alone(sdk):
    codec = codec_of(section(**SDK), "")
    assert sdk.calls == [(SIZE, sorted(WHITE)), SEED]
    want = list(sdk.table)
    sdk.table = list(range(SIZE))  # somebody else in the process makes another instance
    assert codec.physical(list(range(SIZE))) == want
    assert len(sdk.calls) == 2


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"answer": (1003, "Invalid Seed Content.")}, r"refuses the seed: Invalid Seed Content. \(1003\)"),
        ({"table": [0, 1, 2, 3, *[3] * 59, 63]}, "does not undo its own map"),
        ({"table": permutation(SIZE, (), "no white list")}, "white-listed id 0 would become"),
        ({"DataAssetObfuscation": None}, "LD_LIBRARY_PATH"),
    ],
)
def test_an_sdk_that_does_not_work_stops_the_start(sdk, wrong, says):
    for name, value in wrong.items():
        setattr(sdk, name, value)
    with pytest.raises(BadConfiguration, match=says):
        codec_of(section(**SDK), "")


def test_a_missing_sdk_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_asset_obfuscate", None)
    with pytest.raises(BadConfiguration, match="pip install ai-asset-obfuscate"):
        codec_of(section(**SDK), "")


# --- to engines -----------------------------------------------------------------------------------


def test_every_place_of_an_id_in_sampling_parameters():
    given = {
        "stop_token_ids": [2, 7, 9],
        "allowed_token_ids": [5],
        "logprob_token_ids": [],
        "trace_decode_token_ids": None,
        "_all_stop_token_ids": [2, 8],
        "_eos_token_id": 11,
        "logit_bias": {"12": 1.5, "2": -100.0},
        "temperature": 0.5,
        "max_tokens": 7,
        "extra_args": {"kv_transfer_params": {"do_remote_decode": True}},
    }
    before = json.dumps(given)
    assert CODEC.physical_sampling(given) == given | {
        "stop_token_ids": p(2, 7, 9),
        "allowed_token_ids": p(5),
        "_all_stop_token_ids": p(2, 8),
        "_eos_token_id": p(11)[0],
        "logit_bias": {str(p(12)[0]): 1.5, "2": -100.0},
    }
    assert json.dumps(given) == before


def test_engines_get_no_field_that_shows_text():
    rest = {name: msgspec.Raw(b"1") for name in (*PLAIN_OF_PROMPT, *UNSENT, "something_new")}
    assert set(CODEC.physical_rest(rest)) == PLAIN_OF_PROMPT


def prompt(sampling=None, ids=(5, 6), **rest):
    body = {"token_ids": list(ids), "sampling_params": sampling or {}, **rest}
    return tokenized("chat", json.dumps(body).encode()).prompts[0]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_hidden_is_refused_with_its_reason(name):
    value = {"a": [1]}
    given = prompt(**{name: value}) if name in ("features", "content_parts") else prompt({name: value})
    with pytest.raises(ClientError) as caught:
        CODEC.admit(given)
    assert (caught.value.status, caught.value.kind, caught.value.param) == (501, "NotImplementedError", name)
    assert REFUSED[name] in caught.value.message


@pytest.mark.parametrize("value", [1, 0, "text", [3], {"a": 1}])
def test_unknown_fields_that_may_hold_ids_or_text_are_refused(value):
    for asked in (prompt({"new": value}), prompt(new=value)):
        with pytest.raises(ClientError, match="new cannot be hidden: it is not known here"):
            CODEC.admit(asked)


@pytest.mark.parametrize("value", [None, True, False, 0.5, [], {}, ""])
def test_unknown_fields_that_say_nothing_pass(value):
    CODEC.admit(prompt({"new": value, "stop": [], "bad_words": [], "extra_args": {}}, new=value, features=None))


def test_what_vllm_renders_for_a_plain_request_passes():
    """Recorded from 0.33, with every field that a chat with parsers brings."""
    sampling = dict.fromkeys(PLAIN - {"repetition_detection"}, 1) | {"n": 1, "skip_clone": True, "stop": []}
    context = {"tools": None, "tool_choice": "none", "chat_template_kwargs": {"secret": 1}}
    given = prompt(
        sampling,
        model="tiny",
        priority=0,
        cache_salt=None,
        parse_context=context,
        reasoning_ended=False,
        reasoning_parser_kwargs={"chat_template_kwargs": {"secret": 1}},
        token_offsets=[[0, 3]],
        output_mode="tokens",
        stream_options={"include_usage": True},
    )
    CODEC.admit(given)
    assert b"secret" not in msgspec.json.encode(CODEC.physical_rest(given.rest))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (prompt(ids=[5, SIZE]), "token id 64 is outside"),
        (prompt({"stop_token_ids": [-3]}), "token id -3 is outside"),
        (prompt({"logit_bias": {"64": 1}}), "token id 64 is outside"),
    ],
)
def test_a_clients_ids_outside_the_vocabulary(given, says):
    with pytest.raises(ClientError, match=says) as caught:
        CODEC.admit(given)
    assert caught.value.status == 400


def test_renders_ids_outside_the_vocabulary_are_the_operators_fault():
    with pytest.raises(RenderError, match=r"vocab_size does not fit") as caught:
        CODEC.admit(prompt(ids=[5, SIZE]), own_ids=False)
    assert caught.value.status == 500


def test_the_tables_of_fields_do_not_overlap():
    groups = [set(REFUSED), IDS, ID_KEYS, ID, PLAIN, UNSENT, PLAIN_OF_PROMPT]
    assert sum(map(len, groups)) == len(set().union(*groups))


# --- from engines ---------------------------------------------------------------------------------


def answer(**choice):
    return {"request_id": "x", "usage": {"prompt_tokens": 3}, "choices": [{"index": 0, **choice}]}


def translated(body):
    return json.loads(CODEC.semantic_event(json.dumps(body).encode()))


LOGPROBS = {
    "content": [
        {
            "token_id": 7,
            "logprob": -0.25,
            "rank": 1,
            "top_logprobs": [
                {"token_id": 7, "logprob": -0.25, "rank": 1},
                {"token_id": 9, "logprob": -1e-05, "rank": None},
            ],
        }
    ]
}


@pytest.mark.parametrize(
    "choice",
    [
        {"token_ids": [7, 8], "finish_reason": None, "stop_reason": None, "logprobs": None},
        {"token_ids": [7], "finish_reason": "stop", "stop_reason": 9, "logprobs": LOGPROBS},
        {"token_ids": [], "finish_reason": "length", "stop_reason": None, "logprobs": {"content": None}},
        {"token_ids": None, "finish_reason": "stop", "stop_reason": "recomputed"},
        {"token_ids": [7], "routed_experts": "AAEC", "weight_versions": [{"version": "d", "start": 0, "end": 1}]},
        {},
    ],
)
def test_a_permuted_engines_answer_becomes_the_plain_one(choice):
    """The simulated engine translates by field names, this program by structure: both must mean the same."""
    engine = Alphabet(TABLES.semantic(list(range(SIZE))))
    for plain in (answer(**choice), answer(**choice) | {"prompt_token_ids": [5, 6]}):
        assert translated(engine.say(plain)) == plain


def test_what_was_not_asked_for_and_shows_physical_ids_stays_out():
    body = answer(token_ids=p(7), sampling_mask=[[1, 2]]) | {
        "prompt_logprobs": [None, {"5": {"logprob": -1.0}}],
        "prompt_token_id_logprobs": "AA",
        "kv_transfer_params": {"do_remote_prefill": True},
        "prompt_token_ids": None,
    }
    got = translated(body)
    assert "prompt_logprobs" not in got
    assert "prompt_token_id_logprobs" not in got
    assert "sampling_mask" not in got["choices"][0]
    assert (got["kv_transfer_params"], got["prompt_token_ids"]) == ({"do_remote_prefill": True}, None)


def test_events_without_choices_pass():
    for body in ({"error": {"message": "x", "code": 400}}, {"choices": [], "usage": {"completion_tokens": 3}}):
        assert translated(body) == body


@pytest.mark.parametrize("choice", [{"token_ids": [SIZE]}, {"stop_reason": -1}, {"token_ids": [1, -1]}])
def test_an_engine_that_invents_ids(choice):
    with pytest.raises(EngineError, match="no vocabulary has"):
        translated(answer(**choice))


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"choices":[{"token_ids":"x"}]}', b'{"choices":[{"logprobs":7}]}'])
def test_an_answer_that_cannot_be_read(raw):
    with pytest.raises(msgspec.DecodeError):
        CODEC.semantic_event(raw)


def test_text_in_the_place_of_logprob_ids_is_not_let_through():
    with pytest.raises(msgspec.DecodeError):
        translated(answer(token_ids=[1], logprobs={"content": [{"token": "secret", "logprob": -1.0}]}))


def test_a_prompt_keeps_its_own_form():
    """Admission, replay and Derender go on with what Render said."""
    given = prompt({"stop_token_ids": [7]})
    CODEC.admit(given)
    assert isinstance(given, TokenizedPrompt)
    assert (given.ids, given.sampling["stop_token_ids"]) == ([5, 6], [7])
