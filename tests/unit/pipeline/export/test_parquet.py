"""A piece of a log may have rows of thousands of dates, in any order."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from goq.errors import Unavailable
from goq.pipeline.arrow.schema import TIMESTAMP
from goq.pipeline.export import parquet
from goq.pipeline.export.destination import LocalDestination
from goq.pipeline.export.parquet import DatedWriter

DAY_US = 86_400_000_000
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIMESTAMP, nullable=False),
        pa.field("lane", pa.int16()),
    ]
)


def open_files(folder: Path) -> int:
    links = Path("/proc/self/fd")
    targets = [os.readlink(each) for each in links.iterdir() if os.path.lexists(each)]
    return sum(str(folder) in target for target in targets)


def rows(offset: int, days: Sequence[int]) -> pa.RecordBatch:
    columns = [
        range(offset, offset + len(days)),
        [day * DAY_US for day in days],
        [day % 3 or None for day in days],
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def test_few_files_are_open_however_many_dates_there_are(tmp_path: Path) -> None:
    staging = LocalDestination(tmp_path).staging("messages", "orders")
    staging.empty()
    writer = DatedWriter(staging, "0-0-100", SCHEMA, "timestamp")
    most = 0
    for day in range(100):
        writer.add(rows(day, [day]))
        most = max(most, open_files(tmp_path))
    assert [file.rows for file in writer.finish()] == [1] * 100
    assert 1 <= most <= 4


@pytest.mark.parametrize("seed", range(3))
def test_dates_that_come_back_have_all_their_rows_in_one_file(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    staging = LocalDestination(tmp_path).staging("messages", "orders")
    staging.empty()
    writer = DatedWriter(staging, "0-0-200", SCHEMA, "timestamp")
    days = [rng.randrange(-10, 10) for _ in range(200)]
    for offset in range(0, len(days), 4):
        writer.add(rows(offset, days[offset : offset + 4]))
    found = list(writer.finish())
    assert [file.date for file in found] == sorted({file.date for file in found})
    assert {file.first_us for file in found} == {day * DAY_US for day in days}
    for file in found:
        table = pq.ParquetFile(file.path).read()
        assert table.schema.equals(SCHEMA)
        wanted = [n for n, day in enumerate(days) if day * DAY_US == file.first_us]
        assert table["offset"].to_pylist() == wanted
        assert file.rows == len(wanted)
        assert file.last_us == file.first_us
    assert len(list(Path(staging.directory).iterdir())) == len(found)


def test_what_is_abandoned_leaves_no_file(tmp_path: Path) -> None:
    staging = LocalDestination(tmp_path).staging("messages", "orders")
    staging.empty()
    writer = DatedWriter(staging, "0-0-10", SCHEMA, "timestamp")
    for day in range(10):
        writer.add(rows(day, [day]))
    writer.abandon()
    assert not list(Path(staging.directory).iterdir())


def test_a_file_that_its_store_does_not_have_is_not_taken_for_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = LocalDestination(tmp_path).staging("messages", "orders")
    staging.empty()
    writer = DatedWriter(staging, "0-0-1", SCHEMA, "timestamp")
    writer.add(rows(0, [0]))
    monkeypatch.setattr(parquet, "checksum", lambda _files, _path: None)  # as of a store
    for path in Path(staging.directory).iterdir():
        path.unlink()
    with pytest.raises(Unavailable, match="it was written, and is not there"):
        list(writer.finish())
