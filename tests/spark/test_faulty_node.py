"""A node that is busy, breaks off or is slow: Spark writes every row once, or says why not."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", minversion="4.2")

import pyarrow as pa
from pyspark.sql.types import StructType

from goq.client import Client
from goq.errors import TooManyRequests, Unavailable
from goq.pipeline.spark.sink import StreamWriter, WrittenBatch, stage
from goq.pipeline.spark.sink_options import SinkOptions
from tests.support.node.faulty_proxy import Fault, at_times, faulty_proxy
from tests.support.node.running_node import RunningNode
from tests.support.pipeline.spark_driver import COPY_S_MAX, start_copy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 600


def logged(node: RunningNode, topic: str) -> list[str]:
    with Client(node.url) as client:
        return sorted((m.value or b"").decode() for m in client.read_log(topic))


def expected(count: int) -> list[str]:
    return sorted(f"v{number}" for number in range(count))


@pytest.mark.long
def test_a_stream_through_any_trouble_writes_each_row_once(
    spark: SparkSession, node: RunningNode, topic: str, tmp_path: Path, seed: int
) -> None:
    copy = f"{topic}-copy"
    with Client(node.url) as client:
        client.publish_many(topic, expected(ROWS))
        client.create_topic(copy, 2)
    with faulty_proxy(node.address, at_times(random.Random(seed), 0.4)) as proxy:
        query = start_copy(spark, proxy.url, topic, copy, tmp_path, 300)
        assert query.awaitTermination(COPY_S_MAX)
        assert proxy.done.total() > proxy.done[None]
    assert logged(node, copy) == expected(ROWS)


def staged_and_committed(options: SinkOptions, count: int) -> None:
    """Do what Spark does with a batch of one task, numbered 0."""
    schema = StructType().add("value", "string")
    batch = pa.RecordBatch.from_pydict({"value": expected(count)})
    with options.client() as client:
        written = WrittenBatch(stage(client, options, iter([batch]), 0), "query-1")
    StreamWriter(options, schema, overwrite=False).commit([written], 0)


@pytest.mark.parametrize("fault", [Fault.TOO_MANY, Fault.NOT_NOW])
def test_a_node_that_wants_to_be_left_alone_for_longer_than_the_bound_is_given_up_at_once(
    node: RunningNode, topic: str, fault: Fault
) -> None:
    with faulty_proxy(node.address, lambda *_: fault, retry_after_ms=301_000) as proxy:
        options = SinkOptions.parse({"topic": topic, "server": proxy.url})
        assert options.patience == "5m"
        with pytest.raises(Unavailable, match=r"asked for up to 5m; .* can be run again") as said:
            staged_and_committed(options, 5)
        assert isinstance(said.value, TooManyRequests) == (fault is Fault.TOO_MANY)
        assert proxy.done == {fault: 1}


@pytest.mark.parametrize("fault", [Fault.TOO_MANY, Fault.NOT_NOW, Fault.REQUEST_LOST])
def test_what_could_not_be_published_in_time_is_not_seen_and_is_published_when_it_is_run_again(
    node: RunningNode, topic: str, fault: Fault
) -> None:
    trouble = [fault]

    def choose(method: str, path: str) -> Fault | None:
        publishes = (method, path) == ("POST", f"/v1/topics/{topic}/messages")
        return trouble[0] if publishes and trouble else None

    with faulty_proxy(node.address, choose) as proxy:
        options = SinkOptions.parse({"topic": topic, "server": proxy.url})
        with pytest.raises(Unavailable, match="asked for up to 100ms"):
            staged_and_committed(replace(options, patience="100ms"), 50)
        assert proxy.done[fault] > 1
        assert logged(node, topic) == []
        trouble.clear()
        staged_and_committed(options, 50)
    assert logged(node, topic) == expected(50)


def test_tasks_and_drivers_at_once_through_any_trouble_publish_each_row_once(
    node: RunningNode, topic: str, seed: int
) -> None:
    with faulty_proxy(node.address, at_times(random.Random(seed), 0.4)) as proxy:
        options = SinkOptions.parse({"topic": topic, "server": proxy.url, "batchMessages": "10"})
        writer = StreamWriter(options, StructType().add("value", "string"), overwrite=False)

        def task(number: int) -> WrittenBatch:
            values = [f"v{row}" for row in range(number, 120, 4)]
            batches = [pa.RecordBatch.from_pydict({"value": values[n::3]}) for n in range(3)]
            with options.client() as client:
                return WrittenBatch(stage(client, options, iter(batches), number), "query-1")

        with ThreadPoolExecutor(4) as pool:
            written = list(pool.map(task, range(4)))
            list(pool.map(lambda _: writer.commit(written, 0), range(2)))
    assert logged(node, topic) == expected(120)
