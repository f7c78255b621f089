"""The topics of a standalone node: each in ``node.db`` and in the topic file of its folder.

A change is written to the row first and to the file second. The file is the truth while it is
sound; the row takes its place while the file is missing or damaged. So a change that a crash cut
short did not happen, and an older ``node.db`` changes no settings.

A topic is deleted at a start only if both say so: a sound row with ``deleting``, and the tombstone.
The partitions go first, then the archive, the row, and at last the folder with the tombstone.

What a start finds, and what it makes of the topic:

    row       file      topic
    sound     live      as the file says; the row follows
    deleting  live      as the file says: the deletion had not begun; the row follows
    none      live      as the file says; the row is written
    damaged   live      as the file says, read-only
    sound     none, damaged   as the row says; the file is written
    deleting  deleting  deleted
    none      none, damaged   adopted: without retention and compaction
    any other                 read-only, without retention and compaction

A damaged row of a group makes its topic read-only too. Nothing of a read-only topic changes on the
disk until a user changes its settings (:meth:`TopicCatalog.put_topic`) or deletes it. Until then
the node tells of it, as of one that is adopted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from goq.errors import (
    CorruptData,
    GoqError,
    InvalidInput,
    StorageFailed,
    StorageFull,
    outcome_unknown,
)
from goq.model import parse_topic_folder, topic_folder
from goq.storage.catalog.checked_tables import DamagedRow
from goq.storage.catalog.rows import DoubtKind, TopicDoubt, TopicRow
from goq.storage.catalog.topic_file import (
    TopicRecord,
    own_settings,
    read_topic_file,
    write_topic_file,
)
from goq.storage.disk import Disk, is_full
from goq.storage.node_db import NodeDb

_log = logging.getLogger("goq.storage")
KEEP_ALL = {
    "retention.age": "none",
    "retention.bytes": "none",
    "retention.total_age": "none",
    "retention.total_bytes": "none",
    "cleanup": "delete",
}
"""Settings by which no message is ever deleted."""
_DELETION_IN_DOUBT = "its deletion was begun, but node.db and its folder do not both say so"
_ADOPTED = TopicDoubt(
    DoubtKind.ADOPTED,
    "its settings and those of its groups were lost; nothing of it is deleted or compacted",
)


class _Folder(NamedTuple):
    """A topic's folder as a start finds it; ``damage`` of its topic file is "" for none."""

    path: Path
    name: str
    id: int
    partitions: int = 0
    record: TopicRecord | None = None
    damage: str = ""


