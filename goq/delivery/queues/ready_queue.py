"""One ready queue: runs of offsets in the order in which they became ready, and their ready times.

A run is one number, ``start << 16 | count``: 8 bytes for a single message, and for as many as
65,535 consecutive ones. Offsets are below 2**48. Runs are numbered from the first that there ever
was, so that a cursor survives the removal of runs before it. Only the last run may still grow: a
reader at its end has not passed it yet.

**Ready times.** Messages that are ready when they are published become ready in the order of their
offsets. So one list of marks ``(offset, ready_ms)`` serves all queues of a partition
(:class:`ReadyTimes`): messages from this offset on, up to the next mark, became ready at this time.
Two rules keep the list small. A mark is made only when the time has moved on by
:data:`~goq.limits.READY_TIME_STEP_MS`. When there are many marks, those are dropped whose time
differs from the next by less than 1/64 of its age. A month with a message every 100 ms comes to a
thousand marks instead of 26 million. So a returned time is the true one or earlier, by at most the
step plus about 1/32 of the message's age when marks were dropped; it is never later. A clock that
is set back makes a mark of its own.

Runs that did not become ready in the order of offsets (matured, moved) have marks of their own in
the queue: from this run on, up to the next mark, ready at this time, or :data:`IN_ORDER`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from goq import limits

COUNT_BITS = 16
COUNT_MAX = (1 << COUNT_BITS) - 1
IN_ORDER = -1
_FEW = 32
_WINDOW = 4096
_AGE_SHARE = 64
_END = 1 << 62


class ReadyTimes:
    """The ready times of a partition's messages: marks in the order of offsets."""

    __slots__ = ("_offsets", "_thin_at", "_times_ms")

    def __init__(self) -> None:
        self._offsets = array("q")
        self._times_ms = array("q")
        self._thin_at = limits.READY_TIMES_MAX

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, ready_ms: int) -> None:
        """Record that messages from ``offset`` on, above all earlier ones, are ready since then."""
        if self._times_ms and not _need_two_marks(self._times_ms[-1], ready_ms):
            return
        self._offsets.append(offset)
        self._times_ms.append(ready_ms)
        if len(self._offsets) > self._thin_at:
            self._thin()
            self._thin_at = max(limits.READY_TIMES_MAX, 2 * len(self._offsets))

    def at(self, offset: int) -> int:
        """Return when a message that was added became ready."""
        return self._times_ms[max(0, bisect_right(self._offsets, offset) - 1)]

    def same_until(self, offset: int) -> int:
        """Return the first offset past ``offset`` that may have another time."""
        after = bisect_right(self._offsets, offset)
        return self._offsets[after] if after < len(self._offsets) else _END

    def trim(self, start_offset: int) -> None:
        """Drop the marks that matter only to messages before an offset."""
        covered = max(0, bisect_right(self._offsets, start_offset) - 1)
        del self._offsets[:covered]
        del self._times_ms[:covered]

    def _thin(self) -> None:
        now_ms = self._times_ms[-1]
        offsets, times_ms = self._offsets[:1], self._times_ms[:1]
        for index in range(1, len(self._offsets) - 1):
            time_ms, next_ms = self._times_ms[index], self._times_ms[index + 1]
            if not 0 <= next_ms - times_ms[-1] <= (now_ms - time_ms) // _AGE_SHARE:
                offsets.append(self._offsets[index])
                times_ms.append(time_ms)
        offsets.append(self._offsets[-1])
        times_ms.append(now_ms)
        self._offsets, self._times_ms = offsets, times_ms


class _Marks(NamedTuple):
    """The marks of a queue's own: from each run on, up to the next one's, ready at its time."""

    runs: array[int]
    times_ms: array[int]


