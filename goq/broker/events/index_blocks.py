"""The blocks of the sparse event index, and the ``.spans`` file that stores them.

A block covers frames of about 8 KiB in total. It stores at most a few intervals that cover every
offset in its events; whether an event in it may affect any message; the highest maturity time in
it; and the highest offset up to which retention deleted. A lookup may therefore read a block in
vain. A lookup never misses a block.

The file of a sealed segment, ``00000000000000045678.spans``, holds little-endian ``i64``: a magic
number; the first sequence, the end and the size of the segment; the number of blocks and of
intervals; the blocks by column (start, wide, matured_ms, matured_end, trimmed_to); the intervals by
column (block, low, high); and a CRC32C of all bytes before it, seeded with the id of the log. The
file is derived data. One that is missing, stale, damaged or of another log is rebuilt from the
segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from goq import limits
from goq.delivery.events.affected import NO_MESSAGES, WITH_OFFSETS, PendingCopies
from goq.delivery.events.event import (
    AnyEvent,
    CopyQueued,
    CopyStored,
    Matured,
    SnapshotOutboxEntry,
    Trimmed,
)
from goq.delivery.events.frame_codec import StoredEvent, decode_event_frame
from goq.errors import InvalidFrame
from goq.frame.checksum import crc32c
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment

Interval = tuple[int, int]
INTERVALS_MAX = 8
_PENDING_MAX = 48
_SLACK = 64  # offsets: intervals closer than this become one
_NOWHERE = 2**62


class IntervalSet:
    """Covers added ranges of offsets with at most :data:`INTERVALS_MAX` intervals.

    The next range is nearly always close to the last one. That interval grows at the cost of two
    comparisons. Other intervals are collected and merged later.
    """

    __slots__ = ("_pending", "high", "low")

    def __init__(self) -> None:
        self._pending: list[Interval] = []
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
            self._pending.append((self.low, self.high))
            if len(self._pending) >= _PENDING_MAX:
                self._pending = merge_intervals(self._pending)
        self.low, self.high = start, end

    def add_all(self, ranges: Sequence[tuple[int, ...]]) -> None:
        """Cover several ranges; those in any order as one, where that leaves no gap."""
        if len(ranges) > _PENDING_MAX:
            ranges = merge_intervals([(each[0], each[1]) for each in ranges])
        for each in ranges:
            self.add(each[0], each[1])

    def intervals(self) -> list[Interval]:
        """Return the intervals, sorted and disjoint."""
        last = [(self.low, self.high)] if self.low < self.high else []
        return merge_intervals([*self._pending, *last])


def merge_intervals(
    intervals: Iterable[Interval], count_max: int = INTERVALS_MAX
) -> list[Interval]:
    """Return at most ``count_max`` sorted intervals over all of these; close the smallest gaps."""
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


Int64s = npt.NDArray[np.int64]
_MAGIC: Final = int.from_bytes(b"goqspan\x01", "little")
_HEAD_WORDS: Final = 6
_BLOCK_COLUMNS: Final = 5
_INTERVAL_COLUMNS: Final = 3
_EVENTS_IN_BLOCK: Final = 64  # of a block that is built from a segment
_SEED_MAX: Final = 2**32 - 1


class UnreadableEvents(NamedTuple):
    """Events from ``sequence`` up to ``end`` that cannot be read."""

    sequence: int
    end: int


class EventIndexBlock(NamedTuple):
    """The index entry of some frames of events. ``start`` is the sequence of the first event.

    ``covers_all`` means that an event in the block may affect any message. ``matured_ms`` and
    ``matured_end`` are the highest values of its ``Matured`` events, ``trimmed_to`` is the highest
    value of its ``Trimmed`` events; 0 without such events.
    """

    start: int
    covers_all: bool = False
    matured_ms: int = 0
    matured_end: int = 0
    trimmed_to: int = 0
    intervals: Sequence[Interval] = ()


def events_between(
    reader: LogReader, start: int, end: int
) -> Iterator[StoredEvent | UnreadableEvents]:
    """Yield the events of the frames that hold ``start`` up to ``end``, and unreadable ranges."""
    while start < end:
        reading = reader.read(start, end, messages_max=end - start, bytes_max=limits.MIB)
        expected = start
        for view in reading.frames:
            header = view.header
            if header.base_offset > expected:
                yield UnreadableEvents(expected, header.base_offset)
            try:
                yield from decode_event_frame(view)
            except InvalidFrame:
                yield UnreadableEvents(header.base_offset, header.end_offset)
            expected = header.end_offset
        after = max(reading.next_offset, expected)
        if after > expected or after <= start:
            after = after if after > start else end
            yield UnreadableEvents(expected, after)
        start = after


class BlockBuilder:
    """Builds blocks from events in log order, from the start of a frame on."""

    def __init__(self, sequence: int, pending_copies: PendingCopies) -> None:
        self._finished: list[EventIndexBlock] = []
        self._pending_copies = pending_copies
        self._size_bytes = 0
        self._begin(sequence)

    def _begin(self, sequence: int) -> None:
        self._intervals = IntervalSet()
        self._block = EventIndexBlock(sequence)
        self._size_bytes = 0

    def add(self, event: AnyEvent, epoch: int, sequence: int) -> None:
        """Add an event."""
        offset_ranges = WITH_OFFSETS.get(type(event))
        if offset_ranges is None:
            self._add_other(event)
            return
        self._intervals.add_all(offset_ranges(event))
        if type(event) is CopyQueued:
            self._pending_copies.begin(event, epoch, sequence)

    def _add_other(self, event: AnyEvent) -> None:
        block = self._block
        if isinstance(event, Matured):
            self._block = block._replace(
                matured_ms=max(block.matured_ms, event.up_to_ms),
                matured_end=max(block.matured_end, event.end_offset),
            )
        elif isinstance(event, Trimmed):
            self._block = block._replace(trimmed_to=max(block.trimmed_to, event.start_offset))
        elif isinstance(event, CopyStored):
            spans = self._pending_copies.end(event)
            if spans is None:
                self.add_unreadable()
            for each in spans or ():
                self._intervals.add(each[0], each[1])
        elif isinstance(event, SnapshotOutboxEntry):
            self._pending_copies.restore(event.entry, event.event)
        elif type(event) not in NO_MESSAGES:
            self.add_unreadable()

    def add_unreadable(self) -> None:
        """Mark the current block: its next event may affect any message."""
        self._block = self._block._replace(covers_all=True)

    def end_frame(self, next_sequence: int, size_bytes: int) -> None:
        """Record the end of a frame. A full block ends here."""
        self._size_bytes += size_bytes
        if self._size_bytes >= limits.EVENT_INDEX_BLOCK_BYTES:
            self._finished.append(self._current_block())
            self._begin(next_sequence)

    def blocks(self) -> list[EventIndexBlock]:
        """Return all blocks, the open block last."""
        return [*self._finished, self._current_block()]

    def _current_block(self) -> EventIndexBlock:
        return self._block._replace(intervals=self._intervals.intervals())


def build_blocks(reader: LogReader, start: int, end: int) -> list[EventIndexBlock]:
    """Read the events from ``start`` up to ``end`` and return their blocks. Blocks on the disk.

    ``start`` has to be the start of a segment: the outbox entries are then known, or marked as
    unknown. A block may start inside a frame. Its reader reads the whole frame.
    """
    builder, taken = BlockBuilder(start, PendingCopies()), 0
    for found in events_between(reader, start, end):
        if isinstance(found, UnreadableEvents):
            builder.add_unreadable()
            continue
        builder.add(found.event, found.epoch, found.sequence)
        taken += 1
        if taken % _EVENTS_IN_BLOCK == 0:
            builder.end_frame(found.sequence + 1, limits.EVENT_INDEX_BLOCK_BYTES)
    return builder.blocks()


class SegmentEventIndex:
    """The blocks of one segment, or of a part of it, from ``start`` up to ``end``."""

    def __init__(self, start: int, end: int, blocks: Int64s, intervals: Int64s) -> None:
        self.start = start
        self.end = end
        self._blocks = blocks
        self._intervals = intervals

    @classmethod
    def of(cls, start: int, end: int, blocks: Sequence[EventIndexBlock]) -> SegmentEventIndex:
        """Return the index that consists of these blocks."""
        rows = [block[:_BLOCK_COLUMNS] for block in blocks]
        parts = [(n, *each) for n, block in enumerate(blocks) for each in block.intervals]
        return cls(
            start,
            end,
            np.array(rows, np.int64).reshape(-1, _BLOCK_COLUMNS).T,
            np.array(parts, np.int64).reshape(-1, _INTERVAL_COLUMNS).T,
        )

    @property
    def memory_bytes(self) -> int:
        """The approximate memory of the index."""
        return self._blocks.nbytes + self._intervals.nbytes + limits.KIB

    def summary(self) -> EventIndexBlock:
        """Return one block that covers all blocks."""
        starts, wide, matured_ms, matured_end, trimmed_to = self._blocks
        if not len(starts):
            return EventIndexBlock(self.start)
        return EventIndexBlock(
            self.start,
            bool(wide.any()),
            int(matured_ms.max()),
            int(matured_end.max()),
            int(trimmed_to.max()),
            merge_intervals(self._merged_intervals()),
        )

    def _merged_intervals(self) -> list[Interval]:
        """Return the intervals of all blocks. Overlapping and adjacent intervals become one."""
        _, low, high = self._intervals
        if not len(low):
            return []
        order = np.argsort(low)
        low, high = low[order], np.maximum.accumulate(high[order])
        breaks = np.flatnonzero(low[1:] > high[:-1])
        firsts = low[[0, *(breaks + 1).tolist()]].tolist()
        lasts = high[[*breaks.tolist(), len(high) - 1]].tolist()
        return list(zip(firsts, lasts, strict=True))

    def message_ranges(self, offset: int) -> list[Interval]:
        """Return the ranges of sequences that may hold an event about a message."""
        numbers, low, high = self._intervals
        chosen = self._blocks[1] != 0
        chosen[numbers[(low <= offset) & (offset < high)]] = True
        return self._ranges(chosen)

    def maturity_ranges(self, offset: int, due_ms: int) -> list[Interval]:
        """Return the ranges of sequences where a message may have matured."""
        _, wide, matured_ms, matured_end, _ = self._blocks
        return self._ranges((wide != 0) | ((matured_ms >= due_ms) & (matured_end > offset)))

    def trim_ranges(self, offset: int) -> list[Interval]:
        """Return the ranges of sequences where retention may have deleted a message."""
        return self._ranges((self._blocks[1] != 0) | (self._blocks[4] > offset))

    def _ranges(self, chosen: npt.NDArray[np.bool_]) -> list[Interval]:
        """Return the sequences of the chosen blocks. Adjacent blocks become one range."""
        found: list[Interval] = []
        starts = self._blocks[0]
        for number in np.flatnonzero(chosen).tolist():
            start = int(starts[number])
            end = int(starts[number + 1]) if number + 1 < len(starts) else self.end
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], end)
            elif start < end:
                found.append((start, end))
        return found

    def pack(self, segment: Segment) -> bytes:
        """Return the content of the index file of a segment."""
        counts = self._blocks.shape[1], self._intervals.shape[1]
        head = np.array([_MAGIC, self.start, self.end, segment.size_bytes, *counts], np.int64)
        data = np.concatenate([head, self._blocks.ravel(), self._intervals.ravel()]).tobytes()
        return data + crc32c(data, segment.log_id & _SEED_MAX).to_bytes(8, "little")

    @classmethod
    def unpack(cls, data: bytes | memoryview, segment: Segment) -> SegmentEventIndex | None:
        """Return the index in a file, or None unless it is intact and matches the segment."""
        if len(data) < 8 * (_HEAD_WORDS + 1) or len(data) % 8:
            return None
        crc = crc32c(data[:-8], segment.log_id & _SEED_MAX)
        if int.from_bytes(data[-8:], "little") != crc:
            return None
        words = np.frombuffer(data[:-8], np.int64)
        magic, start, end, size_bytes, blocks, intervals = words[:_HEAD_WORDS].tolist()
        if magic != _MAGIC:
            return None
        if (start, end, size_bytes) != (
            segment.base_offset,
            segment.end_offset,
            segment.size_bytes,
        ):
            return None
        split = _HEAD_WORDS + _BLOCK_COLUMNS * blocks
        if len(words) != split + _INTERVAL_COLUMNS * intervals:
            return None
        return cls(
            start,
            end,
            words[_HEAD_WORDS:split].reshape(_BLOCK_COLUMNS, blocks),
            words[split:].reshape(_INTERVAL_COLUMNS, intervals),
        )
