"""A new data folder from a backup, complete or to a moment.

The folder must be empty or missing. ``FORMAT`` says that it is being filled until all of it is
durable, so no node starts on half of it. Paths are made of checked names and numbers only.

Each topic gets a new id. Receipts, export states and cursors of the source's topic name the old
one: offsets that were given after the backup are given again here, so none of these may count.
Leases end at once: an event moves their deadlines into the past. Indexes, columns and keys are made
anew when the logs are opened here, by the recovery that every start uses.

A log is cut as ``group show --as-of`` reads it: behind the last frame, in log order, that was
appended by that time. What happened after it has no trace.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from goq import limits
from goq.backup.backup import check_apart
from goq.backup.inspection import read_object
from goq.backup.manifest import BackupManifest, StoredFile, StoredLog, StoredTopic
from goq.backup.place import BackupPlace
from goq.broker.group.state_at_time import earliest_us, replayed_to
from goq.broker.partition.loader import PartitionLogs, open_logs
from goq.config.topic import TopicSettings
from goq.delivery.events.event import ClockChanged
from goq.delivery.events.frame_codec import encode_event_frame
from goq.errors import (
    Conflict,
    CorruptData,
    HistoryNotRetained,
    InvalidInput,
    NotFound,
    TopicNotFound,
)
from goq.model import check_name, draw_topic_id
from goq.schedules.schedule_record import ScheduleRecord
from goq.storage.archive.file import SUFFIX as ARCHIVE_SUFFIX
from goq.storage.archive.manifest import ARCHIVE_DIR
from goq.storage.catalog.topic_catalog import topic_record
from goq.storage.catalog.topic_file import write_topic_file
from goq.storage.data_dir_lock import DATA_FORMAT, FORMAT_NAME, RESTORING
from goq.storage.disk import Disk
from goq.storage.log.log import Log
from goq.storage.log.recovery_point import DurableEnd, RecoveryPoint
from goq.storage.log.segment import Segment
from goq.storage.log.time_lookup import end_offset_at
from goq.storage.node_db import NodeDb, TopicRow
from goq.storage.verification import TOPICS_DIR
from goq.units import format_time_us


class RestoreResult(NamedTuple):
    """The restored backup, and how many topics, messages, bytes and schedules it gave.

    ``missing`` are partitions that the backup lacks: they are empty now. ``aged`` are topics of
    which the first start deletes messages: they are older than ``retention.age``.
    """

    name: str
    topics: int
    messages: int
    bytes: int
    aged: tuple[str, ...]
    missing: tuple[str, ...] = ()
    schedules: int = 0


class RestoreOrder(NamedTuple):
    """The choice of a user: a backup by name, a moment, topics by their new names.

    Without a name it is the newest backup, or the oldest one that reaches the moment. Without
    ``topics`` all are restored.
    """

    name: str | None = None
    at_us: int | None = None
    topics: Mapping[str, str] | None = None


def choose_backup(place: BackupPlace, order: RestoreOrder) -> tuple[str, BackupManifest]:
    """Return the backup to restore. Raises ``NotFound``, and ``CorruptData`` for its damage."""
    if order.name is not None:
        named = place.read(order.name)
        if named.manifest is None:
            raise CorruptData(named.damage)
        chosen = (named.name, named.manifest)
    else:
        found = place.all()
        sound = [(each.name, each.manifest) for each in found if each.manifest is not None]
        if not sound:
            what = "no sound backup" if found else "no backups"
            raise NotFound(f"{place.where} has {what}")
        at_us = order.at_us
        if at_us is None and found[-1].manifest is None:
            raise CorruptData(
                f"{found[-1].damage}; an earlier backup is restored with --backup {sound[-1][0]}"
            )
        reaching = [each for each in sound if at_us is not None and each[1].time_us >= at_us]
        chosen = reaching[0] if reaching else sound[-1]
    if order.at_us is not None and chosen[1].time_us < order.at_us:
        raise HistoryNotRetained(
            f"backup {chosen[0]} ends at {format_time_us(chosen[1].time_us)}; restore to that time"
            " or an earlier one",
            field="at",
        )
    return chosen


def restore(
    place: BackupPlace,
    data_dir: Path,
    order: RestoreOrder,
    now_us: int,
    on_bytes: Callable[[int], object] = lambda _count: None,
) -> RestoreResult:
    """Fill an empty folder from a backup; blocks on the disk.

    Raises ``Conflict`` for a folder that is not empty, ``UsageError`` for one in the place,
    ``NotFound``, ``CorruptData`` for damage of the backup, ``HistoryNotRetained`` for a time before
    what it has, and ``OSError``.
    """
    with place.locked(exclusive=False):
        name, manifest = choose_backup(place, order)
        topics = _chosen_topics(manifest, order.topics)
        check_apart(place, data_dir)
        disk = place.local_disk
        disk.make_dir(data_dir)
        if disk.names(data_dir):
            raise Conflict(f"{data_dir} is not empty; restore into a new folder")
        disk.replace(data_dir / FORMAT_NAME, RESTORING)
        work = _Restore(place, data_dir, order.at_us, now_us, manifest.epoch, on_bytes)
        for stored, new_name in topics:
            work.restore_topic(stored, new_name)
        db = NodeDb(data_dir)
        try:
            db.set_epoch(manifest.epoch)
            for row, groups in work.rows:
                db.put_topic(row)
                db.put_partitions(row.folder, row.partitions)
                for group, settings in groups.items():
                    db.put_group(row.name, group, settings)
            for token in manifest.tokens:
                db.put_token(token)
            names = {stored.name: name for stored, name in topics}
            schedules = _restored_schedules(manifest.schedules, names, order.at_us)
            db.put_schedules(schedules)
        finally:
            db.close()
        disk.replace(data_dir / FORMAT_NAME, b"%d\n" % DATA_FORMAT)
    aged = tuple(sorted(work.aged))
    missing = tuple(name for topic, _ in topics for name in topic.missing)
    count = len(schedules)
    return RestoreResult(name, len(topics), work.messages, work.bytes, aged, missing, count)


def _restored_schedules(
    schedules: Sequence[ScheduleRecord], names: Mapping[str, str], at_us: int | None
) -> list[ScheduleRecord]:
    """Return the schedules of restored topics, under the topics' new names.

    As of a moment, those created later are left out, and the runs of later times are not known.
    """
    kept = [each for each in schedules if each.topic in names]
    if at_us is not None:
        at_ms = at_us // 1000
        kept = [
            msgspec.structs.replace(
                each,
                last_due_ms=min(each.last_due_ms, at_ms),
                paused_ms=each.paused_ms if each.paused_ms <= at_ms else 0,
            )
            for each in kept
            if each.created_ms <= at_ms
        ]
    return [msgspec.structs.replace(each, topic=names[each.topic]) for each in kept]


def _chosen_topics(
    manifest: BackupManifest, wanted: Mapping[str, str] | None
) -> Sequence[tuple[StoredTopic, str]]:
    if not wanted:
        return [(topic, topic.name) for topic in manifest.topics]
    known = {topic.name: topic for topic in manifest.topics}
    for name, new_name in wanted.items():
        check_name(new_name, "topic", field="topic")
        if name not in known:
            raise TopicNotFound(f"the backup has no topic {name[:200]!r}", field="topic")
    if len(set(wanted.values())) < len(wanted):
        raise InvalidInput("two topics would get the same name", field="topic")
    return [(known[name], new_name) for name, new_name in wanted.items()]


class _Restore:
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
        self.messages = 0
        self.bytes = 0
        self.aged: set[str] = set()
        self._place = place
        self._disk: Disk = place.local_disk
        self._topics_dir = data_dir / TOPICS_DIR
        self._archive_dir = data_dir / ARCHIVE_DIR
        self._at_us = at_us
        self._now_us = now_us
        self._epoch = epoch
        self._on_bytes = on_bytes

    def restore_topic(self, stored: StoredTopic, name: str) -> None:
        """Restore the logs of a topic, then its file."""
        topic_id = draw_topic_id(secrets.randbits)
        row = TopicRow(name, stored.partitions, stored.settings, id=topic_id)
        settings = TopicSettings().changed(stored.settings)
        for partition in stored.logs:
            folder = self._topics_dir / row.folder / str(partition.number)
            archive = self._archive_dir / row.folder / str(partition.number)
            for log_name, log in (("messages", partition.messages), ("events", partition.events)):
                self._copy_log(log, folder / log_name)
                self._copy_archive(log, archive / log_name)
            logs = open_logs(folder, self._disk, settings)
            if self._is_aged(logs.messages, settings.retention_age_ms):
                self.aged.add(name)
            self._finish_logs(logs, partition.messages, partition.events, row)
        there = {partition.number for partition in stored.logs}
        for number in set(range(stored.partitions)) - there:  # it was offline: it begins anew
            empty = open_logs(self._topics_dir / row.folder / str(number), self._disk, settings)
            empty.messages.close()
            empty.events.close()
        write_topic_file(self._disk, self._topics_dir, topic_record(row, stored.groups))
        self.rows.append((row, stored.groups))

    def _is_aged(self, messages: Log, age_ms: int | None) -> bool:
        """Return whether retention deletes the first segment of a log."""
        last_us = messages.reader.max_time_us_at_end(messages.segments[0])
        return bool(
            age_ms is not None
            and messages.segments[0].size_bytes
            and last_us + age_ms * 1000 < self._now_us
        )

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
            self._copy(stored, directory / f"{stored.base_offset:020d}{ARCHIVE_SUFFIX}")

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
        self, logs: PartitionLogs, messages: StoredLog, events: StoredLog, row: TopicRow
    ) -> None:
        """Cut the logs at the moment, end the leases, and write the indexes."""
        try:
            for log, stored in ((logs.messages, messages), (logs.events, events)):
                if log.end_offset != stored.end_offset:
                    raise CorruptData(
                        f"{log.directory} ends at {log.end_offset}, and the backup says"
                        f" {stored.end_offset}"
                    )
            if self._at_us is not None:
                self._cut(logs, self._at_us, row)
            self._end_leases(logs)
            self.messages += logs.messages.end_offset - logs.messages.start_offset
        finally:
            for log in logs:
                log.close()

    def _cut(self, logs: PartitionLogs, at_us: int, row: TopicRow) -> None:
        messages, events = logs.messages.reader, logs.events.reader
        earliest = earliest_us(messages, events)
        if at_us < earliest:
            raise HistoryNotRetained(
                f"topic {row.name} has nothing before {format_time_us(earliest)} in this backup;"
                " restore to that time or a later one, or from an older backup",
                field="at",
            )
        for log, reader in ((logs.events, events), (logs.messages, messages)):
            log.truncate(end_offset_at(reader, at_us))

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
