"""How does `motor-flow serve` start?

With a file: what it says. Without one: the embedded cluster, a simulated sidecar and two engines inside this
process, on real loopback sockets.

Source: contract section 1.
"""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path

import trio

from motor_flow.app import App, start_warnings
from motor_flow.config import BadConfiguration, Config, Loaded, load, load_embedded
from motor_flow.sim.world import embedded_cluster
from motor_flow.telemetry.log import configure, get_logger
from motor_flow.views.exits import EXIT_CONFIG, EXIT_FAILED
from motor_flow.views.serve import CannotListen, Process

DESCRIPTORS_WANTED = 4096
PORT_KEYS = ("coordinator_api_infer_port", "coordinator_api_mgmt_port", "coordinator_obs_port")
_log = get_logger()


def launch(path: Path | None, port: int | None) -> int:
    """Serve; returns the exit status."""
    configure()
    _allow_many_connections()
    try:
        return trio.run(_embedded, port) if path is None else trio.run(_configured, path, port)
    except* BadConfiguration as group:
        sys.stderr.write(f"{_first(group)}\n")
        status = EXIT_CONFIG
    except* CannotListen as group:
        sys.stderr.write(f"{_first(group)}\n")
        status = EXIT_FAILED
    return status


async def _configured(path: Path, port: int | None) -> int:
    return await _serve(load(path), port)


async def _embedded(port: int | None) -> int:
    cluster = embedded_cluster()
    async with trio.open_nursery() as nursery:
        await cluster.listen_on_loopback(nursery)
        status = await _serve(load_embedded(cluster.configuration()), port)
        nursery.cancel_scope.cancel(reason="the process ends")
    return status


async def _serve(loaded: Loaded, port: int | None) -> int:
    for warning in (*loaded.warnings, *start_warnings(loaded.config, loaded.given)):
        _log.warning("configuration", source=loaded.source, message=warning)
    try:
        app = App(_on_port(loaded.config, port))
    except BadConfiguration as exc:  # found late: what the tables of obfuscation need
        raise BadConfiguration(loaded.source, exc.faults) from exc
    return await Process(app).run()


def _allow_many_connections() -> None:
    """Every stream is two connections or three: take as many descriptors as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS_WANTED:
        _log.warning("few_file_descriptors", limit=soft, message=f"about {soft // 3} streams at once; raise ulimit -n")


def _on_port(config: Config, port: int | None) -> Config:
    """`--port N`: inference on N, management on N+1, observability on N+2; 0 takes free ones."""
    if port is None:
        return config
    ports = [port, port + 1, port + 2] if port else [0, 0, 0]
    return config.model_copy(update={"api": config.api.model_copy(update=dict(zip(PORT_KEYS, ports, strict=True)))})


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