class TopicCatalog:
    """The topics, their settings, and their groups. Not thread-safe; calls block on the disk.

    Calls raise what ``node.db`` and the disk raise.
    """

    def __init__(self, db: NodeDb, disk: Disk, topics_dir: Path) -> None:
        self.problems: list[str] = []
        """The damage that the last :meth:`recover` found and could do without."""
        self._db = db
        self._disk = disk
        self._topics_dir = topics_dir
        self._ids: dict[str, int] = {}
        self._damaged: dict[str, list[DamagedRow]] = {}

    def recover(self) -> list[TopicRow]:
        """Return all topics by name, with their doubts; ``deleting`` if both witnesses say so."""
        rows = {row.name: row for row in self._db.topics()}
        damaged: dict[str, list[DamagedRow]] = {}
        for bad in self._db.damaged_rows():
            damaged.setdefault(_topic_of(bad), []).append(bad)
        folders: dict[str, list[_Folder]] = {}
        for folder in self._folders():
            folders.setdefault(folder.name, []).append(folder)
        self.problems = []
        names = sorted(rows.keys() | folders.keys())
        self._damaged = {name: damaged.pop(name) for name in names if name in damaged}
        for bad in [bad for some in damaged.values() for bad in some]:
            self._drop(bad)
        found: list[TopicRow] = []
        for name in names:
            row, folder = rows.get(name), self._folder_of(name, rows.get(name), folders)
            try:
                topic = self._recover(row, folder, self._damaged.get(name, []))
            except (GoqError, OSError) as error:
                topic = _in_doubt(row, folder, str(error))
            if topic is not None:
                found.append(topic)
        self._ids = {row.name: row.id for row in found}
        return found

    def _recover(
        self, row: TopicRow | None, folder: _Folder, damaged: Sequence[DamagedRow]
    ) -> TopicRow | None:
        record = folder.record
        if folder.damage:
            _log.error("%s", folder.damage)
        if damaged:
            return _in_doubt(row, folder, "; ".join(f"node.db has {bad}" for bad in damaged))
        if row is None and not folder.partitions and (record is None or record.deleting):
            if record is not None:  # all else of the topic is gone
                self._disk.remove_dir(folder.path)
            return None
        is_deleting, has_tombstone = (
            row is not None and row.deleting,
            bool(record and record.deleting),
        )
        if record is not None and has_tombstone and is_deleting:
            return _row_of(record)._replace(deleting=True)
        if has_tombstone or (is_deleting and record is None):
            return _in_doubt(row, folder, _DELETION_IN_DOUBT)
        if record is not None:
            return self._follow_file(row, record)
        if row is None:
            return self._adopt(folder)
        self._restore_file(row, folder.damage)
        return row

    def _follow_file(self, row: TopicRow | None, record: TopicRecord) -> TopicRow:
        known = _row_of(record)
        if row != known:
            _log.warning("topic %s is taken up as its folder says", record.name)
            self._db.put_topic(known)
        groups = self._db.groups(record.name)
        for group, settings in record.groups.items():
            if groups.get(group) != settings:
                self._db.put_group(record.name, group, settings)
        return known._replace(doubt=_ADOPTED) if record.adopted else known

    def _adopt(self, folder: _Folder) -> TopicRow:
        """Take up a topic of which nothing but the messages is known: data is never dropped."""
        row = TopicRow(folder.name, folder.partitions, dict(KEEP_ALL), id=folder.id)
        _log.error("topic %s is adopted: %s", row.name, _ADOPTED.reason)
        self._db.put_topic(row)
        groups = self._db.groups(row.name)
        write_topic_file(self._disk, self._topics_dir, topic_record(row, groups, adopted=True))
        return row._replace(doubt=_ADOPTED)

    def _restore_file(self, row: TopicRow, damage: str) -> None:
        """Write a missing or damaged file as the row says; without room the row has to do."""
        if damage:
            self.problems.append(f"{damage}; it is written again as node.db says")
        try:
            self._write_file(row, self._db.groups(row.name))
        except OSError as error:
            _log.warning("the file of topic %s is not written: %s", row.name, error)

    def _folder_of(
        self, name: str, row: TopicRow | None, folders: Mapping[str, Sequence[_Folder]]
    ) -> _Folder:
        """Return the folder of a topic: the row's, or else the best of those that have its name."""
        found = folders.get(name, ())
        if row is not None:
            path = self._topics_dir / row.folder
            chosen = next((f for f in found if f.path == path), _Folder(path, name, row.id))
        else:
            live = [f for f in found if f.record is not None and not f.record.deleting]
            chosen = (live or found)[0]
        for other in found:
            if other is not chosen:
                _log.warning("%s is of an earlier topic %s; nothing reads it", other.path, name)
        return chosen

    def _drop(self, bad: DamagedRow) -> None:
        """Remove a damaged row that no topic belongs to; the files themselves say what it said."""
        self.problems.append(f"node.db had {bad}")
        _log.error("node.db had %s; it is removed", bad)
        try:
            self._db.drop_damaged(bad)
        except GoqError as error:
            _log.warning("%s stays: %s", bad, error.detail)

    def _folders(self) -> Iterator[_Folder]:
        for name in self._disk.names(self._topics_dir):
            path = self._topics_dir / name
            try:
                folder = _Folder(path, *parse_topic_folder(name))
                folder = folder._replace(partitions=self._partitions_in(path))
                record = read_topic_file(self._disk, path)
            except (InvalidInput, NotADirectoryError):
                continue
            except (CorruptData, OSError) as error:
                yield folder._replace(damage=str(error))
                continue
            if record is not None:
                yield folder._replace(record=record, id=record.id)
            elif folder.partitions:
                yield folder

    def _partitions_in(self, folder: Path) -> int:
        names = self._disk.names(folder)
        return 1 + max((int(n) for n in names if n.isascii() and n.isdecimal()), default=-1)

    def put_topic(self, topic: TopicRow) -> None:
        """Insert or replace a topic. That is a decision: it ends every doubt about the topic."""
        record = self._record(topic.name, topic.id)
        groups = self._db.groups(topic.name) if record is None else record.groups
        for bad in self._damaged.pop(topic.name, []):
            self._db.drop_damaged(bad)
        is_new = topic.name not in self._ids
        self._db.put_topic(topic)
        try:
            self._write_file(topic, groups)
        except OSError as error:
            if is_new:
                self._db.delete_topic(topic.name, topic.id)
            raise _refusal(error) from error
        self._ids[topic.name] = topic.id

    def delete_topic(self, name: str, topic_id: int) -> None:
        """Remove a topic's rows, once its partitions and its archive are gone."""
        self._db.delete_topic(name, topic_id)
        if self._ids.get(name) == topic_id:
            del self._ids[name]

    def groups(self, topic: str) -> dict[str, dict[str, str]]:
        """Return a topic's groups by name, each with its own settings in the users' notation."""
        rows, record = self._db.groups(topic), self._record(topic, self._ids.get(topic, 0))
        return rows if record is None else {name: {} for name in rows} | record.groups

    def put_group(self, topic: str, name: str, settings: Mapping[str, str]) -> None:
        """Insert or replace a group."""
        self._db.put_group(topic, name, settings)
        self._change_group(topic, name, settings)

    def delete_group(self, topic: str, name: str) -> None:
        """Delete a group."""
        self._db.delete_group(topic, name)
        self._change_group(topic, name, {})

    def _change_group(self, topic: str, name: str, settings: Mapping[str, str]) -> None:
        record = self._record(topic, self._ids.get(topic, 0))
        if record is not None and record.groups.get(name, {}) != settings:
            groups = own_settings({**record.groups, name: dict(settings)})
            changed = msgspec.structs.replace(record, groups=groups)
            try:
                write_topic_file(self._disk, self._topics_dir, changed)
            except OSError as error:
                raise _refusal(error) from error

    def _record(self, topic: str, topic_id: int) -> TopicRecord | None:
        try:
            return read_topic_file(self._disk, self._topics_dir / topic_folder(topic, topic_id))
        except CorruptData as error:
            _log.error("%s", error.detail)
            return None

    def _write_file(self, row: TopicRow, groups: Mapping[str, Mapping[str, str]]) -> None:
        write_topic_file(self._disk, self._topics_dir, topic_record(row, groups))


