"""What does the body of `POST /instances/refresh` say?

Two shapes of an instance, which may be mixed:

```
short   {"id": 7, "role": "union", "url": "http://10.0.0.7:9001", ...}          as in the configuration: strict
Motor   {"id": 7, "role": "union", "endpoints": {"10.0.0.7": {"0": {"ip", "business_port", "headless"}, ...}}, ...}
```

Motor's bodies carry much that only its Controller knows (devices, heartbeats, ports of other planes); unknown keys are
ignored there. Each endpoint that listens is an engine of its own; its rank is its key, not its `id`. Endpoint status is
ignored, too: whom to use is said by the event, and a broken engine is found by its breaker. Encode instances are not
used here and are left out.

`del`, `pause` and `resume` need nothing but ids. All faults are listed, and then nothing is changed.

Source: contract section 4; MindIE Motor InsEventMsg, Instance and Endpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from motor_flow.config import InstanceSection
from motor_flow.config.sections import HOST, INSTANCE_ID_MAX, WILDCARDS, BreakerSection, Profile, Role, Seconds
from motor_flow.errors import UNREADABLE, ClientError
from motor_flow.net.http import origin_of
from motor_flow.scheduling.profiles import connector_name, profile_of
from motor_flow.scheduling.registry import RANK_STRIDE, Instance, new_breaker

Event = Literal["add", "del", "set", "pause", "resume"]
RANK_MAX = 2**20
USED_AS: dict[str, Role | None] = {
    "union": "union",
    "both": "union",
    "hybrid": "union",
    "prefill": "prefill",
    "decode": "decode",
    "encode": None,
}


@dataclass(frozen=True, slots=True)
class Refresh:
    """A body that makes sense.

    Attributes:
        event: what to do.
        groups: the ids that are named, in order.
        instances: for `add` and `set`.
        unused: ids of encode instances.

    """

    event: Event
    groups: list[int] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    unused: list[int] = field(default_factory=list)


class _Foreign(BaseModel):
    """Another program's object: what we do not know is none of our business, what we know is checked."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, protected_namespaces=())


class _Body(_Foreign):
    event: Event
    instances: list[dict[str, Any]]


class _Named(_Foreign):
    id: int = Field(ge=0, le=INSTANCE_ID_MAX)


def _not_wildcard(ip: str) -> str:
    if ip in WILDCARDS:
        raise ValueError("an engine cannot be asked at a wildcard address")
    return ip


class _Endpoint(_Foreign):
    ip: Annotated[str, Field(pattern=f"^({HOST.pattern})$"), AfterValidator(_not_wildcard)]
    business_port: Annotated[int, Field(ge=1, le=65535, strict=False)]
    headless: bool = False


class _MotorInstance(_Named):
    role: Literal["encode", "prefill", "decode", "union", "both", "hybrid"]
    model_name: str = ""
    engine_type: str | None = None
    dispatch_capabilities: list[str] = []
    dispatch_profile: Profile | None = None
    kv_connector: str = ""
    kv_transfer_config: dict[str, Any] | None = None
    kv_lease_s: Seconds = 30.0
    enable_multi_endpoints: bool = True
    endpoints: dict[str, dict[str, _Endpoint]]


def read_refresh(raw: bytes, breaker: BreakerSection) -> Refresh:
    """Read a body.

    Raises:
        ClientError: it makes no sense; every fault is named with its instance and field.

    """
    try:
        document = msgspec.json.decode(raw)
    except UNREADABLE as exc:
        raise ClientError(f"the body is not JSON: {exc}") from None
    if not isinstance(document, dict):
        raise ClientError('the body must be an object: {"event": ..., "instances": [...]}')
    try:
        body = _Body.model_validate(document)
    except ValidationError as exc:
        raise _refused(list(_lines(exc, ""))) from None
    if not body.instances and body.event != "set":
        raise ClientError(f"instances: {body.event} needs at least one", param="instances")
    reader = _Reader(breaker)
    for index, item in enumerate(body.instances):
        reader.read(index, item, named_only=body.event not in ("add", "set"))
    if reader.faults:
        raise _refused(reader.faults)
    return Refresh(body.event, list(reader.where), reader.instances, reader.unused)


