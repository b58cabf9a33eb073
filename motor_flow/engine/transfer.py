"""What is said to prefill and decode engines about KV, and what do they say?

```
handoff   prefill  <- do_remote_decode            -> ticket (opaque)
          decode   <- ticket, byte for byte
trigger   decode   <- do_remote_prefill, metaserver
          decode   -> callback (its blocks)
          prefill  <- the callback, turned round
```

The parameters go to both places where engine versions look: the top level and `sampling_params.extra_args`.

Source: MindIE Motor's handoff and trigger sequences; vllm-ascend mooncake_connector, mooncake_layerwise_connector; vLLM
0.33 NixlConnector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

KEY = "kv_transfer_params"
REMOTE_DECODE: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
_NOT_FOR_PREFILL = ("metaserver", "token_ids")


def remote_prefill(callback_url: str) -> dict[str, Any]:
    """For the decode engine that is to call back."""
    return {"do_remote_decode": False, "do_remote_prefill": True, "metaserver": callback_url}


def turned_round(callback: Mapping[str, Any]) -> dict[str, Any]:
    """A decode engine's callback, as its prefill engine must read it."""
    kept = {key: value for key, value in callback.items() if key not in _NOT_FOR_PREFILL}
    return {**kept, **REMOTE_DECODE}


def one_token(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling for a prefill leg. An answer that ended by itself would bring no ticket, hence the minimum."""
    return {**without_stops(sampling), "max_tokens": 1, "min_tokens": 1, "n": 1}


def without_stops(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling for an engine that is not to look for stop strings."""
    return {key: value for key, value in sampling.items() if key != "stop"}


def with_transfer(sampling: Mapping[str, Any], kv: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling that carries the parameters."""
    extra = sampling.get("extra_args")
    return {**sampling, "extra_args": {**(extra if isinstance(extra, dict) else {}), KEY: kv}}


def is_ticket(kv: object) -> TypeGuard[dict[str, Any]]:
    """The prefill engine keeps its blocks for a decode engine."""
    return isinstance(kv, dict) and kv.get("do_remote_prefill") is True
