"""Arrow rows as frames to publish, each for one partition.

Columns are used whole: the partition of each row and the end of each frame are computed on numeric
columns. Only keys are hashed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from goq import limits
from goq.config.topic import TopicSettings
from goq.errors import InvalidInput
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.hashes import partition_of
from goq.model import Header
from goq.pipeline.arrow.schema import TIMESTAMP

FRAME_BYTES: Final = limits.MIB
_ROW_BYTES: Final = 64  # of a message beside its value, key and headers
_HEADER_BYTES: Final = 8


class FrameTarget(NamedTuple):
    """The topic that rows are written to: partitions, lanes, messages a frame at most."""

    partitions: int
    lanes: TopicSettings
    frame_messages_max: int


class RowShare(NamedTuple):
    """Rows that become one frame of a partition."""

    partition: int
    rows: npt.NDArray[np.int64]


def shares_of(
    batch: pa.RecordBatch, target: FrameTarget, keyless_to: int
) -> Iterator[list[RowShare]]:
    """Yield the rows of each frame, for one request at most one frame of each partition.

    A frame has at most ``frame_messages_max`` messages and about ``FRAME_BYTES``, but at least one
    message. The rows of a partition keep their order. Raises ``InvalidInput`` for a partition that
    does not exist.
    """
    places = _places(batch, target.partitions, keyless_to)
    sizes = _sizes(batch)
    frames = [_frames(places, partition, sizes, target) for partition in np.unique(places).tolist()]
    for shares in zip_longest(*frames):
        yield from _requests([share for share in shares if share is not None], sizes)


def frame_of(
    batch: pa.RecordBatch, rows: npt.NDArray[np.int64], target: FrameTarget, producer: ProducerMark
) -> bytes:
    """Return rows as a frame; raise ``InvalidInput`` naming the invalid column."""
    part = batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))
    return encode_frame(_columns(part, target.lanes), producer=producer)


def _requests(shares: Sequence[RowShare], sizes: npt.NDArray[np.int64]) -> Iterator[list[RowShare]]:
    """Yield shares grouped into requests of bounded size."""
    request: list[RowShare] = []
    size_bytes = 0
    for share in shares:
        share_bytes = int(sizes[share.rows].sum())
        if request and size_bytes + share_bytes > 4 * FRAME_BYTES:
            yield request
            request, size_bytes = [], 0
        request.append(share)
        size_bytes += share_bytes
    if request:
        yield request


def _frames(
    places: npt.NDArray[np.int64], partition: int, sizes: npt.NDArray[np.int64], target: FrameTarget
) -> Iterator[RowShare]:
    """Yield the rows of each frame of a partition."""
    rows = np.flatnonzero(places == partition)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes[rows])])
    start = 0
    while start < len(rows):
        fits = int(np.searchsorted(before, before[start] + FRAME_BYTES, "right")) - 1
        end = min(max(fits, start + 1), start + target.frame_messages_max)
        yield RowShare(partition, rows[start:end])
        start = end


def _places(batch: pa.RecordBatch, partitions: int, keyless_to: int) -> npt.NDArray[np.int64]:
    """Return the partition of each row: its own, else by its key, else ``keyless_to``."""
    places = np.full(batch.num_rows, keyless_to, np.int64)
    keys = _column(batch, "key")
    if keys is not None and keys.null_count < len(keys):
        by_key = [
            keyless_to if key is None else partition_of(key, partitions)
            for key in keys.cast(pa.binary()).to_pylist()
        ]
        places = np.array(by_key, np.int64)
    named = _column(batch, "partition")
    if named is None or named.null_count == len(named):
        return places
    _check_range(named, partitions, "partition")
    chosen = pc.coalesce(named.cast(pa.int64()), pa.array(places))
    return np.asarray(chosen.to_numpy(zero_copy_only=False), np.int64)


def _sizes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the approximate size of each row in a frame, in bytes."""
    sizes = np.full(batch.num_rows, _ROW_BYTES, np.int64)
    for name in ("key", "value"):
        column = _column(batch, name)
        if column is not None:
            sizes += _lengths(column)
    headers = _column(batch, "headers")
    if headers is not None:
        pairs = _pairs(headers)
        each = _lengths(pairs.field("key")) + _lengths(pairs.field("value")) + _HEADER_BYTES
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(each)])
        ends = before[_bounds(headers)]
        sizes += ends[1:] - ends[:-1]
    return sizes


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    found = pc.fill_null(pc.binary_length(column), 0)
    return np.asarray(found.to_numpy(zero_copy_only=False), np.int64)


