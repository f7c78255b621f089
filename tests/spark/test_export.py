"""Staged by tasks of Spark, an export has the same files with the same rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", minversion="4.2")

import pyarrow.parquet as pq
from pyarrow import fs

from goq.client import Client
from goq.errors import Unavailable
from goq.pipeline.arrow.node_source import NodeSource
from goq.pipeline.arrow.tables import TABLES
from goq.pipeline.export.destination import Destination, LocalDestination
from goq.pipeline.export.export import Export
from goq.pipeline.export.parquet import Staging
from goq.pipeline.export.remote_destination import RemoteDestination
from goq.pipeline.export.spark_tasks import NodeAccess, stage_in_spark
from goq.pipeline.export.staged_files import Stager
from tests.support.node.running_node import RunningNode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def exported(
    node: RunningNode, topic: str, root: Path, target: Destination, stager: Stager | None
) -> dict[str, object]:
    with Client(node.url) as client:
        for table in TABLES.values():
            Export(NodeSource(client), target, table, topic, stager=stager, messages_max=40).run()
    assert not list((root / "_goq" / "tmp").rglob("*.parquet"))
    return {
        str(path.relative_to(root)): pq.ParquetFile(path).read().to_pylist()
        for path in root.glob("*/topic_folder=*/date=*/*.parquet")
    }


def publish(node: RunningNode, topic: str) -> None:
    with Client(node.url) as client:
        with client.producer(topic, batch=7) as producer:
            for number in range(300):
                producer.send(f"v{number}", key=f"k{number % 11}", headers={"n": str(number)})
        client.receive_batch(topic, "g", max_messages=50, wait="5s").ack()


@pytest.mark.parametrize(
    "kind",
    [
        LocalDestination,
        lambda root: RemoteDestination(fs.LocalFileSystem(), str(root)),
        lambda root: RemoteDestination(fs.SubTreeFileSystem(str(root), fs.LocalFileSystem()), "/"),
    ],
    ids=["folder", "filesystem", "filesystem in a folder"],
)
def test_both_engines_make_the_same_files_with_the_same_rows(
    spark: SparkSession,
    node: RunningNode,
    topic: str,
    tmp_path: Path,
    kind: Callable[[Path], Destination],
) -> None:
    publish(node, topic)
    here_root, spark_root = tmp_path / "here", tmp_path / "spark"
    for root in (here_root, spark_root):
        root.mkdir()
    here = exported(node, topic, here_root, LocalDestination(here_root), None)
    stager = stage_in_spark(spark, NodeAccess([node.url], None))
    tasks = exported(node, topic, spark_root, kind(spark_root), stager)
    assert len(here) > 8
    assert tasks == here
    publish(node, topic)
    here = exported(node, topic, here_root, LocalDestination(here_root), None)
    assert exported(node, topic, spark_root, kind(spark_root), stager) == here


def test_what_a_task_cannot_do_is_said_as_the_driver_would(
    spark: SparkSession, node: RunningNode, topic: str, tmp_path: Path
) -> None:
    publish(node, topic)
    target = LocalDestination(tmp_path)
    with pytest.raises(Unavailable) as told:
        exported(
            node,
            topic,
            tmp_path,
            target,
            stage_in_spark(spark, NodeAccess(["http://127.0.0.1:1"], None)),
        )
    assert str(told.value).count("\n") == 0
    assert "127.0.0.1:1" in str(told.value)


def test_a_failure_of_spark_itself_is_said_in_a_line(
    spark: SparkSession, node: RunningNode, topic: str, tmp_path: Path
) -> None:
    publish(node, topic)

    class Broken(LocalDestination):
        def staging(self, *names: str) -> Staging:
            made = super().staging(*names)
            return made._replace(directory=Unreadable(made.directory))

    with pytest.raises(Unavailable, match=r"Spark failed \(.*run the same command again"):
        exported(
            node,
            topic,
            tmp_path,
            Broken(tmp_path),
            stage_in_spark(spark, NodeAccess([node.url], None)),
        )


class Unreadable(str):
    """A text that no task can read."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        return (_fail, ())


def _fail() -> None:
    raise RuntimeError("a task that cannot begin")
