"""How does one client request run, from its body to the summary line?

One nursery per request: the machine's flow, the task that writes to the client, and the one that keeps a silent stream
alive. When the flow ends, however it ends, nothing of the request is left but its summary.

Source: RFC 请求生命周期; contract sections 3 and 7.
"""

from __future__ import annotations

from typing import Any

import trio

from machines.faults import TREATMENTS
from machines.replay import obstacle
from motor_flow.derender.normalise import Frame
from motor_flow.edge.allowance import request_headers
from motor_flow.edge.asgi import Headers, Receive, Scope, Send
from motor_flow.edge.identity import forwarded_headers, identify, request_id
from motor_flow.edge.responder import HttpResponder
from motor_flow.edge.routes import JSON, error_headers, header_of, read_body
from motor_flow.edge.summary import Failure, record
from motor_flow.effects.answering import DONE
from motor_flow.effects.context import Marks, RequestRun
from motor_flow.effects.placing import PLACEMENTS_SHOWN_MAX
from motor_flow.effects.ports import Services
from motor_flow.effects.request import request_effects
from motor_flow.errors import EngineError, MotorFlowError, Stage
from motor_flow.flow import Flow, Overdue
from motor_flow.render.envelope import Api, Envelope
from motor_flow.scheduling.ratelimit import RateLimit
from motor_flow.telemetry.journal import Journal
from motor_flow.telemetry.log import get_logger

STAGES: dict[str, Stage] = {
    "rendering": "render",
    "localizing": "render",
    "admitted": "admission",
    "scheduled": "schedule",
    "generating": "generate",
    "relaying": "generate",
    "rolling_back": "generate",
    "derendering": "derender",
    "committed": "client",
}
EXPLAIN_HEADER = b"x-motor-flow-explain"
_KINDS: dict[Api, str] = {"chat": "chat.completion.chunk", "completions": "text_completion", "other": ""}
_log = get_logger()


