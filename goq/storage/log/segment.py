"""One file of a log: frames end to end, named after the first offset in it.

``00000000000000045678.log`` begins with offset 45678. Beside it lie its ``.index``, in a log that
keeps them its ``.columns``, and what else was derived from it: ``.keys`` of messages, ``.spans`` of
events. Only the last segment of a log grows; the others are sealed and never change but by being
deleted, or by another *generation* taking their place: compaction writes the segment anew, as
``00000000000000045678.1.log``. The highest generation that there is of a segment is the segment;
it has its name only when it is whole.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from goq.storage.column_index.file import SUFFIX as COLUMNS_SUFFIX
from goq.storage.column_index.segment_columns import SegmentColumns
from goq.storage.disk import Disk
from goq.storage.log.sparse_index import IndexEntry, SparseIndex
from goq.storage.scanner import ScannedFrame, Scanner

SUFFIX = ".log"
INDEX_SUFFIX = ".index"
KEYS_SUFFIX = ".keys"
SPANS_SUFFIX = ".spans"
_NAME_DIGITS = 20
_GENERATION_DIGITS = 9
_NAME = re.compile(
    rf"([0-9]{{{_NAME_DIGITS}}})(?:\.([1-9][0-9]{{0,{_GENERATION_DIGITS - 1}}}))?(\..*)"
)
_SUFFIXES = (SUFFIX, INDEX_SUFFIX, COLUMNS_SUFFIX, KEYS_SUFFIX, SPANS_SUFFIX)
_ASIDE_SUFFIX = ".new"
_OFFSET_MAX = 2**63 - 1


class Segment:
    """What is known of one segment.

    ``time_us`` is the running maximum of append times over the log up to this segment's end; over
    the segment alone as long as ``times_are_own``, which only an index made anew can leave.
    """

    def __init__(self, directory: Path, base_offset: int, generation: int = 0) -> None:
        self.base_offset = base_offset
        self.generation = generation
        of_generation = f".{generation}" if generation else ""
        self.path = directory / f"{base_offset:0{_NAME_DIGITS}d}{of_generation}{SUFFIX}"
        self.index_path = self.path.with_suffix(INDEX_SUFFIX)
        self.size_bytes = 0
        self.end_offset = base_offset
        self.index: SparseIndex | None = None
        self.columns: SegmentColumns | None = None
        self.first_time_us: int | None = None
        self.time_us = 0
        self.times_are_own = False
        self._loading = threading.Lock()

    @property
    def message_count(self) -> int:
        """Offsets in the segment, damaged ones included."""
        return self.end_offset - self.base_offset

    def attach_columns(self, disk: Disk) -> SegmentColumns:
        """Begin to keep the columns of the segment's frames; nothing is read yet."""
        self.columns = SegmentColumns(disk, self.path, self.base_offset, self.size_bytes)
        return self.columns

    def has_index(self, disk: Disk) -> bool:
        """Whether the index is in memory, loading it from its file if that is sound."""
        with self._loading:
            return self._has_index(disk)

    def _has_index(self, disk: Disk) -> bool:
        if self.index is None:
            index = self._stored_index(disk)
            if index is None or index.last().position != self.size_bytes:
                return False
            self._use(index)
        return True

    def load_index(self, disk: Disk) -> SparseIndex:
        """Return the index, made anew in memory where its file is not sound; from any thread."""
        with self._loading:
            if not self._has_index(disk):
                self.times_are_own = True
                self._use(self._rebuilt_index(disk, 0))
            assert self.index is not None
            return self.index

    def settle_times(self, disk: Disk, time_before_us: int) -> None:
        """Finish an index made anew, once the running maximum before the segment is known."""
        with self._loading:
            if self.index is None or not self.times_are_own:
                return
            self.index.raise_max_times(time_before_us)
            self._use(self.index)
            self.times_are_own = False
            try:
                disk.replace(self.index_path, self.index.pack(self.index.last()))
            except OSError:
                return  # kept in memory; whoever opens the log next makes it again

    def _use(self, index: SparseIndex) -> None:
        self.time_us = index.last().time_us
        self.index = index

    def _stored_index(self, disk: Disk) -> SparseIndex | None:
        try:
            size = disk.size(self.index_path)
            index = SparseIndex.unpack(disk.read(self.index_path, 0, size))
        except FileNotFoundError:
            return None
        if index is None or index.last().position > self.size_bytes:
            return None
        begins_here = index.first()[:2] == (self.base_offset, 0)
        return index if begins_here else None

    def index_up_to(self, disk: Disk, position: int, *, time_before_us: int) -> SparseIndex:
        """Return an index of the frames before ``position``, the place of a checkpoint."""
        stored = self._stored_index(disk)
        if stored is not None and stored.last().position == position:
            return stored
        return self._rebuilt_index(disk, time_before_us, end_position=position)

    def _rebuilt_index(
        self, disk: Disk, time_before_us: int, *, end_position: int | None = None
    ) -> SparseIndex:
        index = SparseIndex()
        end_position = self.size_bytes if end_position is None else end_position
        entry = IndexEntry(self.base_offset, 0, time_before_us)
        index.add(entry, always=True)
        for place in Scanner(disk, self.path, end_position).frames(0, self.base_offset):
            if isinstance(place, ScannedFrame):
                header = place.view.header
                time_us = header.append_time_us
                time_before_us = max(time_before_us, time_us)
                entry = IndexEntry(
                    header.end_offset, place.end_position, time_before_us, time_us, time_us
                )
                index.add(entry)
                continue
            index.add_bad_region()
            if place.end_offset is not None:
                entry = entry._replace(offset=place.end_offset, position=place.end_position)
        index.add(entry._replace(position=end_position), always=True)
        return index

    def read_first_time(self, disk: Disk) -> int | None:
        """Return when the first sound frame was appended, None where there is none."""
        if self.first_time_us is None and self.size_bytes:
            for place in Scanner(disk, self.path, self.size_bytes).frames(0, self.base_offset):
                if isinstance(place, ScannedFrame):
                    self.first_time_us = place.view.header.append_time_us
                    break
        return self.first_time_us

    @property
    def aside_path(self) -> Path:
        """Where a new generation is written before it is whole."""
        return self.path.with_name(self.path.name + _ASIDE_SUFFIX)

    def remove(self, disk: Disk) -> None:
        """Delete the segment's files, the log last: the others could only mislead without it."""
        (self.columns or self.attach_columns(disk)).remove()
        for suffix in (SPANS_SUFFIX, KEYS_SUFFIX, INDEX_SUFFIX):
            disk.remove(self.path.with_suffix(suffix))
        disk.remove(self.path)