def _columns(part: pa.RecordBatch, lanes: TopicSettings) -> Columns:
    return Columns(
        values=_binary(part, "value") or [None] * part.num_rows,
        keys=_binary(part, "key"),
        headers=_headers(part),
        deliver_at_ms=_deliver_at_ms(part),
        tenants=_tenants(part),
        lanes=_lanes(part, lanes),
    )


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    return batch.column(name) if name in batch.schema.names else None


def _binary(part: pa.RecordBatch, name: str) -> list[bytes | None] | None:
    """Return a column of bytes or text; None if it is missing or all null."""
    column = _column(part, name)
    if column is None or column.null_count == len(column):
        return None
    found: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return found


def _tenants(part: pa.RecordBatch) -> list[str | None] | None:
    column = _column(part, "tenant")
    if column is None or column.null_count == len(column):
        return None
    found: list[str | None] = column.to_pylist()
    return found


def _headers(part: pa.RecordBatch) -> list[Sequence[Header]] | None:
    column = _column(part, "headers")
    if column is None:
        return None
    pairs = _pairs(column)
    if not len(pairs):
        return None
    names, values = pairs.field("key"), pairs.field("value")
    if pairs.null_count or names.null_count or values.null_count:
        raise InvalidInput("a header has a key and a value, neither of them null", field="headers")
    flat = list(zip(names.to_pylist(), values.cast(pa.binary()).to_pylist(), strict=True))
    return [flat[start:end] for start, end in pairwise(_bounds(column).tolist())]


def _pairs(headers: pa.Array) -> pa.StructArray:
    """Return the headers of all rows, flattened, without those of null rows."""
    return headers.flatten()


def _bounds(headers: pa.Array) -> npt.NDArray[np.int64]:
    """Return the start of each row's headers in ``_pairs``, and the end."""
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(counts, np.int64))])


def _deliver_at_ms(part: pa.RecordBatch) -> list[int] | None:
    """Return times in milliseconds, rounded up so that no delivery is early."""
    column = _column(part, "deliver_at")
    if column is None or column.null_count == len(column):
        return None
    times_us = pc.fill_null(column.cast(_zoned(column.type)).cast(pa.int64()), 0)
    times_ms = -(-np.asarray(times_us.to_numpy(zero_copy_only=False), np.int64) // 1000)
    if times_ms.min() < 0 or times_ms.max() > limits.TIME_MS_MAX:
        raise InvalidInput("a time is from 1970 to 9999", field="deliver_at")
    found: list[int] = times_ms.tolist()
    return found


def _zoned(kind: pa.DataType) -> pa.DataType:
    return TIMESTAMP if kind.tz is not None else pa.timestamp("us")


def _lanes(part: pa.RecordBatch, lanes: TopicSettings) -> list[int] | None:
    numbers, names = _column(part, "lane"), _column(part, "priority")
    if numbers is not None and numbers.null_count < len(numbers):
        _check_range(numbers, len(lanes.lanes) or limits.LANES_MAX, "lane")
        found: list[int] = pc.fill_null(numbers.cast(pa.int64()), lanes.default_lane).to_pylist()
        return found
    if names is not None and names.null_count < len(names):
        known: dict[str | None, int] = {None: lanes.default_lane}
        for name in pc.unique(names).to_pylist():
            if name is not None:
                known[name] = lanes.lane(name, field="priority")
        return [known[name] for name in names.to_pylist()]
    return None


def _check_range(column: pa.Array, count: int, field: str) -> None:
    bounds: dict[str, Any] = pc.min_max(column).as_py()
    for number in bounds.values():
        if not 0 <= number < count:
            raise InvalidInput(
                f"there is no {field} {number}; there are 0 to {count - 1}", field=field
            )
