"""Reads of a partition's log for an answer, without blocking the event loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from goq import limits
from goq.api.codec.frames import frames_response, lanes_of
from goq.api.codec.messages import JsonMessages, messages_json
from goq.api.schemas.messages import MessageOut, MessagesOut
from goq.broker.partition.partition import Partition
from goq.broker.retention.tiered_log import ArchiveView, TieredLogReader
from goq.broker.runtime.background import BackgroundReads
from goq.broker.topic.topic import Topic
from goq.frame.projection import leave_out
from goq.frame.slice import slice_frame
from goq.frame.view import FrameView
from goq.http.message import Response
from goq.storage.disk import NotCached
from goq.storage.log.reader import ReadResult
from goq.storage.log.sparse_index import TIME_US_MAX
from goq.storage.log.time_range_reader import FOREGROUND, ReadBounds, TimeRange, read_time_range

_KEPT_FRAMES_MAX = 64
_KEPT_BYTES_MAX = 32 * limits.MIB
_EMPTY_READINGS_MAX = 64  # per answer; the answer then says where to continue


async def read_skipping_compacted(
    partition: Partition, start: int, end: int, limit: int
) -> tuple[int, ReadResult]:
    """Read up to ``limit`` offsets, skipping ranges that were compacted away.

    Return the start offset and the reading. The number of skipped readings is bounded.
    """
    reading = await read_log(partition, start, min(end, start + limit))
    for _ in range(_EMPTY_READINGS_MAX):
        if reading.damage or not reading.frames:
            break
        first = _first_kept(reading, start)
        if first < start + limit or start >= end:
            break
        start = min(first, end)
        reading = await read_log(partition, start, min(end, start + limit))
    return start, reading


def _first_kept(reading: ReadResult, start: int) -> int:
    """Return the first offset from ``start`` on that was not compacted away, within the reading."""
    for view in reading.frames:
        base, end = view.header.base_offset, view.header.end_offset
        at = max(start, base)
        if view.removed_rows is not None and at < end and view.removed_rows.has(at - base):
            at = base + view.removed_rows.run_end(at - base)
        if at < end:
            return at
    return reading.next_offset


async def read_log(partition: Partition, start: int, end: int) -> ReadResult:
    """Read cached data at once, and other data in a thread."""
    if start >= end:
        return ReadResult(next_offset=start)
    try:
        return partition.read(start, messages_max=end - start, wait=False)
    except NotCached:
        return await partition.read_in_thread(start, messages_max=end - start)


class RecentFrames:
    """The frames that one request read last, for reads of few messages each, in any order."""

    def __init__(self) -> None:
        self._views: deque[tuple[int, FrameView]] = deque()
        self._size_bytes = 0

    async def read(self, partition: Partition, start: int, end: int) -> ReadResult:
        """Return what :func:`read_log` returns; a range within one frame is read once."""
        number = partition.identity.number
        for known, view in self._views:
            if known == number and _holds(view, start, end):
                return ReadResult([view], next_offset=view.header.end_offset)
        reading = await read_log(partition, start, end)
        if len(reading.frames) == 1 and _holds(reading.frames[0], start, end):
            self._keep(number, reading.frames[0])
        return reading

    def _keep(self, partition: int, view: FrameView) -> None:
        self._views.appendleft((partition, view))
        self._size_bytes += view.unpacked_bytes
        while len(self._views) > 1 and (
            len(self._views) > _KEPT_FRAMES_MAX or self._size_bytes > _KEPT_BYTES_MAX
        ):
            self._size_bytes -= self._views.pop()[1].unpacked_bytes


def _holds(view: FrameView, start: int, end: int) -> bool:
    return view.header.base_offset <= start and end <= view.header.end_offset


_BACKGROUND = ReadBounds(
    limits.READ_BULK_MESSAGES_MAX, limits.BACKGROUND_PIECE_BYTES, limits.BACKGROUND_PIECE_BYTES
)
_BACKGROUND_JSON = ReadBounds(
    limits.BACKGROUND_JSON_MESSAGES, limits.BACKGROUND_JSON_BYTES, limits.BACKGROUND_JSON_BYTES
)


class RangeRead(msgspec.Struct, frozen=True):
    """A read of a partition in a thread: by time, in the background, of chosen columns."""

    topic: Topic
    partition: int
    offset: int
    times: TimeRange
    limit: int
    wait_ms: int
    as_frames: bool
    background: bool
    archive: ArchiveView | None = None
    """If set, archived messages are read too."""
    bytes_max: int | None = None
    """If set, the answer ends before a frame that would exceed it, unless it is the first frame."""
    without: Collection[str] = ()
    """Columns that are left out of the frames. ``bytes_max`` is of the frames as stored."""

    @property
    def until_us(self) -> int | None:
        """The append time that all messages lie before; None without a bound."""
        as_of_us = None if self.archive is None else self.archive.as_of_us
        bounds = [self.times.to_us] if self.times.to_us <= TIME_US_MAX else []
        return min(bounds if as_of_us is None else [*bounds, as_of_us + 1], default=None)


class _Part(NamedTuple):
    """The messages of a frame from one offset up to another."""

    view: FrameView
    start: int
    end: int


class _Piece:
    """A piece of the log up to the partition's current end, read in a thread, with its response."""

    def __init__(self, asked: RangeRead, partition: Partition, end: int) -> None:
        bounds, limit = FOREGROUND, asked.limit
        if asked.background:
            bounds = _BACKGROUND if asked.as_frames else _BACKGROUND_JSON
            limit = min(limit, bounds.messages_max)
        bytes_max = min(bounds.bytes_max, asked.bytes_max or bounds.bytes_max)
        bounds = bounds._replace(messages_max=limit, bytes_max=bytes_max)
        reader, start, stop = partition.message_reader, asked.offset, end
        tiered: TieredLogReader | None = None
        if asked.archive is not None:
            tiered, start, end, stop = asked.archive.open_reader(partition, start, end)
            reader = tiered
        self.end = end
        self.reading = read_time_range(reader, asked.times, start, stop, bounds)
        self._asked = asked
        self._parts, self._next = _cut(self.reading, start, stop, limit)
        if asked.without:
            self._parts, self._next = _bounded(self._parts, self._next)
        self._deleted = tiered.gaps(start, self._next) if tiered is not None else []
        self.response = (
            self._frames(reader.segments[0].base_offset) if asked.as_frames else self._json()
        )

    @property
    def is_empty(self) -> bool:
        """Whether the piece has neither messages nor damage."""
        return not self.reading.frames and not self.reading.damage

    def _frames(self, start_offset: int) -> Response:
        number, topic = self._asked.partition, self._asked.topic
        preface = {
            "next": self._next,
            "start": start_offset,
            "end": self.end,
            "damaged": damaged_json(number, self.reading, self._next),
            "deleted": self._deleted,
            "lanes": lanes_of(topic),
        }
        without = self._asked.without
        return frames_response(preface, [(number, _frame(part, without)) for part in self._parts])

    def _json(self) -> Response:
        found, stop = JsonMessages(limits.READ_BYTES_MAX), self._next
        for out in self._messages():
            if not found.add_at_once(out):
                stop = out.offset
                break
        damaged = damaged_json(self._asked.partition, self.reading, stop)
        return found.response(MessagesOut([], stop, damaged, self.end))

    def _messages(self) -> Iterator[MessageOut]:
        number, topic = self._asked.partition, self._asked.topic
        for view, start, end in self._parts:
            yield from messages_json(topic, number, [view], start, end)


