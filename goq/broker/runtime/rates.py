"""How much happens in a topic a second, of late.

Nothing ticks. Before something is counted, its counter's value is noted if it is the first of its
second; so what happened since the beginning of any noted second is a difference of two values.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_SECONDS = 10


class Totals(NamedTuple):
    """Counts since the node started."""

    published_messages: int
    published_bytes: int
    delivered_messages: int
    acked_messages: int


class Rates(NamedTuple):
    """What happened a second, on the average of the last ``window_s``."""

    published_per_s: float
    published_bytes_per_s: float
    delivered_per_s: float
    acked_per_s: float
    window_s: float


class RecentTotals:
    """The counts at the beginnings of the last seconds in which something happened."""

    __slots__ = ("_seconds", "second")

    def __init__(self) -> None:
        self.second = -1
        """The last that was noted, of monotonic time."""
        self._seconds: deque[tuple[int, Totals]] = deque(maxlen=_SECONDS)

    def note(self, second: int, totals: Totals) -> None:
        """Take the counts before the first that happens in a second."""
        self.second = second
        self._seconds.append((second, totals))

    def rates(self, now_s: float, totals: Totals) -> Rates:
        """Return the rates over the last seconds, the one under way included."""
        first = int(now_s) - (_SECONDS - 1)
        before = next((noted for second, noted in self._seconds if second >= first), totals)
        window_s = now_s - first
        per_s = [(now - then) / window_s for now, then in zip(totals, before, strict=True)]
        return Rates._make((*per_s, window_s))
