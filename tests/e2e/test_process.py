"""The process: listeners, signals, drain, exit status, command line."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest

from tests.e2e.real import free_port
from tests.e2e.residue import residue

MOTOR_FLOW = [sys.executable, "-m", "motor_flow.cli"]
READY = re.compile(r"ready (http://\S+) mgmt (http://\S+) obs (http://\S+)\n")
BODY = {"model": "tiny", "prompt": "Once upon", "stream": True, "ignore_eos": True}


def run(*arguments, **more):
    return subprocess.run([*MOTOR_FLOW, *arguments], capture_output=True, text=True, timeout=60, check=False, **more)


class Serving:
    """One `motor-flow serve`, its ready line, and everything it said since."""

    def __init__(self, *arguments):
        self.child = subprocess.Popen([*MOTOR_FLOW, "serve", *arguments], stderr=subprocess.PIPE, text=True)
        self.said = []
        for line in self.child.stderr:
            self.said.append(line)
            if found := READY.fullmatch(line):
                self.infer, self.mgmt, self.obs = found.groups()
                break
        else:
            raise AssertionError("".join(self.said))
        self.reader = threading.Thread(target=lambda: self.said.extend(self.child.stderr))
        self.reader.start()

    def signal(self, number):
        self.child.send_signal(number)

    def ended(self, seconds):
        status = self.child.wait(seconds)
        self.reader.join()
        return status


@contextlib.contextmanager
def serving(*arguments):
    process = Serving(*arguments)
    try:
        yield process
    finally:
        process.child.kill()
        process.child.wait()
        process.reader.join()
        process.child.stderr.close()


class Streaming(threading.Thread):
    """A client that reads one stream to its end."""

    def __init__(self, base, **changes):
        super().__init__()
        self.base, self.body = base, BODY | changes
        self.text, self.first, self.failure = "", threading.Event(), None
        self.start()

    def run(self):
        try:
            with httpx.stream("POST", f"{self.base}/v1/completions", json=self.body, timeout=60) as reply:
                for part in reply.iter_text():
                    self.text += part
                    self.first.set()
        except httpx.HTTPError as exc:
            self.failure = exc
        self.first.set()


def test_ready_line_ports_and_probes():
    port = free_port()
    with serving("--port", str(port)) as process:
        assert process.infer == f"http://127.0.0.1:{port}"
        assert (process.mgmt, process.obs) == (f"http://127.0.0.1:{port + 1}", f"http://127.0.0.1:{port + 2}")
        assert httpx.get(f"{process.mgmt}/readiness").json() == {"ready": True}
        assert [httpx.get(process.mgmt + path).status_code for path in ("/startup", "/liveness")] == [200, 200]
        instances = httpx.get(f"{process.mgmt}/instances").json()["instances"]
        assert [(instance["id"], instance["role"]) for instance in instances] == [(1, "union"), (2, "union")]
        assert residue(process.obs) == {}
        assert httpx.get(f"{process.obs}/debug/requests").json() == {"requests": []}


def test_sigterm_lets_open_streams_finish():
    with serving("--port", "0") as process:
        stream = Streaming(process.infer, max_tokens=100)
        stream.first.wait(10)
        process.signal(signal.SIGTERM)
        time.sleep(0.3)  # noqa: TID251 - another process is draining
        assert httpx.get(f"{process.mgmt}/readiness").json() == {"ready": False}
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{process.infer}/v1/models", timeout=2)
        assert process.ended(20) == 0
        stream.join()
        assert stream.failure is None
        assert stream.text.count('"finish_reason":"length"') == 1
        assert stream.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_streams_with_an_error_event(number, status):
    with serving("--port", "0") as process:
        stream = Streaming(process.infer, max_tokens=3000)
        stream.first.wait(10)
        process.signal(number)
        time.sleep(0.3)  # noqa: TID251 - the first signal is being handled
        process.signal(number)
        assert process.ended(10) == status
        stream.join()
        assert stream.failure is None
        last = stream.text.split("\n\n")[-3:]
        assert json.loads(last[0].removeprefix("data: "))["error"]["code"] == 503
        assert last[1:] == ["data: [DONE]", ""]


def test_the_drain_deadline_ends_streams_too(tmp_path):
    sidecar = subprocess.Popen([*MOTOR_FLOW, "sim", "sidecar", "--port", str(side := free_port())])
    engine = subprocess.Popen([*MOTOR_FLOW, "sim", "engine", "--port", str(eng := free_port()), "--pace", "0.05"])
    try:
        for port in (side, eng):
            wait_for_port(port)
        config = {
            "api_config": {
                "coordinator_api_infer_port": free_port(),
                "coordinator_api_mgmt_port": free_port(),
                "coordinator_obs_port": free_port(),
            },
            "render_config": {"endpoint": {"host": "127.0.0.1", "port": side}},
            "instances": [{"id": 1, "role": "union", "url": f"http://127.0.0.1:{eng}"}],
            "drain_config": {"timeout": 1.0},
        }
        path = tmp_path / "motor.json"
        path.write_text(json.dumps(config))
        with serving("--config", str(path)) as process:
            stream = Streaming(process.infer, max_tokens=3000)
            stream.first.wait(10)
            process.signal(signal.SIGTERM)
            assert process.ended(10) == 143
            stream.join()
            assert '"code":503' in stream.text
            assert stream.text.endswith("data: [DONE]\n\n")
        report = run("check", "--config", str(path), "--json")
        assert report.returncode == 0, report.stdout
        kinds = {finding["status"] for finding in json.loads(report.stdout)["findings"]}
        assert kinds == {"ok", "note"}
    finally:
        for child in (sidecar, engine):
            child.terminate()
            assert child.wait(10) == 0
    report = run("check", "--config", str(path), "--json")
    assert report.returncode == 3
    bad = [f["about"] for f in json.loads(report.stdout)["findings"] if f["status"] == "bad"]
    assert bad == ["sidecar", "engine union-1"]


def wait_for_port(port):
    until = time.monotonic() + 20
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert time.monotonic() < until
        time.sleep(0.05)  # noqa: TID251 - another process is starting


def test_a_taken_port_is_said():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        result = run("serve", "--port", str(port))
    assert result.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is not JSON"), ('{"rendr_config": {}}', "rendr_config: unknown key"), (None, "cannot be read")],
)
def test_a_bad_configuration_is_exit_78(tmp_path, text, said):
    path = tmp_path / "motor.json"
    if text is not None:
        path.write_text(text)
    for verb in ("serve", "check"):
        result = run(verb, "--config", str(path))
        assert result.returncode == 78
        assert said in result.stderr + result.stdout
        assert "Traceback" not in result.stderr


def test_usage():
    assert run("--help").returncode == 0
    assert run("nonsense").returncode == 2
    assert run("serve", "--port", "many").returncode == 2


def test_the_demo_for_programs():
    result = run("demo", "--json", "--pace", "0.005")
    assert (result.returncode, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    assert (told["same"], told["relayed"], told["error"]) == (True, True, None)
    assert [each["state"] for each in told["states"]] == [
        *("rendering", "admitted", "scheduled", "generating", "relaying"),
        *("scheduled", "generating", "committed", "completed"),
    ]
    assert told["text"].split() == [str(number) for number in range(1, 61)]
    assert told["died"] != told["attempts"][1]["engine"]
    assert 0 < told["gap_ms"] < 5000


def test_the_demo_in_a_pipe_moves_no_cursor(tmp_path):
    log = tmp_path / "demo.log"
    result = run("demo", "--pace", "0.002", "--log", str(log))
    assert (result.returncode, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    assert "-> relaying" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("OK: ")
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()].count("request.end") == 2


def test_the_demo_ends_at_a_signal():
    child = subprocess.Popen([*MOTOR_FLOW, "demo", "--pace", "1"], stdout=subprocess.PIPE, text=True)
    with child:
        assert "undisturbed" in child.stdout.readline()
        child.terminate()
        assert child.wait(10) == 143


@pytest.mark.parametrize("kind", ["engine", "sidecar"])
@pytest.mark.parametrize(("line", "said"), [("explode", "is no fault"), ("cut after=x", "not a number"), ("", "empty")])
def test_a_bad_fault_is_a_usage_error(kind, line, said):
    result = run("sim", kind, "--fault", "reset", "--fault", line)
    assert result.returncode == 2
    assert said in result.stderr


def test_faults_of_a_simulator():
    arguments = ("sim", "engine", "--port", str(port := free_port()), "--fault", "status status=503 on=native")
    child = subprocess.Popen([*MOTOR_FLOW, *arguments, "--fault", "status status=429 on=native"])
    try:
        wait_for_port(port)
        body = BODY | {"stream": False, "max_tokens": 3}
        url = f"http://127.0.0.1:{port}/v1/completions"
        assert [httpx.post(url, json=body).status_code for _ in range(3)] == [503, 429, 200]
    finally:
        child.terminate()
        assert child.wait(10) == 0


def test_config_verbs(tmp_path):
    schema = json.loads(run("config", "schema").stdout)
    assert "render_config" in schema["properties"]
    path = tmp_path / "motor.json"
    path.write_text(json.dumps({"upstream_config": {"api_key": "sesame"}, "stream_config": {"coalesce": False}}))
    result = run("config", "show", "--config", str(path))
    shown = json.loads(result.stdout)
    assert (shown["upstream_config"]["api_key"], shown["stream_config"]["coalesce"]) == ("***", False)


def test_cli_py_is_the_same_program():
    result = subprocess.run([sys.executable, "cli.py", "--help"], capture_output=True, text=True, check=True)
    assert "serve" in result.stdout


def test_diagram_prints_a_machine():
    result = run("diagram", "stream", "--format", "mermaid")
    assert result.stdout.startswith("stateDiagram-v2")
    assert run("diagram", "--check").returncode == 0
