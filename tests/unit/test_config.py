"""A configuration is used as it is, or every fault in it is named."""

from __future__ import annotations

import json

import pytest

from motor_flow.app import App, start_warnings
from motor_flow.config import BadConfiguration, Config, load, load_embedded
from motor_flow.net.http import origin_of

EXAMPLE = {
    "model_config": {"model_name": "tiny", "model_path": "models/tiny", "max_model_len": 4096},
    "api_config": {
        "coordinator_api_host": "127.0.0.1",
        "coordinator_api_infer_port": 1025,
        "coordinator_api_mgmt_port": 1026,
        "coordinator_obs_port": 1027,
    },
    "render_config": {
        "enable": True,
        "image_name": "",
        "endpoint": {"host": "127.0.0.1", "port": 8100},
        "timeout_ms": 5000,
        "renderer_num_workers": 4,
        "derender_retries": 1,
    },
    "instances": [
        {"id": 1, "role": "union", "url": "http://127.0.0.1:9001"},
        {"id": 2, "role": "prefill", "url": "http://127.0.0.1:9002", "dispatch_profile": "handoff"},
        {"id": 3, "role": "decode", "url": "http://127.0.0.1:9003", "kv_connector": "NixlConnector", "kv_lease_s": 20},
    ],
    "scheduler_config": {"scheduler_type": "load_balance", "enable_pd_separation_fallback_to_hybrid": True},
    "exception_config": {
        "max_retry": 5,
        "retry_delay": 0.2,
        "reschedule_enabled": True,
        "connect_timeout": 5.0,
        "first_token_timeout": 600,
        "stall_timeout": 60,
        "infer_timeout": 3600,
    },
    "context_budget_mode": "off",
    "flow_control_config": {
        "enable": True,
        "max_inflight_tokens": 1000000,
        "max_queue_requests": 1024,
        "max_queue_wait_ms": 30000,
        "unasked_output_tokens": 2048,
    },
    "rate_limit_config": {"enable_rate_limit": False, "max_requests": 1000, "window_size": 60},
    "prefill_kv_event_config": {"conductor_service": "", "http_server_port": 13333, "block_size": 128},
    "token_obfuscation_config": {
        "enable": False,
        "provider": "permutation",
        "seed_content": "",
        "vocab_size": 0,
        "token_white_list": [],
    },
    "circuit_breaker_config": {"failure_threshold": 3, "open_seconds": 30, "open_seconds_max": 300},
    "stream_config": {
        "queue_chunks_max": 64,
        "sse_keep_alive_interval": 15,
        "coalesce": True,
        "per_prompt_relay": True,
        "client_stall_timeout": 60,
    },
    "upstream_config": {"api_key": ""},
    "response_config": {"reasoning_field": "reasoning"},
    "drain_config": {"timeout": 300},
    "inference_workers_config": {"num_workers": 1},
    "metaserver_config": {"advertised_host": "127.0.0.1", "base_port": 12000},
    "api_key_config": {"enable_api_key": False, "valid_keys": []},
    "infer_tls_config": {"enable_tls": False},
    "mgmt_tls_config": {"enable_tls": False},
}


@pytest.fixture
def read(tmp_path):
    def read(document, environ=None):
        path = tmp_path / "motor.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return load(path, environ or {})

    return read


def test_the_whole_documented_configuration_is_accepted(read):
    loaded = read(EXAMPLE)
    assert loaded.warnings == []
    assert loaded.config.exceptions.stall_timeout == 60
    App(loaded.config)


def test_an_empty_object_is_all_defaults(read):
    assert read({}).config == Config() == load_embedded({}, {}).config


