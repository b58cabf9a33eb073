"""How many requests may arrive in a time?

A bucket holds one token per request, is full at the start, and is refilled evenly. Who finds it empty is refused at
once. It counts HTTP requests, whatever they ask for and whatever becomes of them; it counts for one process.

Source: MindIE Motor's rate_limit_config (its `simple` limiter).
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from motor_flow.config.sections import RateLimitSection
from motor_flow.errors import AdmissionError

ROUNDING = 1e-9  # tokens; so that who waits as long as it was told is not refused for the last bit of a float


@dataclass(frozen=True, slots=True)
class Standing:
    """What the bucket looks like after a request.

    Attributes:
        limit: requests that may come at once when nobody has asked for a while.
        remaining: requests that may come right now.
        window_s: seconds in which an empty bucket fills.
        full_in_s: seconds until it is full, when nobody asks.

    """

    limit: int
    remaining: int
    window_s: float
    full_in_s: float


class RateLimited(AdmissionError):
    """Too many requests in too short a time."""

    def __init__(self, standing: Standing, retry_after_s: float) -> None:
        super().__init__(
            f"too many requests: the server takes {standing.limit} in {standing.window_s:g} s",
            retry_after_s=retry_after_s,
        )
        self.standing = standing


class RateLimit:
    """The bucket.

    Args:
        limits: its size, and the time in which it fills.

    """

    def __init__(self, limits: RateLimitSection) -> None:
        self._limit = limits.max_requests
        self._window_s = limits.window_size
        self._rate = self._limit / self._window_s
        self._tokens = float(self._limit)
        self._at: float | None = None

    def take(self) -> Standing:
        """Count one request.

        Raises:
            RateLimited: the bucket is empty.

        """
        now = trio.current_time()
        if self._at is not None:
            self._tokens = min(self._limit, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1 - ROUNDING:
            raise RateLimited(self._standing(), (1 - self._tokens) / self._rate)
        self._tokens = max(0.0, self._tokens - 1)
        return self._standing()

    def _standing(self) -> Standing:
        missing = self._limit - self._tokens
        return Standing(self._limit, int(self._tokens + ROUNDING), self._window_s, missing / self._rate)
