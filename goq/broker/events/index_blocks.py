"""Where in a partition's events to look for one message: a sparse index, by blocks of frames.

For each block of about 8 KiB it says which offsets the events in it speak of, by a few intervals
that cover them all; whether something in it may concern any message; how far messages had matured
in it, and up to where retention had deleted. So it may send a reader to a block in vain, and never
past one.

The file of a sealed segment, ``00000000000000045678.spans``, holds little-endian ``i64``: a magic
number; the segment's first sequence, its end and its size; how many blocks and intervals there are;
the blocks by column (start, wide, matured_ms, matured_end, trimmed_to); the intervals by column
(block, low, high); and a CRC32C of all before it. It carries no authority: one that is missing,
stale or damaged is made anew from the segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

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
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment

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


Int64s = npt.NDArray[np.int64]
_MAGIC: Final = int.from_bytes(b"goqspan\x01", "little")
_HEAD_WORDS: Final = 6
_BLOCK_COLUMNS: Final = 5
_INTERVAL_COLUMNS: Final = 3
_EVENTS_IN_BLOCK: Final = 64  # of one that is made by reading


class Lost(NamedTuple):
    """Events from ``sequence`` up to ``end`` that cannot be read."""

    sequence: int
    end: int


class Block(NamedTuple):
    """What some frames of events speak of, the first of them at ``start``.

    ``matured_ms`` and ``matured_end`` are the highest of any maturing in it, ``trimmed_to`` that of
    any trimming; 0 for none.
    """

    start: int
    is_wide: bool = False
    matured_ms: int = 0
    matured_end: int = 0
    trimmed_to: int = 0
    intervals: Sequence[Interval] = ()


def events_between(reader: LogReader, start: int, end: int) -> Iterator[StoredEvent | Lost]:
    """Yield the events of the frames that hold ``start`` up to ``end``, and what cannot be read."""
    while start < end:
        reading = reader.read(start, end, messages_max=end - start, bytes_max=limits.MIB)
        expected = start
        for view in reading.frames:
            header = view.header
            if header.base_offset > expected:
                yield Lost(expected, header.base_offset)
            try:
                yield from decode_event_frame(view)
            except InvalidFrame:
                yield Lost(header.base_offset, header.end_offset)
            expected = header.end_offset
        after = max(reading.next_offset, expected)
        if after > expected or after <= start:
            after = after if after > start else end
            yield Lost(expected, after)
        start = after


class BlockBuilder:
    """Takes events in the order of their log, from a frame's beginning on."""

    def __init__(self, sequence: int, leaving: PendingCopies) -> None:
        self._done: list[Block] = []
        self._leaving = leaving
        self._size_bytes = 0
        self._begin(sequence)

    def _begin(self, sequence: int) -> None:
        self._cover = Cover()
        self._open = Block(sequence)
        self._size_bytes = 0

    def add(self, event: AnyEvent, epoch: int, sequence: int) -> None:
        """Take an event."""
        stretches = WITH_OFFSETS.get(type(event))
        if stretches is None:
            self._add_other(event)
            return
        cover = self._cover.add
        for each in stretches(event):
            cover(each[0], each[1])
        if type(event) is CopyQueued:
            self._leaving.begin(event, epoch, sequence)

    def _add_other(self, event: AnyEvent) -> None:
        block = self._open
        if isinstance(event, Matured):
            self._open = block._replace(
                matured_ms=max(block.matured_ms, event.up_to_ms),
                matured_end=max(block.matured_end, event.end_offset),
            )
        elif isinstance(event, Trimmed):
            self._open = block._replace(trimmed_to=max(block.trimmed_to, event.start_offset))
        elif isinstance(event, CopyStored):
            spans = self._leaving.end(event)
            if spans is None:
                self.add_lost()
            for each in spans or ():
                self._cover.add(each[0], each[1])
        elif isinstance(event, SnapshotOutboxEntry):
            self._leaving.restore(event.entry, event.event)
        elif type(event) not in NO_MESSAGES:
            self.add_lost()

    def add_lost(self) -> None:
        """Take note that what comes next may concern any message."""
        self._open = self._open._replace(is_wide=True)

    def end_frame(self, next_sequence: int, size_bytes: int) -> None:
        """Take note that a frame has ended: here a block may."""
        self._size_bytes += size_bytes
        if self._size_bytes >= limits.SPANS_BLOCK_BYTES:
            self._done.append(self._whole())
            self._begin(next_sequence)

    def blocks(self) -> list[Block]:
        """Return all blocks, the one that is open last."""
        return [*self._done, self._whole()]

    def _whole(self) -> Block:
        return self._open._replace(intervals=self._cover.intervals())


