"""Is what a configuration names there, and does it fit together?

Asks each sidecar and engine what it is, without running any inference: an empty generate request is refused with
400 where the token-only route exists, and with 403 or 404 where it does not.

Source: contract sections 1 and 7 (check, Probe).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Set as AbstractSet
from dataclasses import dataclass
from typing import Literal, NamedTuple

import trio

from machines.faults import Fault
from motor_flow.config import BadConfiguration, Config, EndpointSection, InstanceSection
from motor_flow.config.sections import WILDCARDS
from motor_flow.engine.probe import ask_token_only, has_tokenizer
from motor_flow.engine.token_only import GENERATE_PATH
from motor_flow.net.asking import ask_models, ask_version
from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import Pool, TransportFault
from motor_flow.net.stream import Dial
from motor_flow.net.verdict import judge
from motor_flow.obfuscation.providers import codec_of
from motor_flow.render.local import can_load
from motor_flow.render.probe import Unclear, probe_sidecar
from motor_flow.scheduling.misfits import misfits
from motor_flow.scheduling.registry import Instance, Registry, mixed

ASK_TIMEOUT_S = 5.0
Status = Literal["ok", "note", "bad"]


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


class Report(NamedTuple):
    """About one upstream.

    Attributes:
        lengths: the context lengths it shows, in tokens.

    """

    findings: list[Finding]
    lengths: AbstractSet[int] = frozenset()


async def examine(config: Config, dial: Dial) -> list[Finding]:
    """Ask everything the configuration names, all at once; findings come in the configuration's order."""
    pool = Pool(dial)
    key = config.upstream.api_key
    headers = {"authorization": f"Bearer {key}"} if key else None
    http = HttpClient(pool, headers=headers)
    found: dict[int, Report] = {}

    async def note(order: int, report: Awaitable[Report]) -> None:
        found[order] = await report

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
    reports = [found[order] for order in sorted(found)]
    lengths: AbstractSet[int] = frozenset().union(*(report.lengths for report in reports))
    asked = [finding for report in reports for finding in report.findings]
    return [*_instances(config), *asked, *_same_length(lengths), *_tls(config), *_hiding(config), *_local(config)]


async def _sidecar(config: Config, endpoint: EndpointSection, http: HttpClient) -> Report:
    url = endpoint.url
    where = endpoint.uds or url
    try:
        capability = await probe_sidecar(http, url)
    except TransportFault as fault:
        return Report([Finding("sidecar", where, "bad", f"does not answer: {fault}")])
    except Unclear as unclear:
        return Report([Finding("sidecar", where, "bad", str(unclear))])
    parser = "with parsers" if capability.parser else "without parsers"
    found = [Finding("sidecar", where, "ok", f"vLLM {capability.version or 'of unknown version'}, {parser}")]
    status: Status = "note" if capability.renders else "bad"
    found += [Finding("sidecar", where, status, text) for text in capability.missing]
    cards = await ask_models(http, url)
    return Report(found + _cards(config, "sidecar", where, cards), _lengths(cards))


async def _engine(config: Config, instance: InstanceSection, http: HttpClient) -> Report:
    about = f"engine {instance.role}-{instance.id}"
    url = instance.url.rstrip("/")
    try:
        version = await ask_version(http, url)
    except TransportFault as fault:
        return Report([Finding(about, url, "bad", f"does not answer: {fault}")])
    cards = await ask_models(http, url)
    served = ", ".join(str(card.get("id")) for card in cards) or "no model shown"
    found = [Finding(about, url, "ok", f"vLLM {version or 'of unknown version'}, serves {served}")]
    found += _cards(config, about, url, cards)
    try:
        reply = await ask_token_only(http, url)
    except TransportFault as exc:
        return Report([*found, Finding(about, url, "bad", f"{GENERATE_PATH}: {exc}")], _lengths(cards))
    match judge(reply.status, reply.body):
        case Fault.UNSUPPORTED:
            text = f"{GENERATE_PATH} is not offered (HTTP {reply.status}); start vLLM >= 0.30 with --enable-scale-out"
            found.append(Finding(about, url, "bad", text))
        case Fault.UNAUTHORIZED:
            found.append(Finding(about, url, "bad", "refuses our key; check upstream_config.api_key"))
        case Fault.FAILED | Fault.BUSY:
            found.append(Finding(about, url, "bad", f"{GENERATE_PATH} answers HTTP {reply.status}"))
        case _:
            found.append(Finding(about, url, "ok", "offers token-only generate"))
    if await has_tokenizer(http, url) is False:
        text = (
            "has no tokenizer (--tokens-only): structured outputs, bad_words and what needs an engine's own OpenAI API "
            "(echo, say) go to other engines, or are answered with 501"
        )
        found.append(Finding(about, url, "note", text))
    return Report(found, _lengths(cards))


def _lengths(cards: list[dict[str, object]]) -> set[int]:
    return {length for card in cards if isinstance(length := card.get("max_model_len"), int)}


def _cards(config: Config, about: str, where: str, cards: list[dict[str, object]]) -> list[Finding]:
    """Does it serve what the configuration says?"""
    model, names, lengths = config.model, [str(card["id"]) for card in cards], _lengths(cards)
    found = []
    if model.model_name and names and model.model_name not in names:
        found.append(Finding(about, where, "bad", f"serves {', '.join(names)}, not {model.model_name} (model_config)"))
    if model.max_model_len and lengths and lengths != {model.max_model_len}:
        shown = ", ".join(map(str, sorted(lengths)))
        text = f"max_model_len is {shown} there and {model.max_model_len} in model_config"
        found.append(Finding(about, where, "bad", text))
    return found


def _instances(config: Config) -> list[Finding]:
    """Is there anything that a request could be sent to, and do prefill and decode fit together?"""
    registry = Registry(Instance.of(section, config.breaker) for section in config.instances)
    several = mixed(registry)
    if several is None and not registry.schedulable:
        text = "none can serve a request: every one gets 503 until an instance that can is registered"
        return [Finding("instances", "-", "bad", text)]
    trigger = bool(config.metaserver.base_port) and config.metaserver.advertised_host not in WILDCARDS
    found = misfits(list(registry), callbacks=trigger)
    return [Finding("instances", "-", "note" if several is None else "bad", text) for text in found]


def _same_length(lengths: AbstractSet[int]) -> list[Finding]:
    """Sidecar and engines must agree on the context length: it bounds prompts and sets default budgets."""
    if len(lengths) <= 1:
        return []
    shown = ", ".join(map(str, sorted(lengths)))
    return [Finding("context length", "-", "bad", f"sidecars and engines differ in max_model_len: {shown}")]


def _tls(config: Config) -> list[Finding]:
    files = [*config.infer_tls.files, *config.mgmt_tls.files]
    return [Finding("TLS", path, "bad", "cannot be read") for path in files if not os.access(path, os.R_OK)]


def _hiding(config: Config) -> list[Finding]:
    """Can the tables of token obfuscation be made here?"""
    section = config.obfuscation
    if not section.enable:
        return []
    try:
        codec_of(section, config.model.model_path)
    except BadConfiguration as exc:
        return [Finding("token obfuscation", section.provider, "bad", fault) for fault in exc.faults]
    return [Finding("token obfuscation", section.provider, "ok", "the tables can be made, and undo each other")]


def _local(config: Config) -> list[Finding]:
    """The local tokenizer is only a fallback, so its absence is a note."""
    path = config.model.model_path
    reason = can_load(path)
    if reason is not None:
        return [Finding("local tokenizer", path or "-", "note", f"{reason}: no fallback count when Render is down")]
    return [Finding("local tokenizer", path, "ok", "found")]
