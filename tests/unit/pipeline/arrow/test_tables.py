"""Rows of frames: bounded in what they unpack to, cut exactly, and copied only where they must."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from goq import limits
from goq.frame.encoder import Columns, encode_frame
from goq.frame.header import HEADER_BYTES, parse_header, stamp
from goq.frame.view import FrameView
from goq.pipeline.arrow.tables import MESSAGES_TABLE, rows_between

_BOUND = st.none() | st.integers(-2, 12)


@given(st.lists(st.integers(0, 10), max_size=20), _BOUND, _BOUND)
def test_rows_between_are_those_that_a_filter_leaves(
    numbers: list[int], low: int | None, high: int | None
) -> None:
    for column in (pa.array(numbers, pa.int64()), pa.array(numbers, pa.timestamp("us", "UTC"))):
        rows = [f"row {row}" for row in range(len(numbers))]
        batch = pa.RecordBatch.from_arrays([column, pa.array(rows, pa.string())], ["n", "row"])
        found = rows_between(batch, "n", low, high)
        found.validate(full=True)
        assert found.column("row").to_pylist() == [
            row
            for row, number in zip(rows, numbers, strict=True)
            if (low is None or number >= low) and (high is None or number < high)
        ]


def test_rows_that_stand_side_by_side_are_not_copied() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(range(1000), pa.int64())], ["n"])
    found = rows_between(batch, "n", 10, 900)
    assert found.column("n").buffers()[1].address == batch.column("n").buffers()[1].address


def _frame(offset: int, values: list[bytes], *, compress: bool) -> FrameView:
    data = encode_frame(Columns(values), compress=compress)
    header = stamp(parse_header(data), base_offset=offset, append_time_us=1, leader_epoch=1)
    return FrameView.parse(header.pack() + data[HEADER_BYTES:])


def test_frames_that_unpack_to_much_become_rows_a_few_at_a_time() -> None:
    large = limits.ROWS_UNPACKED_BYTES // 4
    frames = [_frame(number, [bytes(large)], compress=True) for number in range(10)]
    assert sum(view.header.frame_bytes for view in frames) < large // 100
    sizes, offsets = [], []
    for batch in MESSAGES_TABLE.batches("orders", 0, frames, 1):
        sizes.append(batch.nbytes)
        offsets += batch.column("offset").to_pylist()
        assert len(frames) == 10 - len(offsets)
    assert offsets == list(range(10))
    assert max(sizes) <= limits.ROWS_UNPACKED_BYTES
    assert len(sizes) == 4


def test_frames_that_unpack_to_little_become_rows_together() -> None:
    frames = [_frame(number, [b"value"], compress=number % 2 == 0) for number in range(10)]
    [batch] = MESSAGES_TABLE.batches("orders", 0, frames, 1)
    assert batch.column("offset").to_pylist() == list(range(10))
    assert list(MESSAGES_TABLE.batches("orders", 0, [], 1)) == []
