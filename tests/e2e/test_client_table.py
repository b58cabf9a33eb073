"""Every kind of answer is read alike by every client, and the README's table of that is true.

The clients run in processes of their own, some in environments of their own (clients/install.sh DIR, then
MOTOR_FLOW_CLIENTS=DIR). What they should read is taken from the bytes of the same answers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from rich.console import Console
from rich.table import Table

from motor_flow.views.parity.answers import read_answer
from tests.e2e.clients.python_client import asked
from tests.world import CHAT, TEXT

pytestmark = pytest.mark.timeout(300)
HERE = Path(__file__).with_name("clients")
README = Path(__file__).parents[2] / "README.md"
KINDS = json.loads((HERE / "kinds.json").read_text())
BEGIN, END = "<!-- clients -->\n", "<!-- /clients -->\n"
CLIENTS = {
    "openai-python 3, sync": ("python", "sync"),
    "openai-python 3, async": ("python", "async"),
    "openai-python 3, `.stream()`": ("python", "helper"),
    "openai-python 2, sync": ("two", "sync"),
    "openai-python 2, async": ("two", "async"),
    "openai-python 2, `.stream()`": ("two", "helper"),
    "LangChain": ("chain", None),
    "openai-node 6": ("node", None),
}


@pytest.fixture(scope="module")
def installed():
    where = os.environ.get("MOTOR_FLOW_CLIENTS")
    if not where:
        pytest.skip("MOTOR_FLOW_CLIENTS is not set: the other clients are not installed here")
    return Path(where)


def run(installed, name, base):
    """What a client has read: its version, and its answers by kind and form."""
    where, how = CLIENTS[name]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    if where == "node":
        shutil.copy(HERE / "node_client.mjs", installed / "node")  # imports are looked up from where the file is
        shutil.copy(HERE / "kinds.json", installed / "node")
        command = ["node", str(installed / "node" / "node_client.mjs"), base]
    else:
        python = sys.executable if where == "python" else str(installed / where / "bin" / "python")
        script = "langchain_client.py" if where == "chain" else "python_client.py"
        command = [python, str(HERE / script), base, *([how] if how else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def wanted(base, kind, form):
    """What is in the bytes."""
    entry = KINDS[kind]
    body = asked(entry["body"])
    if form == "whole":
        body.pop("stream_options", None)
    path = CHAT if entry["api"] == "chat" else TEXT
    reply = httpx.post(base + path, json=body | ({"stream": True} if form == "stream" else {}), timeout=60)
    answer = read_answer(reply.status_code, reply.headers["content-type"], reply.content)
    if answer.error is not None:
        return {"error": [answer.status, answer.error["type"]]}
    choices = {}
    for index, choice in answer.choices.items():
        entry = {
            "text": choice.content,
            "reasoning": choice.reasoning,
            "calls": [[call["name"], call["arguments"]] for _, call in sorted(choice.tool_calls.items())],
            "logprobs": sum(len(part.get("content") or part.get("tokens") or ()) for part in choice.logprobs),
            "finish": choice.finish_reason,
        }
        choices[str(index)] = {key: value for key, value in entry.items() if value}
    usage = answer.usage["completion_tokens"] if answer.usage else None
    return {"choices": choices, "usage": usage}


def plain(answer):
    """An error by what all clients call alike: its status and type."""
    return {"error": answer["error"][1:3]} if "error" in answer else answer


def by_langchain(answer):
    """It has no place for reasoning, and reads arguments as JSON."""
    if "error" in answer:
        return answer
    choices = {}
    for index, choice in answer["choices"].items():
        calls = [[name, json.loads(arguments)] for name, arguments in choice.get("calls", ())]
        shown = {key: value for key, value in choice.items() if key != "reasoning"}
        choices[index] = shown | ({"calls": calls} if calls else {})
    return answer | {"choices": choices}


def by_helper(answer):
    """It raises LengthFinishReasonError instead of showing an answer that was cut."""
    cut = any(choice["finish"] == "length" for choice in answer.get("choices", {}).values())
    return {"choices": {"0": {"finish": "length"}}, "usage": None} if cut else answer


def test_every_client_reads_every_kind_of_answer(installed, embedded, capsys):
    want = {kind: {form: wanted(embedded.infer, kind, form) for form in ("whole", "stream")} for kind in KINDS}
    table, versions, missing = {kind: {} for kind in KINDS}, {}, []
    names = list(CLIENTS)
    if not (installed / "node" / "node_modules").is_dir():
        missing = [name for name in names if CLIENTS[name][0] == "node"]
        names = [name for name in names if name not in missing]
    with ThreadPoolExecutor() as pool:
        ran = list(pool.map(lambda name: run(installed, name, embedded.infer), names))
    for name, found in zip(names, ran, strict=True):
        versions[name] = found["version"]
        for kind, answers in found["answers"].items():
            for form, answer in answers.items():
                right = want[kind][form]
                if name == "LangChain":
                    right = by_langchain(right)
                elif "`.stream()`" in name:
                    right = by_helper(right)
                assert plain(answer) == right, (name, kind, form)
            table[kind][name] = " + ".join(answers)
    with capsys.disabled():
        show(table, versions)
    if missing:
        pytest.skip(f"{', '.join(missing)}: there was no npm to install it; all others read alike")
    assert README.read_text().split(BEGIN)[1].split(END)[0] == markdown(table)


def show(table, versions):
    heads = (f"{name} ({versions.get(name, '-')})" for name in CLIENTS)
    drawn = Table("answer", *heads, title="read alike by every client")
    for kind, cells in table.items():
        drawn.add_row(kind, *(cells.get(name, "-") for name in CLIENTS))
    Console(width=200).print(drawn)


def markdown(table):
    """For the README."""
    lines = [f"| answer | {' | '.join(CLIENTS)} |", "|---" * (len(CLIENTS) + 1) + "|"]
    for kind, cells in table.items():
        lines.append(f"| {kind} | {' | '.join(cells.get(name, '-') for name in CLIENTS)} |")
    return "\n".join(lines) + "\n"
