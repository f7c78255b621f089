"""A new data folder from a backup, complete or to a moment.

The folder must be empty or missing. ``FORMAT`` says that it is being filled until all of it is
durable, so no node starts on half of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from goq.backup.backup import check_apart
from goq.backup.manifest import BackupManifest, StoredTopic
from goq.backup.place import CLOCK_SKEW_US_MAX, BackupPlace
from goq.backup.topic_restorer import TopicRestorer
from goq.errors import (
    Conflict,
    CorruptData,
    HistoryNotRetained,
    InvalidInput,
    NotFound,
    TopicNotFound,
)
from goq.model import check_name
from goq.schedules.schedule_record import ScheduleRecord
from goq.storage.data_dir_lock import DATA_FORMAT, FORMAT_NAME, RESTORED_NAME, RESTORING
from goq.storage.node_db import NodeDb
from goq.units import format_time_us


class RestoreResult(NamedTuple):
    """The restored backup, and how many topics, messages, bytes and schedules it gave.

    ``missing`` are partitions that the backup lacks: they are empty now. ``aged`` are topics of
    which a node deletes messages: they are older than ``retention.age`` or, archived,
    ``retention.total_age``. ``compacted`` are topics that were restored to a moment without
    messages that compaction removed.
    """

    name: str
    topics: int
    messages: int
    bytes: int
    aged: tuple[str, ...]
    missing: tuple[str, ...] = ()
    schedules: int = 0
    compacted: tuple[str, ...] = ()


class RestoreOrder(NamedTuple):
    """The choice of a user: a backup by name, a moment, topics by their new names.

    Without a name it is the newest backup, or the oldest one that reaches the moment. Without
    ``topics`` all are restored. ``settings`` replace those of the topics.
    """

    name: str | None = None
    at_us: int | None = None
    topics: Mapping[str, str] | None = None
    settings: Mapping[str, Any] = {}


def choose_backup(
    place: BackupPlace, order: RestoreOrder, now_us: int
) -> tuple[str, BackupManifest]:
    """Return the backup to restore.

    Raises ``NotFound``, ``CorruptData`` for its damage, and ``InvalidInput`` if the clocks leave
    open which one is the newest.
    """
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
        if at_us is None and sound[-1][1].time_us > now_us + CLOCK_SKEW_US_MAX:
            earlier = [name for name, each in sound if each.time_us <= now_us]
            raise InvalidInput(
                f"backup {sound[-1][0]} is of a later time than now: a clock was ahead when it was"
                " made, or is behind here, so it may not be the newest; choose one with --backup"
                f" {earlier[-1] if earlier else sound[-1][0]}",
                field="backup",
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
        name, manifest = choose_backup(place, order, now_us)
        topics = chosen_topics(manifest, order.topics)
        check_apart(place, data_dir)
        disk = place.local_disk
        disk.make_dir(data_dir)
        if disk.names(data_dir):
            raise Conflict(f"{data_dir} is not empty; restore into a new folder")
        disk.replace(data_dir / FORMAT_NAME, RESTORING)
        work = TopicRestorer(place, data_dir, order.at_us, now_us, manifest.epoch, on_bytes)
        for stored, new_name in topics:
            work.restore_topic(stored, new_name, order.settings)
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
        disk.replace(data_dir / RESTORED_NAME, f"{name}\n".encode())
        disk.replace(data_dir / FORMAT_NAME, b"%d\n" % DATA_FORMAT)
    aged = tuple(sorted(work.aged))
    missing = tuple(name for topic, _ in topics for name in topic.missing)
    count = len(schedules)
    compacted = tuple(sorted(work.compacted))
    return RestoreResult(
        name, len(topics), work.messages, work.bytes, aged, missing, count, compacted
    )


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


def chosen_topics(
    manifest: BackupManifest, wanted: Mapping[str, str] | None
) -> Sequence[tuple[StoredTopic, str]]:
    """Return topics with their new names. Raises ``TopicNotFound`` and ``InvalidInput``."""
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
