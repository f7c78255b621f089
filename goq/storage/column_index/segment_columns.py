"""The column index of one segment: blocks in its ``.columns`` file, and later rows in memory.

The log's writer adds the rows that it commits. It writes a block at each checkpoint, when a block
is full, and when it seals the segment. Any thread reads. The index of a sealed segment is loaded on
first use. Missing blocks are rebuilt from the segment's frames, and written by the reader that
needed them. A failed write of the file is not an error: a block that is not in the file is read
from the frames each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from goq import limits
from goq.frame.view import FrameView
from goq.storage.column_index.block import (
    NO_FRAME,
    BlockRange,
    ColumnBlock,
    LastFrame,
    SegmentPosition,
    last_frame,
    pack_block,
    unpack_dedup_rows,
    unpack_rows,
)
from goq.storage.column_index.file import ColumnFile
from goq.storage.column_index.rows import (
    ColumnRows,
    ColumnsBuilder,
    DedupIdRows,
    FrameRows,
    read_frames,
)
from goq.storage.disk import Disk
from goq.storage.scanner import ScannedFrame, Scanner

T = TypeVar("T")
_MS_MAX = 2**63 - 1


class SegmentColumns:
    """The column index of a segment that already has ``size_bytes``; see the module."""

    def __init__(self, disk: Disk, segment_path: Path, base_offset: int, size_bytes: int) -> None:
        self._disk = disk
        self._segment_path = segment_path
        self._file = ColumnFile(disk, segment_path)
        self._base = SegmentPosition(0, base_offset)
        self._size_bytes = size_bytes
        self._is_sealed = True
        self._is_loaded = False
        self._blocks: list[ColumnBlock] = []  # replaced, never changed in place
        self._builder = ColumnsBuilder()  # rows of the frames after the blocks
        self._pending = BlockRange(self._base, self._base, NO_FRAME)
        self._load_lock = threading.Lock()
        self._swap_lock = threading.Lock()  # held briefly, because commits wait for it

    # For the log's writer

    def open_for_append(self) -> None:
        """Prepare for :meth:`add`; rebuilds missing blocks, so it blocks on the disk."""
        with self._load_lock:
            self._is_sealed = False
            self._load()

    def number(self, found: FrameRows) -> FrameRows:
        """Return the rows of the next commit with the names' numbers in this index.

        Runs on the writing thread, after everything else: 65,535 names take 10 ms.
        """
        rows, dedup = found
        if rows is None:
            return found
        with self._swap_lock:
            return self._builder.numbered(rows), dedup

    def add(self, found: FrameRows, end: SegmentPosition, last: LastFrame) -> None:
        """Add the rows of a commit (memory only)."""
        self._append(found, end, last)
        self._size_bytes = end.position

    @property
    def is_block_full(self) -> bool:
        """Whether the rows in memory fill a block."""
        return self._builder.size_bytes >= limits.COLUMNS_BLOCK_BYTES

    def flush(self) -> None:
        """Write the rows in memory as a block; blocks on the disk, but does not sync."""
        if self._pending.start != self._pending.end:
            self._write_block()

    def truncate(self, size_bytes: int) -> None:
        """Drop the rows cut off the segment's file, and prepare for appends."""
        with self._load_lock:
            self._size_bytes = size_bytes
            self._is_sealed = self._is_loaded = False
            self._load()

    def remove(self) -> None:
        """Delete the file."""
        self._file.remove()

    # For readers

    def rows(
        self, start: int, end: int, due_from_ms: int | None = None, due_to_ms: int | None = None
    ) -> Iterator[ColumnRows]:
        """Yield rows with offsets from ``start`` up to ``end``, a block at a time.

        With a due bound, both ends included, only rows of delayed messages due within it.
        """
        due = None
        if due_from_ms is not None or due_to_ms is not None:
            due = max(1, due_from_ms or 1), _MS_MAX if due_to_ms is None else due_to_ms

        def chosen(rows: ColumnRows) -> Iterator[ColumnRows]:
            rows = rows.within(start, end)
            rows = rows if due is None else rows.due_within(*due)
            if len(rows.offsets):
                yield rows

        blocks, gathered = self._snapshot(lambda builder: builder.rows())
        for block in blocks:
            if not block.rows or _is_outside(block, start, end) or (due and not block.has_due(due)):
                continue
            body = self._file.body(block)
            yield from chosen(
                self._reread(block).rows() if body is None else unpack_rows(block, body)
            )
        yield from chosen(gathered)

    def dedup_rows(self, start: int, end: int) -> Iterator[DedupIdRows]:
        """Yield dedup ids of offsets from ``start`` up to ``end``, the newest block first."""
        blocks, gathered = self._snapshot(lambda builder: builder.dedup_rows())
        gathered = gathered.within(start, end)
        if len(gathered.offsets):
            yield gathered
        for block in reversed(blocks):
            if not block.dedup_rows or _is_outside(block, start, end):
                continue
            body = self._file.body(block)
            rows = (
                self._reread(block).dedup_rows() if body is None else unpack_dedup_rows(block, body)
            ).within(start, end)
            if len(rows.offsets):
                yield rows

    def _snapshot(self, copy: Callable[[ColumnsBuilder], T]) -> tuple[list[ColumnBlock], T]:
        """Return the blocks, and a copy of the rows after them."""
        with self._load_lock:
            self._load()
            with self._swap_lock:
                return self._blocks, copy(self._builder)

    def _append(self, found: FrameRows, end: SegmentPosition, last: LastFrame) -> None:
        with self._swap_lock:
            self._builder.add(*found)
            self._pending = self._pending._replace(end=end, last=last)

    # Loading

    def _load(self) -> None:
        if not self._is_loaded:  # an empty segment needs no read
            stored = self._size_bytes and self._file.blocks(self._base, self._size_bytes)
            self._rebuild_after(stored or [])

    def _rebuild_after(self, blocks: list[ColumnBlock]) -> None:
        """Keep these blocks, and rebuild the following ones from the segment."""
        self._is_loaded = False
        frames = blocks[-1].frames if blocks else BlockRange(self._base, self._base, NO_FRAME)
        self._start_block(blocks, frames)
        try:
            for found, end, last in self._scan(frames.end, frames.last, self._size_bytes):
                self._append(found, end, last)
                if self.is_block_full:
                    self._write_block()
        except FileNotFoundError:
            return  # the segment was deleted or lost: there is nothing to index
        if self._is_sealed:
            self.flush()
        self._is_loaded = True

    def _scan(
        self, start: SegmentPosition, last: LastFrame, end_position: int
    ) -> Iterator[tuple[FrameRows, SegmentPosition, LastFrame]]:
        """Yield the rows of frames up to the end of a frame, in batches, and how far they reach."""
        scanner = Scanner(self._disk, self._segment_path, self._size_bytes, chunk_bytes=limits.MIB)
        views, views_bytes, end = list[FrameView](), 0, start
        for place in scanner.frames(*start):
            if place.position >= end_position:
                break
            end = SegmentPosition(place.end_position, scanner.offset)
            if isinstance(place, ScannedFrame):
                last = last_frame(place.position, place.view.buffer)
                views.append(place.view)
                views_bytes += len(place.view.buffer)
            if views_bytes >= limits.COLUMNS_BLOCK_BYTES // 4:
                yield read_frames(views), end, last
                views, views_bytes = [], 0
        yield read_frames(views), end, last

    def _reread(self, block: ColumnBlock) -> ColumnsBuilder:
        """Return the rows of a corrupt block, read from its frames; rewrite the file if possible.

        While the segment is active, only the log's writer writes the file.
        """
        builder = ColumnsBuilder()
        try:
            start, end, last = block.frames
            for found, _, _ in self._scan(start, last, end.position):
                builder.add(*found)
        except FileNotFoundError:
            return builder
        with self._load_lock:
            if self._is_sealed and block in self._blocks:
                self._rebuild_after(self._blocks[: self._blocks.index(block)])
        return builder

    # Writing

    def _write_block(self) -> None:
        """Write the rows in memory as a block, merged with the last block if both are small."""
        blocks, builder, frames = self._blocks, self._builder, self._pending
        before = blocks[-1] if blocks else None
        if before and before.body_bytes + builder.size_bytes < limits.COLUMNS_BLOCK_BYTES:
            body = self._file.body(before)
            if body is not None:
                builder = _join_block(before, body, builder)
                frames = frames._replace(start=before.frames.start)
                blocks = blocks[:-1]
        position = blocks[-1].file_end if blocks else 0
        if any(block.file_position < 0 for block in blocks):
            position = -1  # no block may follow a block that is not in the file
        block = self._file.write(*pack_block(builder, frames), position)
        self._start_block([*blocks, block], frames)

    def _start_block(self, blocks: list[ColumnBlock], before: BlockRange) -> None:
        with self._swap_lock:
            self._blocks = blocks
            self._builder = ColumnsBuilder()
            self._pending = BlockRange(before.end, before.end, before.last)


def _join_block(before: ColumnBlock, body: memoryview, builder: ColumnsBuilder) -> ColumnsBuilder:
    joined = ColumnsBuilder()
    joined.add(
        unpack_rows(before, body) if before.rows else None,
        unpack_dedup_rows(before, body) if before.dedup_rows else None,
    )
    joined.add(
        builder.rows() if builder.count else None,
        builder.dedup_rows() if builder.dedup_count else None,
    )
    return joined


def _is_outside(block: ColumnBlock, start: int, end: int) -> bool:
    return block.frames.start.offset >= end or block.frames.end.offset <= start
