"""An audit that compares the values of an export with those of the node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

pytest.importorskip("pyspark", minversion="4.2")

import pyarrow as pa
import pyarrow.parquet as pq

from goq.errors import Conflict
from goq.model import Message
from goq.pipeline.arrow.tables import MESSAGES_TABLE
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.export import Export
from goq.pipeline.reports.tables import ExportedTables
from tests.support.pipeline.logged_frames import LoggedFrames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 6


def exported(folder: Path) -> tuple[LoggedFrames, ExportedTables, Path]:
    """Return a topic, its export, and the file of the export."""
    log = LoggedFrames(1)
    for number in range(COUNT):
        log.publish(0, [Message(f"value {number}".encode(), b"k", headers=(("h", b"1"),))], 1)
    Export(log, LocalDestination(folder), MESSAGES_TABLE, "orders").run()
    (path,) = folder.glob("messages/*/*/*.parquet")
    return log, ExportedTables(cast("SparkSession", None), str(folder), []), path


def rewrite(path: Path, column: str, values: list[object]) -> None:
    table = pq.read_table(path, partitioning=None)
    place = table.schema.get_field_index(column)
    pq.write_table(table.set_column(place, column, pa.array(values, table[column].type)), path)


def test_an_export_is_as_the_node_has_it(tmp_path: Path) -> None:
    log, tables, _ = exported(tmp_path)
    assert tables.compare_with_node(log) == ([], COUNT, 0)


@pytest.mark.parametrize("column", ["value", "key", "headers", "tenant"])
def test_another_value_is_found_by_its_offset(tmp_path: Path, column: str) -> None:
    log, tables, path = exported(tmp_path)
    values = pq.read_table(path, partitioning=None)[column].to_pylist()
    values[3] = None if values[3] is not None else "acme"
    rewrite(path, column, values)
    name = str(path.relative_to(tmp_path))
    (fault,) = tables.compare_with_node(log).faults
    assert fault == (name, f"has another {column} of offset 3 than the node")


def test_values_in_another_order_are_found(tmp_path: Path) -> None:
    log, tables, path = exported(tmp_path)
    rewrite(path, "offset", [0, 1, 2, 3, 5, 4])
    (fault,) = tables.compare_with_node(log).faults
    assert "another value of offset 4" in fault[1] or "message_id of offset 4" in fault[1]


def test_messages_that_the_node_deleted_are_counted_and_not_compared(tmp_path: Path) -> None:
    log, tables, path = exported(tmp_path)
    rewrite(path, "value", [b"other", b"other", *(b"value %d" % n for n in range(2, COUNT))])
    log.starts[0] = 2
    assert tables.compare_with_node(log) == ([], COUNT - 2, 2)


def test_a_topic_that_was_created_again_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoggedFrames, "topic_id", lambda *_: "first")
    log, tables, _ = exported(tmp_path)
    monkeypatch.setattr(LoggedFrames, "topic_id", lambda *_: "second")
    with pytest.raises(Conflict, match="created again"):
        tables.compare_with_node(log)
