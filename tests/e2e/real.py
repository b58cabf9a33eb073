"""Start real vLLM (sidecar and engine) and the Coordinator as processes, and stop them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODEL_LEN = 1024
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCH_COMPILE_DISABLE": "1",  # or the first request with logprobs compiles for half a minute
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
PARSERS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def model_dir(where):
    """The tiny model: tokenizer and template as the package ships them, and its weights."""
    shutil.copytree(ROOT / "motor_flow" / "sim" / "model", where)
    shutil.copy(HERE / "vllm" / "model.safetensors", where)
    return where


def sidecar_command(venv, model, port, *more):
    return [
        *(venv / "bin" / "python", "-m", "vllm.entrypoints.cli.main", "launch", "render", model),
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", port, "--max-model-len", MODEL_LEN),
        *("--renderer-num-workers", 4, *PARSERS, *more),
    ]


def engine_command(venv, model, port, *more):
    return [
        *(venv / "bin" / "python", "-m", "vllm.entrypoints.cli.main", "serve", model),
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", port, "--max-model-len", MODEL_LEN),
        *("--dtype", "float32", "--enforce-eager", "--max-num-seqs", 8, "--max-num-batched-tokens", 1024),
        *("--block-size", 32, "--num-gpu-blocks-override", 256, "--enable-scale-out", *PARSERS, *more),
    ]


@contextlib.contextmanager
def running(command, log, env=None):
    """A process with its children, ended on leaving."""
    with log.open("wb") as out:
        child = subprocess.Popen(
            [str(part) for part in command],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | QUIET | (env or {}),
            start_new_session=True,
        )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def wait_for(url, child, log, seconds=240):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert child.poll() is None, f"it has ended: {log.read_text(errors='replace')[-2000:]}"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, timeout=2).status_code == 200:
                return
        time.sleep(0.2)  # noqa: TID251 - another process is starting
    raise AssertionError(f"{url} not ready after {seconds} s: {log.read_text(errors='replace')[-2000:]}")


@contextlib.contextmanager
def coordinator(where, sidecar, engines, **changes):
    """`motor-flow serve --config FILE` in front of these ports; yields its three base URLs."""
    ports = [free_port() for _ in range(3)]
    config = {
        "model_config": {"model_name": "tiny", "max_model_len": MODEL_LEN},
        "api_config": dict(
            zip(("coordinator_api_infer_port", "coordinator_api_mgmt_port", "coordinator_obs_port"), ports, strict=True)
        ),
        "render_config": {"endpoint": {"host": "127.0.0.1", "port": sidecar}},
        "instances": [
            {"id": i, "role": "union", "url": f"http://127.0.0.1:{port}"} for i, port in enumerate(engines, 1)
        ],
        **changes,
    }
    path = where / "motor.json"
    path.write_text(json.dumps(config))
    log = where / "motor-flow.log"
    with running([sys.executable, "-m", "motor_flow.cli", "serve", "--config", path], log) as child:
        infer, mgmt, obs = (f"http://127.0.0.1:{port}" for port in ports)
        wait_for(f"{mgmt}/readiness", child, log, 30)
        yield infer, mgmt, obs
