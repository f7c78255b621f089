"""A limit of messages a second: a token bucket, with time as an argument."""

from __future__ import annotations

import math
from collections.abc import Callable

from goq.errors import UsageError

_BURST_S = 0.1


class TokenBucket:
    """A token bucket: computes the wait before the next messages for ``rate`` a second.

    Unused tokens are kept for a tenth of a second, and for one message at least. More tokens may be
    taken than there are: the next caller waits for the debt.
    """

    def __init__(self, rate: float, now_s: float) -> None:
        self.rate = rate
        self._burst = max(1.0, rate * _BURST_S)
        self._tokens = self._burst
        self._at_s = now_s

    def take(self, count: int, now_s: float) -> float:
        """Take ``count`` tokens; return the wait in seconds."""
        earned = max(0.0, now_s - self._at_s) * self.rate
        self._tokens = min(self._burst, self._tokens + earned) - count
        self._at_s = max(self._at_s, now_s)
        return max(0.0, -self._tokens / self.rate)

    @property
    def batch(self) -> int:
        """The largest batch that keeps the rate smooth."""
        return max(1, round(self._burst))


class RateLimiter:
    """Delays messages to a rate; without a rate it never waits."""

    def __init__(
        self,
        rate: float | None,
        clock_s: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._bucket = None if rate is None else TokenBucket(rate, clock_s())
        self._clock_s = clock_s
        self._sleep = sleep

    @property
    def batch(self) -> int | None:
        """The largest batch; None without a rate."""
        return None if self._bucket is None else self._bucket.batch

    def wait(self, count: int = 1, before_sleep: Callable[[], None] | None = None) -> None:
        """Sleep until ``count`` messages may go; call ``before_sleep`` before a sleep."""
        if self._bucket is None:
            return
        delay_s = self._bucket.take(count, self._clock_s())
        if delay_s > 0:
            if before_sleep is not None:
                before_sleep()
            self._sleep(delay_s)


def parse_rate(text: str) -> float:
    """Return messages a second from ``100`` or ``100/s``; raise ``UsageError`` for other text."""
    number = text.removesuffix("/s")
    try:
        rate = float(number)
    except ValueError:
        rate = math.nan
    if not (0 < rate < math.inf):
        raise UsageError(
            f"--rate: {text!r} is not a number of messages a second, as in 100 or 50/s"
        )
    return rate
