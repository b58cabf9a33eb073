"""What is a prefill engine's promise worth, and for how long?

Source: MindIE Motor's handoff; vLLM 0.33 NixlConnector (a lease; a late or repeated use answers with stale KV).
"""

from __future__ import annotations

from typing import Any

import trio


class Ticket:
    """KV held on one prefill engine.

    Args:
        params: opaque, as the engine gave them.
        expires_at: trio clock, seconds; not to be used after it.

    Attributes:
        used: a decode leg has brought something with it.

    """

    __slots__ = ("expires_at", "params", "used")

    def __init__(self, params: dict[str, Any], expires_at: float) -> None:
        self.params = params
        self.expires_at = expires_at
        self.used = False

    @property
    def expired(self) -> bool:
        return trio.current_time() >= self.expires_at
