"""``df.write.format("goq")`` and ``df.writeStream.format("goq")``.

Tasks write their rows to the staging topic and report the ranges to the driver. The driver
publishes the ranges, exactly once however often it commits. Rows of a failed or aborted task are in
no range; the staging topic's retention deletes them. Rows may name their topics: each topic has its
own staging topic and ledger, and its part of a batch is a batch there.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from goq import limits
from goq.client import Client
from goq.client._sync.publish.frame_publisher import FramePublisher
from goq.errors import InvalidInput
from goq.frame.encoder import ProducerMark
from goq.pipeline.arrow.frames import FrameTarget, frame_of, shares_of
from goq.pipeline.spark.sink_options import SinkOptions, check_columns, check_target
from goq.pipeline.spark.transaction_topics import StagedTopic, TopicLedger
from goq.pipeline.spark.transactions import Staged, Transaction, commit, commit_once

_QUERY_ID = "sql.streaming.queryId"


@dataclass
class WrittenBatch(WriterCommitMessage):
    """The ranges that a task staged by topic, and its query id; empty for a batch query."""

    ranges: Mapping[str, Sequence[Staged]]
    query: str


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a bounded query, once for each ``txnId``."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        _check(schema, options.topic, overwrite)
        self._options = options
        self._once = f"once-{secrets.token_hex(16)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        return _stage(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the staged ranges of all tasks."""
        options, (by_topic, _) = self._options, _told(messages)
        if options.topic:
            by_topic.setdefault(options.topic, [])
        with options.client() as client:
            for topic, ranges in by_topic.items():
                staged = StagedTopic(client, topic)
                if options.transaction is None:
                    commit_once(Transaction(topic, self._once), ranges, staged)
                else:
                    ledger = TopicLedger(client, topic)
                    commit(Transaction(topic, options.transaction), 0, ranges, ledger, staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave the staged rows: no consumer sees them."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream, each once, however often Spark repeats it."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        _check(schema, options.topic, overwrite)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        return _stage(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the staged ranges, unless this batch was published before.

        A batch without rows also finishes an earlier one that was interrupted.
        """
        options, (by_topic, query) = self._options, _told(messages)
        if not by_topic and not query:  # no task ran
            return
        if not query:
            raise InvalidInput("Spark does not say which query writes: is it a stream?")
        if options.topic:
            by_topic.setdefault(options.topic, [])
        with options.client() as client:
            for topic, ranges in by_topic.items():
                transaction = Transaction(topic, options.transaction or query, query)
                ledger = TopicLedger(client, topic)
                commit(transaction, batchId, ranges, ledger, StagedTopic(client, topic))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Leave the staged rows: no consumer sees them."""


def stage(
    client: Client,
    options: SinkOptions,
    batches: Iterator[pa.RecordBatch],
    task: int,
) -> dict[str, list[Staged]]:
    """Write rows to the staging topics; return the ranges of each topic, by partition in order.

    Messages without key and partition go to one partition a record batch, starting with the task's
    number. Raises ``InvalidInput`` for a row without a topic, or with too many topics.
    """
    topics: dict[str, _TopicStage] = {}
    for number, batch in enumerate(batches):
        for topic, rows in _by_topic(batch, options.topic):
            if topic not in topics:
                if len(topics) == limits.SINK_TOPICS_MAX:
                    raise InvalidInput(
                        f"the rows of a task are for at most {limits.SINK_TOPICS_MAX} topics",
                        field="topic",
                    )
                topics[topic] = _TopicStage(client, topic, options.frame_messages_max)
            topics[topic].add(rows, task + number)
    return {topic: stage.ranges.found for topic, stage in topics.items()}


def _by_topic(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each topic, in their order and without the column."""
    if topic:
        yield topic, batch.drop_columns(["topic"]) if "topic" in batch.schema.names else batch
        return
    column, rest = batch.column("topic"), batch.drop_columns(["topic"])
    for name in pc.unique(column).to_pylist():
        if name is None:
            raise InvalidInput("a row has no topic", field="topic")
        yield check_target(name), rest.filter(pc.equal(column, name))


class _TopicStage:
    """The staging topic of one topic, written by one task."""

    def __init__(self, client: Client, topic: str, frame_messages_max: int) -> None:
        self._staged = staged = StagedTopic(client, topic)
        self.ranges = _Ranges()
        self._target = FrameTarget(staged.partitions, staged.lanes, frame_messages_max)
        self._publisher = FramePublisher(client)
        self._producer_id = secrets.randbits(63) or 1
        self._sequences: dict[int, int] = {}

    def add(self, batch: pa.RecordBatch, keyless_to: int) -> None:
        """Write rows; those without key and partition to one partition."""
        target, sequences = self._target, self._sequences
        for shares in shares_of(batch, target, keyless_to % target.partitions):
            frames: list[tuple[int, bytes]] = []
            for partition, rows in shares:
                mark = ProducerMark(self._producer_id, 0, sequences.get(partition, 0))
                frames.append((partition, frame_of(batch, rows, target, mark)))
                sequences[partition] = mark.first_sequence + len(rows)
            for stored in self._publisher.publish(self._staged.staging, frames):
                self.ranges.add(self._staged.staged(stored))


class _Ranges:
    """The staged ranges in order; adjacent ranges of a partition are merged."""

    def __init__(self) -> None:
        self.found: list[Staged] = []
        self._latest: dict[int, int] = {}

    def add(self, new: Staged) -> None:
        latest = self._latest.get(new.partition)
        if latest is not None and self.found[latest].end == new.start:
            self.found[latest] = self.found[latest]._replace(end=new.end)
            return
        self._latest[new.partition] = len(self.found)
        self.found.append(new)


def _stage(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> WrittenBatch:
    context = TaskContext.get()
    assert context is not None
    with options.client() as client:
        ranges = stage(client, options, batches, context.partitionId())
    return WrittenBatch(ranges, context.getLocalProperty(_QUERY_ID) or "")


def _told(
    messages: Sequence[WriterCommitMessage | None],
) -> tuple[dict[str, list[Staged]], str]:
    """Return the ranges of all tasks by topic, in order, and the query id."""
    written = [message for message in messages if isinstance(message, WrittenBatch)]
    query = next((each.query for each in written), "")
    by_topic: dict[str, list[Staged]] = {}
    for topic in sorted({topic for each in written for topic in each.ranges}):
        by_topic[topic] = [one for each in written for one in each.ranges.get(topic, ())]
    return by_topic, query


def _check(schema: StructType, topic: str, overwrite: bool) -> None:
    if overwrite:
        raise InvalidInput("messages are only ever added: use mode append", field="mode")
    columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    if topic:
        columns = [column for column in columns if column[0] != "topic"]  # the option goes first
    check_columns(columns, with_topic=not topic)
