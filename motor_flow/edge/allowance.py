"""How is a client told what it may ask for, and when?

| header | from |
|---|---|
| `x-ratelimit-limit-requests`, `-remaining-requests`, `-reset-requests` | the rate limit, in OpenAI's names |
| `x-ratelimit-limit`, `-remaining`, `-window` | the rate limit, in MindIE Motor's names |
| `x-ratelimit-limit-tokens`, `-remaining-tokens` | flow control: what all requests together may hold |
| `retry-after`, `retry-after-ms` | a refusal that time may heal |

Each only where the limit is switched on; on answers and refusals alike. There is no `-reset-tokens`: tokens come back
when other requests end, which nobody can foretell.

Source: OpenAI API reference (rate limit headers); MindIE Motor rate limiting; RFC 9110 10.2.3.
"""

from __future__ import annotations

from math import ceil

from motor_flow.edge.asgi import Headers
from motor_flow.scheduling.ratelimit import Standing


def request_headers(standing: Standing) -> Headers:
    """About the rate limit."""
    limit, remaining = b"%d" % standing.limit, b"%d" % standing.remaining
    return [
        (b"x-ratelimit-limit-requests", limit),
        (b"x-ratelimit-remaining-requests", remaining),
        (b"x-ratelimit-reset-requests", b"%.3fs" % standing.full_in_s),
        (b"x-ratelimit-limit", limit),
        (b"x-ratelimit-remaining", remaining),
        (b"x-ratelimit-window", f"{standing.window_s:g}".encode()),
    ]


def token_headers(limit: int, remaining: int) -> Headers:
    """About flow control."""
    return [(b"x-ratelimit-limit-tokens", b"%d" % limit), (b"x-ratelimit-remaining-tokens", b"%d" % remaining)]


def retry_headers(after_s: float) -> Headers:
    """When to come again. Seconds are rounded up: who comes a moment too early is refused again."""
    return [(b"retry-after", b"%d" % max(1, ceil(after_s))), (b"retry-after-ms", b"%d" % max(1, ceil(after_s * 1e3)))]
