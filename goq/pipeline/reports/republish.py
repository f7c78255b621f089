"""Republish: messages chosen by a query, published to a topic once each, in order.

The rows are those of the table ``messages``, or derived from them. Partition, offset and time of a
row give its order; the other columns are published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from goq import limits
from goq.client.replay_plan import REPLAYED_FROM
from goq.errors import InvalidInput
from goq.pipeline.arrow.node_source import NodeSource
from goq.pipeline.arrow.schema import MESSAGES
from goq.pipeline.reports.report import Bars, Report, Section, section_of
from goq.pipeline.spark.sink_options import COLUMNS, SinkOptions, check_columns
from goq.pipeline.spark.transaction_topics import StagedTopic, TopicLedger
from goq.pipeline.spark.transactions import Transaction, commit

FIRST_ROWS = 10
_SHOWN_CHARS = 80
_HEADERS = "array<struct<key:string,value:binary>>"
_PUBLISHED = tuple(name for name in COLUMNS if name != "partition")
_OF_THE_PAST = ("message_id", "topic", "partition", "offset", "timestamp", "producer", "date")
_MESSAGE_ID = "^([^:]+):([0-9]{1,9}):([0-9]{1,18})$"
_PLACE = ("_topic", "_partition", "_offset")


class Republished(NamedTuple):
    """The messages stored, by partition, and the share of an earlier run.

    ``outcome`` is ``stored`` (by this run), ``finished`` (an earlier run had begun) or ``known``
    (an earlier run had stored everything).
    """

    stored: dict[int, int]
    outcome: str


def republish(rows: DataFrame, options: SinkOptions) -> Republished:
    """Publish rows as messages, once for each transaction.

    An interrupted transaction is finished with its original rows. Raises ``InvalidInput`` for
    columns that no message has, and the errors of the sink.
    """
    if not options.topic:
        raise InvalidInput("give the topic to write to", field="topic")
    if options.transaction is None:
        raise InvalidInput("give the name by which it happens once", field="txnId")
    transaction = Transaction(options.topic, options.transaction)
    with options.client() as client:
        staged = StagedTopic(client, options.topic)
        now_us = NodeSource(client).time_us(options.topic)
        messages = as_messages(rows, staged.partitions, now_us)
        ledger = TopicLedger(client, options.topic)
        known = ledger.newest(transaction.name)
        if known is None:
            _write(messages, options)
            outcome = "stored"
        else:
            commit(transaction, 0, (), ledger, staged)
            outcome = "known" if known.done else "finished"
        reached = staged.reached(transaction.producer_id)
    return Republished(dict(sorted(reached.items())), outcome)


def check_columns_of(rows: DataFrame) -> None:
    """Raise ``InvalidInput`` for columns that no message has, before anything is created."""
    as_messages(rows, partitions=1, now_us=0)


def _write(messages: DataFrame, options: SinkOptions) -> None:
    writer = messages.write.format("goq").options(
        server=",".join(options.servers),
        topic=options.topic,
        txnId=options.transaction or "",
        token=options.token or "",
    )
    writer.mode("append").save()


def report_of(done: Republished, options: SinkOptions) -> Report:
    """Return the report of a run."""
    total = sum(done.stored.values())
    row = (options.topic, options.transaction, total, done.outcome)
    return Report(
        "republish",
        "What was republished?",
        [
            Section("Republished", ("into", "txn_id", "messages", "outcome"), [row]),
            Section("By partition", ("partition", "messages"), list(done.stored.items())),
        ],
    )


def preview(rows: DataFrame) -> Report:
    """Return a preview: the count by topic, and the first messages."""
    once = _each_once(rows)
    size = f.coalesce(f.octet_length("value"), f.lit(0))
    if "key" in rows.columns:
        size += f.coalesce(f.octet_length("key"), f.lit(0))
    amounts = [f.count("*").alias("messages"), f.coalesce(f.sum(size), f.lit(0)).alias("bytes")]
    if "timestamp" in rows.columns:
        amounts += [f.min("timestamp").alias("first"), f.max("timestamp").alias("last")]
    by_topic = once.groupBy(f.col("_topic").alias("topic")).agg(*amounts).orderBy("topic")
    shown = [name for name in ("timestamp", "key", "lane", "tenant") if name in rows.columns]
    first = (
        once.orderBy(*_order(rows))
        .limit(FIRST_ROWS)
        .select("message_id", *shown, f.substring("value", 1, _SHOWN_CHARS).alias("value"))
    )
    return Report(
        "republish",
        "What would be republished?",
        [
            section_of("Messages", by_topic, Bars(("topic",), "messages", "")),
            section_of("The first of them", first),
        ],
    )


def as_messages(rows: DataFrame, partitions: int, now_us: int) -> DataFrame:
    """Return rows for the sink, in the order of publication.

    A key gives the partition; a message without a key keeps its old partition number. Delivery
    times that are long past at ``now_us``, the node's time, are dropped. The leader finds out
    whether others have passed, see :func:`goq.model.delivery_ms`. Raises ``InvalidInput`` for
    columns that no message has.
    """
    published = [name for name in rows.columns if name in _PUBLISHED and name != "headers"]
    columns: list[Column] = [f.col(name) for name in published if name != "deliver_at"]
    if "deliver_at" in published:
        long_past = f.timestamp_micros(f.lit(now_us - 1000 * limits.CLOCK_SLACK_MS))
        due = f.when(f.col("deliver_at") > long_past, f.col("deliver_at"))
        columns.append(due.alias("deliver_at"))
    keyless = f.col("key").isNull() if "key" in published else f.lit(True)
    place = f.when(keyless, f.col("_partition") % partitions).cast("int").alias("partition")
    once = _each_once(rows)
    found = once.orderBy(*_order(rows)).select(*columns, _headers(rows).alias("headers"), place)
    check_columns((field.name, field.dataType.simpleString()) for field in found.schema.fields)
    return found


def _headers(rows: DataFrame) -> Column:
    """Return headers with the origin as a replay adds it: the first origin, then the last.

    See :func:`goq.client.replay_plan.with_origin`.
    """
    name, origin = f.lit(REPLAYED_FROM), f.col("message_id").cast("binary")
    last = f.array(f.struct(name.alias("key"), origin.alias("value"))).cast(_HEADERS)
    if "headers" not in rows.columns:
        return last
    own = f.coalesce(f.col("headers").cast(_HEADERS), f.array().cast(_HEADERS))
    others = f.filter(own, lambda header: header["key"] != name)
    first = f.slice(f.filter(own, lambda header: header["key"] == name), 1, 1)
    return f.concat(others, first, last)


def _each_once(rows: DataFrame) -> DataFrame:
    """Return one row for each message, with its position and the running maximum of times.

    A join with events yields several rows for a message: the first one stays.
    """
    _check(rows.columns)
    parts = [f.regexp_extract("message_id", _MESSAGE_ID, number) for number in (1, 2, 3)]
    wrong = f.raise_error(
        f.concat(f.lit("this is no message_id: "), f.coalesce("message_id", f.lit("null")))
    )
    topic = f.when(f.col("message_id").rlike(_MESSAGE_ID), parts[0]).otherwise(wrong)
    partition, offset = parts[1].try_cast("int"), parts[2].try_cast("bigint")
    placed = rows.withColumn("_topic", topic)
    placed = placed.withColumns({"_partition": partition, "_offset": offset})
    by_offset = Window.partitionBy("_topic", "_partition").orderBy("_offset")
    placed = placed.withColumn("_before", f.lag("_offset").over(by_offset))
    if "timestamp" in rows.columns:
        placed = placed.withColumn("_time", f.max("timestamp").over(by_offset))
    return placed.where("_before IS NULL OR _before < _offset")


def _order(rows: DataFrame) -> Sequence[str]:
    """Return the sort key of messages: time, but within a partition the offset."""
    return ("_time", *_PLACE) if "timestamp" in rows.columns else _PLACE


def _check(columns: Sequence[str]) -> None:
    known = (*_PUBLISHED, *_OF_THE_PAST)
    for name in columns:
        if name not in known:
            raise InvalidInput(
                f"the query has a column {name[:80]!r}, and a message has none: select of"
                f" {', '.join(dict.fromkeys((*MESSAGES.names, *_PUBLISHED)))}",
                field=name[:80],
            )
        if columns.count(name) > 1:
            raise InvalidInput(f"the query has two columns {name!r}", field=name)
    for name in ("message_id", "value"):
        if name not in columns:
            raise InvalidInput(
                f"the query has no column {name}: SELECT * FROM messages has all that is needed",
                field=name,
            )
