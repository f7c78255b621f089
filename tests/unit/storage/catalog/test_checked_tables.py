"""Rows of ``node.db`` have a CRC; one that fails its check decides on nothing."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from random import Random
from typing import Any

import pytest

from goq.access.token_manager import new_token
from goq.errors import CorruptData
from goq.schedules.schedule_record import ScheduleRecord
from goq.storage.catalog.checked_tables import CheckedTables
from goq.storage.catalog.rows import ArchiveRow, SegmentRow, TopicRow
from goq.storage.node_db import NodeDb

TOPIC = TopicRow("t", 3, {"retention.age": "none"}, id=7)
SEGMENT = SegmentRow("t", 0, "messages", 0, 9, 100, 5)
ARCHIVED = ArchiveRow("t", 0, "messages", 0, 9, 100, 50, 1, 2, 3, 4)


def filled(path: Path) -> None:
    db = NodeDb(path)
    db.next_epoch()
    db.put_topic(TOPIC)
    db.put_group("t", "g", {"ordering": "none"})
    db.put_segment(SEGMENT)
    db.put_archived([ARCHIVED])
    db.close()


def execute(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path / "node.db")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def columns() -> list[tuple[str, str]]:
    connection = sqlite3.connect(":memory:")
    found = [
        (table, column)
        for table, fields in {
            "node": ("key", "value"),
            "topics": ("name", "partitions", "settings", "deleting", "id"),
            "groups": ("topic", "name", "settings"),
            "segments": SegmentRow._fields,
            "archive": ArchiveRow._fields,
        }.items()
        for column in (*fields, "crc")
    ]
    connection.close()
    return found


def content(db: NodeDb) -> dict[str, Any]:
    return {
        "topics": db.topics(),
        "groups": db.groups("t"),
        "segments": db.segments(),
        "archive": db.archived(),
    }


@pytest.mark.parametrize(("table", "column"), columns())
@pytest.mark.parametrize("change", ["{} + 1", "X'C3' || {}", "NULL"])
def test_a_row_that_another_hand_changed_is_named_and_not_returned(
    tmp_path: Path, table: str, column: str, change: str
) -> None:
    filled(tmp_path)
    execute(tmp_path, f"UPDATE {table} SET {column} = {change.format(column)}")
    db = NodeDb(tmp_path)
    assert [row.table for row in db.damaged_rows()] == [table]
    assert not content(db).get(table)
    assert all(rows for other, rows in content(db).items() if other != table)
    db.close()


def test_a_damaged_count_of_starts_goes_on_above_every_true_one(tmp_path: Path) -> None:
    filled(tmp_path)
    execute(tmp_path, "UPDATE node SET value = 0")
    db = NodeDb(tmp_path)
    epoch = db.next_epoch()
    assert 1_000_000_000 < epoch < 2**32
    assert db.next_epoch() == epoch + 1
    db.close()


EARLIER = (
    "CREATE TABLE node (key TEXT PRIMARY KEY, value INTEGER)",
    "CREATE TABLE topics (name TEXT PRIMARY KEY, partitions INTEGER, settings TEXT,"
    " deleting INTEGER)",
    "CREATE TABLE groups (topic TEXT, name TEXT, settings TEXT, PRIMARY KEY (topic, name))",
    "CREATE TABLE segments (topic TEXT, partition INTEGER, log TEXT, base_offset INTEGER,"
    " end_offset INTEGER, size_bytes INTEGER, sealed_at_us INTEGER,"
    " PRIMARY KEY (topic, partition, log, base_offset))",
    "INSERT INTO node VALUES ('epoch', 41)",
    "INSERT INTO topics VALUES ('t', 3, '{\"retention.age\":\"none\"}', 0)",
    "INSERT INTO groups VALUES ('t', 'g', '{\"ordering\":\"none\"}')",
    "INSERT INTO groups VALUES ('t', 'bad', CAST(X'7B22FF22' AS TEXT))",
    "INSERT INTO segments VALUES ('t', 0, 'messages', 0, 9, 100, 5)",
)


def test_a_database_of_the_earlier_schema_is_taken_over(tmp_path: Path) -> None:
    execute(tmp_path, *EARLIER)
    for _ in range(2):
        db = NodeDb(tmp_path)
        assert db.topics() == [TOPIC._replace(id=0)]
        assert db.groups("t") == {"g": {"ordering": "none"}}
        assert db.segments() == [SEGMENT]
        assert db.archived() == []
        assert [str(row) for row in db.damaged_rows()] == [
            "a damaged row in table groups: topic t, name bad"
        ]
        db.close()
    db = NodeDb(tmp_path)
    assert db.next_epoch() == 42
    db.close()
    execute(tmp_path, "UPDATE topics SET partitions = 1")
    db = NodeDb(tmp_path)
    assert db.topics() == []
    db.close()


def test_the_earlier_schema_is_read_as_it_is_beside_its_node(tmp_path: Path) -> None:
    execute(tmp_path, *EARLIER)
    before = (tmp_path / "node.db").read_bytes()
    db = NodeDb(tmp_path, read_only=True)
    assert db.topics() == [TOPIC._replace(id=0)]
    assert db.damaged_rows() == []
    db.close()
    assert (tmp_path / "node.db").read_bytes() == before


def test_a_migration_that_is_cut_short_leaves_the_earlier_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(tmp_path, *EARLIER)
    done: list[str] = []
    migrate = CheckedTables._migrate

    def cut(self: CheckedTables, name: str, table: Any) -> None:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(name)
        migrate(self, name, table)

    with monkeypatch.context() as patch:
        patch.setattr(CheckedTables, "_migrate", cut)
        with pytest.raises(KeyboardInterrupt):
            NodeDb(tmp_path)
    connection = sqlite3.connect(tmp_path / "node.db")
    assert "crc" not in [row[1] for row in connection.execute("PRAGMA table_info(topics)")]
    connection.close()
    db = NodeDb(tmp_path)
    assert db.topics() == [TOPIC._replace(id=0)]
    db.close()


@pytest.mark.parametrize("version", [0, 2, 1 << 20])
def test_a_schema_that_contradicts_its_version_is_not_taken_over(
    tmp_path: Path, version: int
) -> None:
    filled(tmp_path)
    execute(tmp_path, f"PRAGMA user_version={version}")
    with pytest.raises(CorruptData, match="later version"):
        NodeDb(tmp_path)


def index_pages(path: Path) -> list[tuple[str, int, int]]:
    """Return the indexes of the keys with the first byte and the size of their root pages."""
    connection = sqlite3.connect(path / "node.db")
    ((size,),) = connection.execute("PRAGMA page_size").fetchall()
    found = connection.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'index'")
    pages = [(name, (page - 1) * size, size) for name, page in found]
    connection.close()
    return pages


def filled_with_many(path: Path) -> dict[str, Any]:
    """Fill a database, and return what it has."""
    db = NodeDb(path)
    for number in range(20):
        db.put_topic(TopicRow(f"topic-{number}", 3, {}, id=number + 1))
        db.put_group("t", f"group-{number}", {})
        db.put_token(new_token(f"token-{number}", ["read:*"], now_ms=1).record, [])
        name = f"schedule-{number}"
        db.put_schedules([ScheduleRecord(name, "t", "[]", "", "", 1000, "-", 1, 1)])
    found = everything(db)
    db.close()
    return found


def everything(db: NodeDb) -> dict[str, Any]:
    return {
        "topics": db.topics(),
        "groups": db.groups("t"),
        "tokens": dict(db.tokens()),
        "schedules": db.schedules(),
    }


def test_an_index_without_entries_hides_no_rows(tmp_path: Path) -> None:
    known = filled_with_many(tmp_path)
    data = bytearray((tmp_path / "node.db").read_bytes())
    pages = index_pages(tmp_path)
    assert len(pages) >= 4
    for _, start, _ in pages:
        data[start + 3 : start + 5] = bytes(2)  # the number of cells in the page
    (tmp_path / "node.db").write_bytes(data)
    for _ in range(2):
        db = NodeDb(tmp_path)
        assert everything(db) == known
        assert db.integrity_problems() == []
        db.close()


def test_a_flipped_bit_in_an_index_hides_no_rows(tmp_path: Path) -> None:
    known = filled_with_many(tmp_path)
    data = (tmp_path / "node.db").read_bytes()
    draw = Random(1)
    for _, start, size in index_pages(tmp_path):
        for _ in range(20):
            damaged = bytearray(data)
            damaged[start + draw.randrange(size)] ^= 1 << draw.randrange(8)
            (tmp_path / "node.db").write_bytes(damaged)
            db = NodeDb(tmp_path)
            assert everything(db) == known
            db.close()


def read_all(path: Path) -> None:
    db = NodeDb(path)
    try:
        db.topics()
        db.groups("t")
        db.manifest_of("t")
        db.archived()
    finally:
        db.close()


@pytest.mark.parametrize("table", ["topics", "groups", "segments", "archive"])
def test_a_table_whose_schema_was_damaged_is_told_and_never_taken_for_an_older_one(
    tmp_path: Path, table: str
) -> None:
    filled(tmp_path)
    execute(tmp_path, f"ALTER TABLE {table} RENAME COLUMN crc TO grc")
    with pytest.raises(CorruptData):
        read_all(tmp_path)
