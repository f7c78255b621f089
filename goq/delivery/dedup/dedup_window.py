"""The dedup window of a partition: recent dedup ids, each with the offset of its message.

An id is a duplicate while the append time of its message is less than the window ago. This is exact
on both sides: one microsecond before that it is a duplicate, at that microsecond it is a new
message. The age may be negative, if the clock is behind that of an earlier start; then it is a
duplicate too. An id that was once older than the window may be forgotten for good. So a clock that
is set while the window is in use changes no age: inside, all times are by the clock as it was
before.

Ids lie in tables by age. Only the newest table grows. A table whose last id has passed the window
is dropped whole, so nothing is ever sorted, merged or moved. A table has room for half as many ids
as there are in all, or for those that come together, within bounds: few tables, and little that
stays for longer than it must.

Ids restored from the log have offsets but no times. The time is asked for when such an id comes
again, which is rare.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from goq.delivery.dedup.id_table import FEW, Ids, IdTable, Mixer, Words, filter_bits_of

TABLE_IDS_MIN: Final = 800
TABLE_IDS_MAX: Final = 850_000
_TIME_BITS: Final = 36  # microseconds: 19 hours
_OFFSET_BITS: Final = 64 - _TIME_BITS
_EARLIER_US: Final = 60_000_000  # how much earlier than a table's first id later ones may be
_RESTORED_US = 0  # in place of a time: ask the log

Offsets = NDArray[np.int64]


class Original(NamedTuple):
    """The message that an id belongs to."""

    offset: int
    time_us: int


class Originals(NamedTuple):
    """The messages that some ids of many belong to; ``rows`` are the places of these ids."""

    rows: NDArray[np.intp]
    offsets: Offsets
    times_us: NDArray[np.int64]


_NONE: Final = Originals(np.zeros(0, np.intp), np.zeros(0, np.int64), np.zeros(0, np.int64))


class StoredDedupIds(NamedTuple):
    """The ids of stored messages, as ``uint64[n, 2]``, by rising offset; all zero is none."""

    offsets: Offsets
    ids: Ids


class _ClockSetting(NamedTuple):
    """From when on the clock is ahead of the window's own times, and by how much."""

    from_us: int
    ahead_us: int


class _Generation:
    """A table and the meaning of its numbers: offsets and times relative to its own."""

    def __init__(self, capacity: int, base_offset: int, base_us: int) -> None:
        self.table = IdTable(capacity)
        self.base_offset = base_offset
        self.base_us = base_us
        self.newest_us = base_us

    def takes(self, last_offset: int, time_us: int) -> bool:
        """Return whether an id may be added."""
        return (
            self.table.count < self.table.capacity
            and 0 < time_us - self.base_us < 1 << _TIME_BITS
            and last_offset - self.base_offset + 1 < 1 << _OFFSET_BITS
        )

    def add(self, ids: Ids, mixed: Words, offsets: Offsets, time_us: int | None) -> None:
        """Add ids; ``time_us`` None for times that are not known."""
        since_us = _RESTORED_US if time_us is None else time_us - self.base_us
        numbers = (offsets - (self.base_offset - 1)).astype(np.uint64) << np.uint64(_TIME_BITS)
        self.table.add(ids, mixed, numbers | np.uint64(since_us))
        if time_us is not None:
            self.newest_us = max(self.newest_us, time_us)

    def message_of(self, number: int) -> tuple[int, int | None]:
        """Return the offset of the message behind a number, and the time if it is known."""
        since_us = number & ((1 << _TIME_BITS) - 1)
        offset = (number >> _TIME_BITS) + self.base_offset - 1
        return offset, None if since_us == _RESTORED_US else since_us + self.base_us

    def messages_of(self, rows: NDArray[np.intp], numbers: Words) -> Originals:
        """Return the messages behind numbers, with the time ``_RESTORED_US`` if it is unknown."""
        offsets = (numbers >> np.uint64(_TIME_BITS)).view(np.int64) + (self.base_offset - 1)
        since_us = (numbers & np.uint64((1 << _TIME_BITS) - 1)).view(np.int64)
        is_known = since_us != _RESTORED_US
        return Originals(rows, offsets, np.where(is_known, since_us + self.base_us, _RESTORED_US))


