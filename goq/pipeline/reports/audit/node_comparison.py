"""The comparison of exported messages with those of the node: every value, offset by offset.

Only messages that both have are compared. The lane is not: that of many messages is the topic's
default, which can be set anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from goq.pipeline.arrow.node_source import LogSource
from goq.pipeline.arrow.schema import MESSAGES
from goq.pipeline.arrow.tables import MESSAGES_TABLE
from goq.pipeline.reports.audit.file_rows import TableFile

_COLUMNS = [name for name in MESSAGES.names if name != "lane"]
_SCHEMA = pa.schema([MESSAGES.field(name) for name in _COLUMNS])
_BATCH_ROWS = 131_072


class NodeComparison(NamedTuple):
    """The files with a value that the node has otherwise, and how many messages were compared.

    ``gone`` are those that the node does not have any more.
    """

    faults: Sequence[tuple[str, str]]
    compared: int
    gone: int


def compare_with_node(source: LogSource, root: str, files: Iterable[TableFile]) -> NodeComparison:
    """Compare files of messages with what the node has; their paths begin with ``root``."""
    faults: list[tuple[str, str]] = []
    compared = gone = 0
    for file in files:
        found: list[tuple[int, str]] = []
        for rows in _rows(file.path):
            stored = _stored(source, file, rows)
            there = np.isin(_offsets(rows), _offsets(stored))
            compared += int(there.sum())
            gone += int((~there).sum())
            ours = rows.filter(pa.array(there))
            wanted = np.isin(_offsets(stored), _offsets(ours))
            found += _differences(ours, stored.filter(pa.array(wanted)))
        if found:
            offset, column = min(found)
            faults.append(
                (
                    file.path.removeprefix(root).lstrip("/"),
                    f"has another {column} of offset {offset} than the node",
                )
            )
    return NodeComparison(faults, compared, gone)


def _rows(path: str) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_BATCH_ROWS, columns=_COLUMNS):
            rows = pa.Table.from_batches([batch]).select(_COLUMNS).cast(_SCHEMA)
            yield rows.take(np.unique(_offsets(rows), return_index=True)[1])


def _stored(source: LogSource, file: TableFile, rows: pa.Table) -> pa.Table:
    """Return the messages of the node between the first and the last of the rows."""
    offsets = _offsets(rows)
    start, end = int(offsets.min()), int(offsets.max()) + 1
    found: list[pa.RecordBatch] = []
    for each in MESSAGES_TABLE.read(source, file.topic, file.partition, start, end):
        found += MESSAGES_TABLE.batches(file.topic, file.partition, each.frames, 0, _COLUMNS)
    return pa.Table.from_batches(found, _SCHEMA)


def _differences(ours: pa.Table, stored: pa.Table) -> Iterator[tuple[int, str]]:
    """Yield the first offset at which each column differs."""
    for name in _COLUMNS:
        one, other = ours[name], stored[name]
        if not one.equals(other):
            pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
            place = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
            if place is not None:
                yield ours["offset"][place].as_py(), name


def _offsets(table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = table["offset"].to_numpy()
    return found
