"""How are the parts put together?

The composition root: the only file that knows everything. It turns a configuration into three ASGI applications and the
start-up and housekeeping around them; who listens where, and on which kind of network, is its caller's choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import cast

import trio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from motor_flow.config import Config, EndpointSection
from motor_flow.config.pending import without_effect
from motor_flow.derender.client import DerenderClient
from motor_flow.edge.access import KeyCheck
from motor_flow.edge.asgi import ASGIApp
from motor_flow.edge.door import Door
from motor_flow.edge.inference import Inference
from motor_flow.edge.management import HEALTH_PATH, health, management_routes, observability_routes
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
from motor_flow.net.http import HttpClient, origin_of
from motor_flow.net.http1 import Pool, TransportFault
from motor_flow.net.sidecars import Sidecar, Sidecars
from motor_flow.net.stream import Dial, network
from motor_flow.render.capability import Capability
from motor_flow.render.client import RenderClient
from motor_flow.render.envelope import CHAT_PATH, COMPLETIONS_PATH
from motor_flow.render.watch import Watch, Watched
from motor_flow.scheduling.leases import LeaseLedger
from motor_flow.scheduling.models import Models
from motor_flow.scheduling.policy import RoundRobin
from motor_flow.scheduling.registry import Instance, Registry
from motor_flow.telemetry.journal import Journal
from motor_flow.telemetry.log import Surviving, get_logger
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
        dial: the network.
        wall: Unix time, seconds.

    Attributes:
        inference, management, observability: ASGI applications.

    """

    def __init__(
        self,
        config: Config,
        *,
        dial: Dial | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.pool = Pool(dial or network())
        self.leases = LeaseLedger()
        self.metrics = Metrics()
        self.journal = Journal()
        self.registry = Registry(Instance.of(section) for section in config.instances)
        self.models = Models(config.model.model_name, config.model.max_model_len, int(wall()))
        key = config.upstream.api_key
        self._bearer = {"authorization": f"Bearer {key}"} if key else None
        self._http = HttpClient(self.pool, headers=self._bearer)
        sidecars = Sidecars(self.pool, [origin_of(each.url, uds=each.uds) for each in config.render.sidecars], key)
        self._watch = Watch(
            [self._watched(*pair) for pair in zip(config.render.sidecars, sidecars.all, strict=True)],
            Capability(enabled=config.render.enable, streaming=config.render.enable_streaming),
        )
        timeout_s = config.render.timeout_ms / 1e3
        self.services = Services(
            capability=self._watch.capability,
            render=RenderClient(sidecars, timeout_s),
            derender=DerenderClient(sidecars, timeout_s),
            engines=EngineClient(self._http, config.exceptions.connect_timeout),
            registry=self.registry,
            policy=RoundRobin(),
            leases=self.leases,
            metrics=self.metrics,
            patience=Patience(config.exceptions.first_token_timeout, config.exceptions.stall_timeout),
            coalesce=config.stream.coalesce,
            choices_max=config.stream.choices_max,
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
        self.management: ASGIApp = Door(management_routes(self.registry, lambda: self.ready))
        self.observability: ASGIApp = Door(observability_routes(self.metrics, self.journal))
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
                    nursery.start_soon(self._look_for_sidecars)
                for instance in self.registry:
                    nursery.start_soon(self._probe_engine, instance)
        self._started = True

    async def keep_house(self) -> None:
        """Runs beside the servers: closes expired connections, and looks for sidecars that come and go."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reap)
            if self.config.render.enable:
                nursery.start_soon(self._keep_looking)

    async def _reap(self) -> None:
        while True:
            await trio.sleep(REAP_INTERVAL_S)
            self.pool.reap()

    async def _keep_looking(self) -> None:
        while True:
            await trio.sleep(SIDECAR_WATCH_S)
            await self._look_for_sidecars()

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
            f"GET {HEALTH_PATH}": health(lambda: self.ready),
        }
        table |= {f"POST {path}": self._inference.route("other") for path in PASS_THROUGH_PATHS}
        routes: ASGIApp = Routes(table)
        keys = self.config.api_key
        return Door(KeyCheck(routes, keys.valid_keys, free=(HEALTH_PATH,)) if keys.enable_api_key else routes)

    def _watch_metrics(self) -> None:
        self.metrics.watch(lambda: lease_series(cast("Mapping[str, int]", self.leases.held)))
        self.metrics.watch(lambda: machine_series(MACHINES))
        self.metrics.watch(self._state_series)

    def _state_series(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("motor_flow_inflight_requests", "Requests in flight", value=self.requests)
        yield GaugeMetricFamily("motor_flow_queue_requests", "Requests waiting for admission", value=0)
        yield CounterMetricFamily("motor_flow_log_lines_lost", "Lines that could not be written", value=Surviving.lost)
        breakers = GaugeMetricFamily("motor_flow_breaker_state", "0 closed, 1 open, 2 probing", labels=["instance"])
        for instance in self.registry:
            breakers.add_metric([instance.name], 0)
        yield breakers

    # --- probing ---

    async def _look_for_sidecars(self) -> None:
        for sighting in await self._watch.look():
            sidecar = sighting.sidecar
            capability = sidecar.capability
            if sighting.what == "lost" or capability is None:
                _log.warning("sidecar.unreachable", url=sidecar.url, detail=sidecar.trouble)
                continue
            _log.info("sidecar.found", url=sidecar.url, version=capability.version)
            for missing in capability.missing:
                _log.warning("sidecar.missing", url=sidecar.url, version=capability.version, missing=missing)
            self.models.learn(await ask_models(sidecar.http, sidecar.url))
        self.services.capability = self._watch.capability

    def _watched(self, endpoint: EndpointSection, sidecar: Sidecar) -> Watched:
        return Watched(endpoint.url, HttpClient(self.pool, headers=self._bearer, uds=endpoint.uds), sidecar)

    async def _probe_engine(self, instance: Instance) -> None:
        try:
            version = await ask_version(self._http, instance.url)
        except TransportFault as fault:
            _log.warning("engine.unreachable", instance=instance.name, url=instance.url, detail=str(fault))
            return
        self.models.learn(await ask_models(self._http, instance.url))
        _log.info("engine.found", instance=instance.name, url=instance.url, version=version)


def _refusal(config: Config) -> MotorFlowError | None:
    """Token obfuscation fails closed: before it can be done, nothing may leave in clear."""
    if not config.obfuscation.enable:
        return None
    return ClientError("token obfuscation is switched on but not available yet", status=501)


def start_warnings(config: Config, given: Iterable[str]) -> list[str]:
    """What an operator should know about the configuration, one line each."""
    lines = []
    if pending := without_effect(given):
        lines.append(f"not in effect yet: {', '.join(pending)}")
    if apart := [str(instance.id) for instance in config.instances if instance.role != "union"]:
        lines.append(f"only union instances serve requests yet; these get none: {', '.join(apart)}")
    if config.obfuscation.enable:
        lines.append("token obfuscation is not available yet: every request is refused with 501")
    return lines
