"""``df.write.format("goq")`` and ``df.writeStream.format("goq")``.

Tasks write their rows to the staging topic and report the ranges to the driver. The driver
publishes the ranges, exactly once however often it commits. Rows of a failed or aborted task are in
no range; the staging topic's retention deletes them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from goq.client import Client
from goq.client._sync.frame_publisher import FramePublisher
from goq.errors import InvalidInput
from goq.frame.encoder import ProducerMark
from goq.pipeline.arrow.frames import FrameTarget, frame_of, shares_of
from goq.pipeline.spark.sink_options import SinkOptions, check_columns
from goq.pipeline.spark.transaction_topics import StagedTopic, TopicLedger
from goq.pipeline.spark.transactions import Staged, Transaction, commit, commit_once

_QUERY_ID = "sql.streaming.queryId"


@dataclass
class WrittenBatch(WriterCommitMessage):
    """The ranges that a task staged, and its query id; empty for a batch query."""

    ranges: Sequence[Staged]
    query: str


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a bounded query, once for each ``txnId``."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        _check(schema, overwrite)
        self._options = options
        self._once = f"once-{secrets.token_hex(16)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        return _stage(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the staged ranges of all tasks."""
        options, (ranges, _) = self._options, _told(messages)
        with options.client() as client:
            staged = StagedTopic(client, options.topic)
            if options.transaction is None:
                commit_once(Transaction(options.topic, self._once), ranges, staged)
            else:
                ledger = TopicLedger(client, options.topic)
                commit(Transaction(options.topic, options.transaction), 0, ranges, ledger, staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave the staged rows: no consumer sees them."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream, each once, however often Spark repeats it."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        _check(schema, overwrite)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage a task's rows."""
        return _stage(self._options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the staged ranges, unless this batch was published before.

        A batch without rows also finishes an earlier one that was interrupted.
        """
        options, (ranges, query) = self._options, _told(messages)
        if not ranges and not query:  # no task ran
            return
        if not query:
            raise InvalidInput("Spark does not say which query writes: is it a stream?")
        transaction = Transaction(options.topic, options.transaction or query, query)
        with options.client() as client:
            ledger = TopicLedger(client, options.topic)
            staged = StagedTopic(client, options.topic)
            commit(transaction, batchId, ranges, ledger, staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Leave the staged rows: no consumer sees them."""


def stage(
    client: Client,
    options: SinkOptions,
    batches: Iterator[pa.RecordBatch],
    task: int,
) -> list[Staged]:
    """Write rows to the staging topic; return their ranges, by partition in order.

    Messages without key and partition go to one partition a record batch, starting with the task's
    number.
    """
    staged = StagedTopic(client, options.topic)
    target = FrameTarget(staged.partitions, staged.lanes, options.frame_messages_max)
    producer_id = secrets.randbits(63) or 1
    sequences: dict[int, int] = {}
    ranges = _Ranges()
    publisher = FramePublisher(client)
    for number, batch in enumerate(batches):
        for shares in shares_of(batch, target, (task + number) % staged.partitions):
            frames: list[tuple[int, bytes]] = []
            for partition, rows in shares:
                mark = ProducerMark(producer_id, 0, sequences.get(partition, 0))
                frames.append((partition, frame_of(batch, rows, target, mark)))
                sequences[partition] = mark.first_sequence + len(rows)
            for stored in publisher.publish(staged.staging, frames):
                end = stored.offset + stored.count
                ranges.add(Staged(stored.partition, stored.offset, end))
    return ranges.found


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


def _told(messages: Sequence[WriterCommitMessage | None]) -> tuple[list[Staged], str]:
    """Return the ranges of all tasks, in order, and the query id."""
    written = [message for message in messages if isinstance(message, WrittenBatch)]
    query = next((each.query for each in written), "")
    return [one for each in written for one in each.ranges], query


def _check(schema: StructType, overwrite: bool) -> None:
    if overwrite:
        raise InvalidInput("messages are only ever added: use mode append", field="mode")
    check_columns((field.name, field.dataType.simpleString()) for field in schema.fields)
