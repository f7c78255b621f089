"""Tasks that fail, run twice or outlive their batch: what they wrote is seen once, or never."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", minversion="4.2")

import pyarrow as pa
from pyspark.sql.types import StructType

from goq.client import Client
from goq.pipeline.spark.sink import BatchWriter, StreamWriter, WrittenBatch, stage
from goq.pipeline.spark.sink_options import SinkOptions
from goq.pipeline.spark.transaction_topics import StagedTopic
from tests.support.node.running_node import RunningNode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROW_CHARS = 50_000  # more than Spark holds back on the way to the sink
SCHEMA = StructType().add("value", "string")


def logged(node: RunningNode, topic: str) -> list[str]:
    with Client(node.url) as client:
        return sorted((m.value or b"").decode() for m in client.read_log(topic))


def expected(count: int, start: int = 0) -> list[str]:
    return sorted(f"v{number}" for number in range(start, start + count))


def sink(node: RunningNode, topic: str, **said: str) -> SinkOptions:
    return SinkOptions.parse({"topic": topic, "server": node.url, **said})


def rows(values: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": values})


def written(options: SinkOptions, batches: Iterator[pa.RecordBatch], task: int = 0) -> WrittenBatch:
    with options.client() as client:
        return WrittenBatch(stage(client, options, batches, task), "query-1")


def test_a_task_that_fails_after_it_wrote_is_tried_again_and_its_rows_are_there_once(
    spark: SparkSession, node: RunningNode, topic: str, tmp_path: Path
) -> None:
    marker, url = tmp_path / "failed once", node.url
    with Client(url) as client:
        StagedTopic(client, topic)

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                value = f"v{number}".ljust(ROW_CHARS)
                yield pa.RecordBatch.from_pydict({"value": [value]})
        if not marker.exists():
            with Client(url) as client:
                staged = client.read(f"{topic}.staged", partition=0, wait="60s")
            marker.touch()
            raise OSError(f"a task fails once, when {len(staged.frames)} frames are staged")

    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "4")
    try:
        frame = spark.range(40, numPartitions=1).mapInArrow(fails_once, SCHEMA)
        writer = frame.write.format("goq").option("server", node.url).option("topic", topic)
        writer.mode("append").save()
    finally:
        spark.conf.set(name, before)
    assert marker.exists()
    assert [value.rstrip() for value in logged(node, topic)] == expected(40)
    assert len(logged(node, f"{topic}.staged")) > 40


def test_of_two_attempts_that_write_at_the_same_time_one_is_published(
    node: RunningNode, topic: str
) -> None:
    options = sink(node, topic, batchMessages="7")
    batches = [rows(expected(100)[n::4]) for n in range(4)]
    with ThreadPoolExecutor(3) as pool:
        attempts = list(pool.map(lambda _: written(options, iter(batches)), range(3)))
    assert len(logged(node, f"{topic}.staged")) == 300
    writer = StreamWriter(options, SCHEMA, overwrite=False)
    writer.commit([attempts[1]], 0)
    assert logged(node, topic) == expected(100)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda attempt: writer.commit([attempt], 0), attempts))
    assert logged(node, topic) == expected(100)


@pytest.mark.parametrize("runs_again", [True, False])
def test_a_task_that_outlives_its_aborted_batch_writes_nothing_that_is_seen(
    node: RunningNode, topic: str, runs_again: bool
) -> None:
    options = sink(node, topic)
    writer = StreamWriter(options, SCHEMA, overwrite=False)

    def outlives() -> Iterator[pa.RecordBatch]:
        yield rows(["zombie 1"])
        writer.abort([written(options, iter([rows(expected(10))])), None], 0)
        yield rows(["zombie 2"])
        if runs_again:
            again = written(options, iter([rows(expected(10))]), task=1)
            writer.commit([again, None], 0)
        yield rows(["zombie 3"])

    zombie = written(options, outlives())
    assert sum(each.end - each.start for each in zombie.ranges[topic]) == 3
    if runs_again:
        writer.commit([zombie], 0)
    writer.commit([written(options, iter([rows(expected(5, 10))]))], 1)
    assert logged(node, topic) == expected(15 if runs_again else 5, 0 if runs_again else 10)


@pytest.mark.parametrize("said", [{}, {"txnId": "load-1"}])
def test_a_bounded_query_that_is_committed_twice_or_after_an_abort_is_there_once(
    node: RunningNode, topic: str, said: dict[str, str]
) -> None:
    options = sink(node, topic, **said)
    aborted, lasting = (BatchWriter(options, SCHEMA, overwrite=False) for _ in range(2))
    aborted.abort([written(options, iter([rows(["lost"])])), None])
    both = [written(options, iter([rows(expected(10, start))]), start) for start in (0, 10)]
    for _ in range(3):
        lasting.commit(both)
    assert logged(node, topic) == expected(20)
