"""``spark.read.format("goq")`` and ``spark.readStream.format("goq")``.

The driver asks a node which offsets there are and divides them; each task reads its own range from
the node and gives Spark whole Arrow batches. A stream's place is in Spark's checkpoint alone, as
offsets by topic and partition: a batch that is run again reads the same messages again.

Spark's filters are not pushed down: pyspark keeps what was pushed with the relation, and a second
query of the same frame then gets the first one's rows. Options bound what is read.
"""

from __future__ import annotations

import re
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
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from goq.client import Client
from goq.client.messages import ReadBatch
from goq.errors import DamagedData
from goq.pipeline.ranges import (
    Offsets,
    Range,
    from_json,
    limited,
    ranges_between,
    resolve,
    to_json,
)
from goq.pipeline.schema import ddl_of
from goq.pipeline.sink_options import SinkOptions
from goq.pipeline.source import Bounds, NodeSource
from goq.pipeline.spark_options import SourceOptions
from goq.pipeline.spark_sink import BatchWriter, StreamWriter
from goq.pipeline.tables import TABLES, rows_between

_ARCHIVE_HINT = " set includeDeleted=true to read what an archive has of them,"


class Task(InputPartition):
    """What one task reads; with nothing to read a query has one of them, over no messages."""

    def __init__(self, piece: Range | None, default_lane: int) -> None:
        super().__init__(piece)
        self.piece = piece
        self.default_lane = default_lane


class GoqDataSource(DataSource):
    """The source and sink that Spark knows as ``goq``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "goq"

    @cached_property
    def _source(self) -> SourceOptions:
        return SourceOptions.parse(self.options)

    def schema(self) -> str:
        """Return the columns that the options ask for."""
        return ddl_of(_schema(self._source))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a bounded query."""
        return BatchReader(self._source)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what reads a stream."""
        return StreamReader(self._source)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return what writes the rows of a bounded query."""
        return BatchWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return what writes the batches of a stream."""
        return StreamWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)


class BatchReader(DataSourceReader):
    """Reads what there is between two places of the log, as they are when it is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        options = self._options
        with options.client() as client:
            found = _Topics(client, options)
            start = found.starts(default="earliest")
            end = resolve(options.ending, found.bounds, "endingOffsets")
            return found.tasks(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's messages."""
        return _read(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on, a bounded number of messages a batch if that was asked for."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._target: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return where a stream without a checkpoint begins."""
        with self._options.client() as client:
            return to_json(_Topics(client, self._options).starts(default="latest"))

    def prepareForTriggerAvailableNow(self) -> None:
        """Note what there is now: the query ends when it has read that."""
        self._target = self._ends()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return how many messages a batch takes at most."""
        most = self._options.offsets_per_trigger_max
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends."""
        begun, end = from_json(start), self._target or self._ends()
        end = {
            topic: {p: max(stop, begun.get(topic, {}).get(p, 0)) for p, stop in partitions.items()}
            for topic, partitions in end.items()
        }
        if isinstance(limit, ReadMaxRows):
            end = limited(begun, end, limit.max_rows)
        return to_json(end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch."""
        with self._options.client() as client:
            return _Topics(client, self._options).tasks(from_json(start), from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's messages."""
        return _read(self._options, partition)

    def _ends(self) -> Offsets:
        with self._options.client() as client:
            found = _Topics(
                client, replace(self._options, include_deleted=False)
            )  # no end is there
            return resolve("latest", found.bounds, "endingOffsets")


class _Topics:
    """The topics of a query as the node has them now."""

    def __init__(self, client: Client, options: SourceOptions) -> None:
        self._client = client
        self._options = options
        self._source = NodeSource(client, include_deleted=options.include_deleted)
        self.bounds = {topic: self._wanted(topic) for topic in self._names()}

    def _names(self) -> Sequence[str]:
        if self._options.pattern is None:
            return self._options.topics
        names = [topic["name"] for topic in self._client.topics()]
        return [name for name in names if re.fullmatch(self._options.pattern, name)]

    def _wanted(self, topic: str) -> Mapping[int, Bounds]:
        chosen = self._options.partitions
        found = TABLES[self._options.table].bounds(self._source, topic)
        return {p: bounds for p, bounds in found.items() if chosen is None or p in chosen}

    def starts(self, *, default: str) -> Offsets:
        """Return where a query begins that has not begun yet."""
        since = self._options.starting_timestamp
        if since is None:
            return resolve(self._options.starting or default, self.bounds, "startingOffsets")
        return {
            topic: {
                p: _first(
                    self._client.read(
                        topic,
                        partition=p,
                        from_time=_time(since),
                        limit=1,
                        include_deleted=self._options.include_deleted,
                    )
                )
                for p in partitions
            }
            for topic, partitions in self.bounds.items()
        }

    def tasks(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the tasks that read from ``start`` up to ``end``; never none."""
        pieces = ranges_between(start, end, self._options.tasks_min)
        lanes = {topic: self._source.default_lane(topic) for topic in {p.topic for p in pieces}}
        return [Task(p, lanes[p.topic]) for p in pieces] or [Task(None, 0)]


def _first(piece: ReadBatch) -> int:
    return piece.frames[0].header.base_offset if piece.frames else piece.next


def _time(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def _schema(options: SourceOptions) -> pa.Schema:
    table = TABLES[options.table]
    return pa.schema([table.schema.field(name) for name in options.columns])


def _read(options: SourceOptions, task: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(task, Task)
    schema, table = _schema(options), TABLES[options.table]
    if task.piece is None:
        return
    topic, partition, start, end = task.piece
    with options.client() as client:
        source = NodeSource(client, include_deleted=options.include_deleted)
        for stretch in table.stretches(source, topic, partition, start, end):
            if stretch.missing and options.fail_on_data_loss:
                raise DamagedData(
                    f"{table.name} {stretch.missing} of {topic}, partition {partition}, are gone:"
                    " deleted by retention before they were read, or damaged;"
                    f"{_ARCHIVE_HINT if not options.include_deleted else ''}"
                    " set failOnDataLoss=false to go on without them"
                )
            if stretch.frames:
                batch = table.batch(topic, partition, stretch.frames, task.default_lane)
                yield rows_between(batch, table.position, start, end).select(schema.names)
