"""The logs of a topic from a backup, in a folder of its own.

Paths are made of checked names and numbers only. Each topic gets a new id. Receipts, export states
and cursors of the source's topic name the old one: offsets that were given after the backup are
given again here, so none of these may count. Leases end at once: an event moves their deadlines
into the past. Indexes, columns and keys are made anew when the logs are opened here, by the
recovery that every start uses.

A log is cut as ``group show --as-of`` reads it: behind the last frame, in log order, that was
appended by that time. What happened after it has no trace. But what compaction removed after it is
gone from the backup: those topics are told.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from goq import limits
from goq.backup.inspection import read_object
from goq.backup.manifest import StoredFile, StoredLog, StoredTopic
from goq.backup.place import BackupPlace
from goq.broker.group.state_at_time import earliest_us, replayed_to
from goq.broker.partition.loader import PartitionLogs, open_logs
from goq.config.topic import Cleanup, TopicSettings
from goq.delivery.events.event import ClockChanged
from goq.delivery.events.frame_codec import encode_event_frame
from goq.errors import CorruptData, HistoryNotRetained
from goq.model import draw_topic_id
from goq.storage.archive.file import SUFFIX as ARCHIVE_SUFFIX
from goq.storage.archive.file import read_footer
from goq.storage.archive.manifest import ARCHIVE_DIR
from goq.storage.catalog.rows import TopicRow
from goq.storage.catalog.topic_catalog import topic_record
from goq.storage.catalog.topic_file import write_topic_file
from goq.storage.disk import Disk
from goq.storage.log.log import Log
from goq.storage.log.recovery_point import DurableEnd, RecoveryPoint
from goq.storage.log.segment import Segment
from goq.storage.log.time_lookup import end_offset_at
from goq.storage.verification import TOPICS_DIR
from goq.units import format_time_us


class TopicRestorer:
    """Restores topics below a folder. ``epoch`` is no lower than any in the backup.

    Its methods block on the disk and raise ``CorruptData``, ``HistoryNotRetained``, ``OSError``,
    and what ``on_bytes`` raises, which is called for each piece.
    """

    def __init__(
        self,
        place: BackupPlace,
        data_dir: Path,
        at_us: int | None,
        now_us: int,
        epoch: int,
        on_bytes: Callable[[int], object],
    ) -> None:
        self.rows: list[tuple[TopicRow, dict[str, dict[str, str]]]] = []
        """The topics so far, with their groups."""
        self.messages = 0
        self.bytes = 0
        self.aged: set[str] = set()
        """The topics of which a node deletes messages by age, at once or with a segment."""
        self.compacted: set[str] = set()
        """The topics of which compaction removed messages from before the moment."""
        self._place = place
        self._disk: Disk = place.local_disk
        self._topics_dir = data_dir / TOPICS_DIR
        self._archive_dir = data_dir / ARCHIVE_DIR
        self._at_us = at_us
        self._now_us = now_us
        self._epoch = epoch
        self._on_bytes = on_bytes

    def restore_topic(
        self, stored: StoredTopic, name: str, settings: Mapping[str, Any] | None = None
    ) -> TopicRow:
        """Restore the logs of a topic, then its file; with some other ``settings``."""
        topic_id = draw_topic_id(secrets.randbits)
        chosen, written = TopicSettings().changed(stored.settings), stored.settings
        if settings:
            chosen = chosen.changed(settings)
            written = chosen.written()
        row = TopicRow(name, stored.partitions, written, id=topic_id)
        for partition in stored.logs:
            folder = self._topics_dir / row.folder / str(partition.number)
            archive = self._archive_dir / row.folder / str(partition.number)
            for log_name, log in partition.logs:
                self._copy_log(log, folder / log_name)
                self._copy_archive(log, archive / log_name)
            if self._is_archive_aged(partition.messages, archive / "messages", chosen):
                self.aged.add(row.name)
            logs = open_logs(folder, self._disk, chosen)
            self._finish_logs(logs, partition.messages, partition.events, row, chosen)
        there = {partition.number for partition in stored.logs}
        for number in set(range(stored.partitions)) - there:  # it was offline: it begins anew
            empty = open_logs(self._topics_dir / row.folder / str(number), self._disk, chosen)
            empty.messages.close()
            empty.events.close()
        write_topic_file(self._disk, self._topics_dir, topic_record(row, stored.groups))
        self.rows.append((row, stored.groups))
        return row

    def _is_aged(self, messages: Log, settings: TopicSettings) -> bool:
        """Return whether retention deletes the first segment of a log: at once, if it is sealed."""
        first, age_ms = messages.segments[0], settings.retention_age_ms
        if age_ms is None or settings.cleanup is Cleanup.COMPACT or not first.size_bytes:
            return False
        return messages.reader.max_time_us_at_end(first) + age_ms * 1000 < self._now_us

    def _is_archive_aged(self, log: StoredLog, directory: Path, settings: TopicSettings) -> bool:
        """Return whether the total retention deletes the first archived segment at once."""
        age_ms = settings.total_age_ms
        if age_ms is None:
            return False
        for stored in log.archived:
            with suppress(CorruptData):  # a node does not list it either
                footer = read_footer(self._disk, _archived_path(directory, stored))
                return footer.last_time_us + age_ms * 1000 < self._now_us
        return False

    def _copy_log(self, log: StoredLog, directory: Path) -> None:
        self._disk.make_dir(directory)
        if not log.segments:
            return
        for stored in log.segments:
            path = Segment(directory, stored.base_offset, stored.generation).path
            self._copy(stored, path)
        first, last = log.segments[0].base_offset, log.segments[-1]
        point = RecoveryPoint.create(self._disk, directory, first)
        try:
            point.durable = DurableEnd(last.base_offset, last.size_bytes, log.end_offset)
            point.sync()
        finally:
            point.close()

    def _copy_archive(self, log: StoredLog, directory: Path) -> None:
        if log.archived:
            self._disk.make_dir(directory)
        for stored in log.archived:
            self._copy(stored, _archived_path(directory, stored))

    def _copy(self, stored: StoredFile, path: Path) -> None:
        file, source = self._disk.open(path), self._place.told(self._place.objects / stored.digest)
        try:
            for data in read_object(self._place, stored.digest) if stored.digest else ():
                file.append([data])
                self._on_bytes(len(data))
            if file.size_bytes != stored.size_bytes:
                raise CorruptData(f"{source} has a wrong size")
            file.sync()
        except FileNotFoundError as error:
            raise CorruptData(f"{source} is missing") from error
        finally:
            file.close()
        self.bytes += stored.size_bytes

    def _finish_logs(
        self,
        logs: PartitionLogs,
        messages: StoredLog,
        events: StoredLog,
        row: TopicRow,
        settings: TopicSettings,
    ) -> None:
        """Cut the logs at the moment, end the leases, and write the indexes."""
        try:
            for log, stored in ((logs.messages, messages), (logs.events, events)):
                if log.end_offset != stored.end_offset:
                    raise CorruptData(
                        f"{log.directory} ends at {log.end_offset}, and the backup says"
                        f" {stored.end_offset}"
                    )
            is_compacted = settings.cleanup is Cleanup.COMPACT or any(
                segment.generation for segment in messages.segments
            )
            if self._at_us is not None:
                self._cut(logs, self._at_us, row, is_compacted=is_compacted)
            self._end_leases(logs)
            log = logs.messages
            self.messages += log.end_offset - log.start_offset
            if is_compacted:
                self.messages -= _removed_count(log, log.end_offset)
            if self._is_aged(logs.messages, settings):
                self.aged.add(row.name)
        finally:
            for log in logs:
                log.close()

    def _cut(self, logs: PartitionLogs, at_us: int, row: TopicRow, *, is_compacted: bool) -> None:
        messages, events = logs.messages.reader, logs.events.reader
        earliest = earliest_us(messages, events)
        if at_us < earliest:
            raise HistoryNotRetained(
                f"topic {row.name} has nothing before {format_time_us(earliest)} in this backup;"
                " restore to that time or a later one, or from an older backup",
                field="at",
            )
        logs.events.truncate(end_offset_at(events, at_us))
        end_offset = end_offset_at(messages, at_us)
        # Empty frames are joined under the latest of their times: the next one may be older, too.
        if is_compacted and _removed_count(logs.messages, end_offset + 1):
            self.compacted.add(row.name)
        logs.messages.truncate(end_offset)

    def _end_leases(self, logs: PartitionLogs) -> None:
        events = logs.events
        if not events.end_offset:
            return
        state = replayed_to(events.reader, events.end_offset).state
        event = ClockChanged(state.clock_node, lease_shift_ms=-limits.VISIBILITY_MS_MAX)
        view = encode_event_frame([event], logs.messages.end_offset)
        batch = events.begin(self._now_us)
        batch.add(view.header, view.body, append_time_us=self._now_us, leader_epoch=self._epoch)
        events.write(batch)
        events.commit(batch)


def _archived_path(directory: Path, stored: StoredFile) -> Path:
    return directory / f"{stored.base_offset:020d}{ARCHIVE_SUFFIX}"


def _removed_count(log: Log, end_offset: int) -> int:
    """Return how many messages compaction removed from the frames that begin before an offset."""
    removed, offset, end_offset = 0, log.start_offset, min(end_offset, log.end_offset)
    while offset < end_offset:
        reading = log.reader.read(offset, end_offset, bytes_max=limits.MIB)
        for view in reading.frames:
            if view.removed_rows is not None:
                removed += view.header.message_count - view.removed_rows.kept_count
        offset = reading.next_offset
    return removed
