"""``node.db``: topics, groups, and the manifests of segments and archive, in SQLite.

SQLite runs in WAL mode with ``synchronous=FULL``: a change is durable when its call returns. Calls
block on the disk; the node makes them from one thread.

    node(key, value)                           this node's counters, such as the boot epoch
    topics(name, partitions, settings, deleting, id)
    groups(topic, name, settings)
    segments(topic, partition, log, base_offset, end_offset, size_bytes, sealed_at_us)
    archive(topic, partition, log, base_offset, end_offset, size_bytes, archived_bytes,
            first_time_us, last_time_us, archived_at_us, crc32c)

The topic of a segment, live or archived, is the name of the topic's folder. So rows of a deleted
topic are never taken for those of a new one. Databases of earlier versions get the column ``id``.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import sqlite_utils

from goq.errors import CorruptData, GoqError, StorageFull, Unavailable
from goq.model import NO_TOPIC_ID, topic_folder
from goq.storage.disk_space import DiskSpace

FILE_NAME = "node.db"
LOG_NAMES = ("messages", "events")
_NO_ROOM = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_P = ParamSpec("_P")
_T = TypeVar("_T")


class TopicRow(NamedTuple):
    """A topic in the database; ``settings`` are in the users' notation.

    ``id`` tells the topic from others that have, or had, its name.
    """

    name: str
    partitions: int
    settings: dict[str, str]
    deleting: bool = False
    id: int = NO_TOPIC_ID

    @property
    def folder(self) -> str:
        """The name of the topic's folder."""
        return topic_folder(self.name, self.id)


class SegmentRow(NamedTuple):
    """A sealed segment in the manifest; ``topic`` is the name of the topic's folder."""

    topic: str
    partition: int
    log: str
    base_offset: int
    end_offset: int
    size_bytes: int
    sealed_at_us: int


class ArchiveRow(NamedTuple):
    """An archived segment in the manifest; ``crc32c`` covers its ``size_bytes``.

    ``topic`` is the name of the topic's folder. The times are the earliest append time and the
    running maximum of the log at its end.
    """

    topic: str
    partition: int
    log: str
    base_offset: int
    end_offset: int
    size_bytes: int
    archived_bytes: int
    first_time_us: int
    last_time_us: int
    archived_at_us: int
    crc32c: int


