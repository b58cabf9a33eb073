"""How are instances looked at and changed while the process runs?

`GET /instances` and `POST /instances/refresh`. A change is in effect when its answer is sent.

Source: contract section 4; MindIE Motor's management interface (shape of the answer).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from motor_flow.config.sections import BreakerSection
from motor_flow.edge.asgi import Receive, Scope, Send
from motor_flow.edge.identity import request_id
from motor_flow.edge.instances_body import Refresh, read_refresh
from motor_flow.edge.routes import JSON, read_body, respond, respond_json
from motor_flow.errors import ClientError
from motor_flow.scheduling.registry import Changes, Registry
from motor_flow.telemetry.log import get_logger

BODY_BYTES_MAX = 10 * 1024 * 1024
PATH = "/instances"
REFRESH_PATH = "/instances/refresh"
_log = get_logger()


class InstanceRoutes:
    """Both routes.

    Args:
        registry: instances.
        breaker: how the breakers of new ones are set.
        wall: Unix time, seconds.
        misfits: what does not fit, one line each.

    """

    def __init__(
        self,
        registry: Registry,
        breaker: BreakerSection,
        wall: Callable[[], float],
        misfits: Callable[[], list[str]],
    ) -> None:
        self._registry = registry
        self._misfits = misfits
        self._breaker = breaker
        self._wall = wall

    async def list(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        shown = [
            {
                "id": each.group,
                "dp_rank": each.dp_rank,
                "name": each.name,
                "role": each.role,
                "url": each.url,
                "state": each.state,
                "requests": each.requests,
                "load_tokens": each.load_tokens,
                "token_only": each.token_only,
                "tokenizer": each.tokenizer,
                "dispatch_profile": each.profile,
                "kv_connector": each.kv_connector,
            }
            for each in (*self._registry, *self._registry.leaving)
        ]
        await respond_json(send, {"instances": shown})

    async def refresh(self, scope: Scope, receive: Receive, send: Send) -> None:
        refresh = read_refresh(await read_body(receive, BODY_BYTES_MAX), self._breaker)
        message = self._apply(refresh)
        name = request_id(scope)
        body = {
            "request_id": name,
            "status": "success",
            "message": message,
            "data": {
                "timestamp": self._wall(),
                "event_type": refresh.event,
                "instance_count": len(refresh.groups),
            },
        }
        await respond(send, 200, msgspec.json.encode(body), [JSON, (b"x-request-id", name.encode())])

    def _apply(self, refresh: Refresh) -> str:
        registry, groups = self._registry, refresh.groups
        unknown = registry.missing(groups) if refresh.event == "del" else []
        changes = Changes([], [], [])
        if refresh.event in ("pause", "resume"):
            if missing := registry.missing(groups):
                raise ClientError(f"no such instance: {_listed(missing)}", status=404, param="instances")
            (registry.pause if refresh.event == "pause" else registry.resume)(groups)
        elif refresh.event == "del":
            changes = registry.delete(groups)
        else:
            changes = (registry.add if refresh.event == "add" else registry.set_all)(refresh.instances)
        happened = {kind: [each.name for each in some] for kind, some in changes._asdict().items() if some}
        if happened or refresh.event in ("pause", "resume") or refresh.unused:  # not the same list every few seconds
            _log.info("instances.refresh", kind=refresh.event, ids=groups, unused=refresh.unused, **happened)
        said = [f"{kind}: {', '.join(names)}" for kind, names in happened.items()]
        if refresh.unused:
            said.append(f"encode instances are not used: {_listed(refresh.unused)}")
        if unknown:
            said.append(f"not registered: {_listed(unknown)}")
        if changes.arrived:
            for line in self._misfits():
                said.append(f"attention: {line}")
                _log.warning("instances.misfit", detail=line)
        return f"{refresh.event} is done" + (f" ({'; '.join(said)})" if said else "")


def _listed(ids: list[int]) -> str:
    return ", ".join(map(str, ids))