class DedupWindow:
    """The ids of one partition. ``window_us`` None keeps none.

    ``time_of`` returns when the message at an offset was appended, None if it is gone. ``factors``
    are two random numbers below 2^64. ``table_ids`` are the least and the greatest capacity of a
    table. Ids are ``uint64[n, 2]``, none of them zero. Times are by the clock as it was set last.
    """

    def __init__(
        self,
        window_us: int | None,
        *,
        time_of: Callable[[int], int | None],
        factors: tuple[int, int],
        table_ids: tuple[int, int] = (TABLE_IDS_MIN, TABLE_IDS_MAX),
    ) -> None:
        self.window_us = window_us
        self._time_of = time_of
        self._mixer = Mixer(factors)
        self._table_ids_min, self._table_ids_max = table_ids
        self._generations: list[_Generation] = []
        self._settings: list[_ClockSetting] = []

    def __len__(self) -> int:
        return sum(generation.table.count for generation in self._generations)

    def configure(self, window_us: int | None) -> None:
        """Change the window; ids that were forgotten before do not come back."""
        self.window_us = window_us
        if window_us is None:
            self._generations.clear()

    def note_clock_set(self, now_us: int, step_us: int) -> None:
        """Keep all ages: the clock was set ahead by so much, and shows ``now_us`` now."""
        own_us = self._own_us(now_us) - step_us + 1  # later than all before
        self._settings.append(_ClockSetting(own_us, now_us - own_us))
        past_us = own_us - (self.window_us or 0)
        while len(self._settings) > 1 and self._settings[1].from_us <= past_us:
            del self._settings[0]

    def _own_us(self, now_us: int) -> int:
        return now_us - self._settings[-1].ahead_us if self._settings else now_us

    def _shown_us(self, own_us: int) -> int:
        """Return the time that the clock showed at a time of the window."""
        place = bisect_right(self._settings, own_us, key=lambda each: each.from_us)
        return own_us + self._settings[place - 1].ahead_us if place else own_us

    def find(self, ids: Ids, now_us: int) -> Originals:
        """Return the originals of the ids that are duplicates, each id at most once."""
        if self.window_us is None:
            return _NONE
        now_us = self._own_us(now_us)
        self._forget(now_us - self.window_us)
        if len(ids) < FEW:
            return self._find_each(ids, now_us)
        found: list[Originals] = []
        mixed = self._mixer.mix(ids)
        bits = filter_bits_of(mixed)
        rows: NDArray[np.intp] | None = None  # all, until one is found
        for generation in reversed(self._generations):
            possible = generation.table.possible_rows(mixed, bits)
            if not len(possible):
                continue
            numbers = generation.table.find(ids, mixed, possible)
            hits = numbers.nonzero()[0]
            if len(hits):
                rows = np.arange(len(ids)) if rows is None else rows
                known = generation.messages_of(rows[hits], numbers[hits])
                found.append(self._all_within(known, now_us))
                others = np.delete(np.arange(len(ids)), hits)
                # an older message of the same id does not count
                ids, mixed, bits, rows = ids[others], mixed[others], bits[others], rows[others]
        if len(found) > 1:
            return Originals(*map(np.concatenate, zip(*found, strict=True)))
        return found[0] if found else _NONE

    def _find_each(self, ids: Ids, now_us: int) -> Originals:
        found: dict[int, Original] = {}
        for row, (first, second) in enumerate(ids.tolist()):
            mixed = self._mixer.mix_one(first, second)
            for generation in reversed(self._generations):
                number = generation.table.find_one(first, second, mixed)
                if number:
                    if original := self._within(generation, number, now_us):
                        found[row] = original
                    break
        if not found:
            return _NONE
        offsets, times_us = np.array(list(found.values()), np.int64).T
        return Originals(np.array(list(found), np.intp), offsets, times_us)

    def _all_within(self, known: Originals, now_us: int) -> Originals:
        """Return those messages that are in the window."""
        assert self.window_us is not None
        is_restored = known.times_us == _RESTORED_US
        for place in is_restored.nonzero()[0].tolist():
            time_us = self._time_of(int(known.offsets[place]))
            known.times_us[place] = now_us - self.window_us if time_us is None else time_us
        is_within = now_us - known.times_us < self.window_us
        if self._settings:
            for place in (~is_restored).nonzero()[0].tolist():
                known.times_us[place] = self._shown_us(int(known.times_us[place]))
        return known if is_within.all() else Originals(*(each[is_within] for each in known))

    def _within(self, generation: _Generation, number: int, now_us: int) -> Original | None:
        """Return the message behind a number if it is in the window."""
        offset, own_us = generation.message_of(number)
        time_us = self._time_of(offset) if own_us is None else own_us
        if time_us is None or self.window_us is None or now_us - time_us >= self.window_us:
            return None
        return Original(offset, time_us if own_us is None else self._shown_us(own_us))

    def add(self, ids: Ids, offsets: Offsets, time_us: int) -> None:
        """Remember ids of messages that were appended at one time, by rising offset."""
        if self.window_us is None:
            return
        time_us = self._own_us(time_us)
        mixed = self._mixer.mix(ids)
        while len(ids):
            newest = self._generations[-1] if self._generations else None
            if newest is None or not newest.takes(int(offsets[-1]), time_us):
                self._forget(time_us - self.window_us)
                base_us = time_us - _EARLIER_US
                count = max(len(self) // 2, len(ids))
                newest = self._generation(count, int(offsets[0]), base_us)
                self._generations.append(newest)
            room = newest.table.capacity - newest.table.count
            newest.add(ids[:room], mixed[:room], offsets[:room], time_us)
            ids, mixed, offsets = ids[room:], mixed[room:], offsets[room:]

    def restore(self, rows: Iterable[StoredDedupIds], newest_us: int) -> None:
        """Remember the ids of the log, the newest rows first, before anything else is added.

        No message in it is newer than ``newest_us``.
        """
        if self.window_us is None:
            return
        waiting: list[StoredDedupIds] = []
        count = 0
        for offsets, ids in rows:
            is_one = ids.any(axis=1)
            offsets, ids = offsets[is_one], ids[is_one]
            while len(ids):
                room = self._table_ids_max - count
                waiting.append(StoredDedupIds(offsets[-room:], ids[-room:]))
                count += len(waiting[-1].ids)
                offsets, ids = offsets[:-room], ids[:-room]
                if count == self._table_ids_max:
                    self._restore_table(waiting, newest_us)
                    waiting, count = [], 0
        if waiting:
            self._restore_table(waiting, newest_us)

    def _restore_table(self, newest_first: list[StoredDedupIds], newest_us: int) -> None:
        rows = newest_first[::-1]
        first, last = int(rows[0].offsets[0]), int(rows[-1].offsets[-1])
        count = sum(len(some.ids) for some in rows)
        if last - first + 1 >= 1 << _OFFSET_BITS:  # spread too thin for one table
            for some in newest_first:
                self._restore_each(some, newest_us)
            return
        generation = self._generation(count, first, newest_us)
        for some in rows:
            generation.add(some.ids, self._mixer.mix(some.ids), some.offsets, None)
        self._generations.insert(0, generation)

    def _restore_each(self, rows: StoredDedupIds, newest_us: int) -> None:
        offsets, ids = rows
        while len(ids):
            near = offsets > offsets[-1] - (1 << _OFFSET_BITS) + 1
            generation = self._generation(int(near.sum()), int(offsets[near][0]), newest_us)
            generation.add(ids[near], self._mixer.mix(ids[near]), offsets[near], None)
            self._generations.insert(0, generation)
            offsets, ids = offsets[~near], ids[~near]

    def _generation(self, count: int, base_offset: int, base_us: int) -> _Generation:
        capacity = min(max(count, self._table_ids_min), self._table_ids_max)
        return _Generation(capacity, base_offset, base_us)

    def _forget(self, past_us: int) -> None:
        """Drop the tables all of whose ids are from ``past_us`` or earlier."""
        if any(generation.newest_us <= past_us for generation in self._generations):
            self._generations = [g for g in self._generations if g.newest_us > past_us]