def _translated(
    method: Callable[Concatenate[NodeDb, _P], _T],
) -> Callable[Concatenate[NodeDb, _P], _T]:
    """Translate errors of SQLite into errors of the node."""

    @wraps(method)
    def run(self: NodeDb, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return self._run(lambda: method(self, *args, **kwargs))
        except sqlite3.DatabaseError as error:
            raise _node_error(self.path, error) from error

    return run


def _lacks_space(error: sqlite3.DatabaseError, space: DiskSpace) -> bool:
    """Return whether SQLite had no room. For its shared memory it says that as an I/O error."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code == sqlite3.SQLITE_FULL or (code in _NO_ROOM and space.is_full_now)


def _node_error(path: Path, error: sqlite3.DatabaseError) -> GoqError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StorageFull(f"no room on the disk of {path}; free some space, then send again")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable(f"another process is writing to {path}; try again")
    return CorruptData(
        f"{path} cannot be used: {error}; restore it from a backup, or move it away: the node"
        " then recovers the topics from their folders, with default settings"
    )


class NodeDb:
    """The node's database. Not thread-safe.

    With ``read_only`` it may also be opened beside a running node. Changes on a full disk give up
    the reserve of ``space``. Every call raises ``CorruptData``, ``StorageFull`` or ``Unavailable``
    when SQLite fails.
    """

    def __init__(
        self, data_dir: Path, *, read_only: bool = False, space: DiskSpace | None = None
    ) -> None:
        self.path = data_dir / FILE_NAME
        self._space = space
        try:
            self._run(lambda: self._open("ro" if read_only else "rwc"))
        except sqlite3.DatabaseError as error:
            raise _node_error(self.path, error) from error

    def _run(self, work: Callable[[], _T]) -> _T:
        """Run work; once more with the room of the reserve, if it failed for lack of space."""
        try:
            return work()
        except sqlite3.DatabaseError as error:
            if self._space is None or not _lacks_space(error, self._space):
                raise
            if not self._space.give_up():
                raise
            return work()

    def _open(self, mode: str) -> None:
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        try:
            self._db = sqlite_utils.Database(connection)
            if mode == "ro":
                return
            self._db.enable_wal()
            self._db.execute("PRAGMA synchronous=FULL")
            self._create_tables()
        except BaseException:
            connection.close()
            raise

    def _create_tables(self) -> None:
        tables: list[tuple[str, dict[str, type], Any]] = [
            ("node", {"key": str, "value": int}, "key"),
            (
                "topics",
                {"name": str, "partitions": int, "settings": str, "deleting": int, "id": int},
                "name",
            ),
            ("groups", {"topic": str, "name": str, "settings": str}, ("topic", "name")),
            (
                "segments",
                {
                    "topic": str,
                    "partition": int,
                    "log": str,
                    "base_offset": int,
                    "end_offset": int,
                    "size_bytes": int,
                    "sealed_at_us": int,
                },
                ("topic", "partition", "log", "base_offset"),
            ),
            (
                "archive",
                {n: str if n in ("topic", "log") else int for n in ArchiveRow._fields},
                ("topic", "partition", "log", "base_offset"),
            ),
        ]
        for name, columns, key in tables:
            self._db.table(name).create(columns, pk=key, if_not_exists=True)
        if "id" not in self._db.table("topics").columns_dict:
            self._db.table("topics").add_column("id", int)

    @_translated
    def next_epoch(self) -> int:
        """Count a start of the node and return its number, 1 for the first."""
        rows = list(self._db.table("node").rows_where("key = ?", ["epoch"]))
        epoch = rows[0]["value"] + 1 if rows else 1
        self._db.table("node").upsert({"key": "epoch", "value": epoch}, pk="key")
        return int(epoch)

    @_translated
    def topics(self) -> list[TopicRow]:
        """Return all topics by name."""
        return [
            TopicRow(
                row["name"],
                row["partitions"],
                json.loads(row["settings"]),
                bool(row["deleting"]),
                row.get("id") or NO_TOPIC_ID,
            )
            for row in self._db.table("topics").rows_where(order_by="name")
        ]

    @_translated
    def put_topic(self, topic: TopicRow) -> None:
        """Insert or replace a topic."""
        row = topic._asdict() | {"settings": json.dumps(topic.settings)}
        self._db.table("topics").upsert(row, pk="name")

    @_translated
    def delete_topic(self, name: str, topic_id: int) -> None:
        """Delete a topic and all rows that belong to it; another one of the name stays."""
        folder = topic_folder(name, topic_id)
        with self._db.conn:
            self._db.table("segments").delete_where("topic = ?", [folder])
            self._db.table("archive").delete_where("topic = ?", [folder])
            if any(row.name == name and row.id == topic_id for row in self.topics()):
                self._db.table("groups").delete_where("topic = ?", [name])
                self._db.table("topics").delete_where("name = ?", [name])

    @_translated
    def groups(self, topic: str) -> dict[str, dict[str, str]]:
        """Return a topic's groups by name, each with its own settings in the users' notation."""
        rows = self._db.table("groups").rows_where("topic = ?", [topic], order_by="name")
        return {row["name"]: json.loads(row["settings"]) for row in rows}

    @_translated
    def put_group(self, topic: str, name: str, settings: Mapping[str, str]) -> None:
        """Insert or replace a group."""
        row = {"topic": topic, "name": name, "settings": json.dumps(dict(settings))}
        self._db.table("groups").upsert(row, pk=("topic", "name"))

    @_translated
    def delete_group(self, topic: str, name: str) -> None:
        """Delete a group."""
        self._db.table("groups").delete_where("topic = ? and name = ?", [topic, name])

    @_translated
    def put_segment(self, segment: SegmentRow) -> None:
        """Add a sealed segment to the manifest."""
        key = ("topic", "partition", "log", "base_offset")
        self._db.table("segments").upsert(segment._asdict(), pk=key)

    @_translated
    def add_segments(self, segments: Iterable[SegmentRow]) -> None:
        """Add sealed segments to the manifest; segments that are listed stay unchanged."""
        key = ("topic", "partition", "log", "base_offset")
        with self._db.conn:
            rows = [segment._asdict() for segment in segments]
            self._db.table("segments").insert_all(rows, pk=key, ignore=True)

    @_translated
    def delete_segments_of(self, topic: str, partition: int, log: str) -> None:
        """Remove all segments of one log from the manifest."""
        where = "topic = ? and partition = ? and log = ?"
        with self._db.conn:
            self._db.table("segments").delete_where(where, [topic, partition, log])

    @_translated
    def delete_segments(self, keys: Iterable[tuple[str, int, str, int]]) -> None:
        """Remove segments from the manifest, by topic, partition, log and base offset."""
        with self._db.conn:
            for key in keys:
                self._db.table("segments").delete_where(
                    "topic = ? and partition = ? and log = ? and base_offset = ?", key
                )

    @_translated
    def segments(self) -> list[SegmentRow]:
        """Return the manifest of segments."""
        order = "topic, partition, log, base_offset"
        return [SegmentRow(**row) for row in self._db.table("segments").rows_where(order_by=order)]

    @_translated
    def put_archived(self, rows: Iterable[ArchiveRow]) -> None:
        """Add or replace segments in the manifest of the archive, in one transaction."""
        key = ("topic", "partition", "log", "base_offset")
        with self._db.conn:
            self._db.table("archive").upsert_all([row._asdict() for row in rows], pk=key)

    @_translated
    def archived(self) -> list[ArchiveRow]:
        """Return the manifest of the archive; empty if there is no such table."""
        if not self._db.table("archive").exists():
            return []
        order = "topic, partition, log, base_offset"
        return [ArchiveRow(**row) for row in self._db.table("archive").rows_where(order_by=order)]

    def close(self) -> None:
        """Close the database."""
        self._db.conn.close()
