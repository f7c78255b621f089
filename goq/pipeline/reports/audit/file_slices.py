"""The slices of an exported folder: each task reads the row groups that may have its offsets.

The statistics of the row groups say which those are, so nothing is shuffled, and only few columns
are decoded. Spark merely hands out the tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Protocol, TypeVar

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from goq.pipeline.reports.audit.file_rows import (
    FileSlice,
    RowGroup,
    TableFile,
    audited,
    group_rows_of,
    summary_of,
)
from goq.pipeline.reports.audit.group_progress import (
    EventSummary,
    LogProgress,
    progress_of,
)
from goq.pipeline.reports.audit.slices import SHOWN, SliceFinding
from goq.pipeline.reports.report import Scope
from goq.units import format_time_us

_SLICE_ROWS = 2_000_000
_TASKS_MAX = 1_000
_NO_END = 2**62
_Place = tuple[str, int]
_In = TypeVar("_In")
_Out = TypeVar("_Out")


class FileTasks(Protocol):
    """A runner of work on each of some items."""

    def __call__(self, work: Callable[[_In], _Out], items: Sequence[_In], /) -> Iterable[_Out]:
        """Return the results in the order of the items."""
        ...


class SparkTasks:
    """Tasks of Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __call__(self, work: Callable[[_In], _Out], items: Sequence[_In], /) -> list[_Out]:
        """Return the results in the order of the items."""
        if not items:
            return []
        split = self._spark.sparkContext.parallelize(items, min(len(items), _TASKS_MAX))
        return split.map(work).collect()


class FileSlices:
    """The slices of files that this process and its tasks find at the same paths."""

    def __init__(
        self,
        tasks: FileTasks,
        messages: Sequence[TableFile],
        events: Sequence[TableFile],
        groups: Sequence[TableFile],
    ) -> None:
        self._tasks = tasks
        self._messages, self._times_us = _index(messages)
        self._events, _ = _index(events)
        counts = [
            {"topic": topic, "partition": partition, "rows": sum(each.rows for each in found)}
            for (topic, partition), found in self._messages.items()
        ]
        told = [EventSummary(), *tasks(summary_of, events)]
        summary = EventSummary(*(list(chain(*column)) for column in zip(*told, strict=True)))
        self.progress = progress_of(counts, summary, chain(*tasks(group_rows_of, groups)))

    def scope(self) -> Scope:
        """Return the messages that are audited."""
        topics = sorted({topic for topic, _ in self._messages})
        count, times_us = self.progress.message_count, self._times_us
        if not times_us:
            return Scope(topics, count, None, None)
        return Scope(topics, count, *map(format_time_us, (min(times_us), max(times_us))))

    def findings(self, shown: int | None = SHOWN) -> Iterator[SliceFinding]:
        """Yield what is found; each has at most ``shown`` offsets, all if None."""
        slices = [each for log in self.progress.logs.values() for each in self._slices(log)]
        return chain.from_iterable(
            self._tasks(partial(audited, self.progress.group_numbers, shown), slices)
        )

    def _slices(self, log: LogProgress) -> Iterator[FileSlice]:
        place = log.topic, log.partition
        messages, events = self._messages.get(place, []), self._events.get(place, [])
        borders = [-_NO_END, *cuts([*messages, *events]), _NO_END]
        for first, end in pairwise(borders):
            some = [
                [each for each in found if each.first < end and each.end > first]
                for found in (messages, events)
            ]
            if any(some):
                yield FileSlice(log, first, end, *some)


def _index(files: Iterable[TableFile]) -> tuple[dict[_Place, list[RowGroup]], list[int]]:
    """Return the row groups of each log, and all their least and greatest ``timestamp``.

    A row group without statistics may have any offset.
    """
    found: dict[_Place, list[RowGroup]] = defaultdict(list)
    times_us: list[int] = []
    for file in files:
        metadata = pq.read_metadata(file.path)
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            columns = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
            first, last = _bounds(columns["offset"]) or (-_NO_END, _NO_END)
            found[file.topic, file.partition].append(
                RowGroup(file.path, index, group.num_rows, first, last + 1)
            )
            if "timestamp" in columns:
                times_us += _bounds(columns["timestamp"]) or ()
    return found, times_us


def _bounds(column: pq.ColumnChunkMetaData) -> tuple[int, int] | None:
    found = column.statistics
    if found is None or not found.has_min_max:
        return None
    return found.min_raw, found.max_raw


def cuts(groups: Sequence[RowGroup]) -> list[int]:
    """Return where to cut offsets, so that slices have about equally many rows.

    The offsets of a row group are taken to be spread evenly.
    """
    if not groups:
        return []
    rows, firsts, ends = np.array([(g.rows, g.first, g.end) for g in groups], np.int64).T
    places = np.unique(np.concatenate([firsts, ends]))
    density = np.zeros(len(places))
    np.add.at(density, np.searchsorted(places, firsts), rows / (ends - firsts))
    np.subtract.at(density, np.searchsorted(places, ends), rows / (ends - firsts))
    before = np.concatenate([[0.0], np.cumsum(np.cumsum(density)[:-1] * np.diff(places))])
    count = -(-int(rows.sum()) // _SLICE_ROWS)
    shares = np.arange(1, count) * (before[-1] / count)
    return sorted({int(at) for at in np.interp(shares, before, places)})
