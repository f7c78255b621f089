"""Staged by tasks of Spark, an export has the same files with the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", minversion="4.2")

import pyarrow.parquet as pq
from support.running_node import RunningNode

from goq.client import Client
from goq.pipeline.export import Export
from goq.pipeline.piece_files import Stager
from goq.pipeline.source import NodeSource
from goq.pipeline.spark_export import stage_in_spark
from goq.pipeline.tables import TABLES
from goq.pipeline.target import LocalTarget

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def exported(node: RunningNode, topic: str, root: Path, stager: Stager | None) -> dict[str, object]:
    with Client(node.url) as client:
        target = LocalTarget(root)
        for table in TABLES.values():
            Export(
                NodeSource(client),
                target,
                table,
                topic,
                stager=stager,
                messages_max=40,
            ).run()
    assert not list((root / "_goq" / "tmp").rglob("*.parquet"))
    return {
        str(path.relative_to(root)): pq.ParquetFile(path).read().to_pylist()
        for path in root.glob("*/topic=*/date=*/*.parquet")
    }


def test_both_engines_make_the_same_files_with_the_same_rows(
    spark: SparkSession, node: RunningNode, topic: str, tmp_path: Path
) -> None:
    with Client(node.url) as client:
        with client.producer(topic, batch=7) as producer:
            for number in range(300):
                producer.send(f"v{number}", key=f"k{number % 11}", headers={"n": str(number)})
        client.receive_batch(topic, "g", max=50, wait="5s").ack()
    here = exported(node, topic, tmp_path / "here", None)
    tasks = exported(node, topic, tmp_path / "spark", stage_in_spark(spark, [node.url], None))
    assert len(here) > 8
    assert tasks == here
