"""The database of a node when it is busy, and when its disk has no room."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from goq.access.token_record import TokenRecord
from goq.errors import CorruptData, StorageFailed, StorageFull, TimedOut, Unavailable
from goq.schedules.schedule_record import ScheduleRecord
from goq.storage.catalog.checked_tables import CheckedTables
from goq.storage.catalog.rows import SegmentRow, TopicRow
from goq.storage.node_db import FILE_NAME, NodeDb

SCHEDULE = ScheduleRecord("s", "t", "[]", "", "", 60_000, "ann", 1, 1)
TOKEN = TokenRecord("id", "name", "digest", ("admin",), 1)
LARGE = TopicRow("large", 1, {"x": "y" * 40_000})


class Space:
    """The room of a database: some pages, and a reserve of more."""

    def __init__(self, *, has_reserve: bool) -> None:
        self.connections: list[sqlite3.Connection] = []
        self.is_full_now = True
        self.is_given_up = False
        self.has_reserve = has_reserve

    def limit(self, pages: int) -> None:
        for each in self.connections:
            each.execute(f"PRAGMA max_page_count = {pages}")

    def give_up(self) -> bool:
        self.is_given_up = True
        if self.has_reserve:
            self.limit(1000)
        return self.has_reserve


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[sqlite3.Connection]]:
    """Note what is opened; nothing waits for a lock."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options, timeout=0))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    return opened


def test_only_its_owner_may_read_a_new_database_and_the_files_beside_it(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with closing(NodeDb(tmp_path)) as db:
            db.next_epoch()
            files = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert files == dict.fromkeys((FILE_NAME, f"{FILE_NAME}-shm", f"{FILE_NAME}-wal"), 0o600)


def test_a_database_that_another_process_writes_is_to_be_tried_again(
    tmp_path: Path, connections: list[sqlite3.Connection]
) -> None:
    space: Any = Space(has_reserve=True)
    with closing(NodeDb(tmp_path, space=space)) as db:
        with closing(sqlite3.connect(tmp_path / FILE_NAME)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable, match="another process is writing"):
                db.put_topic(LARGE)
        assert not space.is_given_up
        db.put_topic(LARGE)
        assert db.topics() == [LARGE]


def test_a_write_without_room_takes_the_reserve_if_there_is_one(
    tmp_path: Path, connections: list[sqlite3.Connection]
) -> None:
    space: Any = Space(has_reserve=True)
    with closing(NodeDb(tmp_path, space=space)) as db:
        space.connections = connections
        space.limit(1)
        db.put_topic(LARGE)
        assert space.is_given_up
        assert db.topics() == [LARGE]


@pytest.mark.parametrize("space", [None, Space(has_reserve=False)])
def test_a_write_without_room_is_refused_and_changes_nothing(
    tmp_path: Path, connections: list[sqlite3.Connection], space: Any
) -> None:
    with closing(NodeDb(tmp_path, space=space)) as db:
        limited = Space(has_reserve=False)
        limited.connections = connections
        limited.limit(1)
        with pytest.raises(StorageFull, match="free some space"):
            db.put_topic(LARGE)
        assert db.topics() == []
        limited.limit(1000)
        db.put_topic(LARGE)
        assert db.topics() == [LARGE]


class FailingCommits(sqlite3.Connection):
    """A connection whose commits reach the disk, which then tells of an error."""

    def commit(self) -> None:
        super().commit()
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lambda db: db.put_topic(LARGE), lambda db: db.topics()),
        (lambda db: db.put_group("t", "g", {}), lambda db: db.groups("t")),
        (lambda db: db.put_token(TOKEN), lambda db: db.tokens()),
        (lambda db: db.put_schedules([SCHEDULE]), lambda db: db.schedules()),
    ],
)
@pytest.mark.parametrize("space", [None, Space(has_reserve=False), Space(has_reserve=True)])
def test_a_change_whose_commit_fails_is_not_called_refused_as_it_may_come_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[NodeDb], None],
    answer: Callable[[NodeDb], Any],
    space: Any,
) -> None:
    NodeDb(tmp_path).close()
    with monkeypatch.context() as patched:
        connect = sqlite3.connect
        patched.setattr(sqlite3, "connect", partial(connect, factory=FailingCommits))
        with (
            closing(NodeDb(tmp_path, space=space)) as db,
            pytest.raises(TimedOut, match="it is not known whether this was done"),
        ):
            change(db)
    with closing(NodeDb(tmp_path)) as db:
        assert answer(db)


def test_a_token_is_stored_with_the_removal_of_those_that_make_room_for_it_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(NodeDb(tmp_path)) as db:
        db.put_token(TOKEN)
        with monkeypatch.context() as patched:
            patched.setattr(CheckedTables, "delete", Mock(side_effect=sqlite3.OperationalError))
            with pytest.raises(CorruptData):
                db.put_token(msgspec.structs.replace(TOKEN, id="other"), ["x"])
        assert list(db.tokens()) == [TOKEN.id]


def test_a_thread_reads_what_another_wrote(tmp_path: Path) -> None:
    with closing(NodeDb(tmp_path)) as db, ThreadPoolExecutor(1) as other:
        other.submit(db.put_topic, TopicRow("t", 1, {})).result()
        assert [row.name for row in db.topics()] == ["t"]


def test_a_merged_segment_takes_the_place_of_those_that_it_holds_and_of_no_others(
    tmp_path: Path,
) -> None:
    with closing(NodeDb(tmp_path)) as db:
        for log in ("messages", "events"):
            for base in range(0, 50, 10):
                db.put_segment(SegmentRow("t", 0, log, base, base + 10, 500, 1))
        db.put_segment(SegmentRow("t", 1, "messages", 20, 30, 500, 1))
        db.put_segment(SegmentRow("u", 0, "messages", 20, 30, 500, 1))
        merged = SegmentRow("t", 0, "messages", 10, 40, 90, 2)
        db.put_merged_segment(merged)
        rows = db.segments()
    of_log = [row for row in rows if row[:3] == ("t", 0, "messages")]
    assert [row.base_offset for row in of_log] == [0, 10, 40]
    assert of_log[1] == merged
    assert len(rows) == 3 + 5 + 2


def test_a_file_that_the_system_does_not_open_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(StorageFailed, match="check the disk") as refused:
        NodeDb(tmp_path)
    assert "move it away" not in str(refused.value)


def test_a_file_of_bad_bytes_is_to_be_restored_or_moved_away(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1000)
    with pytest.raises(CorruptData, match="move it away") as damaged:
        NodeDb(tmp_path)
    assert not isinstance(damaged.value, StorageFailed)


def test_a_change_that_the_disk_refused_may_be_tried_again(
    tmp_path: Path, connections: list[sqlite3.Connection]
) -> None:
    with closing(NodeDb(tmp_path)) as db:
        connections[0].execute("PRAGMA query_only = ON")  # as on a disk that became read-only
        with pytest.raises(StorageFailed, match="check the disk") as refused:
            db.put_topic(LARGE)
        assert refused.value.retryable
        connections[0].execute("PRAGMA query_only = OFF")
        db.put_topic(LARGE)
        assert db.topics() == [LARGE]