class ReadyQueue:
    """The runs of one lane and tenant. ``first`` is the number of ``runs[0]``.

    ``slot`` is its index in :class:`~goq.delivery.queues.ready_queues.ReadyQueues`;
    ``last_arrival`` the number of its last entry in the arrival log.
    """

    __slots__ = (
        "_marks",
        "first",
        "lane",
        "last_arrival",
        "runs",
        "slot",
        "tenant",
    )

    def __init__(self, lane: int, tenant: int, slot: int) -> None:
        self.lane = lane
        self.tenant = tenant
        self.slot = slot
        self.last_arrival = -1
        self.first = 0
        self.runs = array("Q")
        self._marks: _Marks | None = None

    @property
    def end(self) -> int:
        """The number that the next new run will have."""
        return self.first + len(self.runs)

    def count_from(self, offset: int) -> int:
        """Return the number of messages of its runs from an offset on."""
        if len(self.runs) <= _FEW:
            pairs = [(run >> COUNT_BITS, run & COUNT_MAX) for run in self.runs]
            return sum([max(0, start + n - max(start, offset)) for start, n in pairs])
        runs = np.frombuffer(self.runs, np.uint64).astype(np.int64)
        starts = runs >> COUNT_BITS
        ends = starts + (runs & COUNT_MAX)
        return int(np.maximum(0, ends - np.maximum(starts, offset)).sum())

    def append(self, start: int, end: int, late_ms: int) -> int:
        """Add messages, ``late_ms`` their time or ``IN_ORDER``; return how many runs that made."""
        runs = self.runs
        is_marked = (late_ms >= 0 or self._marks is not None) and self._mark(late_ms)
        if runs and not is_marked:
            last = runs[-1]
            if (last >> COUNT_BITS) + (last & COUNT_MAX) == start:
                grown = min(COUNT_MAX - (last & COUNT_MAX), end - start)
                runs[-1] = last + grown
                start += grown
        if end == start + 1:
            runs.append(start << COUNT_BITS | 1)
            return 1
        before = len(runs)
        while start < end:
            count = min(COUNT_MAX, end - start)
            runs.append(start << COUNT_BITS | count)
            start += count
        return len(runs) - before

    def late_ms(self, run: int) -> int:
        """Return when a run became ready; ``IN_ORDER`` for a run in publish order."""
        if self._marks is None:
            return IN_ORDER
        mark = bisect_right(self._marks.runs, run) - 1
        return self._marks.times_ms[mark] if mark >= 0 else IN_ORDER

    def find_run(self, offset: int, index: int = 0) -> int:
        """Return the index, at or after ``index``, of the first run that ends past ``offset``.

        Returns ``len(runs)`` if there is none.
        """
        runs = self.runs
        near = min(index + _FEW, len(runs))
        for candidate in range(index, near):
            if (runs[candidate] >> COUNT_BITS) + (runs[candidate] & COUNT_MAX) > offset:
                return candidate
        for window in range(near, len(runs), _WINDOW):
            is_past = self._ends(window, window + _WINDOW) > offset
            found = int(is_past.argmax())
            if is_past[found]:
                return window + found
        return len(runs)

    def drop(self, count: int) -> int:
        """Remove the first runs; return the highest end of an offset among them."""
        if count > _FEW:
            highest = int(self._ends(0, count).max())
        else:
            dropped = self.runs[:count]
            highest = max(((run >> COUNT_BITS) + (run & COUNT_MAX) for run in dropped), default=0)
        del self.runs[:count]
        self.first += count
        if self._marks is not None:
            obsolete = max(0, bisect_right(self._marks.runs, self.first) - 1)
            del self._marks.runs[:obsolete]
            del self._marks.times_ms[:obsolete]
        return highest

    def head_end(self) -> int:
        """Return the end of the first run; there is one."""
        return (self.runs[0] >> COUNT_BITS) + (self.runs[0] & COUNT_MAX)

    def _ends(self, start: int, end: int) -> npt.NDArray[np.uint64]:
        packed = np.frombuffer(self.runs, dtype=np.uint64)[start:end]
        return (packed >> np.uint64(COUNT_BITS)) + (packed & np.uint64(COUNT_MAX))

    def _mark(self, late_ms: int) -> bool:
        if self._marks is None:
            self._marks = _Marks(array("q"), array("q"))
        last_ms = self._marks.times_ms[-1] if self._marks.times_ms else IN_ORDER
        if last_ms == late_ms:
            return False
        if IN_ORDER not in (last_ms, late_ms) and not _need_two_marks(last_ms, late_ms):
            return False
        self._marks.runs.append(self.end)
        self._marks.times_ms.append(late_ms)
        return True


def _need_two_marks(earlier_ms: int, later_ms: int) -> bool:
    return not earlier_ms <= later_ms < earlier_ms + limits.READY_TIME_STEP_MS
