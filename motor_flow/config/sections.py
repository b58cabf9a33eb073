"""What may be configured, and with which limits?

Field names are MindIE Motor's own wherever Motor has one; `load.py` reads the file. Nothing is converted silently: a
number in quotes is a fault, not a number.

Source: RFC 配置; MindIE Motor's user_config.json.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

DIGEST = re.compile(r"^[0-9a-fA-F]{64}$")
INSTANCE_ID_MAX = 2**32 - 1  # above it are the ids of further data-parallel ranks
WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104 - refused
HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?")

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Role = Literal["union", "prefill", "decode"]
Profile = Literal["handoff", "trigger"]


class Section(BaseModel):
    """Shared rules: no unknown keys, no silent conversions, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True, protected_namespaces=())


class ModelSection(Section):
    """The served model. May be left out where an engine's `/v1/models` names it."""

    model_name: str = ""
    model_path: str = Field("", description="directory of tokenizer and config, for the local tokenizer fallback")
    max_model_len: int = Field(0, ge=0, description="tokens; 0: as the engines say")


class ApiSection(Section):
    """Where we listen. Port 0 takes a free port."""

    coordinator_api_host: str = "127.0.0.1"
    coordinator_api_infer_port: Port = 1025
    coordinator_api_mgmt_port: Port = 1026
    coordinator_obs_port: Port = 1027

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        ports = [self.coordinator_api_infer_port, self.coordinator_api_mgmt_port, self.coordinator_obs_port]
        taken = [port for port in ports if port]
        if len(set(taken)) != len(taken):
            raise ValueError("the inference, management and observability ports must differ")
        return self


class EndpointSection(Section):
    """One Render sidecar: a TCP address or a Unix socket."""

    host: str = ""
    port: Port = 0
    uds: str = ""

    @model_validator(mode="after")
    def _one_address(self) -> Self:
        if bool(self.uds) == bool(self.host):
            raise ValueError("give either host and port, or uds")
        if self.host and not self.port:
            raise ValueError("port is missing")
        if self.host and not HOST.fullmatch(self.host):
            raise ValueError(f"not a host name or address: {self.host!r}")
        return self

    @property
    def url(self) -> str:
        """Base URL; a Unix socket has one only for the sake of the Host header."""
        if self.uds:
            return "http://localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class RenderSection(Section):
    """The Render sidecar, which turns requests into token ids and tokens into answers."""

    enable: bool = True
    image_name: str = Field("", description="used by deployment files only")
    endpoint: EndpointSection = EndpointSection(host="127.0.0.1", port=8100)
    endpoints: list[EndpointSection] = Field([], description="several sidecars; replaces endpoint")
    timeout_ms: int = Field(5000, ge=1, description="one Render or Derender call; in a stream, each chunk's call")
    renderer_num_workers: Count = Field(4, description="used by deployment files only")
    derender_retries: int = Field(1, ge=0, le=1, description="repeats of a derender call whose connection broke")
    enable_streaming: bool = Field(True, description="Motor's other shape: stream through the chain too")  # noqa: FBT003
    launch_args: dict[str, Any] = Field({}, description="Motor's other shape: sidecar flags, for deployment only")

    @property
    def sidecars(self) -> list[EndpointSection]:
        return self.endpoints or [self.endpoint]


