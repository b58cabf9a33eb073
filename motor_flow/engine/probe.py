"""Does an engine live, does it offer the token-only route, and does it offer anything else?

For the route an empty request is enough: who has it refuses the body, who has not refuses the route.

An engine that was started with `--tokens-only` has no tokenizer, and nothing says so. But only there, and in vLLM's
development mode, is the old abort route, which refuses a GET with 405. Who has it is asked for the tokens of a letter.

Source: contract section 6; vLLM 0.28, 0.32 and 0.33: scale_out/token_in_token_out/api_router.py (403 without
--enable-scale-out since 0.32; attach_router), rl/online/api_router.py; /tokenize as seen on 0.28 and 0.33.
"""

from __future__ import annotations

from machines.faults import Fault
from motor_flow.engine.token_only import GENERATE_PATH
from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import Reply, TransportFault
from motor_flow.net.verdict import judge

HEALTH_PATH = "/health"
OLD_ABORT_PATH = "/abort_requests"
TOKENIZE_PATH = "/tokenize"
PROBE_TIMEOUT_S = 5.0
LETTER_TIMEOUT_S = 2.0


async def ask_health(http: HttpClient, url: str) -> str | None:
    """Why it does not seem to live; None when it does. Whether it works, only a request can tell."""
    try:
        reply = await http.call("GET", url + HEALTH_PATH, timeout_s=PROBE_TIMEOUT_S)
    except TransportFault as fault:
        return str(fault)
    return None if reply.status < 500 else f"{HEALTH_PATH} answered HTTP {reply.status}"


async def ask_token_only(http: HttpClient, url: str) -> Reply:
    """Its answer to an empty request.

    Raises:
        TransportFault: nobody answers.

    """
    return await http.call("POST", url + GENERATE_PATH, body=b"{}", timeout_s=PROBE_TIMEOUT_S)


async def offers_token_only(http: HttpClient, url: str) -> bool:
    """It refuses the request, not the route."""
    try:
        reply = await ask_token_only(http, url)
    except TransportFault:
        return False
    return judge(reply.status, reply.body) is Fault.REQUEST


async def has_tokenizer(http: HttpClient, url: str) -> bool | None:
    """It can read and write text; None when it cannot be asked."""
    try:
        old_abort = await http.call("GET", url + OLD_ABORT_PATH, timeout_s=LETTER_TIMEOUT_S)
        if old_abort.status >= 500:
            return None
        if old_abort.status != 405:
            return True
        letter = await http.call("POST", url + TOKENIZE_PATH, body=b'{"prompt":"a"}', timeout_s=LETTER_TIMEOUT_S)
    except TransportFault:
        return None
    return {200: True, 400: False}.get(letter.status)
