"""Queries of a partition's delayed messages, from the columns on disk and the marks in the state.

The schedule in memory holds only messages that are due soon, unordered. These queries read the
columns of all delayed messages in a thread, a few arrays at a time. Their memory depends on the
result, not on the number of delayed messages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from goq.delivery.delay.maturity import Maturity
from goq.delivery.partition_state import PartitionState
from goq.storage.column_index.rows import ColumnRows, Int64s
from goq.storage.log.reader import LogReader

Run = tuple[int, int]


class DelayedMessage(NamedTuple):
    """A delayed message: its due time in force, and its offset."""

    due_ms: int
    offset: int


class DelayedReader:
    """The delayed messages by a copy of the state. Usable from any thread.

    The methods block on the disk and raise ``OSError`` when it fails.
    """

    def __init__(self, messages: LogReader, state: PartitionState) -> None:
        self._messages = messages
        self._start_offset = state.start_offset
        self._end_offset = state.end_offset
        self._maturity = Maturity(state.maturity.pairs, state.maturity.exempt)
        self._cancelled = state.cancelled.copy()
        changed = sorted(state.rescheduled.items())
        self._changed = np.array([offset for offset, _ in changed], np.int64)
        self._changed_ms = np.array([due_ms for _, due_ms in changed], np.int64)

    def runs(self, start: int, end: int) -> list[Run]:
        """Return the delayed messages from ``start`` up to ``end``, as runs in offset order."""
        found: list[Run] = []
        for rows in self._messages.rows(start, end):
            offsets, _ = self._of(rows)
            if not len(offsets):
                continue
            breaks = np.flatnonzero(np.diff(offsets) != 1)
            firsts = offsets[[0, *(breaks + 1).tolist()]].tolist()
            lasts = offsets[[*breaks.tolist(), len(offsets) - 1]].tolist()
            for first, last in zip(firsts, lasts, strict=True):
                if found and found[-1][1] == first:
                    found[-1] = (found[-1][0], last + 1)
                else:
                    found.append((first, last + 1))
        return found

    def count(self) -> int:
        """Return the number of delayed messages."""
        low_ms = self._low_ms(self._end_offset)
        counted = len(self._rescheduled()[0])
        for rows in self._messages.rows(self._start_offset, self._end_offset, due_from_ms=low_ms):
            if len(self._changed):
                rows = rows.select(~np.isin(rows.offsets, self._changed))
            counted += len(self._of(rows)[0])
        return counted

    def first(self, start: int, end: int) -> int | None:
        """Return the first delayed offset from ``start`` up to ``end``, None without one.

        The summaries of the columns let the query skip blocks that have matured completely.
        """
        low_ms = self._low_ms(end)
        offsets, _ = self._rescheduled()
        changed = offsets[(offsets >= start) & (offsets < end)][:1].tolist()
        for rows in self._messages.rows(start, end, due_from_ms=low_ms):
            offsets, _ = self._of(rows)
            if len(offsets):
                return int(min([int(offsets[0]), *changed]))
        return int(changed[0]) if changed else None

    def earliest(self, after: DelayedMessage, until_ms: int, count: int) -> list[DelayedMessage]:
        """Return up to ``count`` messages that are due after ``after`` and before ``until_ms``.

        They are in order of due time, then of offset.
        """
        best = self._behind(*self._rescheduled(), after, until_ms)
        last_ms = until_ms - 1
        found = self._messages.rows(
            self._start_offset, self._end_offset, due_from_ms=after.due_ms, due_to_ms=last_ms
        )
        for rows in found:
            rows = rows.select(rows.deliver_at_ms <= last_ms)
            if len(self._changed):
                rows = rows.select(~np.isin(rows.offsets, self._changed))
            offsets, due_ms = self._behind(*self._of(rows), after, until_ms)
            if len(offsets):
                best = _first(
                    np.concatenate([best[0], offsets]), np.concatenate([best[1], due_ms]), count
                )
                if len(best[0]) == count:
                    last_ms = int(best[1][-1])
        offsets, due_ms = _first(*best, count)
        return list(map(DelayedMessage, due_ms.tolist(), offsets.tolist()))

    def _low_ms(self, end: int) -> int:
        """Return a time before which every message below ``end`` has matured."""
        if self._maturity.pairs:
            up_to_ms, end_offset = self._maturity.pairs[-1]
            if end <= end_offset:
                return up_to_ms + 1
        return 1

    def _of(self, rows: ColumnRows) -> tuple[Int64s, Int64s]:
        """Return the offsets and due times of the rows that are delayed."""
        delayed = rows.deliver_at_ms != 0
        offsets, due_ms = rows.offsets[delayed], rows.deliver_at_ms[delayed]
        if len(self._changed) and len(offsets):
            place = np.searchsorted(self._changed, offsets).clip(max=len(self._changed) - 1)
            due_ms = np.where(self._changed[place] == offsets, self._changed_ms[place], due_ms)
        return self._only_waiting(offsets, due_ms)

    def _rescheduled(self) -> tuple[Int64s, Int64s]:
        return self._only_waiting(self._changed, self._changed_ms)

    def _only_waiting(self, offsets: Int64s, due_ms: Int64s) -> tuple[Int64s, Int64s]:
        if not len(offsets):
            return offsets, due_ms
        waits = ~(self._maturity.matured(offsets, due_ms) | self._is_cancelled(offsets))
        return offsets[waits], due_ms[waits]

    def _is_cancelled(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        runs = list(self._cancelled.present(int(offsets[0]), int(offsets[-1]) + 1))
        if not runs:
            return np.zeros(len(offsets), bool)
        starts, ends = np.array(runs, np.int64).T
        place = np.searchsorted(starts, offsets, side="right") - 1
        mask: npt.NDArray[np.bool_] = (place >= 0) & (offsets < ends[place])
        return mask

    def _behind(
        self, offsets: Int64s, due_ms: Int64s, after: DelayedMessage, until_ms: int
    ) -> tuple[Int64s, Int64s]:
        behind = (due_ms > after.due_ms) | ((due_ms == after.due_ms) & (offsets > after.offset))
        chosen = behind & (due_ms < until_ms)
        return offsets[chosen], due_ms[chosen]


def _first(offsets: Int64s, due_ms: Int64s, count: int) -> tuple[Int64s, Int64s]:
    """Return the first ``count`` by due time, then by offset."""
    if len(offsets) > count:  # several may share the due time of the last one
        limit_ms = np.partition(due_ms, count - 1)[count - 1]
        offsets, due_ms = offsets[due_ms <= limit_ms], due_ms[due_ms <= limit_ms]
    order = np.lexsort((offsets, due_ms))[:count]
    return offsets[order], due_ms[order]
