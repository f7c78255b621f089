"""The slices of tables that only Spark can read: behind a URI, or made by a program.

Rows are shuffled once, by partition and range of offsets, without their values. A folder is read
much faster by :mod:`~goq.pipeline.reports.audit.file_slices`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from goq.pipeline.reports.audit.group_progress import (
    EventSummary,
    LogProgress,
    Row,
    TableProgress,
    progress_of,
)
from goq.pipeline.reports.audit.slice_rows import (
    EVENT_KINDS,
    MESSAGE,
    NO_GROUP,
    NONE,
    SliceRows,
)
from goq.pipeline.reports.audit.slices import SHOWN, SliceFinding, findings_of
from goq.pipeline.reports.report import Scope, scope_of

_SLICE_ROWS = 2_000_000
_SLICE_OFFSETS_MIN = 4096
_TASKS_MAX = 200  # above it Spark sorts what it shuffles
_LOG = ("topic", "partition")
_FOUND = pa.schema(
    [
        ("what", pa.string()),
        ("log", pa.int64()),
        ("group", pa.int64()),
        ("name", pa.string()),
        ("times", pa.int64()),
        ("offsets", pa.list_(pa.int64())),
    ]
)
_FOUND_DDL = "what STRING, log LONG, `group` LONG, name STRING, times LONG, offsets ARRAY<LONG>"


class FrameSlices:
    """The slices of three frames."""

    def __init__(self, messages: DataFrame, events: DataFrame, groups: DataFrame) -> None:
        self._messages = messages
        self._events = events
        counts = messages.groupBy(*_LOG).agg(f.count("*").alias("rows")).collect()
        self.progress = progress_of(counts, _summary(events), _group_rows(groups))

    def scope(self) -> Scope:
        """Return the messages that are audited."""
        return scope_of(self._messages)

    def findings(self, shown: int | None = SHOWN) -> Iterator[SliceFinding]:
        """Yield what is found; each has at most ``shown`` offsets, all if None."""
        progress = self.progress
        count = progress.message_count + progress.event_count
        tasks = max(1, min(_TASKS_MAX, -(-count // _SLICE_ROWS)))
        of_message = max(1, count // max(1, progress.message_count))
        step = max(_SLICE_OFFSETS_MIN, _SLICE_ROWS // of_message)
        rows = _narrow(self._messages, self._events, progress).withColumn(
            "slice", f.floor(f.col("offset") / step).cast("bigint")
        )
        audited = partial(_audit_task, progress.logs, shown)
        found = rows.repartition(tasks, "log", "slice").mapInArrow(audited, _FOUND_DDL)
        return (SliceFinding(*row) for row in found.collect())


def _summary(events: DataFrame) -> EventSummary:
    logs = events.groupBy(*_LOG, "group").agg(
        f.count("*").alias("rows"),
        f.min("sequence").alias("first_sequence"),
        f.max(f.unix_micros("time")).alias("last_us"),
    )
    gone_to = f.when(f.col("event") == "COMPACTED", f.col("reason").cast("bigint")).otherwise(
        f.col("offset")
    )
    ends = events.where("event in ('COMPACTED', 'TRIMMED')").groupBy(*_LOG)
    is_gone = f.col("event") == "GROUP_DELETED"
    offset = f.when(is_gone, f.lit(0)).otherwise(f.col("offset"))
    last = f.struct(
        f.col("sequence"),
        offset.cast("bigint").alias("offset"),
        f.unix_micros("time").alias("time_us"),
        is_gone.alias("is_gone"),
        f.regexp_extract("reason", r"^end (\d+)$", 1).try_cast("bigint").alias("end_offset"),
    )
    restarts = events.where("event in ('RESET', 'GROUP_DELETED')").groupBy(*_LOG, "group")
    return EventSummary(
        logs.collect(),
        ends.agg(f.max(gone_to).alias("gone_to")).collect(),
        restarts.agg(f.max_by(last, "sequence").alias("last")).collect(),
    )


def _group_rows(groups: DataFrame) -> Sequence[Row]:
    last = f.struct(
        f.unix_micros("time").alias("time_us"),
        *("start_offset", "end_offset", "cursor", "leased"),
        (f.col("lag") + f.col("scheduled")).alias("unfinished"),
    )
    found = groups.groupBy(*_LOG, "group").agg(
        f.min("start_offset").alias("least_start"),
        f.max("start_offset").alias("most_start"),
        f.max("end_offset").alias("most_end"),
        f.max_by(last, "time").alias("last"),
    )
    return found.collect()


def _narrow(messages: DataFrame, events: DataFrame, progress: TableProgress) -> DataFrame:
    """Return messages and events as numbers."""
    spark = messages.sparkSession
    logs = [(log.topic, log.partition, log.number) for log in progress.logs.values()]
    numbered = f.broadcast(spark.createDataFrame(logs, "topic STRING, partition INT, log LONG"))
    names = f.broadcast(
        spark.createDataFrame(
            list(progress.group_numbers.items()), "`group` STRING, group_number LONG"
        )
    )
    of_messages = messages.join(numbered, [*_LOG]).select(
        "log", *_columns(kind=MESSAGE, group=NO_GROUP, offset=f.col("offset"))
    )
    kinds = f.array(*map(f.lit, EVENT_KINDS))
    of_events = (
        events.join(numbered, [*_LOG])
        .join(names, "group", "left")
        .select(
            "log",
            *_columns(
                kind=f.array_position(kinds, f.col("event")),
                group=f.coalesce("group_number", f.lit(NO_GROUP)),
                offset=f.col("offset"),
                sequence=f.col("sequence"),
                lease=f.coalesce("lease", f.lit(NONE)),
                time_us=f.unix_micros("time"),
                due_us=f.coalesce(f.unix_micros("due"), f.lit(NONE)),
            ),
        )
    )
    return of_messages.union(of_events)


def _columns(**given: Column | int) -> Iterator[Column]:
    for name in SliceRows._fields:
        value = given.get(name, 0)
        column = value if isinstance(value, Column) else f.lit(value)
        yield column.cast("bigint").alias(name)


def _audit_task(
    logs: dict[int, LogProgress], shown: int | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Audit the slices of a task's rows."""
    found = list(batches)
    if not found:  # more tasks than slices
        return
    table = pa.Table.from_batches(found)
    del found
    columns = {name: table.column(name).to_numpy() for name in table.column_names}
    del table
    order = np.lexsort((columns["slice"], columns["log"]))
    log, part = columns["log"][order], columns["slice"][order]
    cuts = np.flatnonzero((np.diff(log) != 0) | (np.diff(part) != 0)) + 1
    for chosen in np.split(order, cuts):
        number = int(columns["log"][chosen[0]])
        rows = SliceRows(*(columns[name][chosen] for name in SliceRows._fields))
        told = [finding._asdict() for finding in findings_of(logs[number], rows, shown)]
        yield pa.RecordBatch.from_pylist(told, schema=_FOUND)