def list_segments(disk: Disk, directory: Path) -> list[Segment]:
    """Return the segments in a directory by base offset, with their sizes as the disk has them.

    Of each the newest generation. Files of other names are none of the log's.
    """
    names = disk.names(directory)
    segments = [Segment(directory, *each) for each in _newest(names).items()]
    try:
        for segment in segments:
            segment.size_bytes = disk.size(segment.path)
    except FileNotFoundError:
        if disk.names(directory) == names:
            raise
        return list_segments(disk, directory)  # a node that runs has compacted or deleted one
    for segment, after in pairwise(segments):
        segment.end_offset = after.base_offset
    return segments


def remove_leftovers(disk: Disk, directory: Path) -> None:
    """Delete what a compaction that was cut short left of other generations of segments."""
    names = disk.names(directory)
    newest = _newest(names)
    for name, base_offset, generation, suffix in _parsed(names):
        is_old = newest.get(base_offset, generation) != generation
        is_aside = suffix == SUFFIX + _ASIDE_SUFFIX
        if is_aside or (is_old and suffix.removesuffix(_ASIDE_SUFFIX) in _SUFFIXES):
            disk.remove(directory / name)


def _newest(names: Iterable[str]) -> dict[int, int]:
    """Return the newest generation of each segment, by base offset, rising."""
    found: dict[int, int] = {}
    for _, base_offset, generation, suffix in _parsed(names):
        if suffix == SUFFIX:
            found[base_offset] = max(generation, found.get(base_offset, 0))
    return dict(sorted(found.items()))


def _parsed(names: Iterable[str]) -> Iterator[tuple[str, int, int, str]]:
    """Yield the names of a segment's files, with base offset, generation and suffix."""
    for name in names:
        match = _NAME.fullmatch(name)
        if match and int(match[1]) <= _OFFSET_MAX:
            yield name, int(match[1]), int(match[2] or 0), match[3]


class RewriteHistory:
    """``number`` counts the segments that were written anew since the log was opened."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        ends = [segment.end_offset for segment in segments if segment.generation]
        self.number = 0
        self._reaches = [(0, max(ends, default=0))]  # numbers rise, and ends fall

    def note(self, segment: Segment) -> None:
        """Hear that a segment is being written anew."""
        self.number += 1
        while self._reaches and self._reaches[-1][1] <= segment.end_offset:
            self._reaches.pop()
        self._reaches.append((self.number, segment.end_offset))

    def end_offset_since(self, number: int) -> int:
        """Return before which offset anything was written anew after the first ``number`` times.

        With -1 at any time, also before the log was opened.
        """
        return next((end for count, end in self._reaches if count > number), 0)
