"""A partition's log with what of it is archived, read as one.

The archived segments come first, then the live ones, and each offset is read from one of them:
what is in the live log is never taken from the archive. Retention may move segments in the middle
of a reading. What has left the live log was in the archive before, so nothing is missed; and who
reads goes on by offset, so nothing comes twice. What was deleted while the topic kept no archive
is gone, and passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from goq.broker.partition.partition import Partition
from goq.broker.partition_context import PartitionId
from goq.broker.retention.archiver import Archive
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment
from goq.storage.node_db import ArchiveRow


class WholeReader(LogReader):
    """Reads archived and live segments of one log; from any thread, blocking on the disk.

    A reader knows what there is at any moment, and is cheap to make; let go of it when the
    partition is closed. ``damage`` is what was met in archived and live segments alike. With
    ``is_unbroken`` it begins behind the last gap.
    """

    def __init__(
        self,
        archive: Archive,
        identity: PartitionId,
        log: str,
        live: LogReader,
        *,
        has_columns: bool,
        is_unbroken: bool = False,
    ) -> None:
        self._archive = archive
        self._identity = identity
        self._log = log
        self.live = live
        self._has_columns = has_columns
        self._is_unbroken = is_unbroken
        self._archived: dict[ArchiveRow, Segment] = {}
        self._known: tuple[Sequence[Segment], Sequence[ArchiveRow], Sequence[Segment]] | None = None
        super().__init__(archive.disk, (), archive.damage(identity, log))

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments in order, as they are now."""
        live = self.live.segments  # before the rows: what has left these is among those
        rows = self._archive.rows(self._identity, self._log)
        known = self._known
        if known is None or known[0] is not live or known[1] is not rows:
            start_offset = live[0].base_offset
            archived = [self._segment(row) for row in rows if row.base_offset < start_offset]
            if self._is_unbroken:
                archived = _behind_gaps(archived, start_offset)
            known = self._known = (live, rows, [*archived, *live])
        return known[2]

    @segments.setter
    def segments(self, _segments: Sequence[Segment]) -> None:
        """Do nothing: which there are is looked up."""

    @property
    def start_offset(self) -> int:
        """The first offset that is live or archived."""
        return self.segments[0].base_offset

    def first_from(self, offset: int) -> int:
        """Return the first offset from ``offset`` on that is live or archived."""
        for segment in self.segments:
            if offset < segment.end_offset:
                return max(offset, segment.base_offset)
        return offset

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the offsets from ``start`` up to ``end`` that lie between segments.

        They were deleted while the topic kept no archive.
        """
        segments = self.segments
        between = ((a.end_offset, b.base_offset) for a, b in pairwise(segments))
        return [(max(a, start), min(b, end)) for a, b in between if max(a, start) < min(b, end)]

    def start_at(self, time_us: int) -> int:
        """Return the first offset that had not been deleted at a time.

        What was deleted later and not archived is not there.
        """
        for row in self._archive.rows(self._identity, self._log):
            if row.archived_at_us > time_us and row.base_offset < self.live.segments[0].base_offset:
                return row.base_offset
        return self.live.segments[0].base_offset

    def _segment(self, row: ArchiveRow) -> Segment:
        segment = self._archived.get(row)
        if segment is None:
            directory = self._archive.directory(self._identity, self._log)
            segment = self._archived[row] = Segment(directory, row.base_offset)
            segment.size_bytes = row.size_bytes
            segment.end_offset = row.end_offset
            segment.first_time_us = row.first_time_us or None
            segment.time_us = row.last_time_us
            if self._has_columns:
                segment.attach_columns(self._disk)
        return segment


class Past(NamedTuple):
    """What is read besides the live log: all that is archived.

    With ``snapshot_us``, the log as it stood at that time: from the first message that was kept
    then up to the last that had been appended.
    """

    archive: Archive
    snapshot_us: int | None = None

    def opened(
        self, partition: Partition, offset: int, end_offset: int
    ) -> tuple[WholeReader, int, int]:
        """Return a reader of messages, and the offsets within which it is to read; in a thread."""
        reader = whole_logs(self.archive, partition).messages
        if self.snapshot_us is not None:
            offset = max(offset, reader.start_at(self.snapshot_us))
            end_offset = reader.offset_for_time(self.snapshot_us + 1, end_offset)
        return reader, max(offset, reader.start_offset), end_offset


class WholeLogs(NamedTuple):
    """Both logs of a partition."""

    messages: WholeReader
    events: WholeReader


def whole_logs(archive: Archive, partition: Partition, *, is_unbroken: bool = False) -> WholeLogs:
    """Return readers of a partition's logs that begin with what is archived.

    With ``is_unbroken`` behind the last gap that retention left while the topic kept no archive.
    """
    whole = partial(WholeReader, archive, partition.identity, is_unbroken=is_unbroken)
    return WholeLogs(
        whole("messages", partition.message_reader, has_columns=True),
        whole("events", partition.event_reader, has_columns=False),
    )


def _behind_gaps(archived: Sequence[Segment], end_offset: int) -> list[Segment]:
    """Return the last of some segments, of which each continues another, up to ``end_offset``."""
    number = len(archived)
    while number and archived[number - 1].end_offset == end_offset:
        number -= 1
        end_offset = archived[number].base_offset
    return list(archived[number:])
