"""When messages became ready, by offset: a few marks for a whole partition.

Messages that are ready as they are published become ready in the order of their offsets. So one
list of marks ``(offset, ready_ms)`` serves all their queues: from this offset on, until the next
mark, messages were ready at this time. Two things keep it small. A mark is made only when the
time has moved on by :data:`~goq.limits.READY_TIME_STEP_MS`; and when there are many marks, those
are dropped that tell apart what is 1/64 of its age apart. A month of a message every 100 ms comes
to a thousand marks instead of 26 million.

A time told is therefore the true one or earlier, by no more than the step and about 1/32 of the
age that the message had when marks were dropped; never later. A clock that is set back makes a
mark of its own.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

from goq import limits

_AGE_SHARE = 64
_END = 1 << 62


def is_apart(earlier_ms: int, later_ms: int) -> bool:
    """Return whether two times need a mark each."""
    return not earlier_ms <= later_ms < earlier_ms + limits.READY_TIME_STEP_MS


class ReadyTimes:
    """Marks in the order of offsets."""

    __slots__ = ("_offsets", "_thin_at", "_times_ms")

    def __init__(self) -> None:
        self._offsets = array("q")
        self._times_ms = array("q")
        self._thin_at = limits.READY_TIMES_MAX

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, ready_ms: int) -> None:
        """Say that messages from ``offset`` on, beyond all earlier ones, are ready since then."""
        if self._times_ms and not is_apart(self._times_ms[-1], ready_ms):
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
        """Forget what concerns only messages before an offset."""
        covered = max(0, bisect_right(self._offsets, start_offset) - 1)
        del self._offsets[:covered]
        del self._times_ms[:covered]

    def _thin(self) -> None:
        now_ms = self._times_ms[-1]
        offsets, times_ms = self._offsets[:1], self._times_ms[:1]
        for place in range(1, len(self._offsets) - 1):
            time_ms, next_ms = self._times_ms[place], self._times_ms[place + 1]
            if not 0 <= next_ms - times_ms[-1] <= (now_ms - time_ms) // _AGE_SHARE:
                offsets.append(self._offsets[place])
                times_ms.append(time_ms)
        offsets.append(self._offsets[-1])
        times_ms.append(now_ms)
        self._offsets, self._times_ms = offsets, times_ms
