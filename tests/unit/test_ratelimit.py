"""The bucket: full at the start, one token a request, refilled evenly, never overfull."""

from __future__ import annotations

import pytest
import trio

from motor_flow.config.sections import RateLimitSection
from motor_flow.edge.allowance import request_headers, retry_headers
from motor_flow.scheduling.ratelimit import RateLimit, RateLimited


def bucket(requests=5, window_s=10.0):
    return RateLimit(RateLimitSection(enable_rate_limit=True, max_requests=requests, window_size=window_s))


async def test_as_many_as_it_holds(autojump_clock):
    rate = bucket()
    assert [rate.take().remaining for _ in range(5)] == [4, 3, 2, 1, 0]
    with pytest.raises(RateLimited) as refused:
        rate.take()
    error = refused.value
    assert (error.status, error.stage, error.retry_after_s) == (429, "admission", pytest.approx(2))
    assert (error.standing.remaining, error.standing.full_in_s) == (0, pytest.approx(10))


async def test_it_fills_evenly(autojump_clock):
    rate = bucket()
    for _ in range(5):
        rate.take()
    served = 0
    for _ in range(100):
        await trio.sleep(0.5)
        try:
            rate.take()
            served += 1
        except RateLimited:
            pass
    assert served == 25


@pytest.mark.parametrize(("requests", "window_s"), [(3, 0.7), (1000, 60.0), (7, 3600.0)])
async def test_who_waits_as_long_as_told_is_served(autojump_clock, requests, window_s):
    rate = bucket(requests, window_s)
    for _ in range(requests):
        rate.take()
    for _ in range(50):
        with pytest.raises(RateLimited) as refused:
            rate.take()
        await trio.sleep(refused.value.retry_after_s)
        rate.take()


async def test_it_is_never_overfull(autojump_clock):
    rate = bucket()
    rate.take()
    await trio.sleep(1000)
    assert rate.take().remaining == 4


async def test_headers_say_where_one_stands(autojump_clock):
    assert dict(request_headers(bucket().take())) == {
        b"x-ratelimit-limit-requests": b"5",
        b"x-ratelimit-remaining-requests": b"4",
        b"x-ratelimit-reset-requests": b"2.000s",
        b"x-ratelimit-limit": b"5",
        b"x-ratelimit-remaining": b"4",
        b"x-ratelimit-window": b"10",
    }


@pytest.mark.parametrize(
    ("after_s", "seconds", "millis"), [(0.03, b"1", b"30"), (1.2, b"2", b"1200"), (3, b"3", b"3000")]
)
def test_seconds_are_rounded_up(after_s, seconds, millis):
    assert dict(retry_headers(after_s)) == {b"retry-after": seconds, b"retry-after-ms": millis}