FAULTS = {
    "unknown key": ({"render_config": {"timeout_msec": 5}}, "render_config.timeout_msec: unknown key"),
    "unknown section": ({"rendr_config": {}}, "rendr_config: unknown key"),
    "text for a number": ({"exception_config": {"max_retry": "5"}}, "exception_config.max_retry: "),
    "boolean for a number": ({"exception_config": {"max_retry": True}}, "exception_config.max_retry: "),
    "number for a boolean": ({"render_config": {"enable": 1}}, "render_config.enable: "),
    "not a choice": ({"context_budget_mode": "maybe"}, "context_budget_mode: Input should be 'off' or 'on'"),
    "negative": ({"render_config": {"timeout_ms": -1}}, "render_config.timeout_ms: "),
    "zero attempts": ({"exception_config": {"max_retry": 0}}, "exception_config.max_retry: "),
    "port": ({"api_config": {"coordinator_obs_port": 70000}}, "api_config.coordinator_obs_port: "),
    "same port twice": ({"api_config": {"coordinator_obs_port": 1025}}, "api_config: the inference, management and"),
    "inside a list": ({"instances": [{"id": 1, "role": "x", "url": "u"}]}, "instances[0].role: "),
    "same id twice": (
        {"instances": [{"id": 1, "role": "union", "url": "http://a"}, {"id": 1, "role": "union", "url": "http://b"}]},
        "instances[1].id: 1 is given twice, see instances[0]",
    ),
    "same address twice": (
        {"instances": [{"id": 1, "role": "union", "url": "http://a"}, {"id": 2, "role": "union", "url": "http://a/"}]},
        "instances[1].url: http://a is given twice, see instances[0]",
    ),
    "a wildcard": (
        {"instances": [{"id": 1, "role": "union", "url": "http://0.0.0.0:9"}]},
        "instances[0].url: an engine",
    ),
    "a wildcard of six": ({"instances": [{"id": 1, "role": "union", "url": "http://[::]:9"}]}, "at a wildcard address"),
    "same key twice": ('{"stream_config": {"coalesce": true, "coalesce": false}}', "coalesce: given twice"),
    "both kinds of address": (
        {"render_config": {"endpoints": [{"host": "h", "port": 1, "uds": "/x"}]}},
        "render_config.endpoints[0]: give either host and port, or uds",
    ),
    "keys wanted but none given": ({"api_key_config": {"enable_api_key": True}}, "enable_api_key needs at least one"),
    "key that is no digest": (
        {"api_key_config": {"valid_keys": ["secret"]}},
        "api_key_config.valid_keys[0]: must be a sha256 digest",
    ),
    "TLS without files": ({"infer_tls_config": {"enable_tls": True}}, "infer_tls_config: enable_tls needs"),
    "breaker that shrinks": (
        {"circuit_breaker_config": {"open_seconds": 30, "open_seconds_max": 5}},
        "open_seconds_max must not be smaller",
    ),
    "section that is no object": ({"render_config": 5}, "render_config: "),
    "not JSON": ("{", "is not JSON"),
    "empty": ("", "is not JSON"),
    "not an object": ("[]", "must hold one JSON object"),
    "wrapper that is no object": ({"motor_coordinator_config": 5}, "motor_coordinator_config: must be an object"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_path(read, fault):
    document, said = FAULTS[fault]
    with pytest.raises(BadConfiguration) as caught:
        read(document)
    assert said in str(caught.value)
    assert "motor.json" in str(caught.value)


def test_every_fault_is_listed(read):
    with pytest.raises(BadConfiguration) as caught:
        read({"render_config": {"timeout_ms": -1, "x": 1}, "context_budget_mode": "maybe"})
    assert len(caught.value.faults) == 3


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(BadConfiguration, match="nowhere.json"):
        load(tmp_path / "nowhere.json", {})


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("ftp://x", "not an http:// or https:// URL, given"),
        ("127.0.0.1:9001", "not an http:// or https:// URL"),
        ("http://", "not an http:// or https:// URL"),
        ("http://a b", "not an http:// or https:// URL"),
        ("http://engine:8000/v1", "without a path"),
        ("http://engine:port", "Port could not be cast"),
    ],
)
def test_a_bad_url_names_its_instance(url, fault):
    with pytest.raises(BadConfiguration, match=rf"instances\[0\]\.url: .*{fault}"):
        load_embedded({"instances": [{"id": 1, "role": "union", "url": url}]}, {})


@pytest.mark.parametrize("host", ["::1", "10.0.0.1", "render.pod-1.svc"])
def test_a_sidecars_address_may_be_any(host):
    endpoint = load_embedded({"render_config": {"endpoint": {"host": host, "port": 8100}}}, {}).config.render.endpoint
    assert origin_of(endpoint.url).host == host


def test_faults_show_what_was_given_but_no_secret():
    with pytest.raises(BadConfiguration) as caught:
        load_embedded({"api_config": {"coordinator_obs_port": "3025"}, "upstream_config": {"api_key": "two words"}}, {})
    said = "\n".join(caught.value.faults)
    assert 'given "3025"' in said
    assert "two words" not in said


