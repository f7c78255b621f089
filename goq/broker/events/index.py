"""The sparse index over all events of a partition.

Blocks of sealed segments come from their ``.spans`` files. Memory holds a summary of each segment
that was looked up. The node's index cache has the blocks of the most recently used segments.
:mod:`goq.broker.events.live_index` indexes the segments that still grow and passes their blocks to
each lookup.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from goq.broker.events.index_blocks import (
    EventIndexBlock,
    Interval,
    SegmentEventIndex,
    build_blocks,
)
from goq.index_cache import IndexCache
from goq.storage.disk import Disk
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import SPANS_SUFFIX, Segment


class LiveBlocks(NamedTuple):
    """The blocks of an unsealed segment from ``sequence`` on.

    Events before ``sequence`` were in the log when it was opened. ``end`` is the end of what was
    committed at the time of the snapshot; there may be blocks behind it.
    """

    sequence: int
    end: int
    blocks: Sequence[EventIndexBlock]


LiveBlocksBySegment = Mapping[int, LiveBlocks]
"""By the first sequence of the segment."""


class EventIndex:
    """Finds the ranges of events to read. Methods block on the disk; any thread may call them."""

    def __init__(self, disk: Disk, reader: LogReader, cache: IndexCache) -> None:
        self._disk = disk
        self._reader = reader
        self._lock = threading.Lock()
        self._summaries: dict[Path, EventIndexBlock] = {}
        self._cache = cache
        self._token = object()  # another index may be of another log with the same paths
        self._blocks_at_open: dict[int, list[EventIndexBlock]] = {}

    def message_ranges(self, offset: int, live: LiveBlocksBySegment) -> list[Interval]:
        """Return the ranges of sequences, in order, that may hold an event about a message.

        Events that apply by time or by offset are excluded: maturity, and deletion by retention.
        """

        def may_be(summary: EventIndexBlock) -> bool:
            return summary.covers_all or any(
                low <= offset < high for low, high in summary.intervals
            )

        return self._find(live, may_be, lambda spans: spans.message_ranges(offset))

    def maturity_ranges(
        self, offset: int, due_ms: int, live: LiveBlocksBySegment
    ) -> list[Interval]:
        """Return the ranges where a message that is due at ``due_ms`` may have matured."""

        def may_be(summary: EventIndexBlock) -> bool:
            is_behind = summary.matured_ms >= due_ms and summary.matured_end > offset
            return summary.covers_all or is_behind

        return self._find(live, may_be, lambda spans: spans.maturity_ranges(offset, due_ms))

    def trim_ranges(self, offset: int, live: LiveBlocksBySegment) -> list[Interval]:
        """Return the ranges where retention may have deleted a message."""

        def may_be(summary: EventIndexBlock) -> bool:
            return summary.covers_all or summary.trimmed_to > offset

        return self._find(live, may_be, lambda spans: spans.trim_ranges(offset))

    def _find(
        self,
        live: LiveBlocksBySegment,
        may_be: Callable[[EventIndexBlock], bool],
        look: Callable[[SegmentEventIndex], list[Interval]],
    ) -> list[Interval]:
        segments = self._reader.segments
        self._forget_deleted(segments)
        found: list[Interval] = []
        end = max((each.end for each in live.values()), default=None)
        for segment in segments:
            if end is not None and segment.base_offset >= end:
                break  # started after the snapshot ``live``
            growing = live.get(segment.base_offset)
            if growing is not None:
                found += look(self._live_segment(segment, growing))
            elif segment.message_count and may_be(self._summary(segment)):
                found += look(self._segment_index(segment))
        if end is None:
            return found
        return [(start, min(stop, end)) for start, stop in found if start < end]

    def _live_segment(self, segment: Segment, live: LiveBlocks) -> SegmentEventIndex:
        blocks = list(live.blocks)
        if live.sequence > segment.base_offset:
            blocks = [*self._opening_blocks(segment.base_offset, live.sequence), *blocks]
        blocks = [block for block in blocks if block.start < live.end]
        return SegmentEventIndex.of(segment.base_offset, live.end, blocks)

    def _opening_blocks(self, start: int, end: int) -> list[EventIndexBlock]:
        head = self._blocks_at_open.get(start)
        if head is None:
            head = self._blocks_at_open[start] = build_blocks(self._reader, start, end)
        return head

    def _summary(self, segment: Segment) -> EventIndexBlock:
        summary = self._summaries.get(segment.path)
        return self._segment_index(segment).summary() if summary is None else summary

    def _segment_index(self, segment: Segment) -> SegmentEventIndex:
        """Return the blocks of a sealed segment. Rebuild them if the file is missing or damaged."""
        name = (self._token, segment.path)
        cached: SegmentEventIndex | None = self._cache.get(name)
        if cached is not None:
            return cached
        spans = self._read_file(segment)
        if spans is None:
            start, end = segment.base_offset, segment.end_offset
            spans = SegmentEventIndex.of(start, end, build_blocks(self._reader, start, end))
            self._write(segment, spans)
        with self._lock:
            self._summaries[segment.path] = spans.summary()
        self._cache.put(name, spans, spans.memory_bytes)
        return spans

    def _read_file(self, segment: Segment) -> SegmentEventIndex | None:
        path = segment.path.with_suffix(SPANS_SUFFIX)
        try:
            return SegmentEventIndex.unpack(
                self._disk.read(path, 0, self._disk.size(path)), segment
            )
        except OSError:
            return None

    def _forget_deleted(self, segments: Sequence[Segment]) -> None:
        with self._lock:
            if len(self._summaries) > len(segments):
                there = {segment.path for segment in segments}
                for path in self._summaries.keys() - there:
                    del self._summaries[path]
                    self._cache.drop((self._token, path))

    def seal(self, segment: Segment, blocks: Sequence[EventIndexBlock] | None) -> None:
        """Write the index file of a segment that was just sealed. ``blocks`` is None if unknown."""
        start, end = segment.base_offset, segment.end_offset
        if blocks is None:
            blocks = build_blocks(self._reader, start, end)
        self._blocks_at_open.pop(start, None)
        self._write(segment, SegmentEventIndex.of(start, end, blocks))

    def _write(self, segment: Segment, spans: SegmentEventIndex) -> None:
        path = segment.path.with_suffix(SPANS_SUFFIX)
        try:
            self._disk.replace(path, spans.pack(segment))
            if segment not in self._reader.segments:
                self._disk.remove(path)  # the segment was deleted in the meantime
        except OSError:
            return  # the next lookup rebuilds it
