"""The frames of one group commit.

The log's owner fills and commits a batch; any one thread writes it in between. A batch lies in one
segment: a log rolls only between batches.
"""

from __future__ import annotations

from goq import limits
from goq.frame.header import HEADER_BYTES, FrameHeader, stamp
from goq.frame.view import FrameView
from goq.storage.column_index.block import LastFrame, last_frame
from goq.storage.column_index.rows import COLUMN_ATTRIBUTES, FrameRows, read_frames
from goq.storage.log.recovery_point import DurableEnd
from goq.storage.log.segment import Segment
from goq.storage.log.sparse_index import IndexEntry


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
        if header.attributes & COLUMN_ATTRIBUTES:
            self._with_columns.append((stamped, len(self.buffers)))
        self.buffers += (stamped.pack(), body)
        self.end_offset = offset + header.message_count
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
        return offset

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
