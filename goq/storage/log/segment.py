"""A segment: one file of a log, with consecutive frames, named after its first offset.

``00000000000000045678.log`` begins with offset 45678. Beside it lie its ``.index`` and files
derived from it: ``.columns`` in a log with a column index, ``.keys`` of messages, ``.spans`` of
events. Only the last segment of a log grows. The others are sealed. A sealed segment never changes.
It is deleted, or replaced by another *generation*: the log cleaner or a repair writes the segment
again, as ``00000000000000045678.1.log``. The highest generation present is the segment. A
generation gets its name only when it is complete and durable. It may also hold the segments that
followed: then an empty file beside it, ``00000000000000045678.1.merged-00000000000000091234``, says
up to which offset, until their own files are gone.

:class:`WriteBatch` holds the frames of one group commit. The log's owner fills and commits a batch;
any one thread writes it in between. A batch lies in one segment: a log rolls only between batches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from goq import limits
from goq.frame.header import HEADER_BYTES, FrameHeader, stamp
from goq.frame.view import FrameView
from goq.storage.column_index.block import LastFrame, last_frame
from goq.storage.column_index.rows import COLUMN_ATTRIBUTES, FrameRows, read_frames
from goq.storage.column_index.segment_columns import SegmentColumns
from goq.storage.disk import Disk
from goq.storage.log.recovery_point import DurableEnd, log_id_of
from goq.storage.log.sparse_index import TIME_US_MAX, IndexEntry, SparseIndex
from goq.storage.scanner import BadRegion, ScannedFrame, Scanner, is_medium_error

SUFFIX = ".log"
INDEX_SUFFIX = ".index"
KEYS_SUFFIX = ".keys"
SPANS_SUFFIX = ".spans"
NAME_DIGITS = 20
TEMP_SUFFIX = ".new"


class Segment:
    """The state of one segment.

    ``time_us`` is the running maximum of append times over the log, up to the end of this segment.
    While ``has_partial_times`` is set, the maximum covers this segment alone; only a rebuilt index
    causes that. With ``has_lost_times`` it lacks the frames that were damaged when the index was
    rebuilt: such an index is not stored, because its times are too early.
    """

    def __init__(self, directory: Path, base_offset: int, generation: int = 0) -> None:
        self.base_offset = base_offset
        self.generation = generation
        infix = f".{generation}" if generation else ""
        self.path = directory / f"{base_offset:0{NAME_DIGITS}d}{infix}{SUFFIX}"
        self.size_bytes = 0
        self.end_offset = base_offset
        self.index: SparseIndex | None = None
        self.columns: SegmentColumns | None = None
        self._columns_disk: Disk | None = None
        self.first_time_us: int | None = None
        self._first_header: FrameHeader | None = None
        self.time_us = 0
        self.has_partial_times = False
        self.has_lost_times = False
        self.on_load: Callable[[Segment, int], None] | None = None
        """Called with the number of entries when the index was loaded."""
        self._loading = threading.Lock()

    @property
    def message_count(self) -> int:
        """Number of offsets in the segment, damaged ones included."""
        return self.end_offset - self.base_offset

    @property
    def newest_us(self) -> int:
        """The greatest append time in the segment itself, or more if no index is in memory."""
        index = self.index
        return TIME_US_MAX if index is None else index.newest_us()

    @property
    def index_path(self) -> Path:
        """The file of the index."""
        return self.path.with_suffix(INDEX_SUFFIX)

    @property
    def log_id(self) -> int:
        """The id of the log: files beside the segment that have another id do not count."""
        return log_id_of(self.path.parent)

    def save_index(self, disk: Disk, end: IndexEntry) -> None:
        """Write the index, which reaches to ``end``. Raises ``OSError``."""
        assert self.index is not None
        disk.replace(self.index_path, self.index.pack(end, self.log_id))

    def attach_columns(self, disk: Disk) -> SegmentColumns:
        """Attach a column index to the segment; reads nothing yet."""
        self.columns = SegmentColumns(disk, self.path, self.base_offset, self.size_bytes)
        return self.columns

    def used_columns(self) -> SegmentColumns | None:
        """Return the column index, attached now if it was to be attached later. Thread-safe."""
        columns, disk = self.columns, self._columns_disk
        if columns is None and disk is not None:
            with self._loading:
                columns = self.columns
                return self.attach_columns(disk) if columns is None else columns
        return columns

    def attach_columns_later(self, disk: Disk) -> None:
        """Attach a column index to a segment that does not grow, once it is used.

        One that is attached is dropped: it takes more memory than the rest of a small segment.
        """
        self._columns_disk, self.columns = disk, None

    @property
    def has_columns(self) -> bool:
        """Whether the segment has a column index, attached or not."""
        return self.columns is not None or self._columns_disk is not None

    def has_index(self, disk: Disk) -> bool:
        """Return whether the index is in memory; loads it from its file if that is sound."""
        with self._loading:
            before = self.index
            found = self._has_index(disk)
            index = self.index
        self._tell_load(before, index)
        return found

    def _tell_load(self, before: SparseIndex | None, index: SparseIndex | None) -> None:
        if self.on_load is not None and index is not None and index is not before:
            self.on_load(self, len(index))

    def unload_index(self) -> None:
        """Drop the indexes of a segment that does not grow; they are loaded again when needed."""
        with self._loading:
            self.index = None
        if self._columns_disk is not None:
            self.columns = None

    def _has_index(self, disk: Disk) -> bool:
        if self.index is None:
            index = self._stored_index(disk)
            if index is None or index.last().position != self.size_bytes:
                return False
            self._set_index(index)
        return True

    def load_index(self, disk: Disk) -> SparseIndex:
        """Return the index, rebuilt in memory if its file is not sound. Thread-safe."""
        with self._loading:
            before = self.index
            if not self._has_index(disk):
                self.has_partial_times = True
                rebuilt = self._rebuilt_index(disk, 0)
                self.has_lost_times = (
                    rebuilt.has_bad_region or rebuilt.last().offset < self.end_offset
                )
                self._set_index(rebuilt)
            index = self.index
            assert index is not None
        self._tell_load(before, index)
        return index

    def finish_times(self, disk: Disk, time_before_us: int) -> None:
        """Complete a rebuilt index with the running maximum before the segment."""
        with self._loading:
            if not self.has_partial_times:
                return
            if self.index is None:  # unloaded meanwhile
                self.time_us = max(self.time_us, time_before_us)
                return
            self.index.raise_max_times(time_before_us)
            self._set_index(self.index)
            self.has_partial_times = False
            if self.has_lost_times:
                return
            try:
                self.save_index(disk, self.index.last())
            except OSError:
                return  # the index stays in memory, and the next open rebuilds it

    def _set_index(self, index: SparseIndex) -> None:
        self.time_us = index.last().time_us
        self.index = index

    def _stored_index(self, disk: Disk) -> SparseIndex | None:
        try:
            size = disk.size(self.index_path)
            index = SparseIndex.unpack(disk.read(self.index_path, 0, size), self.log_id)
        except FileNotFoundError:
            return None
        except OSError as error:
            if not is_medium_error(error):
                raise
            return None
        if index is None or index.last().position > self.size_bytes:
            return None
        begins_here = index.first()[:2] == (self.base_offset, 0)
        return index if begins_here else None

    def index_up_to(self, disk: Disk, position: int, *, time_before_us: int) -> SparseIndex:
        """Return an index of the frames before ``position``, the position of a checkpoint."""
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
        for place in self._places(disk, end_position):
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

    def _places(self, disk: Disk, end_position: int) -> Iterator[ScannedFrame | BadRegion]:
        """Yield the frames and bad regions before a position."""
        yield from Scanner(disk, self.path, end_position).frames(0, self.base_offset)

    def read_first_time(self, disk: Disk) -> int | None:
        """Return the append time of the first sound frame, None if there is none."""
        if self.first_time_us is None:
            header = self.read_first_header(disk)
            self.first_time_us = None if header is None else header.append_time_us
        return self.first_time_us

    def read_first_header(self, disk: Disk) -> FrameHeader | None:
        """Return the header of the first sound frame, None if there is none."""
        if self._first_header is None and self.size_bytes:
            for place in Scanner(disk, self.path, self.size_bytes).frames(0, self.base_offset):
                if isinstance(place, ScannedFrame):
                    self._first_header = place.view.header
                    break
        return self._first_header

    @property
    def temp_path(self) -> Path:
        """Path where a new generation is written until it is complete."""
        return self.path.with_name(self.path.name + TEMP_SUFFIX)

    @property
    def merged_path(self) -> Path:
        """The file that says up to where the segment holds others too, while theirs are there."""
        return self.path.with_suffix(f".merged-{self.end_offset:0{NAME_DIGITS}d}")

    def remove(self, disk: Disk) -> None:
        """Delete the segment's files, the log last: the other files are useless without it."""
        (self.columns or self.attach_columns(disk)).remove()
        self.remove_sidecars(disk)
        disk.remove(self.path)

    def remove_sidecars(self, disk: Disk) -> None:
        """Delete the files beside the segment that are of it as a whole, as it is now.

        Some know it by its size only, and a segment that is cut may grow to the same size again.
        """
        for suffix in (SPANS_SUFFIX, KEYS_SUFFIX, INDEX_SUFFIX):
            disk.remove(self.path.with_suffix(suffix))


