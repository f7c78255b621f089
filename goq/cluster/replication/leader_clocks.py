"""The clocks of the nodes that this node follows, compared with its own.

A fetch response carries the leader's wall time when it was sent. This node's wall time when it
arrives, minus that, is how far this clock is ahead, plus the time on the way. So the difference is
never taken too small. Times that are moved by it may come too late by the time on the way, and
never too early. Clocks may be set, and a node may start again with another one. So the response
that brought a partition's latest events counts for the deadlines in them, else the latest one. This
node's clock may be set after that response, too. So what is kept is how far the uptime is ahead,
which nobody sets.
"""

from __future__ import annotations

from collections.abc import Iterable

from goq.clock import Clock
from goq.cluster.replication.protocol import PartitionKey


class LeaderClocks:
    """Differences between this node's clock and those of other nodes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._uptime_ahead_us: dict[str, int] = {}
        self._at_events: dict[PartitionKey, tuple[str, int]] = {}

    def note(self, node: str, clock_ms: int, with_events: Iterable[PartitionKey] = ()) -> None:
        """Note the wall time in a response of a node that has just arrived; 0 for none.

        ``with_events`` are the partitions whose events it brings.
        """
        if not clock_ms:
            return
        ahead_us = self._uptime_ahead_us[node] = self._clock.uptime_us() - clock_ms * 1000
        for key in with_events:
            self._at_events[key] = (node, ahead_us)

    def ahead_of(self, node: str, key: PartitionKey) -> int | None:
        """Return how far this node's clock is ahead of the one that a partition's times are by.

        ``node`` is the leader that recorded them, "" for one that did not record itself. None if
        its clock is not known.
        """
        ahead_us = self._uptime_ahead_us.get(node)
        at_events = self._at_events.get(key)
        if at_events is not None and at_events[0] == node:
            ahead_us = at_events[1]
        if ahead_us is None:
            return None
        return (ahead_us + self._clock.wall_us() - self._clock.uptime_us()) // 1000

    def forget(self, key: PartitionKey) -> None:
        """Forget a partition that this node has no replica of any more."""
        self._at_events.pop(key, None)
