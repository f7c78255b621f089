"""Spark writes into goq each row once: in a query, in a task that is tried again, in a stream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", minversion="4.2")

import pyarrow as pa

from goq import limits
from goq.client import Client
from goq.errors import InvalidInput
from goq.pipeline.spark.sink import StreamWriter, WrittenBatch, stage
from goq.pipeline.spark.sink_options import SinkOptions
from goq.pipeline.spark.transaction_topics import TopicLedger
from goq.pipeline.spark.transactions import LedgerEntry
from tests.support.node.running_node import RunningNode
from tests.support.pipeline.spark_driver import COPY_S_MAX, start_copy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def logged(node: RunningNode, topic: str) -> list[str]:
    with Client(node.url) as client:
        return sorted((m.value or b"").decode() for m in client.read_log(topic))


def expected(count: int, start: int = 0) -> list[str]:
    return sorted(f"v{number}" for number in range(start, start + count))


def save(frame: DataFrame, node: RunningNode, topic: str, **options: str) -> None:
    writer = frame.write.format("goq").option("server", node.url).option("topic", topic)
    writer.options(**options).mode("append").save()


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count, numPartitions=2).selectExpr("CONCAT('v', id) AS value")


def test_a_query_writes_each_row_with_all_that_it_says(
    spark: SparkSession, node: RunningNode, topic: str
) -> None:
    frame = spark.range(100, numPartitions=2).selectExpr(
        "IF(id % 5 = 0, NULL, CAST(CONCAT('k', id % 7) AS BINARY)) AS key",
        "CONCAT('v', id) AS value",
        "array(struct('n' AS key, CAST(id AS STRING) AS value)) AS headers",
        "element_at(array('high', 'normal', 'low'), CAST(id % 3 AS INT) + 1) AS priority",
        "IF(id % 2 = 0, NULL, timestamp'2021-02-03 04:05:06.789') AS deliver_at",
        "IF(id % 4 = 0, NULL, CONCAT('tenant-', id % 4)) AS tenant",
        "IF(id % 10 = 0, CAST(2 AS INT), NULL) AS partition",
    )
    save(frame, node, topic)
    with Client(node.url) as client:
        found = {m.value.decode(): m for m in client.read_log(topic) if m.value is not None}
        assert client.list_groups(f"{topic}.staged") == ()
    assert sorted(found) == expected(100)
    for number in range(100):
        message = found[f"v{number}"]
        assert message.key == (f"k{number % 7}".encode() if number % 5 else None)
        assert message.headers == (("n", str(number).encode()),)
        assert message.priority == ["high", "normal", "low"][number % 3]
        assert (message.deliver_at is None) == (number % 2 == 0)
        assert message.tenant == (f"tenant-{number % 4}" if number % 4 else None)
        assert message.partition == 2 or number % 10


def test_a_batch_without_rows_finishes_one_that_was_interrupted(
    node: RunningNode, topic: str
) -> None:
    from pyspark.sql.types import StringType, StructType

    options = SinkOptions.parse({"server": node.url, "topic": topic, "txnId": "x"})
    rows = pa.RecordBatch.from_pydict({"value": ["v0", "v1"]})
    with Client(node.url) as client:
        ranges = stage(client, options, iter([rows]), 0)[topic]
        first = {each.partition: 0 for each in ranges}
        TopicLedger(client, topic).begin("x", LedgerEntry(0, "query", ranges, first))
    assert logged(node, topic) == []
    writer = StreamWriter(options, StructType().add("value", StringType()), overwrite=False)
    writer.commit([None], 1)
    assert logged(node, topic) == []
    writer.commit([WrittenBatch({}, "query")], 1)
    assert logged(node, topic) == expected(2)


def test_rows_without_key_and_partition_stay_together_by_batch_and_are_spread(
    node: RunningNode, topic: str
) -> None:
    options = SinkOptions.parse({"server": node.url, "topic": topic, "txnId": "x"})
    with Client(node.url) as client:
        partitions = len(client.describe_topic(topic).partitions)
        batch = pa.RecordBatch.from_pydict({"value": ["v0", "v1", "v2"]})
        staged = stage(client, options, iter([batch] * partitions), 1)[topic]
    assert sorted((each.partition, each.end - each.start) for each in staged) == [
        (number, 3) for number in range(partitions)
    ]


def test_the_rows_of_a_task_are_for_so_many_topics_at_most(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SINK_TOPICS_MAX", 2)
    options = SinkOptions.parse({"server": node.url, "txnId": "x"})
    names = [topic, f"{topic}-b", f"{topic}-c"]
    rows = pa.RecordBatch.from_pydict({"value": ["v"] * 3, "topic": names})
    with Client(node.url) as client:
        for name in names[1:]:
            client.create_topic(name, 1)
        assert len(stage(client, options, iter([rows.slice(0, 2)]), 0)) == 2
        with pytest.raises(InvalidInput, match="at most 2 topics"):
            stage(client, options, iter([rows]), 0)


def test_a_query_with_a_name_is_written_once_and_one_without_each_time(
    spark: SparkSession, node: RunningNode, topic: str
) -> None:
    for _ in range(2):
        save(numbers(spark, 20), node, topic, txnId="load-1")
    assert logged(node, topic) == expected(20)
    for _ in range(2):
        save(numbers(spark, 1), node, topic)
    assert logged(node, topic) == sorted([*expected(20), "v0", "v0"])


def test_a_write_without_rows_leaves_its_name_to_another(
    spark: SparkSession, node: RunningNode, topic: str
) -> None:
    for count in (0, 2, 3):
        save(numbers(spark, count), node, topic, txnId="load-1")
    assert logged(node, topic) == expected(2)


def test_a_query_that_fails_leaves_nothing_to_be_seen(
    spark: SparkSession, node: RunningNode, topic: str
) -> None:
    frame = spark.range(20, numPartitions=2).selectExpr(
        "IF(id = 19, CAST(raise_error('no') AS STRING), CONCAT('v', id)) AS value"
    )
    with pytest.raises(Exception, match="no"):
        save(frame, node, topic)
    assert logged(node, topic) == []


@pytest.mark.parametrize(
    ("column", "options", "said"),
    [
        ("id AS value", {}, "it can be binary or string"),
        ("'a' AS what", {}, "goq has no column 'what'"),
        ("'a' AS value", {"spelling": "1"}, "unknown option 'spelling'"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_staged(
    spark: SparkSession,
    node: RunningNode,
    topic: str,
    column: str,
    options: dict[str, str],
    said: str,
) -> None:
    with pytest.raises(Exception, match=said):
        save(spark.range(1).selectExpr(column), node, topic, **options)
    with Client(node.url) as client:
        assert f"{topic}.staged" not in {found.name for found in client.list_topics()}


def test_rows_may_name_their_topics(spark: SparkSession, node: RunningNode, topic: str) -> None:
    other = f"{topic}-other"
    with Client(node.url) as client:
        client.create_topic(other, 2)
    frame = spark.range(40, numPartitions=2).selectExpr(
        f"IF(id % 4 = 0, '{other}', '{topic}') AS topic", "CONCAT('v', id) AS value"
    )
    for _ in range(2):  # once, under its name
        frame.write.format("goq").options(server=node.url, txnId="load").mode("append").save()
    assert logged(node, topic) == sorted(f"v{n}" for n in range(40) if n % 4)
    assert logged(node, other) == sorted(f"v{n}" for n in range(0, 40, 4))
    save(frame, node, other)  # the option goes first
    assert logged(node, other) == sorted([*expected(40), *(f"v{n}" for n in range(0, 40, 4))])
    nowhere = "CAST(NULL AS STRING) AS topic", "'a' AS value"
    with pytest.raises(Exception, match="a row has no topic"):
        spark.range(1).selectExpr(*nowhere).write.format("goq").options(server=node.url).mode(
            "append"
        ).save()
    with pytest.raises(Exception, match="give the topic to write to"):
        numbers(spark, 1).write.format("goq").options(server=node.url).mode("append").save()


def test_a_batch_for_two_topics_that_was_cut_between_them_is_finished_once(
    node: RunningNode, topic: str
) -> None:
    from pyspark.sql.types import StructType

    other = f"{topic}-other"
    options = SinkOptions.parse({"server": node.url})
    rows = pa.RecordBatch.from_pydict({"value": expected(6), "topic": [topic, other] * 3})
    schema = StructType().add("value", "string").add("topic", "string")
    writer = StreamWriter(options, schema, overwrite=False)
    with Client(node.url) as client:
        client.create_topic(other, 2)
        first = WrittenBatch(stage(client, options, iter([rows]), 0), "query-1")
        again = WrittenBatch(stage(client, options, iter([rows]), 0), "query-1")
    only_one = WrittenBatch({topic: first.ranges[topic]}, "query-1")
    writer.commit([only_one], 0)  # the driver died after the first topic
    assert (logged(node, topic), logged(node, other)) == (["v0", "v2", "v4"], [])
    for _ in range(2):
        writer.commit([again], 0)
    assert logged(node, topic) == ["v0", "v2", "v4"]
    assert logged(node, other) == ["v1", "v3", "v5"]


def test_nothing_is_overwritten(spark: SparkSession, node: RunningNode, topic: str) -> None:
    writer = numbers(spark, 1).write.format("goq").option("server", node.url)
    with pytest.raises(Exception, match="only ever added"):
        writer.option("topic", topic).mode("overwrite").save()


def staged(node: RunningNode, topic: str, task: int, values: list[str]) -> WrittenBatch:
    """Return what a task of a stream says that staged these values."""
    options = SinkOptions.parse({"topic": topic, "server": node.url})
    batch = pa.RecordBatch.from_pydict({"value": values})
    with options.client() as client:
        return WrittenBatch(stage(client, options, iter([batch]), task), "query-1")


def stream_writer(node: RunningNode, topic: str) -> StreamWriter:
    from pyspark.sql.types import StructType

    options = SinkOptions.parse({"topic": topic, "server": node.url})
    return StreamWriter(options, StructType().add("value", "string"), overwrite=False)


def test_only_the_attempt_that_spark_took_of_a_task_is_published(
    node: RunningNode, topic: str
) -> None:
    first, lost = staged(node, topic, 0, expected(10)), staged(node, topic, 1, expected(10, 10))
    again = staged(node, topic, 1, expected(10, 10))
    assert lost.ranges != again.ranges
    stream_writer(node, topic).commit([first, again], 0)
    assert logged(node, topic) == expected(20)


def test_a_batch_that_spark_runs_again_is_there_already(node: RunningNode, topic: str) -> None:
    for batch in (0, 0, 1, 1, 0):
        values = expected(10, 10 * batch)
        stream_writer(node, topic).commit([staged(node, topic, 0, values), None], batch)
    assert logged(node, topic) == expected(20)


def test_what_was_aborted_is_never_seen(node: RunningNode, topic: str) -> None:
    writer = stream_writer(node, topic)
    writer.abort([staged(node, topic, 0, expected(10)), None], 0)
    writer.commit([], 1)
    assert logged(node, topic) == []


def copy(spark: SparkSession, node: RunningNode, source: str, sink: str, folder: Path) -> None:
    """Copy what a topic has and the checkpoint does not know into another one."""
    query = start_copy(spark, node.url, source, sink, folder, 100)
    assert query.awaitTermination(COPY_S_MAX)


def test_a_stream_that_forgets_its_last_commit_publishes_nothing_twice(
    spark: SparkSession, node: RunningNode, topic: str, tmp_path: Path
) -> None:
    sink = f"{topic}-copy"
    with Client(node.url) as client:
        client.publish_many(topic, expected(50))
        client.create_topic(sink, 2)
        copy(spark, node, topic, sink, tmp_path)
        assert logged(node, sink) == expected(50)
        last = max(tmp_path.glob("commits/[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        client.publish_many(topic, [f"v{number}" for number in range(50, 70)])
    copy(spark, node, topic, sink, tmp_path)
    assert logged(node, sink) == expected(70)