def build_blocks(reader: LogReader, start: int, end: int) -> list[Block]:
    """Read the events from ``start`` up to ``end``; blocks on the disk.

    ``start`` is where a segment begins: so what leaves is known, or said not to be. Where frames
    begin does not matter here: a block that begins within one is read with the whole of it.
    """
    builder, taken = BlockBuilder(start, PendingCopies()), 0
    for found in events_between(reader, start, end):
        if isinstance(found, Lost):
            builder.add_lost()
            continue
        builder.add(found.event, found.epoch, found.sequence)
        taken += 1
        if taken % _EVENTS_IN_BLOCK == 0:
            builder.end_frame(found.sequence + 1, limits.SPANS_BLOCK_BYTES)
    return builder.blocks()


class SegmentSpans:
    """The blocks of one segment, or of a part of it, from ``start`` up to ``end``."""

    def __init__(self, start: int, end: int, blocks: Int64s, intervals: Int64s) -> None:
        self.start = start
        self.end = end
        self._blocks = blocks
        self._intervals = intervals

    @classmethod
    def of(cls, start: int, end: int, blocks: Sequence[Block]) -> SegmentSpans:
        """Return the index that blocks make."""
        rows = [block[:_BLOCK_COLUMNS] for block in blocks]
        parts = [(n, *each) for n, block in enumerate(blocks) for each in block.intervals]
        return cls(
            start,
            end,
            np.array(rows, np.int64).reshape(-1, _BLOCK_COLUMNS).T,
            np.array(parts, np.int64).reshape(-1, _INTERVAL_COLUMNS).T,
        )

    def summary(self) -> Block:
        """Return what all blocks together speak of."""
        starts, wide, matured_ms, matured_end, trimmed_to = self._blocks
        if not len(starts):
            return Block(self.start)
        return Block(
            self.start,
            bool(wide.any()),
            int(matured_ms.max()),
            int(matured_end.max()),
            int(trimmed_to.max()),
            joined(self._apart()),
        )

    def _apart(self) -> list[Interval]:
        """Return the intervals of all blocks, those that touch as one."""
        _, low, high = self._intervals
        if not len(low):
            return []
        order = np.argsort(low)
        low, high = low[order], np.maximum.accumulate(high[order])
        breaks = np.flatnonzero(low[1:] > high[:-1])
        firsts = low[[0, *(breaks + 1).tolist()]].tolist()
        lasts = high[[*breaks.tolist(), len(high) - 1]].tolist()
        return list(zip(firsts, lasts, strict=True))

    def about(self, offset: int) -> list[Interval]:
        """Return the sequences at which there may be something about a message, as ranges."""
        numbers, low, high = self._intervals
        chosen = self._blocks[1] != 0
        chosen[numbers[(low <= offset) & (offset < high)]] = True
        return self._ranges(chosen)

    def maturing(self, offset: int, due_ms: int) -> list[Interval]:
        """Return where there may be the maturing of a message."""
        _, wide, matured_ms, matured_end, _ = self._blocks
        return self._ranges((wide != 0) | ((matured_ms >= due_ms) & (matured_end > offset)))

    def trimming(self, offset: int) -> list[Interval]:
        """Return where there may be the deletion of a message by retention."""
        return self._ranges((self._blocks[1] != 0) | (self._blocks[4] > offset))

    def _ranges(self, chosen: npt.NDArray[np.bool_]) -> list[Interval]:
        """Return the sequences of chosen blocks, those that follow each other as one."""
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

    def pack(self, size_bytes: int) -> bytes:
        """Return the bytes of the file of a segment so long."""
        counts = self._blocks.shape[1], self._intervals.shape[1]
        head = np.array([_MAGIC, self.start, self.end, size_bytes, *counts], np.int64)
        data = np.concatenate([head, self._blocks.ravel(), self._intervals.ravel()]).tobytes()
        return data + crc32c(data).to_bytes(8, "little")

    @classmethod
    def unpack(cls, data: bytes | memoryview, segment: Segment) -> SegmentSpans | None:
        """Return what a file says, None unless it is sound and about the segment as it is."""
        if len(data) < 8 * (_HEAD_WORDS + 1) or len(data) % 8:
            return None
        if int.from_bytes(data[-8:], "little") != crc32c(data[:-8]):
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
