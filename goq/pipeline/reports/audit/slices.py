"""The slices of all tables, each audited by one Spark task.

Rows are shuffled once, by partition and range of offsets, without their values. What is found comes
back as counts and the first offsets of each kind, so the driver needs little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from goq.pipeline.reports.audit.group_progress import LogProgress, TableProgress
from goq.pipeline.reports.audit.slice_audit import Found, SliceAudit
from goq.pipeline.reports.audit.slice_rows import (
    EVENT_KINDS,
    MESSAGE,
    NO_GROUP,
    NONE,
    Ints,
    SliceRows,
)

SHOWN = 100
"""So many offsets of each kind are named; all are counted."""

_SLICE_ROWS = 2_000_000
_SLICE_OFFSETS_MIN = 4096
_TASKS_MAX = 200  # above it Spark sorts what it shuffles
_COLUMNS = ("kind", "group", "offset", "sequence", "lease", "time_us", "due_us")
_FOUND = pa.schema(
    [
        ("what", pa.string()),
        ("log", pa.int64()),
        ("group", pa.int64()),
        ("name", pa.string()),
        ("count", pa.int64()),
        ("offsets", pa.list_(pa.int64())),
    ]
)
_FOUND_DDL = "what STRING, log LONG, `group` LONG, name STRING, count LONG, offsets ARRAY<LONG>"
_Finder = Callable[[LogProgress, SliceRows], Iterable[Found]]


def found_in_slices(
    messages: DataFrame, events: DataFrame, progress: TableProgress, shown: int | None = SHOWN
) -> DataFrame:
    """Return a row for each slice and finding: what, log, group, name, count, offsets.

    ``known`` are the first and the last offset of a slice that are in files, ``gap`` pairs of
    offsets between which none is. At most ``shown`` offsets are in a row, all if None.
    """
    count = progress.message_count + progress.event_count
    tasks = max(1, min(_TASKS_MAX, -(-count // _SLICE_ROWS)))
    of_message = max(1, count // max(1, progress.message_count))
    step = max(_SLICE_OFFSETS_MIN, _SLICE_ROWS // of_message)
    rows = _narrow(messages, events, progress).withColumn(
        "slice", f.floor(f.col("offset") / step).cast("bigint")
    )
    audited = partial(_audit_task, progress.logs, shown)
    return rows.repartition(tasks, "log", "slice").mapInArrow(audited, _FOUND_DDL)


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
    of_messages = messages.join(numbered, ["topic", "partition"]).select(
        "log", *_columns(kind=MESSAGE, group=NO_GROUP, offset=f.col("offset"))
    )
    kinds = f.array(*map(f.lit, EVENT_KINDS))
    of_events = (
        events.join(numbered, ["topic", "partition"])
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
    for name in _COLUMNS:
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
        rows = SliceRows(*(columns[name][chosen] for name in _COLUMNS))
        yield _batch(number, SliceAudit(logs[number], rows), shown)


def _batch(number: int, audit: SliceAudit, shown: int | None) -> pa.RecordBatch:
    found = list(audit.findings())
    known = audit.known()
    gaps = np.flatnonzero(np.diff(known) > 1)
    pairs = np.stack((known[gaps] + 1, known[gaps + 1]), axis=1).ravel()
    rows: list[dict[str, Any]] = [
        _row(number, Found("gap", NO_GROUP, "", pairs), None if shown is None else 2 * shown),
        *(_row(number, each, shown) for each in found),
    ]
    if len(known):
        rows.append(_row(number, Found("known", NO_GROUP, "", known[[0, -1]]), None))
    rows[0]["count"] = int((pairs[1::2] - pairs[::2]).sum())
    return pa.RecordBatch.from_pylist(rows, schema=_FOUND)


def _row(log: int, found: Found, shown: int | None) -> dict[str, Any]:
    what, group, name, offsets = found
    named: Ints = offsets if shown is None else offsets[:shown]
    told = {"what": what, "log": log, "group": group, "name": name, "count": len(offsets)}
    return {**told, "offsets": named.tolist()}