class InstanceSection(Section):
    """One engine instance."""

    id: int = Field(ge=0, le=INSTANCE_ID_MAX)
    role: Role
    url: str
    dispatch_profile: Profile | None = None
    kv_connector: str = ""
    kv_lease_s: Seconds = 30.0

    @field_validator("url")
    @classmethod
    def _is_origin(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not HOST.fullmatch(parts.hostname or ""):
            raise ValueError("not an http:// or https:// URL")
        if parts.hostname in WILDCARDS:
            raise ValueError("an engine cannot be asked at a wildcard address")
        if parts.path.rstrip("/") or parts.query or parts.fragment:
            raise ValueError("must be a base URL without a path: API paths are added here")
        _ = parts.port  # raises for one that is none
        return url


class SchedulerSection(Section):
    """Which instance serves a request."""

    scheduler_type: Literal["round_robin", "load_balance", "kv_cache_affinity"] = "load_balance"
    enable_pd_separation_fallback_to_hybrid: bool = True


class ExceptionSection(Section):
    """Attempts and time limits, in seconds."""

    max_retry: Count = Field(5, description="attempts a request may have, the first included")
    retry_delay: float = Field(0.2, ge=0, description="before the second attempt; doubles each time")
    reschedule_enabled: bool = True
    connect_timeout: Seconds = 5.0
    first_token_timeout: Seconds = Field(600.0, description="to the first chunk of an attempt")
    stall_timeout: Seconds = Field(60.0, description="between two chunks")
    infer_timeout: Seconds = Field(3600.0, description="the whole request, from its arrival")


class FlowControlSection(Section):
    """Admission in tokens: prompt plus output budget of all choices."""

    enable: bool = True
    max_inflight_tokens: Count = 1_000_000
    max_queue_requests: int = Field(1024, ge=0)
    max_queue_wait_ms: int = Field(30_000, ge=0)
    unasked_output_tokens: Count = Field(2048, description="budget of a request that names none")


class RateLimitSection(Section):
    """A token bucket of requests."""

    enable_rate_limit: bool = False
    max_requests: Count = 1000
    window_size: Seconds = 60.0


class ConductorSection(Section):
    """The KV conductor that knows which instance holds which prefix."""

    conductor_service: str = Field("", description="host name or address; empty: there is none")
    http_server_port: Port = 13333
    block_size: Count = 128

    @field_validator("conductor_service")
    @classmethod
    def _is_host(cls, host: str) -> str:
        if host and not HOST.fullmatch(host):
            raise ValueError(f"not a host name or address: {host!r}")
        return host

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.conductor_service and not self.http_server_port:
            raise ValueError("http_server_port is missing")
        return self

    @property
    def url(self) -> str:
        """Base URL."""
        host = f"[{self.conductor_service}]" if ":" in self.conductor_service else self.conductor_service
        return f"http://{host}:{self.http_server_port}"


class ObfuscationSection(Section):
    """Token obfuscation: engines and conductor see permuted ids only."""

    enable: bool = False
    provider: Literal["permutation", "ai_asset_obfuscate"] = "permutation"
    seed_content: str = Field("", repr=False)
    vocab_size: int = Field(0, ge=0, description="0: as config.json in model_config.model_path says")
    token_white_list: list[Annotated[int, Field(ge=0)]] = Field([], description="every special token belongs here")

    @model_validator(mode="after")
    def _seeded(self) -> Self:
        length = len(self.seed_content)
        if self.enable and not length:
            raise ValueError("seed_content is missing")
        if self.enable and self.provider == "ai_asset_obfuscate" and not 32 <= length <= 112:
            raise ValueError(f"seed_content must have 32 to 112 characters for this provider, has {length}")
        if self.vocab_size and max(self.token_white_list, default=0) >= self.vocab_size:
            raise ValueError(f"token_white_list: {max(self.token_white_list)} is no id of {self.vocab_size}")
        return self


class BreakerSection(Section):
    """Circuit breaker of an instance."""

    failure_threshold: Count = 3
    open_seconds: Seconds = 30.0
    open_seconds_max: Seconds = 300.0

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.open_seconds_max < self.open_seconds:
            raise ValueError("open_seconds_max must not be smaller than open_seconds")
        return self


class StreamSection(Section):
    """What a streaming client gets, and how much of it may wait."""

    queue_chunks_max: Count = 64
    sse_keep_alive_interval: float = Field(15.0, ge=0, description="seconds without a byte before a comment; 0: off")
    choices_max: Count = Field(2048, description="prompts x n that one request may ask for")
    coalesce: bool = Field(True, description="merge engine chunks that wait behind a derender call")  # noqa: FBT003
    per_prompt_relay: bool = True
    client_stall_timeout: Seconds = Field(60.0, description="a client that reads nothing for so long is gone")


class UpstreamSection(Section):
    """How we authenticate at engines and sidecars."""

    api_key: Annotated[str, Field(pattern=r"^[\x21-\x7e]*$")] = Field("", repr=False)


class ResponseSection(Section):
    """Shape of answers."""

    reasoning_field: Literal["reasoning", "reasoning_content", "both"] = "reasoning"


class DrainSection(Section):
    """Shutdown."""

    timeout: Seconds = Field(300.0, description="how long open streams may go on after SIGTERM")


class WorkersSection(Section):
    """Processes."""

    num_workers: Count = 1


class MetaserverSection(Section):
    """Callbacks of Trigger decode engines."""

    advertised_host: str = "127.0.0.1"
    base_port: Port = 12000


def _digest(value: str) -> str:
    if DIGEST.match(value) is None:
        raise ValueError('must be a sha256 digest, 64 hexadecimal digits: printf %s "$KEY" | sha256sum')
    return value


class ApiKeySection(Section):
    """Client keys, as sha256 hex digests."""

    enable_api_key: bool = False
    valid_keys: list[Annotated[str, AfterValidator(_digest), Field(json_schema_extra={"pattern": DIGEST.pattern})]] = []

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.enable_api_key and not self.valid_keys:
            raise ValueError("enable_api_key needs at least one entry in valid_keys")
        return self


class TlsSection(Section):
    """TLS of one listener."""

    enable_tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    passwd_file: str = ""
    crl_file: str = ""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.enable_tls and not (self.cert_file and self.key_file):
            raise ValueError("enable_tls needs cert_file and key_file")
        return self

    @property
    def files(self) -> list[str]:
        """Every file that is needed."""
        named = (self.cert_file, self.key_file, self.passwd_file, self.ca_file, self.crl_file)
        return [path for path in named if path] if self.enable_tls else []


class Config(Section):
    """The whole configuration."""

    model: ModelSection = Field(ModelSection(), alias="model_config")
    api: ApiSection = Field(ApiSection(), alias="api_config")
    render: RenderSection = Field(RenderSection(), alias="render_config")
    instances: list[InstanceSection] = []
    scheduler: SchedulerSection = Field(SchedulerSection(), alias="scheduler_config")
    exceptions: ExceptionSection = Field(ExceptionSection(), alias="exception_config")
    context_budget_mode: Literal["off", "on"] = "off"
    flow_control: FlowControlSection = Field(FlowControlSection(), alias="flow_control_config")
    rate_limit: RateLimitSection = Field(RateLimitSection(), alias="rate_limit_config")
    conductor: ConductorSection = Field(ConductorSection(), alias="prefill_kv_event_config")
    obfuscation: ObfuscationSection = Field(ObfuscationSection(), alias="token_obfuscation_config")
    breaker: BreakerSection = Field(BreakerSection(), alias="circuit_breaker_config")
    stream: StreamSection = Field(StreamSection(), alias="stream_config")
    upstream: UpstreamSection = Field(UpstreamSection(), alias="upstream_config")
    response: ResponseSection = Field(ResponseSection(), alias="response_config")
    drain: DrainSection = Field(DrainSection(), alias="drain_config")
    workers: WorkersSection = Field(WorkersSection(), alias="inference_workers_config")
    metaserver: MetaserverSection = Field(MetaserverSection(), alias="metaserver_config")
    api_key: ApiKeySection = Field(ApiKeySection(), alias="api_key_config")
    infer_tls: TlsSection = Field(TlsSection(), alias="infer_tls_config")
    mgmt_tls: TlsSection = Field(TlsSection(), alias="mgmt_tls_config")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        ids = [str(instance.id) for instance in self.instances]
        urls = [instance.url.rstrip("/") for instance in self.instances]
        for key, values in (("id", ids), ("url", urls)):
            for number, value in enumerate(values):
                if (first := values.index(value)) != number:
                    raise ValueError(f"instances[{number}].{key}: {value} is given twice, see instances[{first}]")
        if self.obfuscation.enable and not self.render.enable:
            raise ValueError("token_obfuscation_config.enable: needs render_config.enable, engines must read no text")
        return self
