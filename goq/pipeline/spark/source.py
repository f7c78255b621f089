"""``spark.read.format("goq")`` and ``spark.readStream.format("goq")``.

The driver asks a node for the current offsets and divides them; each task reads its range from the
node and returns Arrow batches. Spark's checkpoint alone holds a stream's position, as offsets by
topic and partition with the topics' ids: a repeated batch reads the same messages again.

Filters are not pushed down: pyspark keeps pushed filters with the relation, so a second query of
the same frame would get the first one's rows. Options bound the read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from goq.errors import CorruptData, InvalidInput
from goq.pipeline.arrow.node_source import NodeSource, ahead
from goq.pipeline.arrow.schema import ddl_of
from goq.pipeline.arrow.tables import TABLES, rows_between
from goq.pipeline.spark.offset_ranges import (
    Offsets,
    StreamOffsets,
    check_offsets,
    check_order,
    check_same_topics,
    from_json,
    resolve,
    to_json,
    what_is_there,
)
from goq.pipeline.spark.sink import BatchWriter, StreamWriter
from goq.pipeline.spark.sink_options import SinkOptions
from goq.pipeline.spark.source_options import STREAM_PATIENCE, TASK_PATIENCE, SourceOptions
from goq.pipeline.spark.topics import Task, Topics
from goq.pipeline.spark.trigger_limits import TriggerLimits

_READ_AHEAD = 2  # responses of a node, some MiB each, in every task
_ARCHIVE_HINT = " set includeDeleted=true to read what an archive has of them,"


class GoqDataSource(DataSource):
    """The data source ``goq`` of Spark."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "goq"

    @cached_property
    def _source(self) -> SourceOptions:
        return SourceOptions.parse(self.options)

    def schema(self) -> str:
        """Return the schema that the options select."""
        return ddl_of(_schema(self._source))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return BatchReader(self._source)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        return StreamReader(self._source)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query."""
        return BatchWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream."""
        return StreamWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)


class BatchReader(DataSourceReader):
    """Reads the range between two offsets, resolved when the first query of a frame is planned."""

    def __init__(self, options: SourceOptions) -> None:
        if options.starting == "latest" or options.ending == "earliest":
            raise InvalidInput(
                "a query from the latest offset, or up to the earliest one, has no rows",
                field="startingOffsets" if options.starting == "latest" else "endingOffsets",
            )
        if not (isinstance(options.starting, str | None) or isinstance(options.ending, str)):
            _check_written_order(options.starting, options.ending)
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the input partitions of the query."""
        options = self._options
        with options.client() as client:
            found = Topics(client, options)
            start = found.starts(default="earliest")
            end = found.ends()
            if options.ending_timestamp is not None:
                check_order(start, end, "endingTimestamp")
            return found.tasks(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's messages."""
        return _read(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new messages in batches, of bounded size if the options say so."""

    def __init__(self, options: SourceOptions) -> None:
        if options.ending != "latest" or options.ending_timestamp is not None:
            raise InvalidInput("a stream has no end: leave it out", field="endingOffsets")
        self._options = options
        self._limits = TriggerLimits(options)
        self._target: StreamOffsets | None = None
        self._seen: StreamOffsets | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the first offsets of a stream without a checkpoint.

        Spark asks more than once: when it plans the first batch, and when it runs it.
        """
        with self._options.client(STREAM_PATIENCE) as client:
            found = Topics(client, self._options)
            start = found.starts(default="latest")
        if self._target is not None:  # messages that came since it was fixed are before the start
            self._target = self._ends()
        return to_json(StreamOffsets(start, found.ids, began=start))

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query at the current end of the topics."""
        self._target = self._ends()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the bound of a batch."""
        return self._limits.default()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the topics when the last batch was planned, for Spark's progress."""
        return None if self._seen is None else to_json(self._seen)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch.

        Raises ``Conflict`` if data of the stream is lost and the options say to fail.
        """
        begun, end = from_json(start), self._target or self._ends()
        self._seen = end
        if self._options.fail_on_data_loss:
            check_offsets(begun, end)
        read = begun.without(begun.of_other_topics(end.ids)).offsets
        if self._target is None and not self._limits.is_due(limit, read, end.offsets):
            return start
        bounded = self._limits.bounded(limit, read, end.offsets, self._message_bytes)
        if bounded == begun.offsets == read:
            return start
        return to_json(end._replace(offsets=bounded, began=read if begun.is_first else None))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the input partitions of a batch."""
        with self._options.client(STREAM_PATIENCE) as client:
            found, stop = Topics(client, self._options), from_json(end)
            begun = stop.start_of_batch(from_json(start))
            if not self._options.fail_on_data_loss:
                return found.tasks(*what_is_there(begun, stop, found.bounds, found.ids))
            for position in (begun, stop):
                check_same_topics(position, found.ids)
            return found.tasks(begun.offsets, stop.offsets)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's messages."""
        return _read(self._options, partition)

    def _message_bytes(self) -> Mapping[str, float]:
        with self._options.client(STREAM_PATIENCE) as client:
            return Topics(client, self._options).message_bytes()

    def _ends(self) -> StreamOffsets:
        options = replace(
            self._options, include_deleted=False
        )  # the end is the same without archives
        with options.client(STREAM_PATIENCE) as client:
            found = Topics(client, options)
            return StreamOffsets(resolve("latest", found.bounds, "endingOffsets"), found.ids)


def _check_written_order(starting: Offsets, ending: Offsets) -> None:
    """Raise ``InvalidInput`` if offsets that are numbers end before they start."""
    written = {
        topic: {p: offset for p, offset in partitions.items() if offset >= 0}
        for topic, partitions in ending.items()
    }
    check_order(starting, written, "endingOffsets")


def _schema(options: SourceOptions) -> pa.Schema:
    table = TABLES[options.table]
    return pa.schema([table.schema.field(name) for name in options.columns])


def _read(options: SourceOptions, task: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(task, Task)
    schema, table = _schema(options), TABLES[options.table]
    if task.piece is None:
        return
    topic, partition, start, end = task.piece
    columns = list(dict.fromkeys([*schema.names, table.position]))
    with options.client(TASK_PATIENCE) as client:
        source = NodeSource(client, include_deleted=options.include_deleted, columns=schema.names)
        frame_batches = table.read(source, topic, partition, start, end)
        with ahead(frame_batches, _READ_AHEAD) as made:
            for number, frame_batch in enumerate(made):
                if not number:  # a query with a limit does not come to the end
                    task.check_topic(topic, source.topic_id(topic))
                if frame_batch.missing and options.fail_on_data_loss:
                    raise CorruptData(
                        f"{table.name} {frame_batch.missing} of {topic}, partition {partition}, are"
                        " gone: deleted by retention before they were read, or damaged;"
                        f"{'' if options.include_deleted else _ARCHIVE_HINT}"
                        " set failOnDataLoss=false to go on without them"
                    )
                for batch in table.batches(
                    topic, partition, frame_batch.frames, task.default_lane, columns
                ):
                    yield rows_between(batch, table.position, start, end).select(schema.names)
        task.check_topic(topic, source.topic_id(topic))