class Inference:
    """The inference routes.

    Args:
        services: the process.
        journal: of requests in flight.
        chunks_max: stream_config.queue_chunks_max.
        rate: counts requests as they come; None: as many as like.

    """

    def __init__(
        self,
        services: Services,
        journal: Journal,
        *,
        chunks_max: int,
        rate: RateLimit | None = None,
    ) -> None:
        self._services = services
        self._journal = journal
        self._chunks_max = chunks_max
        self._rate = rate
        self._live: set[_Supervision] = set()

    def route(self, api: Api) -> _Route:
        """The ASGI application of one kind of route."""
        return _Route(self, api)

    def evict_all(self, error: MotorFlowError) -> None:
        """End every running request now; open streams get this error."""
        for supervision in list(self._live):
            supervision.evict(error)

    async def serve(self, api: Api, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request.

        Raises:
            ClientError: the body cannot be read.
            RateLimited: too many requests come.

        """
        arrived = trio.current_time()
        name = request_id(scope)
        headers: Headers = [(b"x-request-id", name.encode())]
        services = self._services
        try:
            if self._rate is not None:
                headers += request_headers(self._rate.take())
            envelope = Envelope.parse(api, await read_body(receive))
        except MotorFlowError as error:
            services.metrics.requests.labels(api, "false", "none", "none", str(error.status)).inc()
            raise
        responder = HttpResponder(send, headers, chunks_max=self._chunks_max)
        identity = identify(scope, name, envelope, int(services.wall()))
        model = services.shown_model(envelope.model)
        run = RequestRun(
            emit=responder.put,
            services=services,
            envelope=envelope,
            identity=identity,
            responder=responder,
            path=scope["path"],
            headers=forwarded_headers(scope, envelope),
            explain=header_of(scope, EXPLAIN_HEADER) == b"1",
            frame=Frame(identity.response_id, _KINDS[api], identity.created, model),
            marks=Marks(arrived=arrived),
            capability=services.capability,
            attempts_max=services.attempts_max,
            per_prompt_relay=services.per_prompt_relay,
            obfuscated=services.obfuscated,
        )
        supervision = _Supervision(run, responder, deadline=arrived + services.infer_timeout_s)
        self._live.add(supervision)
        try:
            with services.leases.hold("contexts"), self._journal.live(supervision.describe):
                await supervision.run()
        finally:
            self._live.discard(supervision)


class _Route:
    def __init__(self, inference: Inference, api: Api) -> None:
        self._inference = inference
        self._api: Api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._inference.serve(self._api, scope, receive, send)


class _Supervision:
    """One request's nursery."""

    def __init__(self, request: RequestRun, responder: HttpResponder, *, deadline: float) -> None:
        self._request = request
        self._responder = responder
        self._flow = Flow(request_effects, request, deadline=deadline)
        self._scope = trio.CancelScope()
        self._eviction: MotorFlowError | None = None
        responder.on_gone = self.leave

    def leave(self) -> None:
        """The client has left."""
        self._scope.cancel(reason="client disconnected")

    def evict(self, error: MotorFlowError) -> None:
        """End the request now, with this error."""
        self._eviction = error
        self._scope.cancel(reason=error.message)

    async def run(self) -> None:
        services, responder = self._request.services, self._responder
        failure: Failure | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(responder.run)
                if services.keep_alive_s:
                    nursery.start_soon(responder.keep_alive, services.keep_alive_s)
                with self._scope:
                    await self._flow.run()
                failure = self._failure()
                if failure is not None:
                    await self._report(failure)
                nursery.cancel_scope.cancel(reason="the request has ended")
        finally:
            record(self._flow, failure)

    def _failure(self) -> Failure | None:
        """What to tell the client, when the request did not complete."""
        flow = self._flow
        if flow.state == "completed" or (flow.state == "cancelled" and self._eviction is None):
            return None
        error = self._eviction or flow.fault
        stage = STAGES[flow.trace[-1][0].source]
        if not isinstance(error, MotorFlowError):
            _log.error(
                "bug",
                request_id=self._request.identity.request_id,
                phase=stage,
                trace=[str(edge) for edge, _ in flow.trace],
                exc_info=error,
            )
            return Failure(MotorFlowError("internal error"), stage)
        _explain(self._request, error)
        # A plain error was raised by the flow itself or from outside: it belongs to where the request was.
        return Failure(error, stage if type(error) in (MotorFlowError, Overdue) else error.stage)

    async def _report(self, failure: Failure) -> None:
        responder, error = self._responder, failure.error
        body = error.encode(failure.stage)
        if responder.sealed and self._request.envelope.api == "other":
            await responder.finish(b"event: error\ndata: %b\n\n" % body)
        elif responder.sealed:
            await responder.finish(b"data: %b\n\n%b" % (body, DONE))
        elif not responder.answered:
            headers: Headers = [JSON, *error_headers(error)]
            if self._request.engine_asked:
                headers.append((b"x-should-retry", b"false"))
            await responder.respond(error.status, body, headers)

    def describe(self) -> dict[str, Any]:
        """For /debug/requests: states, times and counts."""
        flow, request = self._flow, self._request
        now = trio.current_time()
        entered = flow.trace[-1][1] if flow.trace else flow.started
        return {
            "request_id": request.identity.request_id,
            "api": request.envelope.api,
            "stream": request.stream,
            "route": request.route,
            "reason": request.native_reason,
            "state": flow.state,
            "dwell_s": round(now - entered, 3),
            "silent_s": round(now - (request.marks.last_chunk or request.marks.arrived), 3),
            "age_s": round(now - request.marks.arrived, 3),
            "attempt": request.attempt,
            "instances": [leg.instance.name for leg in request.legs],
            "placements": [leg.reason for leg in request.legs[:PLACEMENTS_SHOWN_MAX]],
            "prompts": [
                {"progress": prompt.progress, "attempts": prompt.attempts, "committed": prompt.committed}
                for prompt in request.prompts
            ],
            "prompt_tokens": request.prompt_tokens,
            "completion_tokens": request.completion_tokens,
            "streams": len(request.streams),
            "streams_finished": sum(stream.finish is not None for stream in request.streams),
            "visible": request.visible,
            "sealed": self._responder.sealed,
        }


def _explain(run: RequestRun, error: MotorFlowError) -> None:
    """A client that has seen a part of its answer is told why it does not go on on another engine."""
    if not run.visible or not isinstance(error, EngineError) or not TREATMENTS[error.fault].retried:
        return
    broken = [prompt for prompt in run.prompts if prompt.progress == "broken"]
    if run.route == "native":
        reason: str | None = "it is not served token by token"
    elif len(run.prompts) > 1 and not run.per_prompt_relay:
        reason = "prompts of a list are not relayed on their own (stream_config.per_prompt_relay)"
    else:
        reasons = (obstacle(prompt.prompt) for prompt in broken if prompt.prompt is not None)
        reason = next(filter(None, reasons), None) or f"attempts are used up ({run.attempts_max})"
    error.message += f"; the answer cannot go on elsewhere: {reason}"
