"""How does the process run, from its listeners to its exit status?

```
listen on three ports -> probe -> "ready" -> serve
      first SIGTERM/SIGINT: not ready, accept no more, let requests finish   -> exit 0
      second one, or drain_config.timeout: error event to open streams       -> exit 143 / 130
```

Source: contract sections 1 and 7 (SIGTERM).
"""

from __future__ import annotations

import os
import signal
import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import trio

from motor_flow.app import App
from motor_flow.config.sections import WILDCARDS, TlsSection
from motor_flow.edge.asgi import ASGIApp
from motor_flow.edge.limits import Limits
from motor_flow.edge.server import Server
from motor_flow.telemetry.log import get_logger
from motor_flow.views.exits import EXIT_BY_SIGNAL

LAST_WORDS_S = 2.0  # for error events to leave after an eviction
Listeners = Sequence[trio.SocketListener] | Sequence[trio.SSLListener[trio.SocketStream]]
_log = get_logger()


class CannotListen(Exception):
    """A port is taken, or not ours to take."""


class Process:
    """One serving process.

    Args:
        app: what it serves.

    """

    def __init__(self, app: App) -> None:
        self._app = app
        stall_s = app.config.stream.client_stall_timeout
        limits = Limits(write_stall_s=stall_s)
        self._inference = Server(app.inference, limits, on_bug=_report)

    async def run(self) -> int:
        """Serve until a signal ends it; returns the exit status.

        Raises:
            CannotListen: an address is not available.

        """
        api = self._app.config.api
        infer_tls, mgmt_tls = self._app.config.infer_tls, self._app.config.mgmt_tls
        places: list[tuple[int, ASGIApp, TlsSection]] = [
            (api.coordinator_api_infer_port, self._app.inference, infer_tls),
            (api.coordinator_api_mgmt_port, self._app.management, mgmt_tls),
            (api.coordinator_obs_port, self._app.observability, mgmt_tls),
        ]
        listeners = [await _listen(api.coordinator_api_host, port, tls) for port, _, tls in places]
        status = 0
        async with trio.open_nursery() as nursery:
            for listening, (_, app, _) in zip(listeners[1:], places[1:], strict=True):
                await nursery.start(Server(app, on_bug=_report).serve, listening)
            await self._serve_callbacks(nursery)
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                if await self._started(nursery, signals):
                    finished = trio.Event()
                    nursery.start_soon(self._serve_inference, listeners[0], finished)
                    for line in self._app.misfits:
                        _log.warning("instances.misfit", detail=line)
                    if not self._app.ready:
                        _log.warning("not_ready", reason="no instance that can serve requests is registered")
                    self._announce(listeners)
                    status = await self._until_the_end(signals, finished)
            nursery.cancel_scope.cancel(reason="the process ends")
        self._app.close()
        return status

    async def _serve_callbacks(self, nursery: trio.Nursery) -> None:
        """Decode engines of Trigger call back on a port of their own. Without it only Trigger is off."""
        where = self._app.config.metaserver
        host, port = where.advertised_host, where.base_port
        if not port:
            return
        if host in WILDCARDS:
            _log.warning("trigger_off", reason="metaserver_config.advertised_host must be an address engines can reach")
            return
        try:
            listeners = await _listen(host, port, TlsSection())
        except CannotListen as exc:
            _log.warning("trigger_off", reason=str(exc))
            return
        await nursery.start(Server(self._app.metaserver, on_bug=_report).serve, listeners)
        self._app.callbacks.url = f"http://{_address(listeners)}"

    async def _started(self, house: trio.Nursery, signals: object) -> bool:
        """Probe everything; false when a signal came first."""
        started = False
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                await _next_signal(signals)
                nursery.cancel_scope.cancel(reason="signal")

            nursery.start_soon(give_up)
            await house.start(self._app.run)
            started = True
            nursery.cancel_scope.cancel(reason="started")
        return started

    def _announce(self, listeners: Sequence[Listeners]) -> None:
        schemes = [
            "https" if tls.enable_tls else "http" for tls in (self._app.config.infer_tls, self._app.config.mgmt_tls)
        ]
        infer, mgmt, obs = (_address(listening) for listening in listeners)
        line = f"ready {schemes[0]}://{infer} mgmt {schemes[1]}://{mgmt} obs {schemes[1]}://{obs}"
        with suppress(OSError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    async def _serve_inference(self, listeners: Listeners, finished: trio.Event) -> None:
        try:
            await self._inference.serve(listeners)
        finally:
            finished.set()

    async def _until_the_end(self, signals: object, finished: trio.Event) -> int:
        first = await _next_signal(signals)
        timeout_s = self._app.config.drain.timeout
        _log.info("drain.begin", signal=signal.Signals(first).name, requests=self._app.requests, timeout_s=timeout_s)
        self._app.drain()
        self._inference.drain()
        forced = first
        async with trio.open_nursery() as nursery:

            async def until_second_signal() -> None:
                nonlocal forced
                forced = await _next_signal(signals)
                nursery.cancel_scope.cancel(reason="second signal")

            nursery.start_soon(until_second_signal)
            with trio.move_on_after(timeout_s):
                await finished.wait()
            nursery.cancel_scope.cancel(reason="drained, or too late")
        if finished.is_set():
            _log.info("drain.done")
            return 0
        _log.warning("drain.forced", requests=self._app.requests)
        self._app.evict_all()
        with trio.move_on_after(LAST_WORDS_S):
            await finished.wait()
        _log.warning("drain.ended", requests=self._app.requests)
        return EXIT_BY_SIGNAL[signal.Signals(forced)]


async def _next_signal(signals: object) -> int:
    async for number in signals:  # type: ignore[attr-defined]  # trio does not export the receiver's type
        return int(number)
    raise RuntimeError("the signal receiver ended")


async def _listen(host: str, port: int, tls: TlsSection) -> Listeners:
    try:
        listeners = await trio.open_tcp_listeners(port, host=host)
    except OSError as exc:
        raise CannotListen(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
    if not tls.enable_tls:
        return listeners
    context = _tls_context(tls)
    return [trio.SSLListener(listener, context, https_compatible=True) for listener in listeners]


def _tls_context(tls: TlsSection) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in tls.files:
        if not os.access(path, os.R_OK):
            raise CannotListen(f"TLS file {path} cannot be read")
    password = Path(tls.passwd_file).read_text(encoding="utf-8").strip() if tls.passwd_file else None
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, password)
        if tls.ca_file:
            context.load_verify_locations(tls.ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
        if tls.crl_file:
            context.load_verify_locations(tls.crl_file)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    except OSError as exc:
        raise CannotListen(f"TLS files cannot be used: {exc}") from exc
    return context


def _address(listeners: Listeners) -> str:
    listener = listeners[0]
    plain = listener.transport_listener if isinstance(listener, trio.SSLListener) else listener
    assert isinstance(plain, trio.SocketListener)
    host, port = plain.socket.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _report(bug: BaseException) -> None:
    _log.error("bug", exc_info=bug)
