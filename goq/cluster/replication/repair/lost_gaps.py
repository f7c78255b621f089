"""The gaps of a replica's logs whose frames no replica has.

They are in memory only. A restarted node finds its damage again, and asks the other replicas again.
"""

from __future__ import annotations

import threading

from goq.storage.log.repair import Gap


class LostGaps:
    """Gaps by log: 0 messages, 1 events. Thread-safe: a follower changes them in threads."""

    def __init__(self) -> None:
        self._gaps: dict[int, frozenset[Gap]] = {0: frozenset(), 1: frozenset()}
        self._lock = threading.Lock()

    def add(self, which: int, gap: Gap) -> None:
        """Record that no replica has a gap."""
        with self._lock:
            self._gaps[which] |= {gap}

    def cover(self, which: int, start_offset: int, end_offset: int) -> bool:
        """Return whether all offsets of a range are lost."""
        reached = start_offset
        for gap in sorted(self._gaps[which]):
            if gap.start_offset <= reached < gap.end_offset:
                reached = gap.end_offset
        return reached >= end_offset

    def forget_from(self, which: int, offset: int) -> None:
        """Forget the gaps that reach beyond an offset, because the log was truncated there."""
        with self._lock:
            self._gaps[which] = frozenset(
                gap for gap in self._gaps[which] if gap.end_offset <= offset
            )
