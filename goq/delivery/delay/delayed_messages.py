"""The delayed messages of one partition that have not matured.

Messages due before the horizon are in a timer wheel. The far ones stay on the disk, where the
columns of the segments hold their due times, and are only counted. Before the clock reaches the
horizon, the owner must read the next window of time (:class:`LoadRequest`).

Memory holds a far message only where it differs from its row on the disk: the offset of one that
was cancelled or rescheduled, and its new due time if that is far too.

Nothing here is stored. A maturing is recorded as ``Matured(up_to_ms, end_offset)``, both from
:class:`DueMessages`; :class:`~goq.delivery.delay.maturity.Maturity` says what follows from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from goq.delivery.delay.maturity import Maturity
from goq.delivery.delay.slot_level import Int64s
from goq.delivery.delay.timer_wheel import (
    Column,
    DelayedRows,
    TimerWheel,
    is_among,
    sorted_offsets,
)
from goq.limits import DELAY_HORIZON_MS

_FEW = 8  # up to this batch size a loop costs less than numpy


class LoadRequest(NamedTuple):
    """Rows to read: due from ``from_ms`` up to ``to_ms``, at offsets before ``end_offset``."""

    from_ms: int
    to_ms: int
    end_offset: int


class DueMessages(NamedTuple):
    """The messages that have matured, in order of due time and offset, and the maturing to record.

    ``up_to_ms`` is less than the time asked for where more has to be read first, and in a part.
    """

    up_to_ms: int
    end_offset: int
    offsets: Int64s
    due_ms: Int64s
    tags: Int64s


class DelayedMessages:
    """The messages of a partition that wait for their due time.

    Due times are in ms since the epoch. A tag is the caller's, and comes back with the message.
    Every delayed message is either restored or added, in batches of rising offsets, before any
    message behind it. ``cancelled`` and ``rescheduled`` (offset to due time) are those of the
    partition's state and matter only to restored messages. ``maturity`` is the state's own object,
    and shared.
    """

    def __init__(
        self,
        now_ms: int,
        maturity: Maturity,
        *,
        cancelled: Iterable[int] = (),
        rescheduled: Mapping[int, int] | None = None,
    ) -> None:
        self._maturity = maturity
        self._cancelled = sorted_offsets(cancelled)
        self._rescheduled = rescheduled or {}
        self._rescheduled_offsets = sorted_offsets(self._rescheduled)
        self._wheel = TimerWheel(now_ms)
        self._loaded_to_ms = now_ms + DELAY_HORIZON_MS
        self._end_offset = 0
        self._load: LoadRequest | None = None
        self._is_loading = False
        self._on_disk_count = 0
        self._void_on_disk: set[int] = set()
        """Offsets whose rows on the disk, beyond the horizon, are no longer valid."""
        self._far: dict[int, tuple[int, int]] = {}
        """Due time and tag of messages rescheduled to beyond the horizon, by offset."""

    @property
    def count(self) -> int:
        """The number of messages that have not matured."""
        return len(self._wheel) + len(self._far) + self._on_disk_count

    def restore(self, offsets: Column, tags: Column, due_ms: Column) -> None:
        """Take rows from the disk while a partition opens: all that were delayed, once each."""
        rows = DelayedRows.of(offsets, tags, due_ms)
        self._note_end(rows)
        cancelled = is_among(rows.offsets, self._cancelled)
        changed = is_among(rows.offsets, self._rescheduled_offsets) | cancelled
        if changed.any():
            far = changed & (rows.due_ms >= self._loaded_to_ms)
            self._void_on_disk.update(rows.offsets[far].tolist())
            elsewhere = rows.only(changed & ~cancelled)
            for offset, tag in zip(
                elsewhere.offsets.tolist(), elsewhere.tags.tolist(), strict=True
            ):
                due = self._rescheduled[offset]
                if not self._maturity.has_matured(offset, due):
                    self._put(offset, tag, due)
        changed |= self._maturity.matured(rows.offsets, rows.due_ms)
        near = rows.due_ms < self._loaded_to_ms
        self._on_disk_count += int(np.count_nonzero(~(near | changed)))
        self._enter(rows.only(near & ~changed))

    def add(self, offsets: Column, tags: Column, due_ms: Column, now_ms: int) -> None:
        """Take messages that were published; their rows are on the disk from now on."""
        self._advance(now_ms)
        self._wheel.position_ms = now_ms
        reach_ms = self._load.to_ms if self._load else self._loaded_to_ms
        # Kept in memory: a reading under way does not include messages due before its end.
        if len(offsets) <= _FEW:
            for offset, tag, due in zip(offsets, tags, due_ms, strict=True):
                self._end_offset = max(self._end_offset, int(offset) + 1)
                if due < reach_ms:
                    self._wheel.add(int(due), int(offset), int(tag))
                else:
                    self._on_disk_count += 1
            return
        rows = DelayedRows.of(offsets, tags, due_ms)
        self._note_end(rows)
        near = rows.due_ms < reach_ms
        near_count = int(np.count_nonzero(near))
        self._on_disk_count += len(near) - near_count
        self._enter(rows if near_count == len(near) else rows.only(near))

    def cancel(self, offset: int, due_ms: int) -> None:
        """Remove a message that waits; ``due_ms`` is its time in force."""
        if self._far.pop(offset, None) is not None:
            return
        if self._in_wheel(offset, due_ms):
            self._wheel.remove(due_ms, offset)
        elif offset not in self._void_on_disk:
            self._void_on_disk.add(offset)
            self._on_disk_count -= 1

    def reschedule(self, offset: int, tag: int, due_ms: int, new_due_ms: int) -> None:
        """Give a message that waits another due time; ``due_ms`` is the one in force."""
        self.cancel(offset, due_ms)
        self._put(offset, tag, new_due_ms)

    def pop_due(self, now_ms: int, messages_max: int | None = None) -> DueMessages:
        """Remove and return what matures, as far as the horizon, or its earliest part.

        With ``messages_max`` it is about so many; :meth:`has_due` says whether there may be more.
        The caller does not record an empty result. If ``up_to_ms`` is before ``now_ms`` and nothing
        more is due, :meth:`load_wanted` returns the rows that must be read to continue.
        """
        self._advance(now_ms)
        up_to_ms = min(now_ms, self._loaded_to_ms - 1)
        if messages_max is None:
            return DueMessages(up_to_ms, self._end_offset, *self._wheel.pop_due(up_to_ms))
        part = self._wheel.pop_slice(up_to_ms, messages_max)
        end_offset = self._end_offset if part.end_offset is None else part.end_offset
        return DueMessages(part.up_to_ms, end_offset, *part.entries)

    def has_due(self, now_ms: int) -> bool:
        """Return whether :meth:`pop_due` has something to do now."""
        wheel_ms = self._wheel.next_ms()
        return wheel_ms is not None and wheel_ms <= min(now_ms, self._loaded_to_ms - 1)

    def load_wanted(self, now_ms: int) -> LoadRequest | None:
        """Return the rows to read from the disk now; None without any, or while a load runs.

        The answer goes to :meth:`loaded`; or :meth:`load_failed` is called. Rows at or after the
        request's ``end_offset``, or due at another time, may be part of the answer or not.
        """
        self._advance(now_ms)
        if self._is_loading:
            return None
        if self._load is None:
            if self._loaded_to_ms - now_ms > DELAY_HORIZON_MS // 2 or not self._on_disk_count:
                return None
            to_ms = now_ms + DELAY_HORIZON_MS
            self._load = LoadRequest(self._loaded_to_ms, to_ms, self._end_offset)
        self._is_loading = True
        return self._load

    def loaded(self, to_ms: int, offsets: Column, tags: Column, due_ms: Column) -> None:
        """Take what was read: all rows of the request that are due before ``to_ms``.

        A load may come in slices of rising ``to_ms``, so that a large one delays nothing else. It
        is over when the request's own ``to_ms`` is reached. Each slice holds what the ones before
        it do not. Raises ``ValueError`` for rows that were not asked for.
        """
        load = self._load
        if load is None or not self._is_loading or not load.from_ms < to_ms <= load.to_ms:
            raise ValueError(f"nothing is to be loaded up to {to_ms}")
        rows = DelayedRows.of(offsets, tags, due_ms)
        rows = rows.only(
            (rows.due_ms >= load.from_ms) & (rows.due_ms < to_ms) & (rows.offsets < load.end_offset)
        )
        void = is_among(rows.offsets, sorted_offsets(self._void_on_disk))
        self._void_on_disk.difference_update(rows.offsets[void].tolist())
        rows = rows.only(~(void | self._maturity.matured(rows.offsets, rows.due_ms)))
        self._on_disk_count -= len(rows.offsets)
        self._enter(rows)
        self._extend(to_ms)
        self._load = load._replace(from_ms=to_ms) if to_ms < load.to_ms else None
        self._is_loading = self._load is not None

    def load_failed(self) -> None:
        """Allow the reading to be tried again: the rest of the same request is wanted."""
        self._is_loading = False

    def trim(self, start_offset: int) -> None:
        """Drop messages before ``start_offset``.

        A deleted message that is only on the disk goes on being counted, unless it was cancelled
        first.
        """
        self._wheel.trim(start_offset)
        self._void_on_disk = {offset for offset in self._void_on_disk if offset >= start_offset}
        self._far = {offset: far for offset, far in self._far.items() if offset >= start_offset}

    def next_ms(self) -> int | None:
        """Return when to call :meth:`load_wanted` and :meth:`pop_due` next, None for never.

        That may be before a message matures. It is after the last call's time if both were called
        and nothing was added. While a load is under way, its end may come first.
        """
        wheel_ms = self._wheel.next_ms()
        if wheel_ms is not None and wheel_ms >= self._loaded_to_ms:
            wheel_ms = None
        if self._is_loading or not (self._on_disk_count or self._far or self._load):
            return wheel_ms
        load_ms = self._loaded_to_ms - DELAY_HORIZON_MS // 2
        return load_ms if wheel_ms is None else min(wheel_ms, load_ms)

    def _in_wheel(self, offset: int, due_ms: int) -> bool:
        """Return whether a message that is not in ``_far`` is in the wheel."""
        if self._load and offset >= self._load.end_offset:
            return due_ms < self._load.to_ms
        return due_ms < self._loaded_to_ms

    def _put(self, offset: int, tag: int, due_ms: int) -> None:
        """Keep a message whose due time differs from its row on the disk."""
        if due_ms < self._loaded_to_ms:
            self._wheel.add(due_ms, offset, tag)
        else:
            self._far[offset] = (due_ms, tag)

    def _enter(self, rows: DelayedRows) -> None:
        self._wheel.add_many(rows.due_ms, rows.offsets, rows.tags)

    def _note_end(self, rows: DelayedRows) -> None:
        if len(rows.offsets):
            self._end_offset = max(self._end_offset, int(rows.offsets.max()) + 1)

    def _advance(self, now_ms: int) -> None:
        """Move the horizon without reading, if no message is on the disk only."""
        if (
            self._loaded_to_ms - now_ms <= DELAY_HORIZON_MS // 2
            and not self._on_disk_count
            and self._load is None
        ):
            self._extend(now_ms + DELAY_HORIZON_MS)

    def _extend(self, to_ms: int) -> None:
        self._loaded_to_ms = to_ms
        near = [offset for offset, (due_ms, _) in self._far.items() if due_ms < to_ms]
        for offset in near:
            due_ms, tag = self._far.pop(offset)
            self._wheel.add(due_ms, offset, tag)
