"""A hierarchical timer wheel: what is due when, at 24 bytes an entry.

Time is cut into slots of eight widths: 1 ms, 256 ms, 65.5 s, 4.7 h and so on, each 256 times the
one before. An entry goes into the narrowest level in which it lies fewer than 256 slots away from
the wheel's position, the time of the last pop. When that time comes to lie inside of a slot, what
is not yet due of it is placed again, in narrower slots (a cascade); in a slot of 1 ms everything
is due at once, so that a pop is exact. An entry cascades at most once a level.

Slots bear the number of their place in all time (``due_ms >> 8 * level``) and never wrap: only how
*narrow* a slot is depends on the position, never what it holds. So the clock may be set anywhere.
A jump ahead takes whole slots and costs what is due, not what has elapsed; a jump back changes
nothing but where later entries go. ``docs/internals/timers.md`` has the worked numbers.

Algorithm: G. Varghese and T. Lauck, "Hashed and Hierarchical Timing Wheels", 1987.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Column = Sequence[int] | Int64s
Mask = npt.NDArray[np.bool_]


class DelayedRows(NamedTuple):
    """Messages, each with a tag and the time it is due in ms since the epoch."""

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
    """Return offsets as :func:`among` wants them."""
    return np.sort(np.fromiter(offsets, np.int64))


def among(offsets: Int64s, wanted: Int64s) -> Mask:
    """Return which offsets are wanted ones; these are sorted."""
    if not len(wanted) or not len(offsets):
        return np.zeros(len(offsets), bool)
    found: Int64s = np.searchsorted(wanted, offsets).clip(max=len(wanted) - 1)
    mask: Mask = wanted[found] == offsets
    return mask


class SlotLevel:
    """The slots of one width that hold something, and the order of their numbers."""

    __slots__ = ("order", "shift", "slots")

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.slots: dict[int, array[int]] = {}
        self.order: list[int] = []

    def slot(self, number: int) -> array[int]:
        """Return a slot, a new one if need be."""
        slot = self.slots.get(number)
        if slot is None:
            slot = self.slots[number] = array("q")
            heapq.heappush(self.order, number)
        return slot

    def first_ms(self) -> int | None:
        """Return when the earliest slot begins."""
        return self.order[0] << self.shift if self.order else None

    def take_first(self) -> Int64s:
        """Remove the earliest slot and return its rows."""
        return rows_of(self.slots.pop(heapq.heappop(self.order)))

    def replace(self, number: int, rows: Int64s) -> None:
        """Let a slot hold these rows; it is gone when they are none."""
        if len(rows):
            self.slots[number] = array("q", rows.tobytes())
        else:
            del self.slots[number]
            self.order = sorted(self.slots)


def rows_of(slot: array[int]) -> Int64s:
    """Return a slot's entries, a row each, where they lie."""
    return np.frombuffer(slot, np.int64).reshape(-1, 3)


_BITS = 8
_LEVELS = 8
_SPANS = np.array([1 << _BITS * (level + 1) for level in range(_LEVELS - 1)], np.int64)
_DUE, _OFFSET, _TAG = range(3)
_ROW_BYTES = 24
_GROUP_BITS = 16  # what was removed is grouped by the minute, more or less, that it is due in
_CHECK_EVERY = 256
_REMOVED_SHARE = 16  # a removed entry costs some 200 bytes more than it did before
_REMOVED_MIN = 1024
_Group = dict[tuple[int, int], int | None]
_NONE: _Group = {}


class TimerEntries(NamedTuple):
    """TimerEntries in order of due time and then offset, as columns."""

    offsets: Int64s
    due_ms: Int64s
    tags: Int64s


