"""A partition's archive and its live log, read as one log.

Archived segments come first, then live segments. Each offset has one source: an offset in the live
log is never read from the archive. Retention may move segments during a read. A segment is in the
archive before it leaves the live log, so no message is missed. A read continues by offset, so no
message comes twice. Segments that were deleted while the topic had no archive are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

from goq.broker.partition.partition import Partition
from goq.broker.partition_context import PartitionId
from goq.broker.retention.archiver import Archiver
from goq.delivery.events.event import SnapshotStarted, Trimmed
from goq.delivery.events.frame_codec import decode_event_frame, may_set_start
from goq.errors import ArchiveUnreachable, InvalidFrame
from goq.storage.catalog.rows import ArchiveRow
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment
from goq.storage.log.time_lookup import end_offset_at, read_backward, retry_deleted
from goq.storage.scanner import BadRegion, Damage, ScannedFrame

_RETRY_MS: Final = 1000


class TieredLogReader(LogReader):
    """Reads the archived and live segments of one log, from any thread. Blocks on the disk.

    A reader always sees the current segments and is cheap to create. Discard it when the partition
    is closed. ``damage`` lists the damage that was found in archived segments, until it can be read
    again; that of live ones is in the list of the live log. With ``is_unbroken`` the log starts
    behind its last gap.
    """

    def __init__(
        self,
        archive: Archiver,
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
        self._known: tuple[Sequence[Segment], Sequence[ArchiveRow], Sequence[Segment]] | None = None
        super().__init__(archive.disk, (), archive.damage(identity, log))

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments in order, as they are now."""
        live = self.live.segments  # before the rows: a segment that left is in the archive
        rows = self._archive.segments.rows(self._identity, self._log)
        known = self._known
        if known is None or known[0] is not live or known[1] is not rows:
            start_offset = live[0].base_offset
            archived = [
                self._archive.segments.segment(row, has_columns=self._has_columns)
                for row in rows
                if row.base_offset < start_offset
            ]
            if self._is_unbroken:
                archived = _after_last_gap(archived, start_offset)
            known = self._known = (live, rows, [*archived, *live])
        return known[2]

    @segments.setter
    def segments(self, _segments: Sequence[Segment]) -> None:
        """The current segments, in order."""

    @property
    def start_offset(self) -> int:
        """The first offset that is live or archived."""
        return self.segments[0].base_offset

    def record_damage(self, segment: Segment, region: BadRegion, end_offset: int) -> Damage:
        """Record damage of a live segment for the live log, so that it is told."""
        if segment in self.live.segments:
            return self.live.record_damage(segment, region, end_offset)
        return super().record_damage(segment, region, end_offset)

    def scan(
        self,
        segments: Sequence[Segment],
        number: int,
        offset: int,
        chunk_bytes: int,
        wait: bool = True,
    ) -> Iterator[ScannedFrame | Damage]:
        """Yield frames and damage of a segment; a frame that can be read is damaged no more."""
        for found in super().scan(segments, number, offset, chunk_bytes, wait):
            if self.damage and isinstance(found, ScannedFrame):
                header = found.view.header
                self.clear_damage(header.base_offset, header.end_offset)
            yield found

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the offset ranges from ``start`` up to ``end`` that lie between segments.

        They were deleted while the topic had no archive.
        """
        segments = self.segments
        between = ((a.end_offset, b.base_offset) for a, b in pairwise(segments))
        return [(max(a, start), min(b, end)) for a, b in between if max(a, start) < min(b, end)]

    def read_end(self, start: int, end: int) -> int:
        """Return where a read from ``start`` to ``end`` has to end.

        It passes over what is gone, and stops before what another node may have. Raises
        ``ArchiveUnreachable`` if it begins there.
        """
        first = min(max(start, self.start_offset), end)
        for gap in ((start, first), *self.gaps(start, end)):
            reason = ""
            if gap[0] < gap[1]:
                reason = self._archive.why_absent(self._identity, self._log, *gap)
            if reason and gap[0] > start:
                return gap[0]
            if reason:
                raise ArchiveUnreachable(
                    f"offsets {gap[0]} to {gap[1] - 1} of {self._identity} are not in the archive"
                    f" here: {reason}; try again",
                    retry_after_ms=_RETRY_MS,
                )
        return end

    def first_archived_after(self, time_us: int) -> int:
        """Return the first offset that was archived after a time, else the first live one."""
        start_offset = self.live.segments[0].base_offset
        rows = self._archive.segments.rows(self._identity, self._log)
        later = (row.base_offset for row in rows if row.archived_at_us > time_us)
        return min(next(later, start_offset), start_offset)


class TieredRead(NamedTuple):
    """A read of messages from ``start`` up to ``end``.

    It has to stop at ``stop``: another node may have what comes then.
    """

    reader: TieredLogReader
    start: int
    end: int
    stop: int


class ArchiveView(NamedTuple):
    """A read that includes the archive.

    With ``as_of_us`` the log is read as of that time: from the first message that was retained
    then, up to the last message that had been appended.
    """

    archive: Archiver
    as_of_us: int | None = None

    def open_reader(self, partition: Partition, offset: int, end_offset: int) -> TieredRead:
        """Return a read of messages within these offsets.

        Blocks on the disk. Raises ``ArchiveUnreachable``.
        """
        logs = tiered_logs(self.archive, partition)
        reader = logs.messages
        if self.as_of_us is not None:
            offset = max(offset, logs.start_offset_at(self.as_of_us))
            end_offset = reader.offset_for_time(self.as_of_us + 1, end_offset)
        stop = reader.read_end(offset, end_offset)
        return TieredRead(reader, max(offset, reader.start_offset), end_offset, stop)


class TieredLogs(NamedTuple):
    """Both logs of a partition."""

    messages: TieredLogReader
    events: TieredLogReader

    def start_offset_at(self, time_us: int) -> int:
        """Return the first offset that had not been deleted at a time; blocks on the disk.

        The last event until then says it that moved or repeats the start. Where the events of that
        time are lost, the time counts at which a segment was archived.
        """
        readers = [self.messages, self.events]
        found = retry_deleted(readers, lambda: _start_in_events(self.events, time_us))
        if found is None:
            return self.messages.first_archived_after(time_us)
        return found


def tiered_logs(
    archive: Archiver, partition: Partition, *, is_unbroken: bool = False
) -> TieredLogs:
    """Return readers of both logs of a partition, archive included.

    With ``is_unbroken`` each log starts behind the last gap that retention left while the topic had
    no archive.
    """
    reader = partial(TieredLogReader, archive, partition.identity, is_unbroken=is_unbroken)
    return TieredLogs(
        reader("messages", partition.message_reader, has_columns=True),
        reader("events", partition.event_reader, has_columns=False),
    )


def _start_in_events(events: LogReader, time_us: int) -> int | None:
    """Return the start of the messages after the events up to a time, None if they are lost."""
    for frame in read_backward(events, end_offset_at(events, time_us), may_set_start):
        with suppress(InvalidFrame):
            for stored in reversed(decode_event_frame(frame.view)):
                if isinstance(stored.event, Trimmed | SnapshotStarted):
                    return stored.event.start_offset
    return None if events.segments[0].base_offset else 0


def _after_last_gap(archived: Sequence[Segment], end_offset: int) -> list[Segment]:
    """Return the longest run of contiguous segments that ends at ``end_offset``."""
    number = len(archived)
    while number and archived[number - 1].end_offset == end_offset:
        number -= 1
        end_offset = archived[number].base_offset
    return list(archived[number:])
