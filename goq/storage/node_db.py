"""``node.db``: topics, groups, tokens, schedules, manifests of segments and archive, in SQLite.

SQLite runs in WAL mode with ``synchronous=FULL``: a change is durable when its call returns. Calls
block on the disk; the node makes them from one thread.

    node(key, value)                           this node's counters: the boot epoch, and for each
                                               topic how many of its partitions have existed
    topics(name, partitions, settings, deleting, id)
    groups(topic, name, settings)
    segments(topic, partition, log, base_offset, end_offset, size_bytes, sealed_at_us)
    archive(topic, partition, log, base_offset, end_offset, size_bytes, archived_bytes,
            first_time_us, last_time_us, archived_at_us, crc32c)
    tokens(id, name, digest, rules, created_ms, expires_ms, previous_digest, previous_until_ms,
           revoked_ms, last_used_day, version)
    schedules(name, topic, messages, cron, tz, every_ms, principal, created_ms, resumed_ms,
              paused_ms, last_due_ms, problem, version)

Each row has a CRC (``catalog/checked_tables.py``). A row that fails its check decides on nothing:
only :meth:`NodeDb.damaged_rows` returns it. So the token of a damaged row is not valid, and its
schedule publishes nothing.

The topic of a segment, live or archived, is the name of the topic's folder. So rows of a deleted
topic are never taken for those of a new one.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar, get_type_hints

import msgspec

from goq.access.token_record import TokenRecord
from goq.errors import CorruptData, GoqError, StorageFull, Unavailable, outcome_unknown
from goq.model import NO_TOPIC_ID, topic_folder
from goq.schedules.schedule_record import ScheduleRecord
from goq.storage.catalog.checked_tables import CheckedTables, CommitFailed, DamagedRow, TableSchema
from goq.storage.catalog.rows import ArchiveRow, SegmentRow, TopicManifest, TopicRow
from goq.storage.catalog.sqlite_errors import primary_code, refused_access
from goq.storage.disk_space import DiskSpace

FILE_NAME = "node.db"
_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError)  # also of a message about damaged text
_NO_ROOM = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def _translated(
    method: Callable[Concatenate[NodeDb, _P], _T],
) -> Callable[Concatenate[NodeDb, _P], _T]:
    """Translate errors of SQLite into errors of the node."""

    @wraps(method)
    def run(self: NodeDb, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return self._run(lambda: method(self, *args, **kwargs))
        except _ERRORS as error:
            raise _node_error(self.path, error) from error

    return run


def _asked_for(
    method: Callable[Concatenate[NodeDb, _P], _T],
) -> Callable[Concatenate[NodeDb, _P], _T]:
    """Translate errors of a change that clients ask for: a commit that fails may come back."""

    @wraps(method)
    def run(self: NodeDb, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return self._run(lambda: method(self, *args, **kwargs))
        except CommitFailed as error:
            raise outcome_unknown(_node_error(self.path, error)) from error
        except _ERRORS as error:
            raise _node_error(self.path, error) from error

    return run


def _lacks_space(error: Exception, space: DiskSpace) -> bool:
    """Return whether SQLite had no room. For its shared memory it says that as an I/O error."""
    code = primary_code(error)
    return code == sqlite3.SQLITE_FULL or (code in _NO_ROOM and space.is_full_now)


def _node_error(path: Path, error: Exception) -> GoqError:
    code = primary_code(error)
    if code == sqlite3.SQLITE_FULL:
        return StorageFull(f"no room on the disk of {path}; free some space, then send again")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable(f"another process is writing to {path}; try again")
    return refused_access(path, error) or CorruptData(
        f"{path} cannot be used: {error}; restore it from a backup, or move it away: the node"
        " then takes up the topics with the settings in their folders, and keeps all messages of a"
        " topic whose folder does not have them"
    )


_PARTITIONS = "partitions:"  # and the name of the topic's folder
_MANIFEST_KEY = ("topic", "partition", "log", "base_offset")
_TABLES = {
    "node": TableSchema({"key": str, "value": int}, ["key"]),
    "topics": TableSchema(
        {"name": str, "partitions": int, "settings": str, "deleting": int, "id": int}, ["name"]
    ),
    "groups": TableSchema({"topic": str, "name": str, "settings": str}, ["topic", "name"]),
    "segments": TableSchema(get_type_hints(SegmentRow), _MANIFEST_KEY),
    "archive": TableSchema(get_type_hints(ArchiveRow), _MANIFEST_KEY),
    "tokens": TableSchema({**get_type_hints(TokenRecord), "rules": str}, ["id"], added=True),
    "schedules": TableSchema(get_type_hints(ScheduleRecord), ["name"], added=True),
}


class NodeDb:
    """The node's database. Not thread-safe.

    With ``read_only`` it may also be opened beside a running node. Changes on a full disk give up
    the reserve of ``space``. Every call raises ``CorruptData``, ``StorageFailed``, ``StorageFull``
    or ``Unavailable`` when SQLite fails; a change that clients ask for also raises ``TimedOut``,
    if it may have been stored all the same.
    """

    def __init__(
        self, data_dir: Path, *, read_only: bool = False, space: DiskSpace | None = None
    ) -> None:
        self.path = data_dir / FILE_NAME
        self._space = space
        try:
            self._run(lambda: self._open("ro" if read_only else "rwc"))
        except _ERRORS as error:
            raise _node_error(self.path, error) from error

    def _run(self, work: Callable[[], _T]) -> _T:
        """Run work; once more with the room of the reserve, if it failed for lack of space."""
        try:
            return work()
        except _ERRORS as error:
            if self._space is None or not _lacks_space(error, self._space):
                raise
            if not self._space.give_up():
                raise
            try:
                return work()
            except _ERRORS:
                if isinstance(error, CommitFailed):
                    raise error from None  # what the first try wrote may still come back
                raise

    def _open(self, mode: str) -> None:
        if mode != "ro":
            self._create_private()
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        try:
            self._tables = CheckedTables(connection, _TABLES)
            if mode != "ro":
                self._tables.migrate()
        except BaseException:
            connection.close()
            raise

    def _create_private(self) -> None:
        """Create a missing file for its owner alone: it has the digests of tokens.

        SQLite goes by the umask, and gives the files beside it the same mode. An existing file is
        left alone: a close of it would end the locks that SQLite has on it in this process.
        """
        with suppress(OSError):  # SQLite says what is wrong
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    @_translated
    def damaged_rows(self) -> list[DamagedRow]:
        """Return the rows that fail their check."""
        return self._tables.damaged()

    @_translated
    def drop_damaged(self, row: DamagedRow) -> None:
        """Remove a damaged row."""
        self._tables.drop(row)

    @_translated
    def integrity_problems(self) -> list[str]:
        """Return what SQLite's own check of the file finds."""
        return [f"{FILE_NAME}: {problem}" for problem in self._tables.integrity_problems()]

    @_translated
    def next_epoch(self) -> int:
        """Count a start of the node and return its number, 1 for the first.

        If the count is damaged, it goes on from the seconds of the clock, above any true count.
        """
        rows = self._tables.rows("node", key="epoch")
        is_damaged = not rows and any(row.table == "node" for row in self._tables.damaged())
        epoch = rows[0]["value"] + 1 if rows else int(time.time()) if is_damaged else 1
        self._tables.put("node", [{"key": "epoch", "value": epoch}])
        return int(epoch)

    @_translated
    def current_epoch(self) -> int:
        """Return the number of starts of the node, 0 for a node that was never started."""
        rows = self._tables.rows("node", key="epoch")
        return int(rows[0]["value"]) if rows else 0

    @_translated
    def set_epoch(self, epoch: int) -> None:
        """Record the number of starts, for a folder that continues another one's logs."""
        self._tables.put("node", [{"key": "epoch", "value": epoch}])

    @_translated
    def topics(self) -> list[TopicRow]:
        """Return all topics by name, without those whose row is damaged."""
        return [
            TopicRow(
                row["name"],
                row["partitions"],
                _settings(row["settings"]),
                bool(row["deleting"]),
                row.get("id") or NO_TOPIC_ID,
            )
            for row in self._tables.rows("topics")
        ]

    @_asked_for
    def put_topic(self, topic: TopicRow) -> None:
        """Insert or replace a topic."""
        row = {
            "name": topic.name,
            "partitions": topic.partitions,
            "settings": _text_of(topic.settings),
            "deleting": int(topic.deleting),
            "id": topic.id,
        }
        self._tables.put("topics", [row])

    @_translated
    def delete_topic(self, name: str, topic_id: int) -> None:
        """Delete a topic and all rows that belong to it; another one of the name stays.

        A crash in between leaves the topic's own row, which goes last.
        """
        folder = topic_folder(name, topic_id)
        for table in ("segments", "archive"):
            self._tables.delete(table, [{"topic": folder}])
        self._tables.delete("node", [{"key": _PARTITIONS + folder}])
        rows = self._tables.rows("topics", name=name)
        if all((row["id"] or NO_TOPIC_ID) == topic_id for row in rows):
            self._tables.delete("groups", [{"topic": name}])
            self._tables.delete("topics", [{"name": name}])

    @_translated
    def groups(self, topic: str) -> dict[str, dict[str, str]]:
        """Return a topic's groups by name, each with its own settings in the users' notation."""
        rows = self._tables.rows("groups", topic=topic)
        return {row["name"]: _settings(row["settings"]) for row in rows}

    @_asked_for
    def put_group(self, topic: str, name: str, settings: Mapping[str, str]) -> None:
        """Insert or replace a group."""
        row = {"topic": topic, "name": name, "settings": _text_of(settings)}
        self._tables.put("groups", [row])

    @_asked_for
    def delete_group(self, topic: str, name: str) -> None:
        """Delete a group."""
        self._tables.delete("groups", [{"topic": topic, "name": name}])

    @_translated
    def put_segment(self, segment: SegmentRow) -> None:
        """Add a sealed segment to the manifest."""
        self._tables.put("segments", [segment._asdict()])

    @_translated
    def put_merged_segment(self, segment: SegmentRow) -> None:
        """Put a segment into the manifest, in place of those whose offsets it holds."""
        log = {name: getattr(segment, name) for name in _MANIFEST_KEY[:3]}
        offsets = [row["base_offset"] for row in self._tables.rows("segments", **log)]
        held = [each for each in offsets if segment.base_offset < each < segment.end_offset]
        self._tables.put("segments", [segment._asdict()])
        self._tables.delete("segments", [{**log, "base_offset": each} for each in held])

    @_translated
    def add_segments(self, segments: Iterable[SegmentRow]) -> None:
        """Add sealed segments to the manifest; segments that are listed stay unchanged."""
        self._tables.put("segments", [segment._asdict() for segment in segments], keep=True)

    @_translated
    def delete_segments_of(self, topic: str, partition: int, log: str) -> None:
        """Remove all segments of one log from the manifest."""
        self._tables.delete("segments", [{"topic": topic, "partition": partition, "log": log}])

    @_translated
    def delete_segments(self, keys: Iterable[tuple[str, int, str, int]]) -> None:
        """Remove segments from the manifest, by topic, partition, log and base offset."""
        rows = [dict(zip(_MANIFEST_KEY, key, strict=True)) for key in keys]
        self._tables.delete("segments", rows)

    @_translated
    def segments(self) -> list[SegmentRow]:
        """Return the manifest of segments."""
        return [SegmentRow(**row) for row in self._tables.rows("segments")]

    @_translated
    def manifest_of(self, topic: str) -> TopicManifest:
        """Return the known logs of a topic, by the name of its folder."""
        counts = self._tables.rows("node", key=_PARTITIONS + topic)
        sealed = [SegmentRow(**row) for row in self._tables.rows("segments", topic=topic)]
        return TopicManifest(counts[0]["value"] if counts else 0, sealed)

    @_translated
    def put_partitions(self, topic: str, count: int) -> None:
        """Record how many partitions of a topic have existed on this node."""
        self._tables.put("node", [{"key": _PARTITIONS + topic, "value": count}])

    @_translated
    def put_archived(self, rows: Iterable[ArchiveRow]) -> None:
        """Add or replace segments in the manifest of the archive, in one transaction."""
        self._tables.put("archive", [row._asdict() for row in rows])

    @_translated
    def delete_archived(self, keys: Iterable[tuple[str, int, str, int]]) -> None:
        """Remove archived segments from the manifest; see :meth:`delete_segments`."""
        rows = [dict(zip(_MANIFEST_KEY, key, strict=True)) for key in keys]
        self._tables.delete("archive", rows)

    @_translated
    def archived(self) -> list[ArchiveRow]:
        """Return the manifest of the archive; empty if there is no such table."""
        return [ArchiveRow(**row) for row in self._tables.rows("archive")]

    @_translated
    def tokens(self) -> dict[str, TokenRecord]:
        """Return the tokens by id, without those whose row is damaged."""
        rows = self._tables.rows("tokens")
        return {row["id"]: TokenRecord(**{**row, "rules": _rules(row["rules"])}) for row in rows}

    @_asked_for
    def put_token(self, token: TokenRecord, removed: Iterable[str] = ()) -> None:
        """Insert or replace a token; afterwards delete some, by their ids."""
        row = msgspec.structs.asdict(token) | {"rules": msgspec.json.encode(token.rules).decode()}
        with self._tables.transaction():
            self._tables.put("tokens", [row])
            self._tables.delete("tokens", [{"id": token_id} for token_id in removed])

    @_translated
    def schedules(self) -> dict[str, ScheduleRecord]:
        """Return the schedules by name, without those whose row is damaged."""
        return {row["name"]: ScheduleRecord(**row) for row in self._tables.rows("schedules")}

    @_asked_for
    def put_schedules(self, schedules: Iterable[ScheduleRecord]) -> None:
        """Insert or replace schedules, in one transaction."""
        self._tables.put("schedules", [msgspec.structs.asdict(each) for each in schedules])

    @_asked_for
    def delete_schedule(self, name: str) -> None:
        """Delete a schedule."""
        self._tables.delete("schedules", [{"name": name}])

    def close(self) -> None:
        """Close the database."""
        self._tables.close()


def _settings(written: str) -> dict[str, str]:
    return msgspec.json.decode(written, type=dict[str, str])


def _rules(written: str) -> tuple[str, ...]:
    return msgspec.json.decode(written, type=tuple[str, ...])


def _text_of(settings: Mapping[str, str]) -> str:
    return msgspec.json.encode(dict(settings)).decode()