class RangeReader:
    """Answers reads by time and reads in the background."""

    def __init__(self, background: BackgroundReads) -> None:
        self._background = background

    async def answer(self, asked: RangeRead) -> Response:
        """Return the first messages of a read; wait for one if there is none yet."""
        piece = await self._first(asked)
        if piece.is_empty and asked.wait_ms:
            next_offset = max(asked.offset, piece.reading.next_offset)
            await asked.topic.receiver.log_readers.wait(asked.partition, next_offset, asked.wait_ms)
            piece = await self._first(replace(asked, offset=next_offset))
        return piece.response

    async def _first(self, asked: RangeRead) -> _Piece:
        """Read up to the first piece that is not empty, or to the end.

        The end is behind all messages of the times that are asked for, also if they are being
        stored: another read of the same times has the same messages.
        """
        if asked.until_us is not None:
            await asked.topic.partitions[asked.partition].wait_for_times_before(asked.until_us)
        while True:
            partition = asked.topic.partitions[asked.partition]
            work = partial(_Piece, asked, partition, partition.end_offset)
            tiered = asked.archive
            run = partition.in_thread if tiered is None else tiered.archive.in_thread
            piece = await (self._background.run if asked.background else run)(work)
            for damage in piece.reading.damage:
                if damage.start_offset >= partition.log_start_offset:
                    partition.note_damage(damage)
            if not piece.is_empty or piece.reading.next_offset >= piece.end:
                return piece
            asked = replace(asked, offset=piece.reading.next_offset)


def _cut(reading: ReadResult, offset: int, end: int, limit: int) -> tuple[list[_Part], int]:
    """Return the messages to send of each frame, and the offset to continue at."""
    parts: list[_Part] = []
    for view in reading.frames:
        start = max(offset, view.header.base_offset)
        stop = min(end, view.header.end_offset, start + limit)
        parts.append(_Part(view, start, stop))
        limit -= stop - start
        if stop < view.header.end_offset:
            return parts, stop
    return parts, max(offset, min(reading.next_offset, end))


def _bounded(parts: list[_Part], next_offset: int) -> tuple[list[_Part], int]:
    """Return the first parts that may be decompressed for one answer, and the offset after them."""
    left_bytes = limits.READ_UNPACKED_BYTES_MAX
    for number, part in enumerate(parts):
        left_bytes -= part.view.unpacked_bytes
        if left_bytes < 0 and number:
            return parts[:number], part.start
    return parts, next_offset


def _frame(part: _Part, without: Collection[str]) -> memoryview:
    view = leave_out(part.view, without) if without else part.view
    return slice_frame(view, part.start, part.end)


def damaged_json(number: int, reading: ReadResult, stop: int) -> list[dict[str, int]]:
    """Return the damage before offset ``stop``."""
    return [
        {"partition": number, "start_offset": d.start_offset, "end_offset": d.end_offset}
        for d in reading.damage
        if d.start_offset < stop
    ]
