"""Spark reads of goq what goq has: in a query, and as a stream that stops and goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", minversion="4.2")

from goq.api.views import log_read
from goq.client import Client
from goq.frame.projection import leave_out
from goq.frame.view import FrameView
from goq.pipeline.arrow.schema import EVENTS, MESSAGES, ddl_of
from tests.support.node.archive import publish_segments, retire
from tests.support.node.running_node import RunningNode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_S_MAX = 300


def fill(node: RunningNode, topic: str, count: int, *, start: int = 0) -> None:
    with Client(node.url) as client, client.producer(topic) as producer:
        for number in range(start, start + count):
            key = f"k{number % 7}" if number % 5 else None
            producer.send(f"v{number}", key=key, headers={"n": str(number)}, priority=number % 3)


def load(spark: SparkSession, node: RunningNode, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("goq").option("server", node.url).option("topic", topic)
    return reader.options(**options).load()


def values(frame: DataFrame) -> list[str]:
    return sorted(bytes(row.value).decode() for row in frame.select("value").collect())


def expected(count: int, start: int = 0) -> list[str]:
    return sorted(f"v{number}" for number in range(start, start + count))


def test_the_schemas_that_spark_is_told_are_those_of_the_batches(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    for schema in (MESSAGES, EVENTS):
        told = to_arrow_schema(StructType.fromDDL(ddl_of(schema)), timezone="UTC")
        assert [(f.name, f.type, f.nullable) for f in told] == [
            (f.name, f.type, f.nullable) for f in schema
        ]


def test_a_query_has_every_message_with_all_that_it_says(
    spark: SparkSession, node: RunningNode, topic: str
) -> None:
    fill(node, topic, 100)
    rows = load(spark, node, topic).collect()
    with Client(node.url) as client:
        logged = {str(m.id): m for m in client.read_log(topic)}
    assert len(rows) == 100
    for row in rows:
        message = logged[row.message_id]
        assert (row.topic, row.partition, row.offset) == (
            message.topic,
            message.partition,
            message.offset,
        )
        assert (None if row.key is None else bytes(row.key)) == message.key
        assert bytes(row.value) == message.value
        assert [(h.key, bytes(h.value)) for h in row.headers] == list(message.headers)
        assert ["high", "normal", "low"][row.lane] == message.priority
        assert row.deliver_at is None


def test_the_same_query_again_has_the_same_rows(
    spark: SparkSession, node: RunningNode, topic: str
) -> None:
    fill(node, topic, 20)
    frame = load(spark, node, topic)
    fill(node, topic, 10, start=20)  # the first query fixes the bounds
    first, other = frame.where("partition = 0"), frame.where("partition = 1")
    found = [values(first)]
    fill(node, topic, 10, start=30)
    found += [values(some) for some in (other, frame.where("partition = 2"))]
    assert sorted(value for each in found for value in each) == values(frame) == expected(30)
    assert values(first.union(other)) == sorted(found[0] + found[1])


def test_columns_partitions_and_bounds_are_chosen_by_options(
    spark: SparkSession, node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out: list[list[str]] = []

    def leaving_out(view: FrameView, columns: list[str]) -> FrameView:
        left_out.append(columns)
        return leave_out(view, columns)

    monkeypatch.setattr(log_read, "leave_out", leaving_out)
    fill(node, topic, 60)
    some = load(spark, node, topic, columns="offset,key", partitions="1")
    assert some.columns == ["offset", "key"]
    offsets = [row.offset for row in some.collect()]
    assert offsets == list(range(len(offsets)))
    assert left_out
    assert all(columns == ["value", "headers"] for columns in left_out)
    left_out.clear()
    assert values(load(spark, node, topic, columns="tenant,value")) == expected(60)
    assert all(columns == ["headers"] for columns in left_out)
    bounds = json.dumps({topic: {"0": 1, "1": -1, "2": -2}})
    ends = json.dumps({topic: {"0": 3, "1": -1, "2": 1}})
    cut = load(spark, node, topic, startingOffsets=bounds, endingOffsets=ends, minPartitions="4")
    assert sorted((r.partition, r.offset) for r in cut.collect()) == [(0, 1), (0, 2), (2, 0)]


def test_events_are_a_table_of_what_happened(
    spark: SparkSession, node: RunningNode, topic: str
) -> None:
    fill(node, topic, 20)
    with Client(node.url) as client:
        client.receive_batch(topic, "g", max_messages=20, wait="5s").ack()
    rows = load(spark, node, topic, table="events").collect()
    told = [(row.event, row.group) for row in rows]
    assert told.count(("DELIVERED", "g")) == told.count(("ACKNOWLEDGED", "g")) > 0
    leases = {(r.message_id, r.lease) for r in rows if r.event == "DELIVERED"}
    assert leases == {(r.message_id, r.lease) for r in rows if r.event == "ACKNOWLEDGED"}


def test_a_topic_without_messages_is_a_table_without_rows(
    spark: SparkSession, node: RunningNode, topic: str
) -> None:
    assert load(spark, node, topic).count() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": "nope"}, "there is no column 'nope'"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "which is not read"),
    ],
)
def test_what_is_wrong_with_an_option_is_said(
    spark: SparkSession, node: RunningNode, topic: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception, match=said):
        load(spark, node, topic, **options).count()


def test_a_topic_is_a_view_but_no_table_of_spark_sql(
    spark: SparkSession, node: RunningNode, topic: str
) -> None:
    fill(node, topic, 20)
    source = f"USING goq OPTIONS (server '{node.url}', topic '{topic}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen {source}")
    assert [row.n for row in spark.sql("SELECT count(*) AS n FROM seen").collect()] == [20]
    with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE kept {source}")


def test_what_is_archived_is_part_of_a_query_and_of_a_stream_that_ask_for_it(
    spark: SparkSession, node: RunningNode, topic: str, tmp_path: Path
) -> None:
    publish_segments(node, topic, range(5))
    retire(node, topic, archive=True)
    assert load(spark, node, topic).count() == 1
    frame = load(spark, node, topic, includeDeleted="true")
    assert sorted(row.offset for row in frame.select("offset").collect()) == list(range(5))
    first = json.dumps({topic: {str(p): 0 for p in range(3)}})
    with pytest.raises(Exception, match="set includeDeleted=true to read what an archive has"):
        load(spark, node, topic, startingOffsets=first).count()
    assert sum(stream(spark, node, topic, tmp_path, includeDeleted="true")) == 5
    publish_segments(node, topic, range(5, 9))
    retire(node, topic, archive=True)
    assert sum(stream(spark, node, topic, tmp_path, includeDeleted="true")) == 4


def stream(
    spark: SparkSession, node: RunningNode, topic: str, folder: Path, **options: str
) -> list[dict[str, Any]]:
    """Run a stream up to what there is now; return how many rows each batch had."""
    reader = spark.readStream.format("goq").option("server", node.url).option("topic", topic)
    query = (
        reader.options(startingOffsets="earliest", **options)
        .load()
        .selectExpr("CAST(value AS STRING) AS value", "message_id")
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S_MAX)
    last = query.lastProgress["sources"][0]
    latest, end = json.loads(last["latestOffset"]), json.loads(last["endOffset"])
    for each in end.values():
        each.pop("began", None)  # of a first batch
    assert latest == end
    return [p["numInputRows"] for p in query.recentProgress]


def test_a_stream_goes_on_where_its_checkpoint_says_and_takes_no_more_than_asked(
    spark: SparkSession, node: RunningNode, topic: str, tmp_path: Path
) -> None:
    fill(node, topic, 35)
    batches = stream(spark, node, topic, tmp_path, maxOffsetsPerTrigger="20")
    assert sum(batches) == 35
    assert max(batches) <= 23  # rounded up in each partition
    fill(node, topic, 45, start=35)
    assert sum(stream(spark, node, topic, tmp_path)) == 45
    written = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.value for row in written) == expected(80)
    assert len({row.message_id for row in written}) == 80
