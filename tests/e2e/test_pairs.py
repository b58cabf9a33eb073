"""Prefill and decode simulators in processes of their own, and a Coordinator in front of them, as a user tries it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess

import httpx
import pytest

from tests.e2e.real import free_port
from tests.e2e.residue import residue
from tests.e2e.test_process import MOTOR_FLOW, run, serving, wait_for_port

CONNECTORS = {"handoff": "NixlConnector", "trigger": "MooncakeLayerwiseConnector"}
BODY = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 30, "ignore_eos": True}
EXPLAIN = {"x-motor-flow-explain": "1"}


@contextlib.contextmanager
def simulator(*arguments):
    port = free_port()
    child = subprocess.Popen([*MOTOR_FLOW, "sim", *arguments, "--port", str(port)])
    try:
        wait_for_port(port)
        yield child, f"http://127.0.0.1:{port}"
    finally:
        child.kill()
        child.wait()


@pytest.fixture(params=CONNECTORS)
def pair(request, tmp_path):
    """(profile, prefill process, engines' URLs, configuration file)"""
    profile = request.param
    with (
        simulator("sidecar") as (_, sidecar),
        simulator("engine", "--role", "prefill", "--name", "p") as (prefill, first),
        simulator("engine", "--role", "decode", "--name", "d", "--pace", "0.01") as (_, second),
    ):
        host, port = sidecar.removeprefix("http://").split(":")
        path = tmp_path / "motor.json"
        instances = [
            {"id": number, "role": role, "url": url, "kv_connector": CONNECTORS[profile]}
            for number, role, url in ((1, "prefill", first), (2, "decode", second))
        ]
        document = {
            "model_config": {"model_name": "tiny"},
            "render_config": {"endpoint": {"host": host, "port": int(port)}},
            "metaserver_config": {"base_port": free_port()},
            "exception_config": {"retry_delay": 0},
            "instances": instances,
        }
        path.write_text(json.dumps(document))
        yield profile, prefill, (first, second), path


def text_of(reply):
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["text"]


def test_both_legs_run_and_nothing_is_left(pair):
    profile, prefill, engines, path = pair
    checked = run("check", "--config", str(path))
    assert checked.returncode == 0, checked.stdout
    with serving("--config", str(path), "--port", "0") as process:
        url = f"{process.infer}/v1/completions"
        native = text_of(httpx.post(f"{engines[0]}/v1/completions", json=BODY))
        got = httpx.post(url, json=BODY, headers=EXPLAIN)
        assert text_of(got) == native
        placed = {part.split()[0] for part in got.headers["x-motor-flow-route"].split("; ")}
        assert placed == {"prefill-1", "decode-2"}
        with httpx.stream("POST", url, json=BODY | {"stream": True}) as reply:
            events = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: {")]
        assert "".join(event["choices"][0]["text"] for event in events) == native
        for engine in engines:
            assert httpx.get(f"{engine}/sim/kv").json() == {"outstanding": 0, "anomalies": []}
        prefill.send_signal(signal.SIGKILL)
        prefill.wait()
        alone = httpx.post(url, json=BODY, headers=EXPLAIN)  # its connector leaves plain requests alone
        assert text_of(alone) == native
        assert alone.headers["x-motor-flow-route"].split()[0] == "decode-2"
        assert residue(process.obs) == {}
        assert any(f'"topology": "{profile}"' in line or f'"topology":"{profile}"' in line for line in process.said)
