"""How are the parts put together?

The composition root: the only file that knows everything. It turns a configuration into three ASGI applications and the
start-up and housekeeping around them; who listens where, and on which kind of network, is its caller's choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import cast

import trio
from prometheus_client.core import GaugeMetricFamily, Metric

from motor_flow.config import BadConfiguration, Config, EndpointSection
from motor_flow.config.pending import without_effect
from motor_flow.derender.client import DerenderClient
from motor_flow.edge.access import KeyCheck
from motor_flow.edge.asgi import ASGIApp
from motor_flow.edge.inference import Inference
from motor_flow.edge.management import management_routes, observability_routes
from motor_flow.edge.models import PATH as MODELS_PATH, ModelRoutes
from motor_flow.edge.routes import Routes
from motor_flow.effects.ports import Services
from motor_flow.effects.request import request_effects
from motor_flow.effects.stream import stream_effects
from motor_flow.engine.client import EngineClient
from motor_flow.engine.events import Patience
from motor_flow.errors import ClientError, MotorFlowError
from motor_flow.flow import Effects
from motor_flow.net.asking import ask_models, ask_version
from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import Pool
from motor_flow.net.sidecars import Sidecars
from motor_flow.net.stream import Dial, Origin, network
from motor_flow.render.capability import Capability, by_version
from motor_flow.render.client import RenderClient
from motor_flow.render.envelope import CHAT_PATH, COMPLETIONS_PATH
from motor_flow.render.probe import probe_sidecar
from motor_flow.scheduling.leases import LeaseLedger
from motor_flow.scheduling.models import Models
from motor_flow.scheduling.policy import RoundRobin
from motor_flow.scheduling.registry import Instance, Registry
from motor_flow.telemetry.journal import Journal
from motor_flow.telemetry.log import get_logger
from motor_flow.telemetry.metrics import Metrics, lease_series, machine_series

START_PROBE_S = 15.0
REAP_INTERVAL_S = 1.0
SIDECAR_WATCH_S = 5.0
PASS_THROUGH_PATHS = (
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
)
MACHINES: dict[str, Effects[object]] = {
    "request": cast("Effects[object]", request_effects),
    "stream": cast("Effects[object]", stream_effects),
}
_log = get_logger()


class App:
    """One Coordinator.

    Args:
        config: what to do.
        source: where it came from, for messages.
        dial: the network.
        wall: Unix time, seconds.

    Attributes:
        inference, management, observability: ASGI applications.

    Raises:
        BadConfiguration: an instance's URL is none.

    """

    def __init__(
        self,
        config: Config,
        *,
        source: str = "the configuration",
        dial: Dial | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.pool = Pool(dial or network())
        self.leases = LeaseLedger()
        self.metrics = Metrics()
        self.journal = Journal()
        self.registry = Registry(_instances(config, source))
        self.models = Models(config.model.model_name, config.model.max_model_len, int(wall()))
        key = config.upstream.api_key
        self._http = HttpClient(self.pool, headers={"authorization": f"Bearer {key}"} if key else None)
        sidecars = Sidecars(self.pool, [_origin(endpoint) for endpoint in config.render.sidecars], key)
        timeout_s = config.render.timeout_ms / 1e3
        self.services = Services(
            capability=Capability(enabled=config.render.enable),
            render=RenderClient(sidecars, timeout_s),
            derender=DerenderClient(sidecars, timeout_s),
            engines=EngineClient(self._http, config.exceptions.connect_timeout),
            registry=self.registry,
            policy=RoundRobin(),
            leases=self.leases,
            metrics=self.metrics,
            patience=Patience(config.exceptions.first_token_timeout, config.exceptions.stall_timeout),
            coalesce=config.stream.coalesce,
            reasoning_field=config.response.reasoning_field,
            keep_alive_s=config.stream.sse_keep_alive_interval,
            infer_timeout_s=config.exceptions.infer_timeout,
            wall=wall,
            shown_model=self.models.shown,
        )
        self._inference = Inference(
            self.services, self.journal, chunks_max=config.stream.queue_chunks_max, refusal=_refusal(config)
        )
        self._draining = False
        self._started = False
        self.inference: ASGIApp = self._inference_routes()
        self.management: ASGIApp = management_routes(self.registry, lambda: self.ready)
        self.observability: ASGIApp = observability_routes(self.metrics, self.journal)
        self._watch_metrics()

    @property
    def ready(self) -> bool:
        """Something schedulable is registered, with or without Render, and we are not leaving."""
        return self._started and not self._draining and self.registry.schedulable

    @property
    def requests(self) -> int:
        """In flight."""
        return len(self.journal)

    async def start(self) -> None:
        """Probe what the configuration names; then the process is ready, whatever was found."""
        with trio.move_on_after(START_PROBE_S):
            async with trio.open_nursery() as nursery:
                if self.config.render.enable:
                    nursery.start_soon(self._probe_sidecars)
                for instance in self.registry:
                    nursery.start_soon(self._probe_engine, instance)
        self._started = True

    async def keep_house(self) -> None:
        """Runs beside the servers: closes idle connections that have expired, and looks for sidecars that came back."""
        looked_at = trio.current_time()
        while True:
            await trio.sleep(REAP_INTERVAL_S)
            self.pool.reap()
            unseen = self.config.render.enable and not self.services.capability.version
            if unseen and trio.current_time() - looked_at >= SIDECAR_WATCH_S:
                await self._look_for_sidecars()
                looked_at = trio.current_time()

    def drain(self) -> None:
        """Be not ready from now on; requests in flight go on."""
        self._draining = True

    def evict_all(self) -> None:
        """End every request in flight: streams get an error event and `[DONE]`."""
        self._inference.evict_all(MotorFlowError("the server is shutting down", status=503, retry_after_s=1))

    def close(self) -> None:
        """Close idle connections."""
        self.pool.close()

    # --- putting together ---

    def _inference_routes(self) -> ASGIApp:
        models = ModelRoutes(self.models)
        table: dict[str, ASGIApp] = {
            f"POST {CHAT_PATH}": self._inference.route("chat"),
            f"POST {COMPLETIONS_PATH}": self._inference.route("completions"),
            f"GET {MODELS_PATH}": models.list,
            f"GET {MODELS_PATH}/*": models.one,
        }
        table |= {f"POST {path}": self._inference.route("other") for path in PASS_THROUGH_PATHS}
        routes: ASGIApp = Routes(table)
        keys = self.config.api_key
        return KeyCheck(routes, keys.valid_keys) if keys.enable_api_key else routes

    def _watch_metrics(self) -> None:
        self.metrics.watch(lambda: lease_series(cast("Mapping[str, int]", self.leases.held)))
        self.metrics.watch(lambda: machine_series(MACHINES))
        self.metrics.watch(self._state_series)

    def _state_series(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("motor_flow_inflight_requests", "Requests in flight", value=self.requests)
        yield GaugeMetricFamily("motor_flow_queue_requests", "Requests waiting for admission", value=0)
        breakers = GaugeMetricFamily("motor_flow_breaker_state", "0 closed, 1 open, 2 probing", labels=["instance"])
        for instance in self.registry:
            breakers.add_metric([instance.name], 0)
        yield breakers

    # --- probing ---

    async def _probe_sidecars(self) -> None:
        """The capability of all sidecars is that of the least able one."""
        found: list[Capability] = []
        for endpoint in self.config.render.sidecars:
            url, http = self._sidecar_http(endpoint)
            capability = await probe_sidecar(http, url)
            if capability is None:
                _log.warning("sidecar.unreachable", url=url)
                continue
            self.models.learn(await ask_models(http, url))
            for missing in capability.missing:
                _log.warning("sidecar.missing", url=url, version=capability.version, missing=missing)
            found.append(capability)
        if found:
            self.services.capability = min(found, key=lambda c: (c.derenders, c.streams, c.streams_chat))

    async def _look_for_sidecars(self) -> None:
        for endpoint in self.config.render.sidecars:
            url, http = self._sidecar_http(endpoint)
            version = await ask_version(http, url)
            if version:
                self.services.capability = by_version(version, parser=None)
                self.models.learn(await ask_models(http, url))
                _log.info("sidecar.found", url=url, version=version)

    def _sidecar_http(self, endpoint: EndpointSection) -> tuple[str, HttpClient]:
        if not endpoint.uds:
            return f"http://{endpoint.host}:{endpoint.port}", self._http
        key = self.config.upstream.api_key
        headers = {"authorization": f"Bearer {key}"} if key else None
        return "http://localhost", HttpClient(self.pool, headers=headers, uds=endpoint.uds)

    async def _probe_engine(self, instance: Instance) -> None:
        version = await ask_version(self._http, instance.url)
        if version is None:
            _log.warning("engine.unreachable", instance=instance.name, url=instance.url)
            return
        self.models.learn(await ask_models(self._http, instance.url))
        _log.info("engine.found", instance=instance.name, url=instance.url, version=version)


def _instances(config: Config, source: str) -> list[Instance]:
    instances, faults = [], []
    for index, section in enumerate(config.instances):
        try:
            instances.append(Instance.of(section))
        except ValueError as exc:
            faults.append(f"instances[{index}].url: {exc}")
    if faults:
        raise BadConfiguration(source, faults)
    return instances


def _origin(endpoint: EndpointSection) -> Origin:
    return Origin("localhost", 0, uds=endpoint.uds) if endpoint.uds else Origin(endpoint.host, endpoint.port)


def _refusal(config: Config) -> MotorFlowError | None:
    """Token obfuscation fails closed: before it can be done, nothing may leave in clear."""
    if not config.obfuscation.enable:
        return None
    return ClientError("token obfuscation is switched on but not available yet", status=501)


def start_warnings(given: Iterable[str]) -> list[str]:
    """What an operator should know about the configuration, one line each."""
    pending = without_effect(given)
    return [f"not in effect yet: {', '.join(pending)}"] if pending else []
