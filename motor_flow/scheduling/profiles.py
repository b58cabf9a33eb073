"""How can an engine's KV be handed over, judging by what it says of itself?

| what is known | profile |
|---|---|
| `dispatch_profile` | as given |
| capability `prefill_handoff_decode` | handoff |
| capability `concurrent_engine_sync` | trigger; none for SGLang, whose bootstrap is another protocol |
| a connector of the table below | handoff or trigger |
| MultiConnector | that of the first of its (at least two) connectors: it moves the KV, the others store it |
| anything else | none: the instance takes no part in a pair |

The first row that says something decides. A connector that nobody has checked is not guessed at.

Source: MindIE Motor's dispatch capabilities and connector names; vLLM `kv_transfer_config`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from motor_flow.config.sections import Profile

CONNECTORS: dict[str, Profile] = {
    "MooncakeConnectorV1": "handoff",
    "MooncakeHybridConnector": "handoff",
    "NixlConnector": "handoff",
    "MooncakeLayerwiseConnector": "trigger",
}
_BY_LOWER_NAME = {name.lower(): profile for name, profile in CONNECTORS.items()}
MULTI_CONNECTOR = "multiconnector"
CAPABILITIES: dict[str, Profile] = {"prefill_handoff_decode": "handoff", "concurrent_engine_sync": "trigger"}
BOOTSTRAPS = frozenset({"sglang"})


def profile_of(
    explicit: Profile | None,
    connector: str | Mapping[str, Any],
    *,
    capabilities: Iterable[str] = (),
    engine_type: str = "",
) -> Profile | None:
    """How this engine works in a pair; None: not at all.

    Args:
        explicit: `dispatch_profile`, which overrides everything.
        connector: its name, or vLLM's `kv_transfer_config`.
        capabilities: Motor's `dispatch_capabilities`.
        engine_type: the engine's family.

    """
    if explicit is not None:
        return explicit
    if engine_type.lower() in BOOTSTRAPS:
        return None
    known = next((CAPABILITIES[name] for name in capabilities if name in CAPABILITIES), None)
    return known or _of_connector(connector)


def connector_name(connector: str | Mapping[str, Any]) -> str:
    """The connector that moves the KV; empty when there is none to name."""
    if isinstance(connector, str):
        return connector.strip()
    name = str(connector.get("kv_connector") or "").strip()
    first = _first_of_several(connector) if name.lower() == MULTI_CONNECTOR else None
    return connector_name(first) if first is not None else name


def _of_connector(connector: str | Mapping[str, Any]) -> Profile | None:
    return _BY_LOWER_NAME.get(connector_name(connector).lower())


def _first_of_several(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    extra = config.get("kv_connector_extra_config")
    several = extra.get("connectors") if isinstance(extra, Mapping) else None
    if not isinstance(several, list) or len(several) < 2 or not isinstance(several[0], Mapping):
        return None
    return several[0]
