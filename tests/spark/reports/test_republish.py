"""A slice chosen by SQL goes back into a topic: as it was, in its order, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", minversion="4.2")

from goq.client import Client
from goq.client.messages import LogMessage
from goq.errors import GoqError, InvalidInput
from goq.pipeline.reports.report import Report
from goq.pipeline.reports.republish import Republished, as_messages, preview, report_of, republish
from goq.pipeline.reports.spark_errors import told_plainly
from goq.pipeline.reports.tables import LiveSource, LiveTables
from goq.pipeline.spark.sink import stage
from goq.pipeline.spark.sink_options import SinkOptions
from goq.pipeline.spark.transaction_topics import StagedTopic, TopicLedger
from goq.pipeline.spark.transactions import Transaction, commit
from tests.support.node.archive import publish_segments, retire
from tests.support.node.running_node import RunningNode, running_node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Slice:
    """Queries over a topic, and the topic that their rows go to."""

    def __init__(self, spark: SparkSession, node: RunningNode, topic: str, client: Client) -> None:
        self._spark = spark
        self._node = node
        self.client = client
        self.source = topic
        self.into = f"{topic}-again"
        client.create_topic(self.into, 3)

    def rows(self, query: str, *, include_deleted: bool = False) -> DataFrame:
        live = LiveTables(
            self._spark, LiveSource([self._node.url], None, [self.source], include_deleted)
        )
        for name in ("messages", "events", "groups"):
            if name in query:
                live.table(name).createOrReplaceTempView(name)
        return self._spark.sql(query)

    def options(self, txn_id: str = "slice", into: str = "") -> SinkOptions:
        return SinkOptions.parse(
            {"topic": into or self.into, "server": self._node.url, "txnId": txn_id}
        )

    def run(self, query: str, txn_id: str = "slice") -> Republished:
        return republish(self.rows(query), self.options(txn_id))

    def logged(self) -> list[LogMessage]:
        return list(self.client.read_log(self.into))

    def values(self) -> list[bytes | None]:
        return sorted(message.value or b"" for message in self.logged())


@pytest.fixture
def slice_(spark: SparkSession, node: RunningNode, topic: str) -> Iterator[Slice]:
    with Client(node.url) as client:
        yield Slice(spark, node, topic, client)


def fill(slice_: Slice, count: int) -> None:
    with slice_.client.producer(slice_.source, batch=7) as producer:
        for number in range(count):
            producer.send(
                f"v{number}",
                key=f"k{number % 7}" if number % 5 else None,
                headers={"n": str(number)},
                priority=number % 3,
                tenant="acme" if number % 4 == 0 else None,
                delay="1ms" if number % 10 == 0 else "1h" if number % 10 == 1 else None,
            )


def told(report: Report, title: str) -> list[dict[str, Any]]:
    section = next(s for s in report.sections if s.title == title)
    return [dict(zip(section.columns, row, strict=True)) for row in section.rows]


def test_what_a_query_chooses_is_published_as_it_was_in_its_order(slice_: Slice) -> None:
    fill(slice_, 200)
    query = "SELECT * FROM messages WHERE CAST(substr(CAST(value AS STRING), 2) AS INT) >= 50"
    done = slice_.run(query)
    assert (sum(done.stored.values()), done.outcome) == (150, "stored")
    originals = {str(m.id): m for m in slice_.client.read_log(slice_.source)}
    before: dict[tuple[int, int], int] = {}
    copies = slice_.logged()
    assert len(copies) == 150
    for copy in copies:
        origin = dict(copy.headers)["goq-replayed-from"].decode()
        original = originals.pop(origin)
        assert copy.headers == (*original.headers, ("goq-replayed-from", origin.encode()))
        assert (copy.value, copy.key, copy.priority, copy.tenant, copy.partition) == (
            original.value,
            original.key,
            original.priority,
            original.tenant,
            original.partition,
        )
        number = int((copy.value or b"")[1:])
        assert ((copy.deliver_at or 0) > copy.timestamp) == (number % 10 == 1)
        place = (original.partition, copy.partition)
        assert before.get(place, -1) < original.offset
        before[place] = original.offset


def test_the_clock_of_the_leader_decides_whether_a_delivery_time_has_passed(
    spark: SparkSession,
) -> None:
    with running_node() as node, Client(node.url) as client:
        node.clock.ahead_ms = -7_200_000  # Spark's clock is two hours ahead
        slice_ = Slice(spark, node, "late", client)
        client.create_topic("late", 1)
        now_s = node.clock.wall_ms() // 1000
        rows = slice_.rows(
            "SELECT 'late:0:' || (n + 3600) AS message_id, CAST(n AS STRING) AS value,"
            f" timestamp_seconds({now_s} + n) AS deliver_at FROM VALUES (3600), (-3600) AS due (n)"
        )
        assert sum(republish(rows, slice_.options()).stored.values()) == 2
        assert {m.value: m.deliver_at for m in slice_.logged()} == {
            b"3600": (now_s + 3600) * 1_000_000,
            b"-3600": None,
        }
        assert [m.value for m in client.receive(slice_.into, "g", wait="5s")] == [b"-3600"]


def test_the_groups_of_a_node_are_of_a_time_by_its_clock(spark: SparkSession) -> None:
    with running_node() as node, Client(node.url) as client:
        node.clock.ahead_ms = -7_200_000
        client.publish("early", b"v")
        client.receive("early", "g", wait="5s")
        (row,) = (
            Slice(spark, node, "early", client)
            .rows("SELECT DISTINCT unix_millis(time) AS ms FROM groups")
            .collect()
        )
        assert abs(row.ms - node.clock.wall_ms()) < 3_600_000


def test_the_order_is_that_of_time_but_in_a_partition_never_against_the_offset(
    spark: SparkSession,
) -> None:
    times = {0: [10, 40, 20, 50], 1: [15, 30, 45]}  # a clock that was set back
    rows = [
        (f"{partition}/{offset}", f"orders:{partition}:{offset}", float(at))
        for partition, own in times.items()
        for offset, at in enumerate(own)
    ]
    frame = spark.createDataFrame(rows[::-1], "value STRING, message_id STRING, at DOUBLE")
    frame = frame.selectExpr("value", "message_id", "timestamp_seconds(at) AS timestamp")
    ordered = [row.value for row in as_messages(frame, 5, 0).collect()]
    assert ordered == ["0/0", "1/0", "1/1", "0/1", "0/2", "1/2", "0/3"]
    without_times = as_messages(frame.drop("timestamp"), 5, 0).collect()
    assert [row.value for row in without_times] == sorted(ordered)
    assert {row.partition for row in without_times} == {0, 1}


def test_a_copy_of_a_copy_keeps_where_it_was_first_and_where_it_was_last(
    spark: SparkSession,
) -> None:
    header = "struct('goq-replayed-from' AS key, CAST('{}' AS BINARY) AS value)"
    frame = spark.sql(
        f"SELECT 'v' AS value, 'a:0:3' AS message_id, array({header.format('first')},"
        f" struct('n' AS key, CAST('1' AS BINARY) AS value), {header.format('last')}) AS headers"
    )
    (row,) = as_messages(frame, 1, 0).collect()
    assert [(h.key, bytes(h.value)) for h in row.headers] == [
        ("n", b"1"),
        ("goq-replayed-from", b"first"),
        ("goq-replayed-from", b"a:0:3"),
    ]


def test_run_again_it_stores_nothing_twice_whatever_the_query_has_then(slice_: Slice) -> None:
    fill(slice_, 20)
    first = slice_.run("SELECT * FROM messages")
    fill(slice_, 30)
    again = slice_.run("SELECT * FROM messages")
    assert (first.outcome, again.outcome) == ("stored", "known")
    assert again.stored == first.stored
    assert len(slice_.logged()) == 20
    slice_.run("SELECT * FROM messages WHERE offset < 1", "another")
    assert len(slice_.logged()) == 23


class Died(BaseException):
    """The driver ended here."""


class DyingTopic(StagedTopic):
    """Lets the driver end when it publishes for the n-th time."""

    calls_left = 0

    def publish(
        self, partition: int, frames: Sequence[bytes], producer_id: int, sequence: int
    ) -> int:
        if not self.calls_left:
            raise Died
        self.calls_left -= 1
        return super().publish(partition, frames, producer_id, sequence)


@pytest.mark.parametrize("published", [0, 1, 2])
def test_a_run_whose_driver_died_while_publishing_is_finished_by_the_next_one(
    slice_: Slice, published: int
) -> None:
    fill(slice_, 60)
    options = slice_.options()
    batches = as_messages(slice_.rows("SELECT * FROM messages"), 3, 0).toArrow().to_batches()
    ranges = stage(slice_.client, options, iter(batches), 0)[slice_.into]
    topic = DyingTopic(slice_.client, slice_.into)
    topic.calls_left = published
    ledger = TopicLedger(slice_.client, slice_.into)
    with pytest.raises(Died):
        commit(Transaction(slice_.into, "slice"), 0, ranges, ledger, topic)
    assert len({message.partition for message in slice_.logged()}) == published
    done = slice_.run("SELECT * FROM messages WHERE false")  # it has another result by now
    assert (done.outcome, sum(done.stored.values())) == ("finished", 60)
    assert slice_.values() == sorted(b"v%d" % number for number in range(60))
    assert slice_.run("SELECT * FROM messages").outcome == "known"


def test_what_was_staged_by_a_driver_that_died_before_it_published_is_seen_by_nobody(
    slice_: Slice,
) -> None:
    fill(slice_, 60)
    batches = as_messages(slice_.rows("SELECT * FROM messages"), 3, 0).toArrow().to_batches()
    stage(slice_.client, slice_.options(), iter(batches), 0)
    assert slice_.run("SELECT * FROM messages").outcome == "stored"
    assert slice_.values() == sorted(b"v%d" % number for number in range(60))


def test_a_message_that_a_join_finds_often_is_published_once(slice_: Slice) -> None:
    fill(slice_, 20)
    for _ in range(3):
        slice_.client.receive_batch(slice_.source, "g", max_messages=20, wait="5s").nack(delay="0s")
    query = (
        "SELECT m.* FROM messages m JOIN events e ON m.message_id = e.message_id"
        " WHERE e.event = 'NACKED'"
    )
    rows = slice_.rows(query)
    assert rows.count() > rows.select("message_id").distinct().count()
    slice_.run(query)
    values = slice_.values()
    assert len(values) == len(set(values)) == rows.select("message_id").distinct().count()


def test_a_preview_counts_and_shows_the_first(slice_: Slice) -> None:
    fill(slice_, 50)
    report = preview(slice_.rows("SELECT * FROM messages WHERE value LIKE 'v1%'"))
    (row,) = told(report, "Messages")
    assert (row["topic"], row["messages"]) == (slice_.source, 11)
    assert row["bytes"] == sum(
        len(m.value or b"") + len(m.key or b"")
        for m in slice_.client.read_log(slice_.source)
        if (m.value or b"").startswith(b"v1")
    )
    first = told(report, "The first of them")
    assert len(first) == 10
    assert all(row["value"].startswith("v1") for row in first)
    assert slice_.logged() == []


def test_a_query_without_rows_publishes_nothing(slice_: Slice) -> None:
    fill(slice_, 5)
    done = slice_.run("SELECT * FROM messages WHERE false")
    assert done == ({}, "stored")
    assert slice_.logged() == []
    assert told(report_of(done, slice_.options()), "Republished")[0]["messages"] == 0
    assert told(preview(slice_.rows("SELECT * FROM messages WHERE false")), "Messages") == []
    assert sum(slice_.run("SELECT * FROM messages").stored.values()) == 5


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT *, length(value) AS size FROM messages", "a column 'size', and a message has"),
        ("SELECT value, value, message_id FROM messages", "two columns 'value'"),
        ("SELECT key, value FROM messages", "no column message_id"),
        ("SELECT key, message_id FROM messages", "no column value"),
        ("SELECT offset AS value, message_id FROM messages", "column value is bigint"),
        ("SELECT nope FROM messages", "UNRESOLVED_COLUMN"),
        ("SELEKT", "PARSE_SYNTAX_ERROR"),
        ("SELECT value, 'x' AS message_id FROM messages", "this is no message_id: x"),
        ("SELECT value, CAST(NULL AS STRING) AS message_id FROM messages", "message_id: null"),
        ("SELECT value, message_id, 9 AS lane FROM messages", "there is no lane 9"),
        ("SELECT value, message_id, 'top' AS priority FROM messages", "top"),
    ],
)
def test_what_is_wrong_with_a_query_is_said_in_a_line(slice_: Slice, query: str, said: str) -> None:
    fill(slice_, 3)
    with pytest.raises(GoqError, match=said) as raised, told_plainly():
        slice_.run(query)
    assert "\n" not in raised.value.detail
    assert isinstance(raised.value, InvalidInput)
    assert slice_.logged() == []


def test_what_is_archived_is_republished_where_that_is_asked_for(
    slice_: Slice, node: RunningNode
) -> None:
    publish_segments(node, slice_.source, range(4))
    retire(node, slice_.source, archive=True)
    query = "SELECT * FROM messages ORDER BY offset"
    assert slice_.rows(query).count() == 1
    done = republish(slice_.rows(query, include_deleted=True), slice_.options())
    assert sum(done.stored.values()) == 4
    assert [int((m.value or b"").split()[0]) for m in sorted(slice_.logged(), key=origin)] == [
        0,
        1,
        2,
        3,
    ]


def origin(message: LogMessage) -> int:
    return int(dict(message.headers)["goq-replayed-from"].rpartition(b":")[2])