class TimerWheel:
    """TimerEntries of a due time in ms, an offset and a tag, all from 0 to 2**63 - 1.

    No two entries may share both due time and offset. The tag is the caller's and comes back as it
    was given.
    """

    __slots__ = ("_amended", "_count", "_levels", "_removed_count", "position_ms")

    def __init__(self, now_ms: int) -> None:
        self.position_ms = now_ms
        """What new entries' distance is measured from: the last pop, or set by who knows better."""
        self._levels = [SlotLevel(_BITS * level) for level in range(_LEVELS)]
        self._count = 0
        self._amended: dict[int, _Group] = {}
        """By due time and offset what differs from the slots: removed (None) or another tag."""
        self._removed_count = 0

    def __len__(self) -> int:
        return self._count - self._removed_count

    def add(self, due_ms: int, offset: int, tag: int) -> None:
        """Add one entry, perhaps one that was removed."""
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
            rows[:, _DUE], rows[:, _OFFSET], rows[:, _TAG] = due_ms, offsets, tags
            self._place(rows)
            self._count += len(rows)

    def remove(self, due_ms: int, offset: int) -> None:
        """Remove an entry that is here.

        It stays in its slot until that comes up, or until there are so many that the slots around
        are cleaned: those of the same minute, or all when half of the wheel is dead.
        """
        span = due_ms >> _GROUP_BITS
        group = self._amended.setdefault(span, {})
        group[due_ms, offset] = None
        self._removed_count += 1
        if len(group) % _CHECK_EVERY == 0:
            slots = self._slots_around(span)
            row_count = sum(len(level.slots[number]) for level, number in slots) // 3
            if len(group) * _REMOVED_SHARE > row_count:
                self._clean(slots, self._amended_offsets(span, span))
        if self._removed_count > self._count // 2 + _REMOVED_MIN:
            self._clean_all()

    def trim(self, start_offset: int) -> None:
        """Remove everything before an offset."""
        self._clean_all()
        for level, number in self._slots():
            rows = rows_of(level.slots[number])
            self._replace(level, number, rows[rows[:, _OFFSET] >= start_offset])

    def pop_due(self, now_ms: int) -> TimerEntries:
        """Remove and return everything that is due at ``now_ms``, and nothing that is not."""
        self.position_ms = now_ms
        taken: list[Int64s] = []
        for level in reversed(self._levels):
            while level.order and level.order[0] << level.shift <= now_ms:
                whole = ((level.order[0] + 1) << level.shift) - 1 <= now_ms
                rows = level.take_first()
                if not whole:
                    due = rows[:, _DUE] <= now_ms
                    self._place(rows[~due])
                    rows = rows[due]
                taken.append(rows)
        rows = np.concatenate(taken) if taken else np.empty((0, 3), np.int64)
        self._count -= len(rows)
        rows = self._amend(rows)
        if len(rows) > 1:
            rows = rows[np.lexsort((rows[:, _OFFSET], rows[:, _DUE]))]
        return TimerEntries(rows[:, _OFFSET].copy(), rows[:, _DUE].copy(), rows[:, _TAG].copy())

    def next_ms(self) -> int | None:
        """Return a time at or before the earliest due time, None when the wheel is empty.

        It lies after the time of the last pop if nothing was added since. Where the earliest slot
        is a wide one, it is the slot's beginning: a pop then returns nothing, but cascades, and
        the next answer is later. So an entry costs at most as many pops as there are levels.
        """
        if not len(self):  # what was removed need not be waited for
            return None
        return min(
            (ms for each in self._levels if (ms := each.first_ms()) is not None), default=None
        )

    def _place(self, rows: Int64s) -> None:
        """Put rows into the slots for their distance from the position."""
        if not len(rows):
            return
        rows = rows[np.argsort(rows[:, _DUE], kind="stable")]
        due_ms = rows[:, _DUE].copy()
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
        """Return rows without the removed and with the tags that changed; that is then done.

        ``offsets`` are those that may be concerned, if they are known.
        """
        if not self._amended or not len(rows):
            return rows
        indices = np.arange(len(rows))
        if len(rows) > _CHECK_EVERY:
            if offsets is None:
                first = int(rows[:, _DUE].min()) >> _GROUP_BITS
                last = int(rows[:, _DUE].max()) >> _GROUP_BITS
                offsets = self._amended_offsets(first, last)
            indices = np.flatnonzero(among(rows[:, _OFFSET], offsets))
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
                rows[index, _TAG] = tag
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
        """Take what was removed and has one of these offsets out of slots."""
        for level, number in slots:
            self._replace(level, number, self._amend(rows_of(level.slots[number]), offsets))

    def _clean_all(self) -> None:
        self._clean(self._slots(), self._amended_offsets(0, max(self._amended, default=0)))

    def _replace(self, level: SlotLevel, number: int, rows: Int64s) -> None:
        """Let a slot hold these of its rows only."""
        less = len(level.slots[number]) // 3 - len(rows)
        if less:
            self._count -= less
            level.replace(number, rows)
