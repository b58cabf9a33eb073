"""How does `motor-flow serve` start?

With a file: what it says. Without one: the embedded cluster, a simulated sidecar and two engines inside this
process, on real loopback sockets.

Source: contract section 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from motor_flow.app import App, start_warnings
from motor_flow.config import BadConfiguration, Config, Loaded, load
from motor_flow.telemetry.log import configure, get_logger
from motor_flow.views.serve import EXIT_FAILED, CannotListen, Process

EXIT_CONFIG = 78
_log = get_logger()


def launch(path: Path | None, port: int | None) -> int:
    """Serve; returns the exit status."""
    configure()
    try:
        if path is None:
            raise BadConfiguration("x", ["no"])
        loaded = load(path)
        config = _on_port(loaded.config, port)
        app = App(config, source=loaded.source)
    except BadConfiguration as exc:
        sys.stderr.write(f"{exc}\n")
        return EXIT_CONFIG
    _warn(loaded)
    try:
        return trio.run(Process(app).run)
    except* CannotListen as group:
        sys.stderr.write(f"{group.exceptions[0]}\n")
    return EXIT_FAILED


def _on_port(config: Config, port: int | None) -> Config:
    """`--port N`: inference on N, management on N+1, observability on N+2; 0 takes free ones."""
    if port is None:
        return config
    ports = [port, port + 1, port + 2] if port else [0, 0, 0]
    names = ("coordinator_api_infer_port", "coordinator_api_mgmt_port", "coordinator_obs_port")
    return config.model_copy(update={"api": config.api.model_copy(update=dict(zip(names, ports, strict=True)))})


def _warn(loaded: Loaded) -> None:
    for warning in (*loaded.warnings, *start_warnings(loaded.given)):
        _log.warning("configuration", source=loaded.source, message=warning)
