"""A body of `/instances/refresh` is used whole, or every fault in it is named with its instance and field."""

from __future__ import annotations

import json

import pytest

from motor_flow.config.sections import BreakerSection
from motor_flow.edge.instances_body import read_refresh
from motor_flow.errors import ClientError
from motor_flow.scheduling.registry import RANK_STRIDE

SHORT = {"id": 1, "role": "union", "url": "http://127.0.0.1:9001/"}


def endpoint(rank, port=9000, **more):
    """As Motor's Controller sends one."""
    return {
        "id": rank,
        "ip": "10.0.0.7",
        "business_port": str(port + rank),
        "mgmt_port": "9100",
        "status": "normal",
        "device_infos": [{"device_id": "0", "rank_id": "0"}],
        "hb_timestamp": 17.5,
        "workload": {"active_kv_cache": 0, "active_tokens": 0},
        **more,
    }


def motor(**more):
    """One of Motor's instances, with everything that it carries."""
    return {
        "job_name": "prefill-0",
        "model_name": "tiny",
        "engine_type": "vllm",
        "dispatch_capabilities": ["prefill_handoff_decode"],
        "id": 7,
        "role": "prefill",
        "status": "active",
        "parallel_config": {"dp_size": 2, "tp_size": 1},
        "enable_multi_endpoints": True,
        "node_managers": [{"pod_ip": "10.0.0.7", "port": "1", "device_num": 2}],
        "endpoints": {"10.0.0.7": {"0": endpoint(0), "1": endpoint(1)}},
        "gathered_workload": {"active_kv_cache": 0, "active_tokens": 0},
        **more,
    }


def read(event, *instances):
    return read_refresh(json.dumps({"event": event, "instances": list(instances)}).encode(), BreakerSection())


def test_the_short_shape():
    more = {"id": 2, "role": "decode", "url": "http://[::1]:9002", "kv_connector": "NixlConnector", "kv_lease_s": 20}
    got = read("set", SHORT, more)
    assert (got.event, got.groups) == ("set", [1, 2])
    one, two = got.instances
    assert (one.id, one.name, one.url, one.profile) == (1, "union-1", "http://127.0.0.1:9001", None)
    assert (two.profile, two.kv_connector, two.kv_lease_s, two.origin.port) == ("handoff", "NixlConnector", 20, 9002)


def test_motors_shape():
    """Each endpoint that listens is an engine; its rank is its key, whatever its `id` says."""
    ranks = {"0": endpoint(5), "1": endpoint(1), "12": endpoint(2, headless=True)}
    got = read("add", motor(endpoints={"10.0.0.7": ranks, "fd00::8": {"2": endpoint(2, ip="fd00::8")}}))
    assert got.groups == [7]
    assert [one.name for one in got.instances] == ["prefill-7", "prefill-7.1", "prefill-7.2"]
    assert [one.url for one in got.instances] == [
        "http://10.0.0.7:9005",
        "http://10.0.0.7:9001",
        "http://[fd00::8]:9002",
    ]
    assert [one.id for one in got.instances] == [7, 7 + RANK_STRIDE, 7 + 2 * RANK_STRIDE]
    assert {(one.profile, one.engine_type, one.model) for one in got.instances} == {("handoff", "vllm", "tiny")}


def test_a_heartbeat_is_no_change():
    (one,) = read("add", motor(endpoints={"a": {"0": endpoint(0)}})).instances
    later = endpoint(0, status="abnormal", hb_timestamp=99.0, workload={"active_tokens": 5})
    (two,) = read("add", motor(status="paused", endpoints={"a": {"0": later}})).instances
    assert one.content == two.content
    (three,) = read("add", motor(endpoints={"a": {"0": endpoint(0, port=1)}})).instances
    assert one.content != three.content


def test_only_endpoint_zero_without_multiple_endpoints():
    got = read("add", motor(enable_multi_endpoints=False))
    assert [one.dp_rank for one in got.instances] == [0]


@pytest.mark.parametrize("role", ["both", "hybrid", "union"])
def test_names_of_union(role):
    assert {one.role for one in read("add", motor(role=role)).instances} == {"union"}


