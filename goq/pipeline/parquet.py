"""Parquet files as Spark reads them best, one for each date of a piece."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_DAY_US = 86_400_000_000
_ROW_GROUP_ROWS = 131_072
_ROW_GROUP_BYTES = 64 * 2**20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Written(NamedTuple):
    """A finished file of one date."""

    date: str
    path: Path
    rows: int
    first_us: int
    last_us: int


class DatedWriter:
    """Writes batches into a file for each date (UTC) in their column ``time``.

    Files lie in ``directory`` until whoever made the writer gives them their places.
    """

    def __init__(self, directory: Path, stem: str, schema: pa.Schema, time: str) -> None:
        self._directory = directory
        self._stem = stem
        self._schema = schema
        self._time = time
        self._open: dict[int, _File] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch, each into the file of its date."""
        if not batch.num_rows:
            return
        times = np.asarray(batch.column(self._time).view(pa.int64()))
        first, last = int(times.min()) // _DAY_US, int(times.max()) // _DAY_US
        if first == last:
            self._file(first).add(batch, times)
            return
        days = times // _DAY_US
        for day in np.unique(days).tolist():
            rows = np.flatnonzero(days == day)
            self._file(day).add(batch.take(pa.array(rows)), times[rows])

    def _file(self, day: int) -> _File:
        file = self._open.get(day)
        if file is None:
            date = (_EPOCH + timedelta(days=day)).date().isoformat()
            path = self._directory / f"{self._stem}-{date}.parquet"
            file = self._open[day] = _File(path, date, self._schema)
        return file

    def finish(self) -> Iterator[Written]:
        """Close all files and tell what is in each, in order of date."""
        for _, file in sorted(self._open.items()):
            yield file.finish()

    def abandon(self) -> None:
        """Close and remove all files."""
        for file in self._open.values():
            file.abandon()


class _File:
    """A file of row groups: rows gather until one is full."""

    def __init__(self, path: Path, date: str, schema: pa.Schema) -> None:
        self._path = path
        self._date = date
        self._writer = _writer(path, schema)
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._rows = 0
        self._first_us, self._last_us = 2**63 - 1, -(2**63)

    def add(self, batch: pa.RecordBatch, times: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        self._rows += batch.num_rows
        self._first_us = min(self._first_us, int(times.min()))
        self._last_us = max(self._last_us, int(times.max()))
        if self._waiting_rows >= _ROW_GROUP_ROWS or self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._waiting.clear()
        self._waiting_rows = self._waiting_bytes = 0

    def finish(self) -> Written:
        if self._waiting:
            self._write_group()
        self._writer.close()
        return Written(self._date, self._path, self._rows, self._first_us, self._last_us)

    def abandon(self) -> None:
        self._writer.close()
        self._path.unlink(missing_ok=True)


_DICTIONARY = {"topic", "partition", "lane", "tenant", "producer", "event", "group", "consumer"}
_DELTA = {"offset", "timestamp", "time"}
_STATISTICS = {"topic", "partition", "offset", "timestamp", "key", "message_id", "event", "group"}


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    names = schema.names
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in names if name in _DICTIONARY],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in names if name in _DELTA},
        write_statistics=[name for name in names if name in _STATISTICS],
        write_page_index=True,
        write_page_checksum=True,
        store_schema=False,
    )
