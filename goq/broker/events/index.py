"""The sparse index of all events that a reader reads: of sealed segments from their files.

In memory are a summary of each segment that was asked for, and the blocks of the latest few. The
segments that still grow are indexed by :mod:`goq.broker.events.live_index`, which hands over what
it has.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from goq import limits
from goq.broker.events.index_blocks import Block, Interval, SegmentSpans, build_blocks
from goq.storage.disk import Disk
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import SPANS_SUFFIX, Segment


class LiveBlocks(NamedTuple):
    """The blocks of a segment that is not sealed, from ``sequence`` on, as they were recorded.

    What lies before was there when the log was opened. ``end`` is up to where the log was durable
    when this was taken: there may be blocks behind it.
    """

    sequence: int
    end: int
    blocks: Sequence[Block]


Live = Mapping[int, LiveBlocks]
"""By the segment's first sequence."""


class SpanIndex:
    """Finds in which events to look; its methods block on the disk and work from any thread."""

    def __init__(self, disk: Disk, reader: LogReader) -> None:
        self._disk = disk
        self._reader = reader
        self._lock = threading.Lock()
        self._summaries: dict[Path, Block] = {}
        self._loaded: OrderedDict[Path, SegmentSpans] = OrderedDict()
        self._heads: dict[int, list[Block]] = {}

    def about(self, offset: int, live: Live) -> list[Interval]:
        """Return the sequences at which there may be something about a message, in order.

        Not what is found by time: its maturing, its deletion by retention.
        """

        def may_be(summary: Block) -> bool:
            return summary.is_wide or any(low <= offset < high for low, high in summary.intervals)

        return self._find(live, may_be, lambda spans: spans.about(offset))

    def maturing(self, offset: int, due_ms: int, live: Live) -> list[Interval]:
        """Return where the maturing of a message may be that is due at ``due_ms``."""

        def may_be(summary: Block) -> bool:
            is_behind = summary.matured_ms >= due_ms and summary.matured_end > offset
            return summary.is_wide or is_behind

        return self._find(live, may_be, lambda spans: spans.maturing(offset, due_ms))

    def trimming(self, offset: int, live: Live) -> list[Interval]:
        """Return where it may be that retention deleted a message."""

        def may_be(summary: Block) -> bool:
            return summary.is_wide or summary.trimmed_to > offset

        return self._find(live, may_be, lambda spans: spans.trimming(offset))

    def _find(
        self,
        live: Live,
        may_be: Callable[[Block], bool],
        look: Callable[[SegmentSpans], list[Interval]],
    ) -> list[Interval]:
        segments = self._reader.segments
        self._forget_deleted(segments)
        found: list[Interval] = []
        end = max((each.end for each in live.values()), default=None)
        for segment in segments:
            if end is not None and segment.base_offset >= end:
                break  # begun since ``live`` was taken
            growing = live.get(segment.base_offset)
            if growing is not None:
                found += look(self._growing(segment, growing))
            elif segment.message_count and may_be(self._summary(segment)):
                found += look(self._spans(segment))
        return found

    def _growing(self, segment: Segment, live: LiveBlocks) -> SegmentSpans:
        blocks = list(live.blocks)
        if live.sequence > segment.base_offset:
            blocks = [*self._head(segment.base_offset, live.sequence), *blocks]
        blocks = [block for block in blocks if block.start < live.end]
        return SegmentSpans.of(segment.base_offset, live.end, blocks)

    def _head(self, start: int, end: int) -> list[Block]:
        head = self._heads.get(start)
        if head is None:
            head = self._heads[start] = build_blocks(self._reader, start, end)
        return head

    def _summary(self, segment: Segment) -> Block:
        summary = self._summaries.get(segment.path)
        return self._spans(segment).summary() if summary is None else summary

    def _spans(self, segment: Segment) -> SegmentSpans:
        """Return the blocks of a sealed segment, made anew where the file is not sound."""
        with self._lock:
            spans = self._loaded.get(segment.path)
            if spans is not None:
                self._loaded.move_to_end(segment.path)
                return spans
        spans = self._stored(segment)
        if spans is None:
            start, end = segment.base_offset, segment.end_offset
            spans = SegmentSpans.of(start, end, build_blocks(self._reader, start, end))
            self._write(segment, spans)
        self._keep(segment, spans)
        return spans

    def _stored(self, segment: Segment) -> SegmentSpans | None:
        path = segment.path.with_suffix(SPANS_SUFFIX)
        try:
            return SegmentSpans.unpack(self._disk.read(path, 0, self._disk.size(path)), segment)
        except OSError:
            return None

    def _keep(self, segment: Segment, spans: SegmentSpans) -> None:
        with self._lock:
            self._summaries[segment.path] = spans.summary()
            self._loaded[segment.path] = spans
            if len(self._loaded) > limits.SPANS_LOADED_MAX:
                self._loaded.popitem(last=False)

    def _forget_deleted(self, segments: Sequence[Segment]) -> None:
        with self._lock:
            if len(self._summaries) > len(segments):
                there = {segment.path for segment in segments}
                self._summaries = {p: s for p, s in self._summaries.items() if p in there}

    def seal(self, segment: Segment, blocks: Sequence[Block] | None) -> None:
        """Write the file of a segment that has just been sealed; None for blocks not known."""
        start, end = segment.base_offset, segment.end_offset
        if blocks is None:
            blocks = build_blocks(self._reader, start, end)
        self._heads.pop(start, None)
        self._write(segment, SegmentSpans.of(start, end, blocks))

    def _write(self, segment: Segment, spans: SegmentSpans) -> None:
        path = segment.path.with_suffix(SPANS_SUFFIX)
        try:
            self._disk.replace(path, spans.pack(segment.size_bytes))
            if segment not in self._reader.segments:
                self._disk.remove(path)  # the segment was deleted meanwhile
        except OSError:
            return  # it is made anew when it is asked for
