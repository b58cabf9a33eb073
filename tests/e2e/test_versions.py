"""What goes through the chain, and what over the engine's own API, with older sidecars and engines?

Either way the answer must be that of the same engine's own API. The README's table of it is compared with what is seen.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import httpx
import pytest
from rich.console import Console
from rich.table import Table

from motor_flow.views.parity.answers import read_answer
from tests.e2e import real
from tests.e2e.requests import TOOLS, chat, text
from tests.world import unexplained

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

VERSIONS = {"0.33": "v033", "0.32": "v032", "0.28": "v028"}
README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- versions -->\n", "<!-- /versions -->\n"
FEATURES = {
    "chat": chat("Say hello in Chinese."),
    "chat with reasoning": chat("Hello!"),
    "tool calls": chat("Weather in Paris and 北京?", tools=TOOLS),
    "chat, logprobs": chat("Say hello in Chinese.", logprobs=True, top_logprobs=2),
    "chat, stop strings": chat("Say hello in Chinese.", stop=["！", "Observation:"]),
    "chat, n = 2": chat("Hello!", n=2, seed=7, temperature=0.9),
    "structured output": chat("Hello!", response_format={"type": "json_object"}, max_tokens=30),
    "completions": text("Once upon", max_tokens=24),
    "list of prompts": text(["Once upon", "Numbers: ", "从前有座山，"], max_tokens=24),
    "completions, logprobs": text("Once upon", max_tokens=12, logprobs=2),
    "completions, stop strings": text("Once upon", max_tokens=40, stop=["th", " a"]),
    "completions, cut inside a character": text("从前有座山，", max_tokens=7),
    "echo": text("Once upon", max_tokens=12, echo=True),
}
FORMS = ("whole", "stream")


def identity(name, form):
    return f"versions-{list(FEATURES).index(name)}-{form}"


def asked(base, name, form):
    path, body, *_ = FEATURES[name]
    if form == "stream":
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
    reply = httpx.post(base + path, json=body, timeout=120, headers={"x-request-id": identity(name, form)})
    return read_answer(reply.status_code, reply.headers["content-type"], reply.content)


def routes(log):
    """By request id, as the log says."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return {line["request_id"]: line.get("route") for line in lines if line["event"] == "request.end"}


@pytest.fixture(scope="module")
def seen(vllm_home, vllm, served, tmp_path_factory):
    """{version: {feature: {form: (route, differences)}}}"""
    found = {}
    for version, folder in VERSIONS.items():
        where = tmp_path_factory.mktemp(folder)
        with contextlib.ExitStack() as stack:
            if version == "0.33":
                infer, native, log = served.infer, vllm.native, served.log
            else:
                sidecar, engine = real.free_port(), real.free_port()
                venv = vllm_home / folder
                serve = real.engine_command(venv, vllm.model, engine)
                if version == "0.28":
                    serve.remove("--enable-scale-out")  # the routes are always there
                for name, command, port in (
                    ("sidecar", real.sidecar_command(venv, vllm.model, sidecar), sidecar),
                    ("engine", serve, engine),
                ):
                    child = stack.enter_context(real.running(command, where / f"{name}.log"))
                    real.wait_for(f"http://127.0.0.1:{port}/health", child, where / f"{name}.log")
                infer, *_ = stack.enter_context(real.coordinator(where, sidecar, [engine]))
                native, log = f"http://127.0.0.1:{engine}", where / "motor-flow.log"
            found[version] = compared(infer, native, log)
    return found


def compared(infer, native, log):
    unlike = {}
    for name in FEATURES:
        for form in FORMS:
            want, got = asked(native, name, form), asked(infer, name, form)
            unlike[name, form] = [str(found) for found in unexplained(want, got)]
    took = {}
    while len(took) < len(unlike):  # the last line is written behind the answer
        took = {name: route for name, route in routes(log).items() if name.startswith("versions-")}
    return {name: {form: (took[identity(name, form)], unlike[name, form]) for form in FORMS} for name in FEATURES}


def test_every_version_gives_the_answers_of_its_own_engine(seen, capsys):
    with capsys.disabled():
        show(seen)
    wrong = [
        (version, name, form, unlike)
        for version, features in seen.items()
        for name, forms in features.items()
        for form, (_, unlike) in forms.items()
        if unlike
    ]
    assert wrong == [], "\n".join(f"{version} {name} ({form}): {unlike}" for version, name, form, unlike in wrong)
    assert README.read_text().split(BEGIN)[1].split(END)[0] == markdown(seen)


def cells(seen, name):
    """What goes through the chain."""
    for version in VERSIONS:
        through = [form for form in FORMS if seen[version][name][form][0] == "token_only"]
        yield "chain" if len(through) == len(FORMS) else f"chain: {through[0]} only" if through else "native"


def show(seen):
    drawn = Table("request", *VERSIONS, title="sidecar and engine of this vLLM version")
    for name in FEATURES:
        drawn.add_row(name, *cells(seen, name))
    Console(width=120).print(drawn)


def markdown(seen):
    lines = [f"| request | {' | '.join(f'vLLM {version}' for version in VERSIONS)} |", "|---" * 4 + "|"]
    lines += [f"| {name} | {' | '.join(cells(seen, name))} |" for name in FEATURES]
    return "\n".join(lines) + "\n"
