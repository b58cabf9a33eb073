"""Is this configuration fit to serve, and is everything it names?

Asks each sidecar and engine what it is, without running any inference: an empty generate request is refused with
400 where the token-only route exists, and with 403 or 404 where it does not.

Source: contract sections 1 and 7 (check, Probe).
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import msgspec
import trio
from rich.console import Console
from rich.table import Table as RichTable

from motor_flow.app import start_warnings
from motor_flow.config import BadConfiguration, Config, EndpointSection, InstanceSection, load
from motor_flow.engine.token_only import GENERATE_PATH
from motor_flow.net.asking import ask_models, ask_version
from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import Pool, TransportFault
from motor_flow.net.stream import Dial, network
from motor_flow.net.verdict import Verdict, judge
from motor_flow.render.probe import probe_sidecar

EXIT_PROBLEMS = 3
EXIT_CONFIG = 78
ASK_TIMEOUT_S = 5.0
Status = Literal["ok", "note", "bad"]
STYLES: dict[Status, str] = {"ok": "green", "note": "yellow", "bad": "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        about: what was looked at: configuration, sidecar, engine union-1, ...
        where: its address or file.
        status: ok, note (serves, but not fully), bad (will not serve).
        text: what was found, and what to do.

    """

    about: str
    where: str
    status: Status
    text: str


def run_check(path: Path, *, as_json: bool) -> int:
    """Check, print, and return the exit status."""
    try:
        loaded = load(path)
    except BadConfiguration as exc:
        findings = [Finding("configuration", str(path), "bad", fault) for fault in exc.faults]
        _print(findings, as_json=as_json)
        return EXIT_CONFIG
    findings = [Finding("configuration", str(path), "ok", f"{len(loaded.given)} keys given")]
    findings += [
        Finding("configuration", str(path), "note", warning)
        for warning in (*loaded.warnings, *start_warnings(loaded.given))
    ]
    findings += trio.run(examine, loaded.config, network())
    _print(findings, as_json=as_json)
    return EXIT_PROBLEMS if any(finding.status == "bad" for finding in findings) else 0


async def examine(config: Config, dial: Dial) -> list[Finding]:
    """Ask everything the configuration names, all at once; findings come in the configuration's order."""
    pool = Pool(dial)
    key = config.upstream.api_key
    headers = {"authorization": f"Bearer {key}"} if key else None
    http = HttpClient(pool, headers=headers)
    found: dict[int, list[Finding]] = {}

    async def note(order: int, coroutine: object) -> None:
        found[order] = await coroutine  # type: ignore[misc]  # a coroutine of one of the functions below

    async with trio.open_nursery() as nursery:
        order = 0
        if config.render.enable:
            for endpoint in config.render.sidecars:
                client = HttpClient(pool, headers=headers, uds=endpoint.uds) if endpoint.uds else http
                nursery.start_soon(note, order, _sidecar(config, endpoint, client))
                order += 1
        for instance in config.instances:
            nursery.start_soon(note, order, _engine(config, instance, http))
            order += 1
    pool.close()
    return [*(finding for order in sorted(found) for finding in found[order]), *_local(config)]


async def _sidecar(config: Config, endpoint: EndpointSection, http: HttpClient) -> list[Finding]:
    url = "http://localhost" if endpoint.uds else f"http://{endpoint.host}:{endpoint.port}"
    where = endpoint.uds or url
    capability = await probe_sidecar(http, url)
    if capability is None:
        return [Finding("sidecar", where, "bad", "does not answer; requests take the engines' own API meanwhile")]
    parser = "with parsers" if capability.parser else "without parsers"
    found = [Finding("sidecar", where, "ok", f"vLLM {capability.version or 'of unknown version'}, {parser}")]
    found += [
        Finding("sidecar", where, "note", f"{text}; such requests take the native route") for text in capability.missing
    ]
    return found + _lengths(config, "sidecar", where, await ask_models(http, url))


async def _engine(config: Config, instance: InstanceSection, http: HttpClient) -> list[Finding]:
    about = f"engine {instance.role}-{instance.id}"
    url = instance.url.rstrip("/")
    version = await ask_version(http, url)
    if version is None:
        return [Finding(about, url, "bad", "does not answer")]
    cards = await ask_models(http, url)
    served = ", ".join(str(card.get("id")) for card in cards) or "no model shown"
    found = [Finding(about, url, "ok", f"vLLM {version or 'of unknown version'}, serves {served}")]
    found += _lengths(config, about, url, cards)
    try:
        reply = await http.call("POST", url + GENERATE_PATH, body=b"{}", timeout_s=ASK_TIMEOUT_S)
    except TransportFault as exc:
        return [*found, Finding(about, url, "bad", f"{GENERATE_PATH}: {exc}")]
    match judge(reply.status, reply.body):
        case Verdict.UNSUPPORTED:
            text = f"{GENERATE_PATH} is not offered (HTTP {reply.status}); start vLLM >= 0.30 with --enable-scale-out"
            found.append(Finding(about, url, "bad", text))
        case Verdict.UNAUTHORIZED:
            found.append(Finding(about, url, "bad", "refuses our key; check upstream_config.api_key"))
        case Verdict.UNAVAILABLE:
            found.append(Finding(about, url, "bad", f"{GENERATE_PATH} answers HTTP {reply.status}"))
        case _:
            found.append(Finding(about, url, "ok", "offers token-only generate"))
    return found


def _lengths(config: Config, about: str, where: str, cards: list[dict[str, object]]) -> list[Finding]:
    """Sidecar and engines must agree on the context length: it bounds prompts and sets default budgets."""
    told = config.model.max_model_len
    lengths = {card.get("max_model_len") for card in cards} - {None}
    if told and lengths and lengths != {told}:
        shown = ", ".join(map(str, sorted(map(str, lengths))))
        text = f"max_model_len is {shown} there and {told} in model_config"
        return [Finding(about, where, "bad", text)]
    return []


def _local(config: Config) -> list[Finding]:
    """The local tokenizer is only a fallback, so its absence is a note."""
    path = config.model.model_path
    if not path:
        return [
            Finding(
                "local tokenizer", "-", "note", "model_config.model_path is not set: no fallback when Render is down"
            )
        ]
    if not (Path(path) / "tokenizer_config.json").exists():
        return [Finding("local tokenizer", path, "note", "no tokenizer there: no fallback when Render is down")]
    return [Finding("local tokenizer", path, "ok", "found; loaded when it is first needed")]


def _print(findings: list[Finding], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode({"findings": [asdict(finding) for finding in findings]}).decode() + "\n")
        return
    table = RichTable(box=None, pad_edge=False)
    for column in ("", "what", "where", "found"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        style = STYLES[finding.status]
        table.add_row(f"[{style}]{finding.status}[/]", finding.about, finding.where, finding.text)
    Console().print(table)
