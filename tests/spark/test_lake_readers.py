"""Spark reads an export as one table, also when its decoded columns have grown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", minversion="4.2")

from goq.model import Message
from goq.pipeline.arrow.tables import MESSAGES_TABLE
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.export import Export
from tests.support.pipeline.lake_changes import CHANGES, cells, export_change
from tests.support.pipeline.logged_frames import LoggedFrames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_row_of_every_topic_is_read_once(spark: SparkSession, tmp_path: Path) -> None:
    for topic in ("orders", "001", "2025-01-15"):
        log = LoggedFrames(1)
        log.publish(0, [Message(topic.encode(), b"k")] * 3, 1)
        Export(log, LocalDestination(tmp_path), MESSAGES_TABLE, topic).run()
    rows = spark.read.parquet(str(tmp_path / "messages")).collect()
    assert sorted((row.topic, row.offset, bytes(row.value)) for row in rows) == [
        (topic, offset, topic.encode())
        for topic in ("001", "2025-01-15", "orders")
        for offset in range(3)
    ]


def test_old_and_new_files_are_one_table_after_each_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    reader = spark.read.option("mergeSchema", "true")
    for number, change in enumerate(CHANGES):
        export_change(change, tmp_path / str(number))
        frame = reader.parquet(str(tmp_path / str(number) / "messages"))
        assert cells([row.asDict() for row in frame.collect()]) == CHANGES[change].wanted, change
