"""How are the parts put together?

The composition root: the only file that knows everything. It turns a configuration into three ASGI applications and the
start-up and housekeeping around them; who listens where, and on which kind of network, is its caller's choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar, cast

import trio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from motor_flow.config import Config, EndpointSection
from motor_flow.config.pending import without_effect
from motor_flow.derender.client import DerenderClient
from motor_flow.edge.access import KeyCheck
from motor_flow.edge.asgi import ASGIApp
from motor_flow.edge.door import Door
from motor_flow.edge.inference import Inference
from motor_flow.edge.instances import InstanceRoutes
from motor_flow.edge.management import HEALTH_PATH, health, management_routes, observability_routes
from motor_flow.edge.metaserver import metaserver_routes
from motor_flow.edge.models import PATH as MODELS_PATH, ModelRoutes
from motor_flow.edge.routes import Routes
from motor_flow.effects.errands import Errands
from motor_flow.effects.instance import InstanceRun, instance_effects
from motor_flow.effects.ports import Services
from motor_flow.effects.request import request_effects
from motor_flow.effects.sidecar import SidecarRun, sidecar_effects
from motor_flow.effects.stream import stream_effects
from motor_flow.effects.tokenizers import Tokenizers
from motor_flow.engine.client import EngineClient
from motor_flow.engine.events import Patience
from motor_flow.engine.probe import offers_token_only
from motor_flow.errors import MotorFlowError
from motor_flow.flow import Effects, Flow
from motor_flow.net.asking import ask_models, ask_version
from motor_flow.net.http import HttpClient, origin_of
from motor_flow.net.http1 import Pool, TransportFault
from motor_flow.net.sidecars import Sidecar, Sidecars
from motor_flow.net.stream import Dial, network
from motor_flow.obfuscation.providers import codec_of
from motor_flow.obfuscation.vocabulary import exposed_ends
from motor_flow.render.capability import Capability
from motor_flow.render.client import RenderClient
from motor_flow.render.envelope import CHAT_PATH, COMPLETIONS_PATH
from motor_flow.render.local import LocalTokenizer, can_load
from motor_flow.render.watch import Watch, Watched
from motor_flow.scheduling.admission import FlowControl
from motor_flow.scheduling.callbacks import Callbacks
from motor_flow.scheduling.conductor import Conductor
from motor_flow.scheduling.leases import LeaseLedger
from motor_flow.scheduling.misfits import misfits
from motor_flow.scheduling.models import Models
from motor_flow.scheduling.policy import policy_of
from motor_flow.scheduling.ratelimit import RateLimit
from motor_flow.scheduling.registration import Registrar
from motor_flow.scheduling.registry import Instance, Registry
from motor_flow.scheduling.scheduler import Scheduler
from motor_flow.telemetry.journal import Journal
from motor_flow.telemetry.log import Surviving, get_logger
from motor_flow.telemetry.metrics import Metrics, lease_series, machine_series

START_PROBE_S = 15.0
REAP_INTERVAL_S = 1.0
RESTART_S = 1.0
BREAKER_STATES = {"available": 0, "opened": 1, "probing": 2}
ROUTES_RECHECK_S = 30.0
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
    "instance": cast("Effects[object]", instance_effects),
    "sidecar": cast("Effects[object]", sidecar_effects),
}
Watching = TypeVar("Watching")
_log = get_logger()


class App:
    """One Coordinator.

    Args:
        config: what to do.
        dial: the network.
        wall: Unix time, seconds.

    Attributes:
        inference, management, observability, metaserver: ASGI applications.

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
        self.callbacks = Callbacks()
        self.errands = Errands()
        self.metrics = Metrics()
        self.journal = Journal()
        self.registry = Registry(Instance.of(section, config.breaker) for section in config.instances)
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
        engines = EngineClient(self._http, config.exceptions.connect_timeout)
        self._tokenizers = Tokenizers(engines, self.registry)
        self.services = Services(
            capability=self._watch.capability,
            render=RenderClient(sidecars, timeout_s),
            derender=DerenderClient(sidecars, timeout_s, config.render.derender_retries),
            engines=engines,
            tokenizers=self._tokenizers,
            scheduler=Scheduler(
                self.registry,
                policy_of(config.scheduler.scheduler_type),
                self.callbacks,
                hybrids=config.scheduler.enable_pd_separation_fallback_to_hybrid,
            ),
            callbacks=self.callbacks,
            local=LocalTokenizer(config.model.model_path, timeout_s),
            leases=self.leases,
            conductor=self._conductor(),
            errands=self.errands,
            unasked_output_tokens=config.flow_control.unasked_output_tokens,
            flow=FlowControl(config.flow_control, self.leases) if config.flow_control.enable else None,
            context_budget=config.context_budget_mode == "on",
            context_tokens=lambda: self.models.context_tokens,
            metrics=self.metrics,
            patience=Patience(config.exceptions.first_token_timeout, config.exceptions.stall_timeout),
            coalesce=config.stream.coalesce,
            choices_max=config.stream.choices_max,
            attempts_max=config.exceptions.max_retry if config.exceptions.reschedule_enabled else 1,
            retry_delay_s=config.exceptions.retry_delay,
            per_prompt_relay=config.stream.per_prompt_relay,
            obfuscated=config.obfuscation.enable,
            codec=codec_of(config.obfuscation, config.model.model_path),
            reasoning_field=config.response.reasoning_field,
            keep_alive_s=config.stream.sse_keep_alive_interval,
            infer_timeout_s=config.exceptions.infer_timeout,
            wall=wall,
            shown_model=self.models.shown,
        )
        self._inference = Inference(
            self.services,
            self.journal,
            chunks_max=config.stream.queue_chunks_max,
            rate=RateLimit(config.rate_limit) if config.rate_limit.enable_rate_limit else None,
        )
        self._draining = False
        self._started = False
        self.inference: ASGIApp = self._inference_routes()
        self.management: ASGIApp = Door(
            management_routes(
                InstanceRoutes(self.registry, config.breaker, wall, lambda: self.misfits), lambda: self.ready
            )
        )
        self.metaserver: ASGIApp = Door(metaserver_routes(self.callbacks))
        self.observability: ASGIApp = Door(observability_routes(self.metrics, self.journal))
        self._watch_metrics()

    @property
    def ready(self) -> bool:
        """Something schedulable is registered, with or without Render, and we are not leaving."""
        return self._started and not self._draining and self.registry.schedulable

    @property
    def misfits(self) -> list[str]:
        """What an operator should know about the instances, one line each."""
        return misfits(list(self.registry), callbacks=bool(self.callbacks.url))

    @property
    def requests(self) -> int:
        """In flight."""
        return len(self.journal)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs beside the servers, until it is cancelled: watches sidecars and instances, closes expired connections.

        Started when everything the configuration names has been probed, whatever was found.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.errands.run)
            for watched in self._watch.sidecars if self.config.render.enable else ():
                nursery.start_soon(self._watch_sidecar, watched)
            for instance in self.registry:
                nursery.start_soon(self._watch_instance, instance)
            with self.registry.announced_to(partial(self._welcome, nursery)):
                await self._probe_all()
                self._started = True
                task_status.started()
                nursery.start_soon(self._recheck_routes)
                if self.config.conductor.conductor_service:
                    nursery.start_soon(self._keep_registered)
                while True:
                    await trio.sleep(REAP_INTERVAL_S)
                    self.pool.reap()

    def _conductor(self) -> Conductor | None:
        """Asked only when the policy goes by what it knows."""
        section, kind = self.config.conductor, self.config.scheduler.scheduler_type
        if not section.conductor_service or kind != "kv_cache_affinity":
            return None
        return Conductor(HttpClient(self.pool), section.url, section.block_size, self.metrics)

    async def _keep_registered(self) -> None:
        section = self.config.conductor
        registrar = Registrar(HttpClient(self.pool), section.url, section.block_size)
        await registrar.keep(self.registry, lambda: self.models.shown(""))

    def _welcome(self, house: trio.Nursery, instance: Instance) -> None:
        """An instance was registered while we serve."""
        house.start_soon(self._watch_instance, instance)
        house.start_soon(self._probe_engine, instance)

    async def _watch_sidecar(self, watched: Watched) -> None:
        run = SidecarRun(watched, self.models.learn, self._judge)
        await _kept_up(lambda: Flow(sidecar_effects, run))

    async def _watch_instance(self, instance: Instance) -> None:
        run = InstanceRun(instance, self._http)

        def watch() -> Flow[InstanceRun]:
            flow = instance.breaker.machine = Flow(instance_effects, run)
            return flow

        await _kept_up(watch)
        self.pool.forget(instance.origin)

    async def _probe_all(self) -> None:
        with trio.move_on_after(START_PROBE_S):
            async with trio.open_nursery() as nursery:
                for watched in self._watch.sidecars if self.config.render.enable else ():
                    nursery.start_soon(watched.asked.wait)
                for instance in self.registry:
                    nursery.start_soon(self._probe_engine, instance)

    async def _recheck_routes(self) -> None:
        """An engine may have been started anew with other options."""
        while True:
            await trio.sleep(ROUTES_RECHECK_S)
            await self._tokenizers.ask_all()
            for instance in self.registry:
                if not instance.token_only and await offers_token_only(self._http, instance.url):
                    instance.token_only = True
                    _log.info("engine.token_only", instance=instance.name)

    def _judge(self) -> None:
        """What the sidecars can do has changed."""
        self.services.capability = self._watch.capability

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
        waiting = self.services.flow.waiting if self.services.flow is not None else 0
        yield GaugeMetricFamily("motor_flow_queue_requests", "Requests waiting for admission", value=waiting)
        yield CounterMetricFamily("motor_flow_log_lines_lost", "Lines that could not be written", value=Surviving.lost)
        breakers = GaugeMetricFamily("motor_flow_breaker_state", "0 closed, 1 open, 2 probing", labels=["instance"])
        for instance in self.registry:
            breakers.add_metric([instance.name], BREAKER_STATES.get(instance.breaker.state, 1))
        yield breakers

    # --- probing ---

    def _watched(self, endpoint: EndpointSection, sidecar: Sidecar) -> Watched:
        return Watched(endpoint.url, HttpClient(self.pool, headers=self._bearer, uds=endpoint.uds), sidecar)

    async def _probe_engine(self, instance: Instance) -> None:
        try:
            version = await ask_version(self._http, instance.url)
        except TransportFault as fault:
            _log.warning("engine.unreachable", instance=instance.name, url=instance.url, detail=str(fault))
            return
        self.models.learn(await ask_models(self._http, instance.url))
        await self._tokenizers.ask(instance)
        _log.info("engine.found", instance=instance.name, url=instance.url, version=version)


