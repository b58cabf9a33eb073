"""The field's load generators run against the Coordinator, with a local tokenizer, and count what it served.

`vllm bench serve` is part of vLLM (MOTOR_FLOW_VLLM), guidellm is installed beside the other clients
(MOTOR_FLOW_CLIENTS).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.e2e.real import QUIET, ROOT

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
TOKENIZER = ROOT / "motor_flow" / "sim" / "model"
REQUESTS, INPUT, OUTPUT = 20, 24, 16


def run(*command, where):
    """In its own directory: these tools leave files."""
    command = [str(part) for part in command]
    done = subprocess.run(
        command, cwd=where, env=os.environ | QUIET, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def completed(obs):
    """Requests that the Coordinator counts as completed."""
    lines = httpx.get(f"{obs}/metrics", timeout=10).text.splitlines()
    counted = [line for line in lines if line.startswith("motor_flow_requests_total{") and 'code="200"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in counted)


@pytest.mark.parametrize(
    ("backend", "endpoint"), [("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")]
)
def test_vllm_bench_serve(vllm_home, embedded, tmp_path, backend, endpoint):
    before = completed(embedded.obs)
    run(
        *(vllm_home / "v033" / "bin" / "python", "-m", "vllm.entrypoints.cli.main", "bench", "serve"),
        *("--backend", backend, "--base-url", embedded.infer, "--endpoint", endpoint, "--model", "tiny"),
        *("--tokenizer", TOKENIZER, "--dataset-name", "random", "--random-input-len", INPUT),
        *("--random-output-len", OUTPUT, "--num-prompts", REQUESTS, "--ignore-eos"),
        *("--save-result", "--result-filename", "result.json", "--disable-tqdm"),
        where=tmp_path,
    )
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (REQUESTS, 0)
    assert result["total_output_tokens"] == REQUESTS * OUTPUT
    assert 0 < result["mean_ttft_ms"] < 60_000
    assert completed(embedded.obs) - before >= REQUESTS  # it looks first whether somebody is there


def test_guidellm(embedded, tmp_path):
    where = os.environ.get("MOTOR_FLOW_CLIENTS")
    if not where or not (Path(where) / "load").is_dir():
        pytest.skip("guidellm is not installed: tests/e2e/clients/install.sh DIR VLLM_DIR, then MOTOR_FLOW_CLIENTS=DIR")
    before = completed(embedded.obs)
    run(
        *(Path(where) / "load" / "bin" / "guidellm", "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={embedded.infer},model=tiny"),
        *("--profile", "kind=concurrent,streams=4", "--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={INPUT},output_tokens={OUTPUT}"),
        *("--output", "kind=json,path=result.json"),
        where=tmp_path,
    )
    (benchmark,) = json.loads((tmp_path / "result.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"], totals["incomplete"]) == (REQUESTS, 0, 0)
    assert completed(embedded.obs) - before == REQUESTS