class WriteBatch:
    """Frames to be appended to ``segment``, stamped with their offsets."""

    def __init__(
        self, segment: Segment, *, segment_bytes: int, rolls_from: Segment | None = None
    ) -> None:
        self.segment = segment
        self.rolls_from = rolls_from
        self.start_position = segment.size_bytes
        self.start_offset = segment.end_offset
        self.end_position = segment.size_bytes
        self.size_bytes = 0
        """Bytes that the batch adds to the log."""
        self.end_offset = segment.end_offset
        self.time_us = segment.time_us
        self.first_time_us: int | None = None
        self.buffers: list[bytes | memoryview] = []
        self.is_vital = False
        """Whether a full disk gives up its reserve for it: it leads to deletions."""
        self.entries: list[IndexEntry] = []
        self.rows: FrameRows = None, None
        """Column rows of its frames, set by :meth:`read_columns`."""
        self._with_columns: list[tuple[FrameHeader, int]] = []  # with the index in the buffers
        room = segment_bytes - segment.size_bytes
        self._bytes_max = min(max(room, 0), limits.COMMIT_BATCH_BYTES_MAX)

    @property
    def durable_end(self) -> DurableEnd:
        """The durable end of the log once the batch is synced."""
        return DurableEnd(self.segment.base_offset, self.end_position, self.end_offset)

    def has_room_for(self, frame_bytes: int) -> bool:
        """Return whether another frame fits; the first always does."""
        return not self.buffers or self.size_bytes + frame_bytes <= self._bytes_max

    def add(
        self, header: FrameHeader, body: memoryview, *, append_time_us: int, leader_epoch: int
    ) -> int:
        """Stamp a frame with the next offset, and return that offset."""
        offset = self.end_offset
        stamped = stamp(
            header, base_offset=offset, append_time_us=append_time_us, leader_epoch=leader_epoch
        )
        self.add_stamped(stamped, stamped.pack(), body)
        return offset

    def add_stamped(
        self, header: FrameHeader, header_bytes: bytes | memoryview, body: memoryview
    ) -> None:
        """Add a frame as it is; it must have the next offset."""
        append_time_us = header.append_time_us
        if header.attributes & COLUMN_ATTRIBUTES:
            self._with_columns.append((header, len(self.buffers)))
        self.buffers += (header_bytes, body)
        self.end_offset += header.message_count
        frame_bytes = HEADER_BYTES + len(body)
        self.end_position += frame_bytes
        self.size_bytes += frame_bytes
        if append_time_us > self.time_us:
            self.time_us = append_time_us
        if self.first_time_us is None:
            self.first_time_us = append_time_us
        self.entries.append(
            IndexEntry(
                self.end_offset, self.end_position, self.time_us, append_time_us, append_time_us
            )
        )

    def frames(self) -> list[FrameView]:
        """Return copies of the frames, as they will be read from the log."""
        return [
            FrameView.parse(b"".join(self.buffers[place : place + 2]))
            for place in range(0, len(self.buffers), 2)
        ]

    def read_columns(self) -> None:
        """Read the columns of the frames that have any; runs on the writing thread."""
        if not self._with_columns:
            return
        self.rows = read_frames(
            [
                FrameView(stamped, memoryview(b"".join(self.buffers[place : place + 2])))
                for stamped, place in self._with_columns
            ]
        )

    @property
    def last_frame(self) -> LastFrame:
        """Position and CRCs of the batch's last frame."""
        header, body = self.buffers[-2:]
        return last_frame(self.end_position - len(header) - len(body), header)
