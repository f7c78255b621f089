"""Parquet files with row groups of the size that Spark reads best, one for each date of a piece."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from goq.frame.checksum import crc32c
from goq.pipeline.export.errors import explained

_DAY_US = 86_400_000_000
_ROW_GROUP_ROWS = 131_072
_ROW_GROUP_BYTES = 64 * 2**20
_CHUNK_BYTES = 2**22
_OPEN_MAX = 4  # a piece may have thousands of dates, and an open file up to a row group in memory
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WrittenFile(NamedTuple):
    """A finished file of one date, at ``path`` of its staging filesystem."""

    date: str
    path: str
    rows: int
    bytes: int
    first_us: int
    last_us: int
    crc32c: int | None = None
    """The checksum of its bytes, on local filesystems."""


def checksum(files: fs.FileSystem, path: str) -> int | None:
    """Return the CRC-32C of a file, None if it is not local: reading it again would cost a copy."""
    if not isinstance(files, fs.LocalFileSystem):
        return None
    crc = 0
    with files.open_input_stream(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc = crc32c(chunk, crc)
    return crc


class DatedWriter:
    """Writes batches into one file for each date (UTC) of the column ``time``.

    Few files are open at a time. A log is in the order of its times, unless a clock was set back:
    rows of a date whose file is closed already have it written again.

    Files stay in ``staging`` until the owner of the writer publishes them. Failures raise the
    errors of :func:`~goq.pipeline.export.errors.explained`.
    """

    def __init__(self, staging: Staging, stem: str, schema: pa.Schema, time: str) -> None:
        self._staging = staging
        self._stem = stem
        self._schema = schema
        self._time = time
        self._open: dict[int, _File] = {}  # the one used last is the last
        self._closed: dict[int, WrittenFile] = {}
        self._made = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch, each into the file of its date."""
        if not batch.num_rows:
            return
        times = _times_us(batch, self._time)
        first, last = int(times.min()) // _DAY_US, int(times.max()) // _DAY_US
        if first == last:
            self._file(first).add(batch, times)
            return
        days = times // _DAY_US
        for day in np.unique(days).tolist():
            rows = np.flatnonzero(days == day)
            self._file(day).add(batch.take(pa.array(rows)), times[rows])

    def _file(self, day: int) -> _File:
        file = self._open.pop(day, None)
        if file is None:
            while len(self._open) >= _OPEN_MAX:
                self._close(next(iter(self._open)))
            file = self._opened(day)
        self._open[day] = file
        return file

    def _opened(self, day: int) -> _File:
        """Return a new file, with the rows of a closed one of the date."""
        date = (_EPOCH + timedelta(days=day)).date().isoformat()
        path = f"{self._staging.directory}/{self._stem}-{date}-{self._made}.parquet"
        self._made += 1
        file = _File(self._staging.filesystem, path, date, self._schema)
        if day in self._closed:
            before = self._closed[day].path
            with explained(before), self._staging.filesystem.open_input_file(before) as opened:
                for batch in pq.ParquetFile(opened).iter_batches():
                    file.add(batch.cast(self._schema), _times_us(batch, self._time))
            self._staging.remove(before)
            del self._closed[day]
        return file

    def _close(self, day: int) -> None:
        self._closed[day] = self._open[day].finish()
        del self._open[day]

    def finish(self) -> Iterator[WrittenFile]:
        """Close all files and return them in order of date."""
        for day in list(self._open):
            self._close(day)
        for _, file in sorted(self._closed.items()):
            yield file

    def abandon(self) -> None:
        """Close and remove all files."""
        for file in self._open.values():
            file.abandon()
        for written in self._closed.values():
            with suppress(OSError):  # the next export empties the staging folder
                self._staging.filesystem.delete_file(written.path)


Times = np.ndarray[tuple[int], np.dtype[np.int64]]


def _times_us(batch: pa.RecordBatch, name: str) -> Times:
    return np.asarray(batch.column(name).view(pa.int64()))


class _File:
    """A file of row groups; rows are buffered until a group is full."""

    def __init__(self, files: fs.FileSystem, path: str, date: str, schema: pa.Schema) -> None:
        self._files = files
        self._path = path
        self._date = date
        with explained(path):
            self._writer = _writer(files, path, schema)
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._rows = 0
        self._first_us, self._last_us = 2**63 - 1, -(2**63)

    def add(self, batch: pa.RecordBatch, times: Times) -> None:
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
        with explained(self._path):
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._waiting.clear()
        self._waiting_rows = self._waiting_bytes = 0

    def finish(self) -> WrittenFile:
        if self._waiting:
            self._write_group()
        with explained(self._path):
            self._writer.close()
            size_bytes = self._files.get_file_info(self._path).size
            if size_bytes is None:  # a store that does not list at once what it has taken
                raise FileNotFoundError(errno.ENOENT, "it was written, and is not there")
            crc = checksum(self._files, self._path)
        times = (self._first_us, self._last_us)
        return WrittenFile(self._date, self._path, self._rows, size_bytes, *times, crc)

    def abandon(self) -> None:
        try:
            self._writer.close()
        except OSError:  # no room for the footer
            pass
        try:
            self._files.delete_file(self._path)
        except OSError:  # the next export empties the staging folder
            pass


_DICTIONARY = {"topic", "partition", "lane", "tenant", "producer", "event", "group", "consumer"}
_DELTA = {"offset", "timestamp", "time"}
_STATISTICS = {
    *("topic", "partition", "offset", "timestamp", "time", "sequence"),
    *("key", "message_id", "event", "group"),
}


def _writer(files: fs.FileSystem, path: str, schema: pa.Schema) -> pq.ParquetWriter:
    names = schema.names
    return pq.ParquetWriter(
        path,
        schema,
        filesystem=files,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in names if name in _DICTIONARY],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in names if name in _DELTA},
        write_statistics=[name for name in names if name in _STATISTICS],
        write_page_index=True,
        write_page_checksum=True,
        store_schema=False,
    )


class Staging(NamedTuple):
    """A staging folder; pickled into Spark's tasks."""

    filesystem: fs.FileSystem
    directory: str

    def empty(self) -> None:
        """Create the folder, without the leftovers of an interrupted run."""
        with explained(self.directory):
            self.filesystem.create_dir(self.directory, recursive=True)
            self.filesystem.delete_dir_contents(self.directory)

    def remove(self, path: str) -> None:
        """Remove a staged file."""
        with explained(path):
            self.filesystem.delete_file(path)
