"""The rows of a slice, or a summary of a file, read from exported files: the work of one task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from goq.pipeline.arrow.schema import TIMESTAMP
from goq.pipeline.reports.audit.group_progress import (
    EventSummary,
    GroupRow,
    LogProgress,
    Restart,
    Row,
)
from goq.pipeline.reports.audit.slice_rows import (
    EVENT_KINDS,
    MESSAGE,
    NO_GROUP,
    NONE,
    Flags,
    Ints,
    SliceRows,
)
from goq.pipeline.reports.audit.slices import SliceFinding, findings_of

_KINDS = {name: number for number, name in enumerate(EVENT_KINDS, 1)}
_NAMES = ["event", "group"]
_COLUMNS = [*_NAMES, "offset", "sequence", "lease", "time", "due"]
_SUMMED = [*_NAMES, "sequence", "time"]
_RESTARTS = {"RESET", "GROUP_DELETED"}
_RARE = {"COMPACTED", "TRIMMED"} | _RESTARTS
_OF_RARE = [*_NAMES, "offset", "sequence", "time", "reason"]


class TableFile(NamedTuple):
    """A file of a table, and the log whose rows it has."""

    path: str
    topic: str
    partition: int


class RowGroup(NamedTuple):
    """A row group of a file, and its offsets from ``first`` up to ``end``."""

    path: str
    number: int
    rows: int
    first: int
    end: int


class FileSlice(NamedTuple):
    """Offsets of a log from ``first`` up to ``end``, and the row groups that may have some."""

    log: LogProgress
    first: int
    end: int
    messages: Sequence[RowGroup]
    events: Sequence[RowGroup]


def summary_of(file: TableFile) -> EventSummary:
    """Return what one file of events says of the progress of its log."""
    place = {"topic": file.topic, "partition": file.partition}
    counts: Counter[str | None] = Counter()
    bounds, rare = [], []
    with pq.ParquetFile(file.path, read_dictionary=_NAMES) as source:
        for index in range(source.num_row_groups):
            table = source.read_row_group(index, columns=_SUMMED, use_threads=False)
            if not table.num_rows:
                continue
            counts.update(_counts(table["group"]))
            sequence, time_us = table["sequence"], table["time"].cast(pa.int64())
            bounds.append((pc.min(sequence).as_py(), pc.max(time_us).as_py()))
            if not _RARE.isdisjoint(_counts(table["event"])):
                rows = source.read_row_group(index, columns=_OF_RARE, use_threads=False)
                rare += rows.filter(pc.is_in(rows["event"], pa.array(sorted(_RARE)))).to_pylist()
    told = {
        "first_sequence": min((first for first, _ in bounds), default=None),
        "last_us": max((last for _, last in bounds), default=None),
    }
    return EventSummary(
        [{**place, "group": group, "rows": count, **told} for group, count in counts.items()],
        [{**place, "gone_to": _gone_to(row)} for row in rare if row["event"] not in _RESTARTS],
        [
            {**place, "group": row["group"], "last": _restart(row)}
            for row in rare
            if row["event"] in _RESTARTS
        ],
    )


def group_rows_of(file: TableFile) -> list[Row]:
    """Return the rows of a file of groups, each as the progress of partitions wants it."""
    with pq.ParquetFile(file.path) as source:
        table = source.read(use_threads=False)
    times_us = table["time"].cast(pa.int64()).to_pylist()
    found: list[Row] = []
    for row, time_us in zip(table.to_pylist(), times_us, strict=True):
        start, end = row["start_offset"], row["end_offset"]
        last = (time_us, start, end, row["cursor"], row["leased"], row["lag"] + row["scheduled"])
        bounds = {"least_start": start, "most_start": start, "most_end": end}
        found.append({**row, **bounds, "last": GroupRow(*last)})
    return found


def _counts(names: pa.ChunkedArray) -> dict[str | None, int]:
    return {each["values"]: each["counts"] for each in names.value_counts().to_pylist()}


def _gone_to(row: Mapping[str, Any]) -> int:
    return int(row["reason"] if row["event"] == "COMPACTED" else row["offset"])


def _restart(row: Mapping[str, Any]) -> Restart:
    is_gone = row["event"] == "GROUP_DELETED"
    time_us = pa.scalar(row["time"], TIMESTAMP).cast(pa.int64()).as_py()
    end = None if is_gone or row["reason"] is None else int(row["reason"].removeprefix("end "))
    return Restart(row["sequence"], 0 if is_gone else row["offset"], time_us, is_gone, end)


def audited(numbers: Mapping[str, int], shown: int | None, some: FileSlice) -> list[SliceFinding]:
    """Audit a slice."""
    parts = [*_message_rows(some), *_event_rows(some, numbers)]
    if not parts:
        return []
    rows = SliceRows(*map(np.concatenate, zip(*parts, strict=True)))
    return list(findings_of(some.log, rows, shown))


def _message_rows(some: FileSlice) -> Iterator[SliceRows]:
    for table in _tables(some.messages, ["offset"]):
        offset = _in_slice(table["offset"].to_numpy(), some)[1]
        nothing = np.zeros(len(offset), np.int64)
        yield SliceRows(
            kind=np.full(len(offset), MESSAGE),
            group=np.full(len(offset), NO_GROUP),
            offset=offset,
            sequence=nothing,
            lease=nothing,
            time_us=nothing,
            due_us=nothing,
        )


def _event_rows(some: FileSlice, numbers: Mapping[str, int]) -> Iterator[SliceRows]:
    for table in _tables(some.events, _COLUMNS):
        chosen, offset = _in_slice(table["offset"].to_numpy(), some)
        yield SliceRows(
            kind=_codes(table["event"], _KINDS, 0)[chosen],
            group=_codes(table["group"], numbers, NO_GROUP)[chosen],
            offset=offset,
            sequence=table["sequence"].to_numpy()[chosen],
            lease=_numbers(table["lease"])[chosen],
            time_us=_numbers(table["time"])[chosen],
            due_us=_numbers(table["due"])[chosen],
        )


def _tables(groups: Sequence[RowGroup], columns: list[str]) -> Iterator[pa.Table]:
    """Yield row groups, one at a time: a slice may need few rows of each."""
    names = [name for name in _NAMES if name in columns]
    for path, each in groupby(groups, key=attrgetter("path")):
        with pq.ParquetFile(path, read_dictionary=names) as source:
            for group in each:
                yield source.read_row_group(group.number, columns=columns, use_threads=False)


def _in_slice(offset: Ints, some: FileSlice) -> tuple[Flags | slice, Ints]:
    """Return which rows are in the slice, and their offsets."""
    if len(offset) and some.first <= offset.min() and offset.max() < some.end:
        return slice(None), offset
    chosen = (offset >= some.first) & (offset < some.end)
    return chosen, offset[chosen]


def _numbers(column: pa.ChunkedArray) -> Ints:
    found: Ints = column.cast(pa.int64()).fill_null(NONE).to_numpy()
    return found


def _codes(column: pa.ChunkedArray, codes: Mapping[str, int], otherwise: int) -> Ints:
    """Return the number of each name, ``otherwise`` of null and of unknown names."""
    parts = []
    for chunk in column.chunks:
        of_name = np.array(
            [codes.get(n, otherwise) for n in chunk.dictionary.to_pylist()], np.int64
        )
        index = chunk.indices.fill_null(len(of_name)).to_numpy(zero_copy_only=False)
        parts.append(np.append(of_name, otherwise)[index])
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