class _Reader:
    """The instances of one body, and what is wrong with them."""

    def __init__(self, breaker: BreakerSection) -> None:
        self._breaker = breaker
        self.instances: list[Instance] = []
        self.unused: list[int] = []
        self.faults: list[str] = []
        self.where: dict[int, str] = {}
        self._urls: dict[str, str] = {}

    def read(self, index: int, item: dict[str, Any], *, named_only: bool) -> None:
        where = f"instances[{index}]"
        if isinstance(item.get("id"), int):
            where += f" (id {item['id']})"
        try:
            if named_only:
                self._name(_Named.model_validate(item).id, where)
            elif "endpoints" in item:
                self._take_group(_MotorInstance.model_validate(item), where)
            elif "url" in item:
                section = InstanceSection.model_validate(item)
                if self._name(section.id, where):
                    self._take(Instance.of(section, self._breaker), where)
            else:
                self.faults.append(f"{where}: neither url nor endpoints is given")
        except ValidationError as exc:
            self.faults += _lines(exc, where)

    def _name(self, group: int, where: str) -> bool:
        """Note an id; false when it was there before."""
        if group in self.where:
            self.faults.append(f"{where}: the same id as {self.where[group]}")
            return False
        self.where[group] = where
        return True

    def _take(self, instance: Instance, where: str) -> None:
        if instance.url in self._urls:
            self.faults.append(f"{where}: the same address as {self._urls[instance.url]}, {instance.url}")
        self._urls[instance.url] = where
        self.instances.append(instance)

    def _take_group(self, motor: _MotorInstance, where: str) -> None:
        if not self._name(motor.id, where):
            return
        role = USED_AS[motor.role]
        if role is None:
            self.unused.append(motor.id)
            del self.where[motor.id]
            return
        ranks: set[int] = set()
        for path, rank, endpoint in self._listening(motor, where):
            if rank in ranks:
                self.faults.append(f"{path}: rank {rank} is given twice")
                continue
            ranks.add(rank)
            self._take(_instance(motor, role, rank, endpoint, self._breaker), where)
        if not ranks and not self.faults:
            self.faults.append(f"{where}.endpoints: none that can be asked")

    def _listening(self, motor: _MotorInstance, where: str) -> Iterator[tuple[str, int, _Endpoint]]:
        for pod, endpoints in motor.endpoints.items():
            for key, endpoint in endpoints.items():
                path = f"{where}.endpoints.{pod}.{key}"
                if not (key.isascii() and key.isdigit() and int(key) <= RANK_MAX):
                    self.faults.append(f"{path}: the key must be a data-parallel rank")
                elif not endpoint.headless and (motor.enable_multi_endpoints or int(key) == 0):
                    yield path, int(key), endpoint


def _instance(motor: _MotorInstance, role: Role, rank: int, endpoint: _Endpoint, breaker: BreakerSection) -> Instance:
    host = f"[{endpoint.ip}]" if ":" in endpoint.ip else endpoint.ip
    url = f"http://{host}:{endpoint.business_port}"
    connector = motor.kv_transfer_config or motor.kv_connector
    engine_type = motor.engine_type or ""
    return Instance(
        motor.id + rank * RANK_STRIDE,
        role,
        url,
        origin_of(url),
        breaker=new_breaker(breaker),
        profile=profile_of(
            motor.dispatch_profile, connector, capabilities=motor.dispatch_capabilities, engine_type=engine_type
        ),
        kv_connector=connector_name(connector),
        kv_lease_s=motor.kv_lease_s,
        engine_type=engine_type,
        model=motor.model_name,
        dp_rank=rank,
    )


def _refused(faults: list[str]) -> ClientError:
    return ClientError("; ".join(faults), param="instances")


def _lines(error: ValidationError, where: str) -> Iterator[str]:
    for each in error.errors(include_url=False, include_context=False, include_input=False):
        path = where
        for part in each["loc"]:
            path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
        what = "unknown key" if each["type"] == "extra_forbidden" else each["msg"].removeprefix("Value error, ")
        yield f"{path}: {what}"
