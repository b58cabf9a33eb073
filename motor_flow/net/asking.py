"""What does a vLLM server say of itself?

GETs that cost it nothing: version and model cards. Sidecars and engines answer both.

Source: vLLM 0.33 `/version`, `/v1/models`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from motor_flow.errors import UNREADABLE
from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import TransportFault

ASK_TIMEOUT_S = 5.0


class _Version(msgspec.Struct):
    version: str


class _Models(msgspec.Struct):
    data: list[dict[str, Any]]


async def ask_version(http: HttpClient, url: str) -> str:
    """vLLM's version at this address, empty when it does not say.

    Raises:
        TransportFault: nobody answers.

    """
    reply = await http.call("GET", f"{url}/version", timeout_s=ASK_TIMEOUT_S)
    try:
        return msgspec.json.decode(reply.body, type=_Version).version if reply.status == 200 else ""
    except UNREADABLE:
        return ""


async def ask_models(http: HttpClient, url: str) -> list[dict[str, Any]]:
    """The model cards at this address, as far as it shows any."""
    try:
        reply = await http.call("GET", f"{url}/v1/models", timeout_s=ASK_TIMEOUT_S)
        cards = msgspec.json.decode(reply.body, type=_Models).data if reply.status == 200 else []
    except (TransportFault, *UNREADABLE):
        return []
    return [card for card in cards if isinstance(card.get("id"), str)]
