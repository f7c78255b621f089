"""Files of an export in Delta tables: each once, as they lie, whenever it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")

import polars
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from goq.errors import Conflict, CorruptData, Unavailable
from goq.model import Message
from goq.pipeline.arrow.tables import MESSAGES_TABLE
from goq.pipeline.export.catalogs.delta import DeltaTables
from goq.pipeline.export.compaction import compact
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.export import Export
from tests.support.pipeline.lake_changes import CHANGES, cells, export_change
from tests.support.pipeline.lake_readers import by_pyarrow
from tests.support.pipeline.logged_frames import LoggedFrames

DAY_US = 86_400_000_000


class Stopped(BaseException):
    """The process ended here."""


class Lake:
    """A topic of two partitions, and its export."""

    def __init__(self, root: Path, topic: str = "orders") -> None:
        self.target = LocalDestination(root)
        self.topic = topic
        self._log = LoggedFrames(2)
        self._values = 0

    def run(self, messages: int = 5) -> None:
        """Publish messages, and export them."""
        for number in range(messages):
            self._values += 1
            value = Message(f"v{self._values}".encode(), b"k")
            self._log.publish(number % 2, [value], self._values % 3 * DAY_US)
        Export(self._log, self.target, MESSAGES_TABLE, self.topic).run()

    def register(self) -> int:
        """Register what is exported; return the number of files of messages."""
        return DeltaTables().register(self.target, self.topic)[0].files

    def in_delta(self) -> list[dict[str, Any]]:
        """Return the rows that a foreign reader finds in the Delta table."""
        rows = polars.read_delta(str(self.target.root / "messages")).drop("topic_folder", "date")
        return sorted(rows.to_dicts(), key=repr)

    def in_files(self) -> list[dict[str, Any]]:
        """Return the rows of all files."""
        found = by_pyarrow(self.target.root / "messages")
        rows = [{n: row[n] for n in row if n not in ("topic_folder", "date")} for row in found]
        return sorted(rows, key=repr)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def test_the_table_has_the_rows_of_the_files_and_then_what_is_new(lake: Lake) -> None:
    lake.run()
    lake.run()
    before = {path: path.stat().st_mtime_ns for path in lake.target.root.rglob("*.parquet")}
    assert lake.register() == len(before)
    assert lake.in_delta() == lake.in_files()
    assert len(lake.in_delta()) == 10
    assert lake.register() == 0
    lake.run()
    assert lake.register() > 0
    assert lake.in_delta() == lake.in_files()
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())


def test_merged_files_take_the_place_of_their_sources(lake: Lake) -> None:
    for _ in range(3):
        lake.run()
        lake.register()
    rows = lake.in_files()
    compact(lake.target, lake.topic, 2**60, keeps_registered=True)
    assert lake.register() > 0
    assert lake.in_delta() == lake.in_files() == rows
    there = {path.name for path in (lake.target.root / "messages").glob("*/*/*.parquet")}
    named = DeltaTable(str(lake.target.root / "messages")).file_uris()
    assert {Path(uri).name for uri in named} == there
    with pytest.raises(Conflict, match="--register"):
        compact(lake.target, lake.topic, 2**60)


def test_two_topics_are_partitions_of_one_table(lake: Lake) -> None:
    other = Lake(lake.target.root, "001")
    for each in (lake, other):
        each.run()
        each.register()
    assert lake.in_delta() == lake.in_files()
    assert {row["topic"] for row in lake.in_delta()} == {"orders", "001"}


@pytest.mark.parametrize("is_committed", [False, True])
def test_stopped_while_registering_the_next_run_has_each_file_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    lake.run()
    commit = DeltaTable.create_write_transaction

    def stopping(*words: Any, **named: Any) -> None:
        if is_committed:
            commit(*words, **named)
        raise Stopped

    for _ in range(2):
        lake.run()
        with monkeypatch.context() as stopped:
            stopped.setattr(DeltaTable, "create_write_transaction", stopping)
            with pytest.raises(Stopped):
                lake.register()
    assert (lake.register() == 0) == is_committed
    assert lake.in_delta() == lake.in_files()


def test_a_commit_that_another_overtook_is_tried_again_and_never_done_twice(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.run()
    commit = DeltaTable.create_write_transaction
    failures = 0

    def overtaken(*words: Any, **named: Any) -> None:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise CommitFailedError("another commit has this version")
        commit(*words, **named)
        if failures == 2:  # it is there, but its answer was lost
            raise CommitFailedError("the store did not answer")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", overtaken)
    lake.register()
    assert failures == 2
    assert lake.in_delta() == lake.in_files()
    monkeypatch.setattr(DeltaTable, "create_write_transaction", _failing)
    lake.run()
    with pytest.raises(Unavailable, match="next run registers"):
        lake.register()
    monkeypatch.undo()
    lake.register()
    assert lake.in_delta() == lake.in_files()


def _failing(*_: Any, **__: Any) -> None:
    raise CommitFailedError("always")


@pytest.mark.parametrize("change", CHANGES)
def test_old_and_new_files_are_one_table_after_a_change(tmp_path: Path, change: str) -> None:
    target = export_change(change, tmp_path)
    DeltaTables().register(target, "orders")
    rows = polars.read_delta(str(tmp_path / "messages")).to_dicts()
    assert cells(rows) == CHANGES[change].wanted


def test_a_manifest_that_is_gone_is_said_and_nothing_after_it_registered(lake: Lake) -> None:
    for _ in range(3):
        lake.run()
    manifest = lake.target.root / "_goq/messages/orders/manifest-000002.json"
    data = manifest.read_bytes()
    manifest.unlink()
    with pytest.raises(CorruptData, match=r"manifest-000002\.json is gone"):
        lake.register()
    manifest.write_bytes(data)
    lake.register()
    assert lake.in_delta() == lake.in_files()
    manifest.unlink()  # its files are registered: nobody needs it
    lake.run()
    lake.register()
    assert lake.in_delta() == lake.in_files()


def test_a_table_of_somebody_else_is_left_alone(lake: Lake) -> None:
    lake.run()
    folder = str(lake.target.root / "messages")
    DeltaTable.create(folder, pa.schema([pa.field("mine", pa.int64())]))
    with pytest.raises(Conflict, match="not made by goq export"):
        lake.register()


def test_a_table_whose_log_is_broken_is_told_in_a_line(lake: Lake) -> None:
    lake.run()
    lake.register()
    for commit in (lake.target.root / "messages/_delta_log").glob("*.json"):
        commit.write_bytes(b"garbage")
    with pytest.raises(Unavailable, match="next run registers") as told:
        lake.register()
    assert "\n" not in told.value.detail
