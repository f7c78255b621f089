"""Frames as Arrow record batches, without a loop over messages.

A frame's columns have Arrow's layout. The columns of several frames are concatenated: one copy of
the bytes, and a constant cost a frame. The caller bounds a batch: a column's data must stay below
2 GiB, which holds for frames of 512 MiB in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from goq.frame.body import BytesColumn
from goq.frame.encoder import NO_TENANT
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.pipeline.arrow.schema import HEADERS, MESSAGES, TIMESTAMP
from goq.pipeline.arrow.text_columns import numbered, repeated

_Counts = npt.NDArray[np.int64]


def messages_batch(
    topic: str,
    partition: int,
    frames: Sequence[FrameView],
    *,
    default_lane: int,
    columns: Sequence[str] = MESSAGES.names,
) -> pa.RecordBatch:
    """Return the messages of one partition's frames, in order, as rows of ``MESSAGES``.

    ``default_lane`` is the lane of frames without a lane column. Compacted messages have no row.
    Only the ``columns`` are made: what they leave out costs nothing.
    """
    counts = np.array([view.header.message_count for view in frames], np.int64)
    rows = int(counts.sum())
    make: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: _bytes(frames, lambda view: (view.payload.keys, view.payload.key_validity)),
        "value": lambda: _bytes(
            frames, lambda view: (view.payload.values, view.payload.value_validity)
        ),
        "topic": lambda: repeated(topic, rows),
        "partition": lambda: pa.array(np.full(rows, partition, np.int32)),
        "offset": lambda: pa.array(_offsets(frames, counts)),
        "timestamp": lambda: _times(np.repeat([v.header.append_time_us for v in frames], counts)),
        "headers": lambda: _headers(frames),
        "message_id": lambda: numbered(f"{topic}:{partition}:", _offsets(frames, counts)),
        "lane": lambda: pa.array(
            _fixed(frames, Attribute.LANE, "u1", default_lane).astype(np.int16)
        ),
        "deliver_at": lambda: _times_or_null(_fixed(frames, Attribute.DELIVER_AT, "i8", 0) * 1000),
        "tenant": lambda: _tenants(frames),
        "producer": lambda: _producers(frames, counts),
    }
    schema = pa.schema([MESSAGES.field(name) for name in columns])
    batch = pa.RecordBatch.from_arrays([make[name]() for name in columns], schema=schema)
    if all(view.removed_rows is None for view in frames):
        return batch
    kept = [np.array(view.kept(0, view.header.message_count), np.bool_) for view in frames]
    return batch.filter(pa.array(_joined(kept, np.bool_)))


def _offsets(frames: Sequence[FrameView], counts: _Counts) -> npt.NDArray[np.int64]:
    bases = np.array([view.header.base_offset for view in frames], np.int64)
    before = np.cumsum(counts) - counts
    return np.repeat(bases - before, counts) + np.arange(counts.sum(), dtype=np.int64)


def _times(times_us: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(times_us.astype(np.int64, copy=False)).cast(TIMESTAMP)


def _times_or_null(times_us: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(times_us, mask=times_us == 0).cast(TIMESTAMP)


def _fixed(frames: Sequence[FrameView], attribute: int, kind: str, absent: int) -> npt.NDArray[Any]:
    """Return a fixed-width column of all frames; ``absent`` fills frames without it."""
    found = []
    for view in frames:
        column = view.column(attribute)
        if column is None:
            found.append(np.full(view.header.message_count, absent, kind))
        else:
            found.append(np.frombuffer(column, kind))
    return np.concatenate(found) if found else np.empty(0, kind)


_Column = Callable[[FrameView], tuple[BytesColumn | None, memoryview | None]]


def _bytes(frames: Sequence[FrameView], column_of: _Column) -> pa.Array:
    """Return a bytes column of all frames; null fills frames without it."""
    columns, valid, has_nulls = [], [], False
    for view in frames:
        count = view.header.message_count
        column, validity = column_of(view)
        columns.append((column, count))
        if column is None:
            valid.append(np.zeros(count, np.uint8))
        elif validity is None:
            valid.append(np.ones(count, np.uint8))
        else:
            bits = np.frombuffer(validity, np.uint8)
            valid.append(np.unpackbits(bits, count=count, bitorder="little"))
        has_nulls |= column is None or validity is not None
    bitmap = np.packbits(_joined(valid, np.uint8), bitorder="little") if has_nulls else None
    return _binary(columns, pa.binary(), bitmap)


def _binary(
    columns: Sequence[tuple[BytesColumn | None, int]],
    kind: pa.DataType,
    bitmap: npt.NDArray[np.uint8] | None = None,
) -> pa.Array:
    """Return concatenated bytes columns, each with its count of entries; None is all empty."""
    lengths, data = [], []
    for column, count in columns:
        if column is None:
            lengths.append(np.zeros(count, np.int32))
        else:
            bounds = np.frombuffer(column.offsets, np.int32)
            lengths.append(bounds[1:] - bounds[:-1])
            data.append(column.data)
    offsets = _starts(_joined(lengths, np.int32))
    buffers = [None if bitmap is None else pa.py_buffer(bitmap), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, [*buffers, _end_to_end(data)])


def _end_to_end(data: Sequence[memoryview]) -> pa.Buffer:
    """Return buffers concatenated; a single Arrow buffer is used without a copy."""
    if len(data) == 1:
        return pa.py_buffer(data[0])
    buffer = pa.allocate_buffer(sum(map(len, data)))
    if data:
        np.concatenate([np.frombuffer(d, np.uint8) for d in data], out=np.frombuffer(buffer, "u1"))
    return buffer


def _headers(frames: Sequence[FrameView]) -> pa.Array:
    counts: list[npt.NDArray[np.int32]] = []
    names: list[tuple[BytesColumn, int]] = []
    values: list[tuple[BytesColumn, int]] = []
    for view in frames:
        payload = view.payload
        if payload.header_counts is None:
            counts.append(np.zeros(view.header.message_count, np.int32))
        else:
            bounds = np.frombuffer(payload.header_counts, np.int32)
            counts.append(bounds[1:] - bounds[:-1])
            names.append((payload.header_names, int(bounds[-1])))
            values.append((payload.header_values, int(bounds[-1])))
    pairs = pa.StructArray.from_arrays(
        [_binary(names, pa.string()), _binary(values, pa.binary())],
        fields=list(HEADERS.value_type),
    )
    starts = _starts(_joined(counts, np.int32))
    return pa.Array.from_buffers(
        HEADERS, len(starts) - 1, [None, pa.py_buffer(starts)], children=[pairs]
    )


def _tenants(frames: Sequence[FrameView]) -> pa.Array:
    names: dict[str, int] = {}
    numbers = []
    for view in frames:
        column = view.column(Attribute.TENANT)
        if column is None:
            numbers.append(np.full(view.header.message_count, -1, np.int32))
            continue
        own = [names.setdefault(name, len(names)) for name in view.tenant_names]
        known = np.full(NO_TENANT + 1, -1, np.int32)
        known[: len(own)] = own
        numbers.append(known[np.frombuffer(column, np.uint16)])
    return _taken(list(names), _joined(numbers, np.int32))


def _producers(frames: Sequence[FrameView], counts: _Counts) -> pa.Array:
    ids: dict[int, int] = {}
    numbers = [
        ids.setdefault(view.header.producer_id, len(ids)) if view.header.producer_id else -1
        for view in frames
    ]
    return _taken([f"{one:x}" for one in ids], np.repeat(np.array(numbers, np.int32), counts))


def _taken(names: Sequence[str], numbers: npt.NDArray[np.int32]) -> pa.Array:
    """Return names by index; null for -1."""
    return pa.array(names, pa.string()).take(pa.array(numbers, mask=numbers < 0))


def _starts(lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    starts = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _joined(parts: Sequence[npt.NDArray[Any]], kind: Any) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, kind)
