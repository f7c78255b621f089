"""Making a partition's ready queues anew from what the log says of its messages.

That happens when a partition opens, and again when a group begins or goes back before what the
queues still hold: what all groups are past is dropped from them.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from goq.delivery.partition import PartitionState
from goq.delivery.ready import Ready
from goq.storage.columns import Int64s


class Filling:
    """Ready queues that are being filled with messages from ``start`` up to ``end``.

    Everything enters in order of offset: rows as they are added, and in between, in the default
    lane, what no row speaks of.
    """

    def __init__(
        self, ready: Ready, state: PartitionState, start: int, end: int, default_lane: int
    ) -> None:
        self.ready = ready
        self.start, self.end = start, end
        self._moved_to = state.moved
        self._moved = sorted(state.moved)
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
            ready = run[is_ready[run] & (offsets[run] >= self.start)]
            self.ready.add_rows(offsets[ready], lanes[ready], tenants[ready], now_ms)

    def finish(self, now_ms: int) -> Ready:
        """Return the queues, complete from ``start`` on."""
        self._enter_plain(self.end, now_ms)
        self.ready.complete_from = self.start
        return self.ready

    def _enter_plain(self, end: int, now_ms: int) -> None:
        """Let messages that no row speaks of stand in the default lane, or where they moved."""
        start, moved = self._at, self._moved
        for offset in moved[bisect_left(moved, start) : bisect_left(moved, end)]:
            if start < offset:
                self.ready.add(self._default_lane, 0, start, offset, now_ms)
            self.ready.add(self._moved_to[offset], 0, offset, offset + 1, now_ms)
            start = offset + 1
        if start < end:
            self.ready.add(self._default_lane, 0, start, end, now_ms)
        self._at = max(start, end)


def put_moved(moved: dict[int, int], offsets: Int64s, lanes: Int64s) -> None:
    """Put into ``lanes`` where messages were moved to."""
    if not moved:
        return
    for index, offset in enumerate(offsets.tolist()):
        lanes[index] = moved.get(offset, int(lanes[index]))
