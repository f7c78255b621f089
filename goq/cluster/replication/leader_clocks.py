"""The clocks of the nodes that this node follows, compared with its own.

A fetch response carries the leader's wall time when it was sent. This node's wall time when it
arrives, minus that, is how far this clock is ahead, plus the time on the way. So the difference is
never taken too small. Times that are moved by it may come too late by the time on the way, and
never too early. The latest response counts, because clocks may be set.
"""

from __future__ import annotations

from goq.clock import Clock


class LeaderClocks:
    """Differences between this node's clock and those of other nodes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms: dict[str, int] = {}

    def note(self, node: str, clock_ms: int) -> None:
        """Note the wall time in a response of a node that has just arrived; 0 for none."""
        if clock_ms:
            self._ahead_ms[node] = self._clock.wall_ms() - clock_ms

    def ahead_of(self, node: str) -> int | None:
        """Return how far this node's clock is ahead of another's; None if that is not known."""
        return self._ahead_ms.get(node)