def _topic_of(bad: DamagedRow) -> str:
    """Return the topic that a damaged row decides on, "" for none."""
    column = {"topics": "name", "groups": "topic"}.get(bad.table, "")
    return str(bad.fields.get(column, ""))


def _refusal(error: OSError) -> GoqError:
    """Return the error of a change whose file was not written, or perhaps was."""
    if is_full(error):
        return StorageFull(f"no room on the disk: {error}; free some space, then send again")
    return outcome_unknown(StorageFailed(f"the disk failed: {error}"))


def _in_doubt(row: TopicRow | None, folder: _Folder, reason: str) -> TopicRow:
    """Return a topic that is read-only until a user decides; nothing of it changes on the disk."""
    _log.error("topic %s is read-only: %s", folder.name, reason)
    if folder.record is not None:
        known = _row_of(folder.record)
    elif row is not None:
        known = row._replace(deleting=False, settings={**row.settings, **KEEP_ALL})
    else:
        known = TopicRow(folder.name, max(folder.partitions, 1), dict(KEEP_ALL), id=folder.id)
    return known._replace(doubt=TopicDoubt(DoubtKind.READ_ONLY, reason))


def _row_of(record: TopicRecord) -> TopicRow:
    return TopicRow(record.name, record.partitions, dict(record.settings), id=record.id)


def topic_record(
    row: TopicRow, groups: Mapping[str, Mapping[str, str]], *, adopted: bool = False
) -> TopicRecord:
    """Return what the file of a topic is to say."""
    own = own_settings(groups)
    return TopicRecord(
        row.name, row.id, row.partitions, dict(row.settings), own, adopted, row.deleting
    )
