"""A hierarchical timer wheel: entries by due time, at 24 bytes an entry.

Time is divided into slots of eight widths: 1 ms, 256 ms, 65.5 s, 4.7 h and so on, each 256 times
the one before. An entry goes into the narrowest level in which it is fewer than 256 slots away from
the wheel's position, the time of the last pop. When that time falls inside a slot, the entries of
the slot that are not due yet are placed again, in narrower slots (a cascade). In a slot of 1 ms all
entries are due at once, so a pop is exact. An entry cascades at most once a level.

Slots are numbered by their place in all time (``due_ms >> 8 * level``) and never wrap. Only how
*narrow* a slot is depends on the position, never what it holds. So the clock may be set anywhere. A
jump ahead takes whole slots and costs what is due, not what has elapsed. A jump back changes only
where later entries go. ``docs/internals/timers.md`` has the worked numbers.

Algorithm: G. Varghese and T. Lauck, "Hashed and Hierarchical Timing Wheels", 1987.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from goq.delivery.delay.slot_level import DUE, OFFSET, TAG, Int64s, SlotLevel

Column = Sequence[int] | Int64s
Mask = npt.NDArray[np.bool_]

_BITS = 8
_LEVELS = 8
_SPANS = np.array([1 << _BITS * (level + 1) for level in range(_LEVELS - 1)], np.int64)
_ROW_BYTES = 24
_GROUP_BITS = 16  # amendments are grouped by due time, about a minute each
_FEW = 16  # rows that are sorted faster without numpy
_CHECK_EVERY = 256
_REMOVED_SHARE = 16  # a removed entry costs about 200 bytes more than before
_REMOVED_MIN = 1024
_Group = dict[tuple[int, int], int | None]
_NONE: _Group = {}


class DelayedRows(NamedTuple):
    """Messages as columns: offsets, tags, and due times in ms since the epoch."""

    offsets: Int64s
    tags: Int64s
    due_ms: Int64s

    @classmethod
    def of(cls, *columns: Column) -> DelayedRows:
        """Return rows of columns in the fields' order."""
        return cls(*(np.asarray(column, np.int64) for column in columns))

    def only(self, mask: Mask) -> DelayedRows:
        """Return the rows at which the mask is true."""
        return DelayedRows(self.offsets[mask], self.tags[mask], self.due_ms[mask])


def sorted_offsets(offsets: Iterable[int]) -> Int64s:
    """Return offsets as a sorted array, for :func:`is_among`."""
    return np.sort(np.fromiter(offsets, np.int64))


def is_among(offsets: Int64s, wanted: Int64s) -> Mask:
    """Return a mask of the offsets that are among the wanted ones, which are sorted."""
    if not len(wanted) or not len(offsets):
        return np.zeros(len(offsets), bool)
    found: Int64s = np.searchsorted(wanted, offsets).clip(max=len(wanted) - 1)
    mask: Mask = wanted[found] == offsets
    return mask


class TimerEntries(NamedTuple):
    """Entries in order of due time and then offset, as columns."""

    offsets: Int64s
    due_ms: Int64s
    tags: Int64s


class TimerSlice(NamedTuple):
    """A part of what is due: all entries up to ``up_to_ms``.

    With an ``end_offset`` the entries are due at ``up_to_ms`` alone, and more follow that are due
    then, from that offset on.
    """

    entries: TimerEntries
    up_to_ms: int
    end_offset: int | None = None


