"""Filling a partition's ready queues from what the log says of its messages."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from goq.delivery.ready import Ready
from goq.storage.columns import Int64s


class Filling:
    """Puts messages from ``start`` up to ``end`` into ready queues.

    Everything enters in order of offset: rows as they are added, and in between, in the default
    lane, what no row speaks of. What was moved enters where it was moved to, and only there.
    """

    def __init__(
        self, ready: Ready, moved: dict[int, int], start: int, end: int, default_lane: int
    ) -> None:
        self._ready = ready
        self._start, self._end = start, end
        self._moved_to = moved
        self._moved = sorted(moved)
        self._default_lane = default_lane
        self._at = start

    def add(
        self,
        offsets: Int64s,
        lanes: Int64s,
        tenants: Int64s,
        is_ready: npt.NDArray[np.bool_],
        now_ms: int,
    ) -> None:
        """Take rows with rising offsets behind all before; only those that are ready enter."""
        put_moved(self._moved_to, offsets, lanes)
        breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
        for run in np.split(np.arange(len(offsets)), breaks):
            if not len(run):
                continue
            self._enter_plain(int(offsets[run[0]]), now_ms)
            self._at = max(self._at, int(offsets[run[-1]]) + 1)
            ready = run[is_ready[run] & (offsets[run] >= self._start)]
            self._ready.add_rows(offsets[ready], lanes[ready], tenants[ready], now_ms)

    def finish(self, now_ms: int) -> None:
        """Take what lies behind the last row."""
        self._enter_plain(self._end, now_ms)

    def _enter_plain(self, end: int, now_ms: int) -> None:
        """Let messages that no row speaks of stand in the default lane, or where they moved."""
        start, moved = self._at, self._moved
        for offset in moved[bisect_left(moved, start) : bisect_left(moved, end)]:
            if start < offset:
                self._ready.add(self._default_lane, 0, start, offset, now_ms)
            self._ready.add(self._moved_to[offset], 0, offset, offset + 1, now_ms)
            start = offset + 1
        if start < end:
            self._ready.add(self._default_lane, 0, start, end, now_ms)
        self._at = max(start, end)


def put_moved(moved: dict[int, int], offsets: Int64s, lanes: Int64s) -> None:
    """Put into ``lanes`` where messages were moved to."""
    if not moved:
        return
    for index, offset in enumerate(offsets.tolist()):
        lanes[index] = moved.get(offset, int(lanes[index]))
