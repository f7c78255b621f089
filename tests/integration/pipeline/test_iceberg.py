"""Files of an export in Iceberg tables: each once, as they lie, whenever it was stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.table import Table

from goq.client import Client
from goq.errors import Conflict, NotFound, Unavailable
from goq.pipeline.arrow.node_source import NodeSource
from goq.pipeline.arrow.tables import MESSAGES_TABLE, TABLES
from goq.pipeline.export.catalogs.iceberg import IcebergCatalog
from goq.pipeline.export.compaction import compact
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.export import Decoding, Export
from goq.pipeline.export.groups_table import export_groups
from tests.support.node.running_node import RunningNode
from tests.support.pipeline.lake_changes import CHANGES, cells, export_change
from tests.support.pipeline.rest_catalog import rest_catalog


class Stopped(BaseException):
    """The process ended here."""


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    (tmp_path / "warehouse").mkdir()
    places = {
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    return SqlCatalog("lake", **places)


def export(
    node: RunningNode, topic: str, root: Path, now_us: int, decoding: Decoding | None = None
) -> None:
    with Client(node.url) as client:
        export_groups(client, LocalDestination(root), topic, now_us)
        for table in TABLES.values():
            Export(
                NodeSource(client),
                LocalDestination(root),
                table,
                topic,
                decoding=decoding if table is MESSAGES_TABLE else None,
                messages_max=40,
            ).run()


def publish(node: RunningNode, topic: str, values: list[str]) -> None:
    with Client(node.url) as client:
        with client.producer(topic, batch=7) as producer:
            for number, value in enumerate(values):
                producer.send(value, key=f"k{number % 5}", headers={"n": str(number)})
        client.receive_batch(topic, "g", max_messages=20, wait="5s").ack()


def in_files(root: Path, table: str, names: list[str]) -> list[dict[str, Any]]:
    found = ds.dataset(root / table, format="parquet").to_table(columns=names)
    return sorted(found.to_pylist(), key=repr)


def in_iceberg(catalog: Catalog, table: str, topic: str | None = None) -> list[dict[str, Any]]:
    found = catalog.load_table(("goq", table)).scan().to_arrow()
    rows = found.to_pylist()
    return sorted((r for r in rows if topic in (None, r["topic"])), key=repr)


def check_same(catalog: Catalog, root: Path) -> None:
    for table in ("messages", "events", "groups"):
        names = catalog.load_table(("goq", table)).schema().as_arrow().names
        rows = in_iceberg(catalog, table)
        assert rows == in_files(root, table, names)
        assert rows


def test_all_three_tables_read_back_as_they_were_exported(
    node: RunningNode, topic: str, tmp_path: Path, catalog: SqlCatalog
) -> None:
    root = tmp_path / "my lake"
    tables = IcebergCatalog(catalog, "goq")
    publish(node, topic, [f"v{n}" for n in range(100)])
    export(node, topic, root, 1_000_000)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*.parquet")}
    assert sum(files for _, files in tables.register(LocalDestination(root), topic)) == len(before)
    check_same(catalog, root)
    publish(node, topic, [f"v{n}" for n in range(10)])
    export(node, topic, root, 90_000_000_000)
    assert all(files for _, files in tables.register(LocalDestination(root), topic))
    check_same(catalog, root)
    assert not any(files for _, files in tables.register(LocalDestination(root), topic))
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())


def test_two_topics_are_partitions_of_one_table(
    node: RunningNode, topic: str, tmp_path: Path, catalog: SqlCatalog
) -> None:
    other = "a-" * 99 + topic[-2:]
    node.call("POST", "/v1/topics", {"name": other, "partitions": 1})
    tables = IcebergCatalog(catalog, "goq")
    for name in (topic, other):
        publish(node, name, ["1", "2", "3"])
        export(node, name, tmp_path / "out", 1_000_000)
        tables.register(LocalDestination(tmp_path / "out"), name)
    check_same(catalog, tmp_path / "out")
    table = catalog.load_table(("goq", "messages"))
    of_other = table.scan(row_filter=f"topic = '{other}'")
    assert len(list(of_other.plan_files())) == 1
    assert of_other.to_arrow().num_rows == 3


def merge(root: Path, topic: str) -> int:
    """Merge files as if their hours were over; return how many."""
    later_us = time.time_ns() // 1000 + 7_200_000_000
    done = compact(LocalDestination(root), topic, later_us, keeps_registered=True)
    return sum(each.files for each in done)


def test_merged_files_take_the_place_of_their_sources(
    node: RunningNode, topic: str, tmp_path: Path, catalog: SqlCatalog
) -> None:
    root = tmp_path / "lake"
    tables = IcebergCatalog(catalog, "goq")
    for run in range(3):
        publish(node, topic, [f"v{n}" for n in range(30)])
        export(node, topic, root, 1_000_000 + run)
        if run != 1:  # the files of a run without it are made up for
            tables.register(LocalDestination(root), topic)
    assert merge(root, topic) > 6
    with pytest.raises(FileNotFoundError):  # not other rows, and not fewer
        in_iceberg(catalog, "messages")
    assert sum(files for _, files in tables.register(LocalDestination(root), topic))
    check_same(catalog, root)
    named = set(root.rglob("*.parquet"))
    for table in ("messages", "events", "groups"):
        tasks = catalog.load_table(("goq", table)).scan().plan_files()
        named -= {Path(task.file.file_path.removeprefix("file://")) for task in tasks}
    assert not named
    assert not any(files for _, files in tables.register(LocalDestination(root), topic))
    publish(node, topic, [f"w{n}" for n in range(30)])
    export(node, topic, root, 1_000_009)
    tables.register(LocalDestination(root), topic)
    assert merge(root, topic)
    tables.register(LocalDestination(root), topic)
    check_same(catalog, root)


def test_files_that_were_merged_before_a_table_had_them_are_added_once(
    node: RunningNode, topic: str, tmp_path: Path, catalog: SqlCatalog
) -> None:
    root = tmp_path / "lake"
    for run in range(4):
        publish(node, topic, [f"v{n}" for n in range(10)])
        export(node, topic, root, 1_000_000 + run)
        assert merge(root, topic) or not run
    IcebergCatalog(catalog, "goq").register(LocalDestination(root), topic)
    check_same(catalog, root)


def rewrite(table: Table, folder: Path) -> None:
    """Replace the files of a table by others with the same rows."""
    folder.mkdir()
    with table.transaction() as change, change.update_snapshot().overwrite() as snapshot:
        for number, task in enumerate(table.scan().plan_files()):
            copy = folder / f"{number}.parquet"
            copy.write_bytes(Path(task.file.file_path.removeprefix("file://")).read_bytes())
            snapshot.delete_data_file(task.file)
            for file in parquet_files_to_data_files(
                table.io, change.table_metadata, iter([f"file://{copy}"])
            ):
                snapshot.append_data_file(file)


def test_rows_that_another_program_rewrote_are_not_added_again(
    node: RunningNode, topic: str, tmp_path: Path, catalog: SqlCatalog
) -> None:
    root = tmp_path / "lake"
    tables = IcebergCatalog(catalog, "goq")
    for run in range(2):
        publish(node, topic, [f"v{n}" for n in range(10)])
        export(node, topic, root, 1_000_000 + run)
    tables.register(LocalDestination(root), topic)
    rewrite(catalog.load_table(("goq", "messages")), tmp_path / "rewritten")
    assert merge(root, topic)
    tables.register(LocalDestination(root), topic)
    check_same(catalog, root)


@pytest.mark.parametrize("is_committed", [False, True])
def test_stopped_while_registering_the_next_run_has_each_file_once(
    node: RunningNode,
    topic: str,
    tmp_path: Path,
    catalog: SqlCatalog,
    monkeypatch: pytest.MonkeyPatch,
    is_committed: bool,
) -> None:
    publish(node, topic, [f"v{n}" for n in range(50)])
    export(node, topic, tmp_path / "out", 1_000_000)
    commit: Callable[..., Any] = catalog.commit_table
    tables = IcebergCatalog(catalog, "goq")
    for stops_at in range(20):
        left = [stops_at]

        def stopping(*arguments: Any, left: list[int] = left) -> Any:
            left[0] -= 1
            if left[0] < 0:
                if is_committed:
                    commit(*arguments)
                raise Stopped
            return commit(*arguments)

        monkeypatch.setattr(catalog, "commit_table", stopping)
        try:
            tables.register(LocalDestination(tmp_path / "out"), topic)
        except Stopped:
            continue
        break
    assert stops_at > 1
    check_same(catalog, tmp_path / "out")


def test_columns_of_decoded_values_are_added_when_they_come(
    node: RunningNode, topic: str, tmp_path: Path, catalog: SqlCatalog
) -> None:
    other = f"{topic}-json"
    node.call("POST", "/v1/topics", {"name": other, "partitions": 2})
    tables = IcebergCatalog(catalog, "goq")
    publish(node, topic, ["plain"])
    publish(node, other, ['{"id": 7, "total": 1.5}', "not json"])
    export(node, topic, tmp_path / "out", 1_000_000)
    tables.register(LocalDestination(tmp_path / "out"), topic)
    export(node, other, tmp_path / "out", 1_000_000, Decoding({"id": "bigint", "total": "double"}))
    tables.register(LocalDestination(tmp_path / "out"), other)
    rows = in_iceberg(catalog, "messages")
    assert sorted((r["id"] or 0, r["_corrupt"] or "") for r in rows) == [
        (0, ""),
        (0, "not json"),
        (7, ""),
    ]
    third = f"{topic}-other"
    node.call("POST", "/v1/topics", {"name": third, "partitions": 1})
    publish(node, third, ['{"id": "seven"}'])
    export(node, third, tmp_path / "out", 1_000_000, Decoding({"id": "string"}))
    with pytest.raises(Conflict, match="not registered"):
        tables.register(LocalDestination(tmp_path / "out"), third)
    assert in_iceberg(catalog, "messages") == rows


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_commit_that_another_overtook_is_tried_again_and_never_done_twice(
    node: RunningNode,
    topic: str,
    tmp_path: Path,
    catalog: SqlCatalog,
    monkeypatch: pytest.MonkeyPatch,
    is_committed: bool,
) -> None:
    publish(node, topic, [f"v{n}" for n in range(50)])
    export(node, topic, tmp_path / "out", 1_000_000)
    tables = IcebergCatalog(catalog, "goq")
    tables.register(LocalDestination(tmp_path / "out"), topic)
    publish(node, topic, ["more"])
    export(node, topic, tmp_path / "out", 90_000_000_000)
    commit: Callable[..., Any] = catalog.commit_table
    failures = 0

    def overtaken(*arguments: Any) -> Any:
        nonlocal failures
        failures += 1
        if failures == 1:
            if is_committed:  # and the answer was lost
                commit(*arguments)
            raise CommitFailedException("the table has changed")
        return commit(*arguments)

    monkeypatch.setattr(catalog, "commit_table", overtaken)
    tables.register(LocalDestination(tmp_path / "out"), topic)
    assert failures > 1
    check_same(catalog, tmp_path / "out")


def test_a_rest_catalog_gets_each_file_once_though_another_commit_is_faster(
    node: RunningNode, topic: str, tmp_path: Path
) -> None:
    publish(node, topic, [f"v{n}" for n in range(50)])
    export(node, topic, tmp_path / "out", 1_000_000)
    with rest_catalog(tmp_path) as server:
        catalog = RestCatalog("lake", uri=server.url)
        IcebergCatalog(catalog, "goq").register(LocalDestination(tmp_path / "out"), topic)
        check_same(catalog, tmp_path / "out")
        publish(node, topic, ["more"])
        export(node, topic, tmp_path / "out", 90_000_000_000)

        def be_faster(name: str) -> None:
            server.before_commit = lambda name: None
            IcebergCatalog(server.tables, "goq").register(LocalDestination(tmp_path / "out"), topic)

        server.before_commit = be_faster
        IcebergCatalog(catalog, "goq").register(LocalDestination(tmp_path / "out"), topic)
        assert server.conflicts > 0
        check_same(catalog, tmp_path / "out")


@pytest.mark.parametrize("change", CHANGES)
def test_old_and_new_files_are_one_table_after_a_change(
    tmp_path: Path, catalog: SqlCatalog, change: str
) -> None:
    target = export_change(change, tmp_path / "out")
    IcebergCatalog(catalog, "goq").register(target, "orders")
    assert cells(in_iceberg(catalog, "messages")) == CHANGES[change].wanted


def test_another_export_of_a_topic_is_not_added_to_the_same_table(
    node: RunningNode, topic: str, tmp_path: Path, catalog: SqlCatalog
) -> None:
    publish(node, topic, ["1"])
    for name in ("one", "two"):
        export(node, topic, tmp_path / name, 1_000_000)
    IcebergCatalog(catalog, "goq").register(LocalDestination(tmp_path / "one"), topic)
    with pytest.raises(Conflict, match="another folder"):
        IcebergCatalog(catalog, "goq").register(LocalDestination(tmp_path / "two"), topic)
    IcebergCatalog(catalog, "second").register(LocalDestination(tmp_path / "two"), topic)
    check_same(catalog, tmp_path / "one")


def test_a_table_of_somebody_else_is_left_alone(
    node: RunningNode, topic: str, tmp_path: Path, catalog: SqlCatalog
) -> None:
    publish(node, topic, ["1"])
    export(node, topic, tmp_path / "out", 1_000_000)
    catalog.create_namespace("goq")
    catalog.create_table(("goq", "messages"), pa.schema([pa.field("mine", pa.int64())]))
    with pytest.raises(Conflict, match="not made by goq export"):
        IcebergCatalog(catalog, "goq").register(LocalDestination(tmp_path / "out"), topic)


def test_a_catalog_that_fails_and_a_file_that_is_gone_are_told_in_a_line(
    node: RunningNode, topic: str, tmp_path: Path, catalog: SqlCatalog
) -> None:
    publish(node, topic, ["1"])
    export(node, topic, tmp_path / "out", 1_000_000)
    gone = next((tmp_path / "out" / "messages").rglob("*.parquet"))
    kept = gone.read_bytes()
    gone.unlink()
    tables = IcebergCatalog(catalog, "goq")
    with pytest.raises(NotFound, match="exported file is gone"):
        tables.register(LocalDestination(tmp_path / "out"), topic)
    gone.write_bytes(kept)
    tables.register(LocalDestination(tmp_path / "out"), topic)
    check_same(catalog, tmp_path / "out")
    catalog.destroy_tables()
    with pytest.raises(Unavailable, match="next run registers"):
        tables.register(LocalDestination(tmp_path / "out"), topic)