class TimerWheel:
    """A set of entries: due time in ms, offset and tag, all from 0 to 2**63 - 1.

    No two entries may share both due time and offset. The tag is the caller's and comes back
    unchanged.
    """

    __slots__ = (
        "_amended",
        "_count",
        "_levels",
        "_removed_count",
        "position_ms",
    )

    def __init__(self, now_ms: int) -> None:
        self.position_ms = now_ms
        """The time from which new entries measure their distance: the last pop, or set by the
        owner.
        """
        self._levels = [SlotLevel(_BITS * level) for level in range(_LEVELS)]
        self._count = 0
        self._amended: dict[int, _Group] = {}
        """The differences from the slots by due time and offset: removed (None) or another tag."""
        self._removed_count = 0

    def __len__(self) -> int:
        return self._count - self._removed_count

    def add(self, due_ms: int, offset: int, tag: int) -> None:
        """Add one entry, which may be one that was removed."""
        group = self._amended.get(due_ms >> _GROUP_BITS)
        if group and (due_ms, offset) in group:  # the slot still has the removed one
            group[due_ms, offset] = tag
            self._removed_count -= 1
            return
        distance_ms = abs(due_ms - self.position_ms)
        level = max(0, distance_ms.bit_length() - 1) // _BITS
        self._levels[level].slot(due_ms >> _BITS * level).extend((due_ms, offset, tag))
        self._count += 1

    def add_many(self, due_ms: Int64s, offsets: Int64s, tags: Int64s) -> None:
        """Add entries none of which was removed before."""
        if len(due_ms):
            rows = np.empty((len(due_ms), 3), np.int64)
            rows[:, DUE], rows[:, OFFSET], rows[:, TAG] = due_ms, offsets, tags
            self._place(rows)
            self._count += len(rows)

    def remove(self, due_ms: int, offset: int) -> None:
        """Remove an entry that is in the wheel.

        It stays in its slot until that slot comes up, or until the slots around are cleaned: those
        of the same minute when many of its entries are removed, or all when half of the wheel is
        removed.
        """
        span = due_ms >> _GROUP_BITS
        group = self._amended.setdefault(span, {})
        group[due_ms, offset] = None
        self._removed_count += 1
        if len(group) % _CHECK_EVERY == 0:
            slots = self._slots_around(span)
            row_count = sum(level.row_count(number) for level, number in slots)
            if len(group) * _REMOVED_SHARE > row_count:
                self._clean(slots, self._amended_offsets(span, span))
        if self._removed_count > self._count // 2 + _REMOVED_MIN:
            self._clean_all()

    def trim(self, start_offset: int) -> None:
        """Remove everything before an offset."""
        self._clean_all()
        for level, number in self._slots():
            rows = level.rows(number)
            self._replace(level, number, rows[rows[:, OFFSET] >= start_offset])

    def pop_due(self, now_ms: int) -> TimerEntries:
        """Remove and return everything that is due at ``now_ms``, and nothing else."""
        self.position_ms = now_ms
        taken: list[Int64s] = []
        for level in reversed(self._levels):
            while level.order and level.order[0] << level.shift <= now_ms:
                whole = ((level.order[0] + 1) << level.shift) - 1 <= now_ms
                rows = level.take_first()
                if not whole:
                    due = rows[:, DUE] <= now_ms
                    self._place(rows[~due])
                    rows = rows[due]
                taken.append(rows)
        if len(taken) == 1:
            return self._entries(taken[0])
        return self._entries(np.concatenate(taken) if taken else np.empty((0, 3), np.int64))

    def pop_slice(self, now_ms: int, entries_max: int) -> TimerSlice:
        """Remove and return the earliest part of what is due: about ``entries_max`` entries.

        A large slot takes several calls to cascade, or to find its order, which return nothing. All
        that is due is popped when ``up_to_ms`` is ``now_ms`` and there is no ``end_offset``.
        """
        due = sorted(
            [
                (number << level.shift, -level.shift, number)
                for level in self._levels
                if level.order and level.order[0] << level.shift <= now_ms
                for number in level.begun(now_ms)
            ]
        )
        count = 0
        for start_ms, narrowness, number in due:  # noqa: B007 - read after the loop
            count += self._levels[-narrowness // _BITS].row_count(number)
            if count > entries_max:
                break
        else:
            return TimerSlice(self.pop_due(now_ms), now_ms)
        first_ms, narrowness, number = due[0]
        level = self._levels[-narrowness // _BITS]
        if first_ms < start_ms and (number + 1) << level.shift <= start_ms:
            return TimerSlice(self.pop_due(start_ms - 1), start_ms - 1)
        if level.shift:  # from its beginning, so that all its parts come to the same slots
            self.position_ms = first_ms
            self._place(level.take_some(number, entries_max))
            return TimerSlice(self._entries(np.empty((0, 3), np.int64)), first_ms - 1)
        rows = level.take_lowest(number, entries_max)
        if rows is None:
            return TimerSlice(self._entries(np.empty((0, 3), np.int64)), first_ms - 1)
        end_offset = int(rows[-1, OFFSET]) + 1 if level.row_count(number) else None
        return TimerSlice(self._entries(rows), first_ms, end_offset)

    def _entries(self, rows: Int64s) -> TimerEntries:
        """Return rows that were taken, without removed ones, in order."""
        self._count -= len(rows)
        rows = self._amend(rows)
        if 1 < len(rows) <= _FEW:
            rows = np.array(sorted(rows.tolist()), np.int64)
        elif len(rows) > 1:
            rows = rows[np.lexsort((rows[:, OFFSET], rows[:, DUE]))]
        columns = np.ascontiguousarray(rows.T)
        return TimerEntries(columns[OFFSET], columns[DUE], columns[TAG])

    def next_ms(self) -> int | None:
        """Return a time at or before the earliest due time, None when the wheel is empty.

        It is after the time of the last pop if nothing was added since. Where the earliest slot is
        a wide one, it is the slot's beginning. A pop then returns nothing, but cascades, and the
        next answer is later. So an entry costs at most as many pops as there are levels.
        """
        if not len(self):  # removed entries need no timer
            return None
        return min(
            [each.order[0] << each.shift for each in self._levels if each.order], default=None
        )

    def _place(self, rows: Int64s) -> None:
        """Put rows into the slots for their distance from the position."""
        if not len(rows):
            return
        rows = rows[np.argsort(rows[:, DUE], kind="stable")]
        due_ms = rows[:, DUE].copy()
        levels = np.searchsorted(_SPANS, np.abs(due_ms - self.position_ms), "right")
        numbers = due_ms >> levels * _BITS
        changes = (numbers[1:] != numbers[:-1]) | (levels[1:] != levels[:-1])
        starts = np.concatenate(([0], np.flatnonzero(changes) + 1))
        ends = [*starts[1:].tolist(), len(rows)]
        data = rows.data.cast("B")
        for level, number, start, end in zip(
            levels[starts].tolist(), numbers[starts].tolist(), starts.tolist(), ends, strict=True
        ):
            part = data[start * _ROW_BYTES : end * _ROW_BYTES]
            self._levels[level].slot(number).frombytes(part)

    def _amend(self, rows: Int64s, offsets: Int64s | None = None) -> Int64s:
        """Return rows without removed entries and with changed tags, and end those amendments.

        ``offsets`` are those that may be amended, if they are known.
        """
        if not self._amended or not len(rows):
            return rows
        indices = np.arange(len(rows))
        if len(rows) > _CHECK_EVERY:
            if offsets is None:
                first = int(rows[:, DUE].min()) >> _GROUP_BITS
                last = int(rows[:, DUE].max()) >> _GROUP_BITS
                offsets = self._amended_offsets(first, last)
            indices = np.flatnonzero(is_among(rows[:, OFFSET], offsets))
        kept = np.ones(len(rows), bool)
        for index, (due_ms, offset, old_tag) in zip(
            indices.tolist(), rows[indices].tolist(), strict=True
        ):
            group = self._amended.get(due_ms >> _GROUP_BITS, _NONE)
            tag = group.pop((due_ms, offset), old_tag)
            if tag is None:
                kept[index] = False
                self._removed_count -= 1
            else:
                rows[index, TAG] = tag
            if group is not _NONE and not group:
                del self._amended[due_ms >> _GROUP_BITS]
        return rows[kept]

    def _slots(self) -> list[tuple[SlotLevel, int]]:
        return [(level, number) for level in self._levels for number in level.slots]

    def _slots_around(self, span: int) -> list[tuple[SlotLevel, int]]:
        """Return the slots that hold any of the times whose amendments are in one group."""
        found = []
        for level in self._levels:
            wider = level.shift - _GROUP_BITS
            if wider >= 0:
                found += [(level, span >> wider)] if span >> wider in level.slots else []
            else:
                found += [(level, number) for number in level.slots if number >> -wider == span]
        return found

    def _amended_offsets(self, first_span: int, last_span: int) -> Int64s:
        groups = (g for span, g in self._amended.items() if first_span <= span <= last_span)
        return sorted_offsets(offset for group in groups for _, offset in group)

    def _clean(self, slots: list[tuple[SlotLevel, int]], offsets: Int64s) -> None:
        """Take removed entries with one of these offsets out of slots."""
        for level, number in slots:
            self._replace(level, number, self._amend(level.rows(number), offsets))

    def _clean_all(self) -> None:
        self._clean(self._slots(), self._amended_offsets(0, max(self._amended, default=0)))

    def _replace(self, level: SlotLevel, number: int, rows: Int64s) -> None:
        """Keep only these rows of a slot."""
        less = level.row_count(number) - len(rows)
        if less:
            self._count -= less
            level.replace(number, rows)
