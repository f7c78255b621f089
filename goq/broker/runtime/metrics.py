"""Counters and histograms of a node. Requests for metrics read them; nothing is pushed."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from pathlib import Path
from typing import NamedTuple

import msgspec

from goq import limits
from goq.histogram import Histogram
from goq.log_throttle import LogThrottle

_log = logging.getLogger("goq.broker")
_SLOW_PERIOD_S = 60.0

_SECONDS = 10


class Totals(NamedTuple):
    """Counts since the node started."""

    published_messages: int
    published_bytes: int
    delivered_messages: int
    acked_messages: int


class Rates(NamedTuple):
    """Rates per second, averaged over the last ``window_s``."""

    published_per_s: float
    published_bytes_per_s: float
    delivered_per_s: float
    acked_per_s: float
    window_s: float


class RecentTotals:
    """The counts at the start of the last active seconds."""

    __slots__ = ("_seconds", "second")

    def __init__(self) -> None:
        self.second = -1
        """The last recorded second of monotonic time."""
        self._seconds: deque[tuple[int, Totals]] = deque(maxlen=_SECONDS)

    def note(self, second: int, totals: Totals) -> None:
        """Record the counts before the first event of a second."""
        self.second = second
        self._seconds.append((second, totals))

    def rates(self, now_s: float, totals: Totals) -> Rates:
        """Return the rates over the last seconds, including the current one."""
        first = int(now_s) - (_SECONDS - 1)
        before = next((noted for second, noted in self._seconds if second >= first), totals)
        window_s = now_s - first
        per_s = [(now - then) / window_s for now, then in zip(totals, before, strict=True)]
        return Rates._make((*per_s, window_s))


class TopicCounts(msgspec.Struct):
    """The counts of a topic since the node started."""

    published_messages: int = 0
    published_bytes: int = 0
    duplicate_frames: int = 0
    delivered_messages: int = 0
    acked_messages: int = 0
    nacked_messages: int = 0
    expired_messages: int = 0
    deleted_messages: int = 0
    archived_messages: int = 0
    retention_stalls: int = 0


class GroupCounters(msgspec.Struct):
    """The counts of a group since the node started."""

    delivered_messages: int = 0
    acked_messages: int = 0
    nacked_messages: int = 0
    expired_messages: int = 0
    dead_messages: int = 0
    """The messages that this node dead-lettered as the leader; the group's state has all ever."""
    deleted_unread_messages: int = 0


class TopicStats(TopicCounts):
    """The counts of a topic, those of its groups, and its recent rates."""

    groups: defaultdict[str, GroupCounters] = msgspec.field(
        default_factory=lambda: defaultdict(GroupCounters)
    )
    change_count: int = 0
    """Grows with each change that the counts do not tell: of partitions, groups and settings."""
    last_append_ms: int = 0
    """When the last message was stored, 0 for none since the node started."""
    _recent: RecentTotals = msgspec.field(default_factory=RecentTotals)

    def begin(self, now_s: float) -> None:
        """Record the monotonic time before a rated event is counted."""
        second = int(now_s)
        if second != self._recent.second:
            self._recent.note(second, self._totals())

    def rates(self, now_s: float) -> Rates:
        """Return the recent rates."""
        return self._recent.rates(now_s, self._totals())

    def _totals(self) -> Totals:
        return Totals(
            self.published_messages,
            self.published_bytes,
            self.delivered_messages,
            self.acked_messages,
        )


class WriteTimes(Histogram):
    """The durations of writes with their syncs; a slow one is logged, one a period.

    All logs share a disk, so one that is slow is no news of each of a thousand logs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._throttle = LogThrottle(_SLOW_PERIOD_S)

    def note(self, seconds: float, now_s: float, log: Path) -> None:
        """Count one write to a log, which ended at ``now_s`` of monotonic time."""
        self.observe(seconds)
        if seconds < limits.SLOW_WRITE_S:
            return
        left_out = self._throttle.admit("slow", now_s)
        if left_out is not None:
            more = f" ({left_out} more before)" if left_out else ""
            _log.warning("a write to %s took %.1f s: the disk is slow%s", log, seconds, more)
