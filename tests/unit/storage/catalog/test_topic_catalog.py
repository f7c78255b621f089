"""The topics of a standalone node, by their rows and their files, whatever happened to either."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from shutil import copytree

import pytest

from goq.errors import CorruptData
from goq.storage.catalog.rows import DoubtKind, SegmentRow, TopicRow
from goq.storage.catalog.topic_catalog import KEEP_ALL, TopicCatalog
from goq.storage.catalog.topic_file import FILE_NAME, TopicRecord, write_topic_file
from goq.storage.disk import RealDisk
from goq.storage.node_db import NodeDb

ID = 2**52 + 1
TOPIC = TopicRow("orders", 2, {"retention.age": "none", "cleanup": "compact"}, id=ID)
OLDER = TOPIC._replace(settings={"retention.age": "1h"})
OTHER = TopicRow("other", 1, {"retention.age": "5d"}, id=ID + 1)
GROUPS = {"billing": {"ordering": "none"}, "plain": {}}


@contextmanager
def catalog_of(path: Path) -> Iterator[TopicCatalog]:
    db = NodeDb(path)
    try:
        yield TopicCatalog(db, RealDisk(), path / "topics")
    finally:
        db.close()


def filled(path: Path) -> None:
    """Leave two topics, as a stopped node does."""
    path.mkdir(exist_ok=True)
    with catalog_of(path) as catalog:
        for topic in (TOPIC, OTHER):
            catalog.put_topic(topic)
            for number in range(topic.partitions):
                (path / "topics" / topic.folder / str(number)).mkdir()
        for group, settings in GROUPS.items():
            catalog.put_group("orders", group, settings)


def recovered(path: Path) -> dict[str, TopicRow]:
    with catalog_of(path) as catalog:
        return {row.name: row for row in catalog.recover()}


def groups(path: Path) -> dict[str, dict[str, str]]:
    with catalog_of(path) as catalog:
        catalog.recover()
        return catalog.groups("orders")


def file_of(path: Path) -> Path:
    return path / "topics" / TOPIC.folder / FILE_NAME


def execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path / "node.db")
    connection.execute(statement)
    connection.commit()
    connection.close()


# What a start finds


def row_none(path: Path) -> None:
    for name in path.glob("node.db*"):
        name.unlink()


def row_damaged(path: Path) -> None:
    execute(path, "UPDATE topics SET deleting = 1 WHERE name = 'orders'")


def row_older(path: Path) -> None:
    _put(path, OLDER)


def row_deleting(path: Path) -> None:
    _put(path, TOPIC._replace(deleting=True))


def _put(path: Path, row: TopicRow) -> None:
    db = NodeDb(path)
    db.put_topic(row)
    db.close()


def file_none(path: Path) -> None:
    file_of(path).unlink()


def file_damaged(path: Path) -> None:
    data = file_of(path).read_bytes()
    file_of(path).write_bytes(data[:-9] + b"?" + data[-8:])


def tombstone(path: Path) -> None:
    record = TopicRecord("orders", ID, 2, TOPIC.settings, {}, deleting=True)
    write_topic_file(RealDisk(), path / "topics", record)


def nothing(_path: Path) -> None:
    """Leave it sound."""


LIVE, DELETED = "live", "deleted"
READ_ONLY, ADOPTED = DoubtKind.READ_ONLY, DoubtKind.ADOPTED
FOUND = [
    (nothing, nothing, LIVE, TOPIC.settings),
    (row_older, nothing, LIVE, TOPIC.settings),
    (row_deleting, nothing, LIVE, TOPIC.settings),
    (row_none, nothing, LIVE, TOPIC.settings),
    (row_damaged, nothing, READ_ONLY, TOPIC.settings),
    (nothing, file_none, LIVE, TOPIC.settings),
    (nothing, file_damaged, LIVE, TOPIC.settings),
    (row_deleting, file_none, READ_ONLY, TOPIC.settings | KEEP_ALL),
    (row_deleting, file_damaged, READ_ONLY, TOPIC.settings | KEEP_ALL),
    (row_damaged, file_none, READ_ONLY, KEEP_ALL),
    (row_damaged, file_damaged, READ_ONLY, KEEP_ALL),
    (row_none, file_none, ADOPTED, KEEP_ALL),
    (row_none, file_damaged, ADOPTED, KEEP_ALL),
    (nothing, tombstone, READ_ONLY, TOPIC.settings),
    (row_damaged, tombstone, READ_ONLY, TOPIC.settings),
    (row_none, tombstone, READ_ONLY, TOPIC.settings),
    (row_deleting, tombstone, DELETED, TOPIC.settings),
]


@pytest.mark.parametrize(("row", "file", "outcome", "settings"), FOUND)
def test_a_topic_is_what_its_row_and_its_file_say_together(
    tmp_path: Path,
    row: Callable[[Path], None],
    file: Callable[[Path], None],
    outcome: object,
    settings: dict[str, str],
) -> None:
    filled(tmp_path)
    file(tmp_path)
    row(tmp_path)
    for _ in range(3):
        found = recovered(tmp_path)
        topic = found["orders"]
        assert topic.settings == settings
        assert (topic.name, topic.id, topic.partitions) == ("orders", ID, 2)
        assert topic.deleting is (outcome is DELETED)
        assert (topic.doubt.kind if topic.doubt else LIVE) == (
            LIVE if outcome is DELETED else outcome
        )
        assert found["other"] == OTHER
        assert (tmp_path / "topics" / TOPIC.folder / "1").is_dir()


@pytest.mark.parametrize(("row", "file", "outcome", "settings"), FOUND)
def test_a_decision_ends_every_doubt(
    tmp_path: Path,
    row: Callable[[Path], None],
    file: Callable[[Path], None],
    outcome: object,
    settings: dict[str, str],
) -> None:
    filled(tmp_path)
    file(tmp_path)
    row(tmp_path)
    decided = TOPIC._replace(settings={"retention.age": "3d"})
    with catalog_of(tmp_path) as catalog:
        catalog.recover()
        catalog.put_topic(decided)
    assert recovered(tmp_path)["orders"] == decided
    db = NodeDb(tmp_path)
    assert db.damaged_rows() == []
    db.close()


def test_groups_keep_their_settings_without_the_database(tmp_path: Path) -> None:
    filled(tmp_path)
    assert groups(tmp_path) == GROUPS
    row_none(tmp_path)
    assert groups(tmp_path) == {"billing": GROUPS["billing"]}


def test_a_damaged_row_of_a_group_makes_its_topic_read_only(tmp_path: Path) -> None:
    filled(tmp_path)
    execute(tmp_path, "UPDATE groups SET settings = '{}' WHERE name = 'billing'")
    topic = recovered(tmp_path)["orders"]
    assert topic.doubt is not None
    assert topic.doubt.kind is READ_ONLY
    assert "name billing" in topic.doubt.reason
    assert groups(tmp_path) == GROUPS


def test_a_damaged_row_of_no_topic_is_told_of_and_removed(tmp_path: Path) -> None:
    filled(tmp_path)
    execute(tmp_path, "UPDATE topics SET name = 'orderz' WHERE name = 'orders'")
    with catalog_of(tmp_path) as catalog:
        assert catalog.recover() == [TOPIC, OTHER]
        assert catalog.problems == ["node.db had a damaged row in table topics: name orderz"]
        assert catalog.recover() == [TOPIC, OTHER]
        assert catalog.problems == []


def test_an_adopted_topic_keeps_its_state_and_its_groups_decisions(tmp_path: Path) -> None:
    filled(tmp_path)
    row_none(tmp_path)
    file_none(tmp_path)
    with catalog_of(tmp_path) as catalog:
        catalog.recover()
        catalog.put_group("orders", "late", {"ordering": "partition"})
    row_none(tmp_path)
    topic = recovered(tmp_path)["orders"]
    assert topic.doubt is not None
    assert topic.doubt.kind is ADOPTED
    assert groups(tmp_path) == {"late": {"ordering": "partition"}}


@pytest.mark.parametrize("other_id", [ID - 1, ID + 1])
@pytest.mark.parametrize("has_row", [True, False])
def test_of_two_folders_of_one_name_the_rows_is_taken_up_or_else_a_live_one(
    tmp_path: Path, other_id: int, has_row: bool
) -> None:
    filled(tmp_path)
    if not has_row:
        row_none(tmp_path)
    other = TOPIC._replace(id=other_id)
    record = TopicRecord("orders", other.id, 1, {}, deleting=not has_row)
    write_topic_file(RealDisk(), tmp_path / "topics", record)
    (tmp_path / "topics" / other.folder / "0").mkdir()
    assert recovered(tmp_path)["orders"] == TOPIC
    assert (tmp_path / "topics" / other.folder / "0").is_dir()


def test_a_row_whose_folder_is_gone_is_not_taken_for_the_folder_of_another_topic(
    tmp_path: Path,
) -> None:
    filled(tmp_path)
    (tmp_path / "topics" / TOPIC.folder).rename(
        tmp_path / "topics" / TOPIC._replace(id=ID - 1).folder
    )
    assert recovered(tmp_path)["orders"].id == ID
    assert groups(tmp_path) == GROUPS


def test_a_folder_that_a_deletion_left_empty_is_removed(tmp_path: Path) -> None:
    filled(tmp_path)
    tombstone(tmp_path)
    row_none(tmp_path)
    for number in ("0", "1"):
        (file_of(tmp_path).parent / number).rmdir()
    assert list(recovered(tmp_path)) == ["other"]
    assert not file_of(tmp_path).parent.exists()


# Damage


def damaged_anywhere(path: Path, seed: int) -> None:
    """Flip one to three bits in ``node.db``, in a topic file, or in both."""
    rng = random.Random(seed)
    for file in rng.choice(
        ([path / "node.db"], [file_of(path)], [path / "node.db", file_of(path)])
    ):
        data = bytearray(file.read_bytes())
        used = [at for at, byte in enumerate(data) if byte]  # most of a small database is empty
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.choice(used)] ^= 1 << rng.randrange(8)
        file.write_bytes(data)


def test_no_flipped_bit_deletes_a_topic_or_changes_its_settings_untold(tmp_path: Path) -> None:
    filled(tmp_path / "first")
    refused = doubted = 0
    for seed in range(300):
        path = tmp_path / str(seed)
        copytree(tmp_path / "first", path)
        damaged_anywhere(path, seed)
        try:
            found = recovered(path)
            own = groups(path)
        except CorruptData:
            refused += 1
            continue
        assert set(found) == {"orders", "other"}, seed
        topic = found["orders"]
        assert not topic.deleting, seed
        if topic.doubt is None:
            assert topic == TOPIC, seed
            assert own.get("billing") == GROUPS["billing"], seed
        else:
            doubted += 1
            assert topic.settings in (TOPIC.settings, KEEP_ALL, TOPIC.settings | KEEP_ALL), seed
        assert found["other"].settings in (OTHER.settings, KEEP_ALL), seed
        assert (path / "topics" / TOPIC.folder / "1").is_dir()
    assert refused < 150
    assert doubted > 5


@pytest.mark.parametrize("row", [nothing, row_none])
def test_a_file_cut_at_any_byte_changes_no_settings_untold(
    tmp_path: Path, row: Callable[[Path], None]
) -> None:
    filled(tmp_path)
    data = file_of(tmp_path).read_bytes()
    for size in range(0, len(data), 1 if row is nothing else 9):
        file_of(tmp_path).write_bytes(data[:size])
        row(tmp_path)
        topic = recovered(tmp_path)["orders"]
        expected = TOPIC.settings if row is nothing else KEEP_ALL
        assert topic.settings == expected
        assert (topic.doubt is None) is (row is nothing)


# Crashes


class _Crash(BaseException):
    """The process ends here."""


class _CrashingDisk(RealDisk):
    """Ends the process before its operation of a number that changes the disk, or after it."""

    def __init__(self, steps: Iterator[int], last: int) -> None:
        super().__init__()
        self._steps, self._last = steps, last

    def _step(self) -> None:
        if next(self._steps) == self._last:
            raise _Crash

    def replace(self, path: Path, data: bytes) -> None:
        self._step()
        super().replace(path, data)
        self._step()

    def make_dir(self, directory: Path) -> None:
        self._step()
        super().make_dir(directory)


def create(catalog: TopicCatalog) -> None:
    catalog.put_topic(TopicRow("new", 1, {"retention.age": "9d"}, id=ID + 5))


def alter(catalog: TopicCatalog) -> None:
    catalog.put_topic(TOPIC._replace(settings={"retention.age": "9d"}))


def begin_deletion(catalog: TopicCatalog) -> None:
    catalog.put_topic(TOPIC._replace(deleting=True))


def set_group(catalog: TopicCatalog) -> None:
    catalog.put_group("orders", "billing", {"ordering": "key"})


def delete_group(catalog: TopicCatalog) -> None:
    catalog.delete_group("orders", "billing")


@pytest.mark.parametrize(
    ("change", "has_row"),
    [
        *((change, True) for change in (create, alter, begin_deletion, set_group, delete_group)),
        *((change, False) for change in (create, alter, set_group, delete_group)),
    ],
)
def test_a_change_that_a_crash_cut_short_is_done_or_not_done(
    tmp_path: Path, change: Callable[[TopicCatalog], None], has_row: bool
) -> None:
    def state(path: Path) -> tuple[object, ...]:
        if not has_row:
            row_none(path)
        found = recovered(path)
        assert not any(row.doubt for row in found.values())
        own = {name: settings for name, settings in groups(path).items() if settings}
        return found.get("orders"), found.get("new"), own

    filled(tmp_path / "first")
    outcomes: list[tuple[object, ...]] = []
    for last in range(20):
        path = tmp_path / str(last)
        copytree(tmp_path / "first", path)
        db = NodeDb(path)
        catalog = TopicCatalog(db, _CrashingDisk(count(), last), path / "topics")
        catalog._ids = {"orders": ID}
        try:
            change(catalog)
        except _Crash:
            db.close()
            outcomes.append(state(path))
            continue
        db.close()
        break
    done, before = state(path), state(tmp_path / "first")
    assert done != before
    assert outcomes
    assert all(outcome in (before, done) for outcome in outcomes)


def test_the_manifest_of_a_deleted_topic_goes_with_its_row(tmp_path: Path) -> None:
    filled(tmp_path)
    db = NodeDb(tmp_path)
    db.put_segment(SegmentRow(TOPIC.folder, 0, "messages", 0, 9, 1, 5))
    catalog = TopicCatalog(db, RealDisk(), tmp_path / "topics")
    catalog.recover()
    catalog.delete_topic("orders", ID)
    assert db.segments() == []
    assert [row.name for row in db.topics()] == ["other"]
    db.close()