async def _kept_up(watch: Callable[[], Flow[Watching]]) -> None:
    """Run a machine to its good end, if it has one. A bug in it is told, and it starts again: serving goes on."""
    while True:
        flow = watch()
        if await flow.run() != "failed":
            return
        _log.error("bug", machine=flow.table.name, trace=[str(edge) for edge, _ in flow.trace], exc_info=flow.fault)
        await trio.sleep(RESTART_S)


def start_warnings(config: Config, given: Iterable[str]) -> list[str]:
    """What an operator should know about the configuration, one line each."""
    lines = []
    if config.render.enable and (reason := can_load(config.model.model_path)):
        lines.append(f"no local tokenizer ({reason}): while Render is down, requests are served without a token count")
    if pending := without_effect(given):
        lines.append(f"not in effect yet: {', '.join(pending)}")
    lines += _affinity_warnings(config)
    hiding = config.obfuscation
    if hiding.enable and (ends := exposed_ends(config.model.model_path, hiding.token_white_list)):
        listed = ", ".join(map(str, ends))
        lines.append(f"token_obfuscation_config.token_white_list lacks {listed}: engines end answers by these ids")
    return lines


def _affinity_warnings(config: Config) -> list[str]:
    """Affinity goes by what the conductor knows of Render's token ids."""
    if config.scheduler.scheduler_type != "kv_cache_affinity":
        return []
    lines = []
    if not config.conductor.conductor_service:
        lines.append("kv_cache_affinity without prefill_kv_event_config.conductor_service: requests are placed by load")
    if not config.render.enable:
        lines.append("kv_cache_affinity without Render has no token ids to ask for: requests are placed by load")
    return lines