def test_the_environment_cannot_reach_into_what_is_no_object():
    with pytest.raises(BadConfiguration, match=r"render_config.image_name: has no keys, .*IMAGE_NAME__X"):
        load_embedded({"render_config": {"image_name": "a"}}, {"MOTOR_FLOW_RENDER_CONFIG__IMAGE_NAME__X": "1"})


def test_relative_paths_are_relative_to_the_file(read, tmp_path):
    assert read(EXAMPLE).config.model.model_path == str(tmp_path / "models/tiny")


def test_inside_motors_file_unknown_keys_are_warnings(read):
    loaded = read(
        {
            "motor_deploy_config": {"p_instances_num": 1},
            "motor_coordinator_config": {
                "scheduler_config": {"deploy_mode": "pd_separate", "scheduler_type": "round_robin"},
                "aigw": {"x": 1},
                "render_config": {"enable": True, "enable_streaming": True, "launch_args": {"port": 8100}},
            },
        }
    )
    assert loaded.config.scheduler.scheduler_type == "round_robin"
    assert sorted(loaded.warnings) == [
        "aigw: not known here, ignored",
        "scheduler_config.deploy_mode: not known here, ignored",
    ]


def test_inside_motors_file_wrong_values_are_still_faults(read):
    with pytest.raises(BadConfiguration, match=r"render_config\.timeout_ms"):
        read({"motor_coordinator_config": {"x": 1, "render_config": {"timeout_ms": "5"}}})


def test_the_environment_overrides_single_keys(read):
    loaded = read(
        EXAMPLE,
        {
            "MOTOR_FLOW_API_CONFIG__COORDINATOR_API_INFER_PORT": "7000",
            "MOTOR_FLOW_RENDER_CONFIG__ENDPOINT__PORT": "8101",
            "MOTOR_FLOW_RENDER_CONFIG__ENABLE": "False",
            "MOTOR_FLOW_CONTEXT_BUDGET_MODE": "on",
            "MOTOR_FLOW_MODEL_CONFIG__MODEL_NAME": "123",
            "MOTOR_FLOW_EXCEPTION_CONFIG__RETRY_DELAY": "1",
            "MOTOR_FLOW_TOKEN_OBFUSCATION_CONFIG__TOKEN_WHITE_LIST": "[1, 2]",
            "MOTOR_FLOW_SOMETHING_ELSE": "x",
            "PATH": "/bin",
        },
    )
    config = loaded.config
    assert (config.api.coordinator_api_infer_port, config.render.endpoint.port) == (7000, 8101)
    assert (config.render.enable, config.context_budget_mode, config.model.model_name) == (False, "on", "123")
    assert (config.exceptions.retry_delay, config.obfuscation.token_white_list) == (1, [1, 2])


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("MOTOR_FLOW_RENDR__X", "1", "rendr: unknown section, from environment variable MOTOR_FLOW_RENDR__X"),
        ("MOTOR_FLOW_RENDER_CONFIG__TIMEOUT_MS", "soon", "from environment variable MOTOR_FLOW_RENDER_CONFIG__TIMEOUT"),
        ("MOTOR_FLOW_RENDER_CONFIG__TIMEOUT", "5", "render_config.timeout: unknown key, from environment variable"),
        ("MOTOR_FLOW_CONTEXT_BUDGET_MODE__X", "5", "has no keys"),
    ],
)
def test_a_fault_in_the_environment_names_the_variable(read, variable, value, said):
    with pytest.raises(BadConfiguration) as caught:
        read(EXAMPLE, {variable: value})
    assert said in str(caught.value)


def test_what_has_no_effect_yet_is_named_in_one_warning(read):
    loaded = read({"inference_workers_config": {"num_workers": 1}, "stream_config": {"coalesce": False}})
    tokenizer, warning = start_warnings(loaded.config, loaded.given)
    assert "no local tokenizer (model_config.model_path is not set)" in tokenizer
    assert warning == "not in effect yet: inference_workers_config.num_workers"
    assert start_warnings(read({}).config, read({}).given) == [tokenizer]


def test_secrets_are_not_in_a_repr(read):
    config = read(
        {"upstream_config": {"api_key": "sesame"}, "token_obfuscation_config": {"seed_content": "seed"}}
    ).config
    assert "sesame" not in repr(config)
    assert "seed_content" not in repr(config)
