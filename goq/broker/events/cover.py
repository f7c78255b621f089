"""A few intervals that cover many: which offsets something may speak of, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

Interval = tuple[int, int]
INTERVALS_MAX = 8
_GATHERED_MAX = 48
_SLACK = 64  # offsets between neighbours that are not worth an interval of their own
_NOWHERE = 2**62


class Cover:
    """Grows by stretches of offsets; at most so many intervals hold all of them, and some more.

    The stretch that comes next is nearly always near the last one: that one interval grows at the
    cost of two comparisons, and what is elsewhere gathers until it is joined.
    """

    __slots__ = ("_gathered", "high", "low")

    def __init__(self) -> None:
        self._gathered: list[Interval] = []
        self.low = _NOWHERE
        self.high = -_NOWHERE

    def add(self, start: int, end: int) -> None:
        """Cover the offsets from ``start`` up to ``end``."""
        if self.low - _SLACK <= end and start <= self.high + _SLACK:
            if start < self.low:
                self.low = start
            if end > self.high:
                self.high = end
            return
        if self.low < self.high:
            self._gathered.append((self.low, self.high))
            if len(self._gathered) >= _GATHERED_MAX:
                self._gathered = joined(self._gathered)
        self.low, self.high = start, end

    def intervals(self) -> list[Interval]:
        """Return the intervals, in order and apart."""
        last = [(self.low, self.high)] if self.low < self.high else []
        return joined([*self._gathered, *last])


def joined(intervals: Iterable[Interval], count_max: int = INTERVALS_MAX) -> list[Interval]:
    """Return at most ``count_max`` intervals over all of these: the smallest gaps are closed."""
    apart: list[Interval] = []
    for start, end in sorted(intervals):
        if apart and start <= apart[-1][1] + _SLACK:
            apart[-1] = (apart[-1][0], max(apart[-1][1], end))
        else:
            apart.append((start, end))
    if len(apart) <= count_max:
        return apart
    gaps = sorted(((after[0] - before[1], n) for n, (before, after) in enumerate(pairwise(apart))))
    closed = {n for _, n in gaps[: len(apart) - count_max]}
    fewer: list[Interval] = [apart[0]]
    for n, each in enumerate(apart[1:]):
        if n in closed:
            fewer[-1] = (fewer[-1][0], each[1])
        else:
            fewer.append(each)
    return fewer
