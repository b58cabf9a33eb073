"""Does an engine live, does it offer the token-only route, and does it offer anything else?

For the route an empty request is enough: who has it refuses the body, who has not refuses the route.

An engine that was started with `--tokens-only` has no tokenizer, and nothing says so. But it alone has the old abort
route, which without its method is refused with 405; the only other server with that route has /is_paused as well.

Source: contract section 6; vLLM 0.28, 0.32 and 0.33: scale_out/token_in_token_out/api_router.py (403 without
--enable-scale-out since 0.32; attach_router), rl/online/api_router.py.
"""

from __future__ import annotations

from machines.faults import Fault
from motor_flow.engine.token_only import GENERATE_PATH
from motor_flow.net.http import HttpClient
from motor_flow.net.http1 import Reply, TransportFault
from motor_flow.net.verdict import judge

HEALTH_PATH = "/health"
OLD_ABORT_PATH = "/abort_requests"
PAUSED_PATH = "/is_paused"  # of vLLM's development routes
PROBE_TIMEOUT_S = 5.0


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


async def lacks_tokenizer(http: HttpClient, url: str) -> bool:
    """It was started with `--tokens-only`; false as well when it cannot be asked."""
    try:
        old_abort = await http.call("GET", url + OLD_ABORT_PATH, timeout_s=PROBE_TIMEOUT_S)
        if old_abort.status != 405:
            return False
        paused = await http.call("GET", url + PAUSED_PATH, timeout_s=PROBE_TIMEOUT_S)
    except TransportFault:
        return False
    return paused.status == 404