def test_connectors_in_motors_shape():
    (one, _) = read("add", motor(dispatch_capabilities=[], kv_connector="MooncakeLayerwiseConnector")).instances
    assert one.profile == "trigger"
    several = {
        "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": [{"kv_connector": "NixlConnector"}, {"kv_connector": "B"}]},
    }
    (one, _) = read("add", motor(dispatch_capabilities=[], kv_transfer_config=several)).instances
    assert (one.profile, one.kv_connector) == ("handoff", "NixlConnector")
    (one, _) = read("add", motor(dispatch_profile="trigger")).instances
    assert one.profile == "trigger"


def test_encode_instances_are_left_out():
    got = read("set", SHORT, motor(role="encode"))
    assert (got.groups, got.unused, len(got.instances)) == ([1], [7], 1)


@pytest.mark.parametrize("event", ["del", "pause", "resume"])
def test_ids_are_enough(event):
    got = read(event, {"id": 3}, {"id": 4, "role": "whatever"}, motor())
    assert (got.event, got.groups, got.instances) == (event, [3, 4, 7], [])


def test_nothing_at_all_is_a_list():
    assert read("set").instances == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "must be an object"),
        ({}, "event: Field required; instances: Field required"),
        ({"event": "move", "instances": []}, "event: Input should be 'add', 'del', 'set', 'pause' or 'resume'"),
        ({"event": "add", "instances": 3}, "instances: "),
        ({"event": "add", "instances": [3]}, "instances[0]: "),
        ({"event": "add", "instances": []}, "instances: add needs at least one"),
        ({"event": "pause", "instances": []}, "instances: pause needs at least one"),
        ({"event": "del", "instances": [{"role": "union"}]}, "instances[0].id: Field required"),
        ({"event": "del", "instances": [{"id": "3"}]}, "instances[0].id: "),
        ({"event": "del", "instances": [{"id": -1}]}, "instances[0] (id -1).id: "),
        ({"event": "del", "instances": [{"id": True}]}, "instances[0] (id True).id: "),
        ({"event": "del", "instances": [{"id": 3}, {"id": 3}]}, "instances[1] (id 3): the same id as instances[0]"),
    ],
)
def test_bad_bodies(body, said):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ClientError) as caught:
        read_refresh(raw, BreakerSection())
    assert caught.value.status == 400
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("instance", "said"),
    [
        ({"id": 1, "role": "union"}, "instances[1] (id 1): neither url nor endpoints is given"),
        (SHORT | {"id": 5}, "instances[1] (id 5): the same address as instances[0]"),
        (SHORT, "instances[1] (id 1): the same id as instances[0]"),
        (SHORT | {"id": 2, "url": "ftp://x"}, "instances[1] (id 2).url: not an http:// or https:// URL"),
        (SHORT | {"id": 2, "url": "http://x:99999"}, "instances[1] (id 2).url: "),
        (SHORT | {"id": 2, "role": "both"}, "instances[1] (id 2).role: "),
        (SHORT | {"id": 2, "weight": 3}, "instances[1] (id 2).weight: unknown key"),
        (motor(role="router"), "instances[1] (id 7).role: "),
        (motor(endpoints={}), "instances[1] (id 7).endpoints: none that can be asked"),
        (motor(endpoints={"a": {"0": endpoint(0, headless=True)}}), "none that can be asked"),
        (motor(endpoints={"a": {"x": endpoint(0)}}), "instances[1] (id 7).endpoints.a.x: the key must be"),
        (motor(endpoints={"a": {"0": endpoint(0, ip="a b")}}), "instances[1] (id 7).endpoints.a.0.ip: "),
        (motor(endpoints={"a": {"0": endpoint(0, port=70000)}}), "instances[1] (id 7).endpoints.a.0.business_port: "),
        (
            motor(endpoints={"a": {"0": endpoint(0)}, "b": {"0": endpoint(0, port=1)}}),
            "instances[1] (id 7).endpoints.b.0: rank 0 is given twice",
        ),
    ],
)
def test_bad_instances(instance, said):
    with pytest.raises(ClientError) as caught:
        read("add", SHORT | {"url": "http://127.0.0.1:9001"}, instance)
    assert caught.value.status == 400
    assert said in caught.value.message


def test_every_fault_is_named():
    with pytest.raises(ClientError) as caught:
        read("set", {"id": 1}, SHORT | {"id": 2, "role": "x", "y": 1}, SHORT | {"id": 2})
    assert [line.split(":")[0] for line in caught.value.message.split("; ")] == [
        "instances[0] (id 1)",
        "instances[1] (id 2).role",
        "instances[1] (id 2).y",
    ]
