"""Frames made from a part of another frame's messages."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from goq.frame.body import apply_nulls_at
from goq.frame.encoder import (
    NO_PRODUCER,
    NO_TENANT,
    Columns,
    DuplicateRow,
    ProducerMark,
    encode_frame,
)
from goq.frame.header import HEADER_BYTES, Attribute, parse_header, stamp
from goq.frame.view import FrameView

_FEW_ROWS = 64  # fewer are encoded faster one by one

PickedRows = tuple[FrameView, Sequence[int]]
"""A frame, and some of its rows, rising."""


def slice_frame(view: FrameView, start_offset: int, end_offset: int) -> memoryview:
    """Return a frame of the messages from ``start_offset`` up to ``end_offset``.

    The whole frame is returned unchanged. A part is encoded again, uncompressed, with the same
    offsets, time, epoch and producer fields.
    """
    header = view.header
    start = max(start_offset, header.base_offset) - header.base_offset
    end = min(end_offset, header.end_offset) - header.base_offset
    if start == 0 and end == header.message_count:
        return view.buffer
    producer = ProducerMark(
        header.producer_id, header.producer_epoch, header.first_sequence + start
    )
    if view.removed_rows is not None:
        removed = view.removed_rows.rows(start, end)
        part = encode_frame(view.columns(start, end), producer=producer, removed=removed)
    elif end - start < _FEW_ROWS:
        part = encode_frame(view.columns(start, end), producer=producer)
    else:
        from goq.frame.part import frame_of_rows  # small parts do not pay for numpy

        part = frame_of_rows([(view, range(start, end))], producer)
    stamped = stamp(
        parse_header(part),
        base_offset=header.base_offset + start,
        append_time_us=header.append_time_us,
        leader_epoch=header.leader_epoch,
    )
    return memoryview(stamped.pack() + part[HEADER_BYTES:])


def select_rows(view: FrameView, rows: Sequence[int]) -> memoryview:
    """Return a frame of some messages, by rising row.

    It has the offset, time and epoch of the original; it does not state the offsets of its
    messages.
    """
    if len(rows) < _FEW_ROWS or view.removed_rows is not None:
        part = encode_frame(_picked_columns(view, rows))
    else:
        from goq.frame.part import frame_of_rows

        part = frame_of_rows([(view, rows)], NO_PRODUCER)
    return _placed(part, view)


def gather_rows(picked: Sequence[PickedRows]) -> memoryview:
    """Return one frame of the picked rows of several frames, in this order.

    :func:`can_gather` says which frames go together. It has the offset, time and epoch of the first
    frame; it states neither the offsets of its messages nor the times of the others.
    """
    from goq.frame.part import frame_of_rows

    return _placed(frame_of_rows(picked, NO_PRODUCER), picked[0][0])


def can_gather(view: FrameView, other: FrameView) -> bool:
    """Return whether rows of two frames fit into one: no row is removed, the columns are alike."""
    from goq.frame.part import columns_present

    columns = columns_present(view)
    return columns == columns_present(other) and not columns & Attribute.REMOVED


def _placed(part: bytes, view: FrameView) -> memoryview:
    """Return a frame with the offset, time and epoch of another."""
    header = view.header
    stamped = stamp(
        parse_header(part),
        base_offset=header.base_offset,
        append_time_us=header.append_time_us,
        leader_epoch=header.leader_epoch,
    )
    return memoryview(stamped.pack() + part[HEADER_BYTES:])


def _picked_columns(view: FrameView, rows: Sequence[int]) -> Columns:
    """Return some messages by column, without reading the others."""
    payload, first, last = view.payload, rows[0], rows[-1] + 1
    near = [row - first for row in rows]
    keys = None
    if payload.keys is not None:
        keys = apply_nulls_at(payload.keys.pick(rows), payload.key_validity, rows)
    headers = None
    if payload.header_counts is not None:
        headers = [view.headers(row, row + 1)[0] for row in rows]
    times = {
        attribute: None
        if (column := view.times_ms(attribute, first, last)) is None
        else [column[row] for row in near]
        for attribute in (Attribute.DELIVER_AT, Attribute.EXPIRES_AT, Attribute.CLIENT_TIME)
    }
    dedup = view.column(Attribute.DEDUP_ID)
    lanes = view.column(Attribute.LANE)
    return Columns(
        values=apply_nulls_at(payload.values.pick(rows), payload.value_validity, rows),
        keys=keys,
        headers=headers,
        deliver_at_ms=times[Attribute.DELIVER_AT],
        expires_at_ms=times[Attribute.EXPIRES_AT],
        client_time_ms=times[Attribute.CLIENT_TIME],
        dedup_ids=None if dedup is None else [bytes(dedup[16 * r : 16 * r + 16]) for r in rows],
        tenants=_tenants_at(view, rows),
        lanes=None if lanes is None else [lanes[row] for row in rows],
    )


def _tenants_at(view: FrameView, rows: Sequence[int]) -> list[str | None] | None:
    column, dictionary = view.column(Attribute.TENANT), view.tenants
    if column is None or dictionary is None:
        return None
    numbers = column.cast("H")
    known = sorted({numbers[row] for row in rows} - {NO_TENANT})
    names = {n: name.decode() for n, name in zip(known, dictionary.pick(known), strict=True)}
    return [names.get(numbers[row]) for row in rows]


def drop_duplicates(view: FrameView, left_out: Sequence[DuplicateRow]) -> FrameView:
    """Return a frame without the duplicates ``left_out``, which it records; some must stay.

    It is compressed if the original was.
    """
    header = view.header
    producer = ProducerMark(header.producer_id, header.producer_epoch, header.first_sequence)
    removed = {row for row, _, _ in left_out}
    kept = [row for row in range(header.message_count) if row not in removed]
    columns = view.columns(0, header.message_count)
    compress = bool(header.attributes & Attribute.ZSTD)
    frame = encode_frame(
        columns.pick(kept), producer=producer, compress=compress, left_out=left_out
    )
    return FrameView.parse(frame)


def remove_rows(view: FrameView, removed: Sequence[int]) -> bytes:
    """Return the frame without the messages of the rows ``removed``, of which some remain.

    Rows are counted from the frame's first, rising, and include the rows removed before.
    """
    header = view.header
    producer = ProducerMark(header.producer_id, header.producer_epoch, header.first_sequence)
    frame = encode_frame(
        view.columns(0, header.message_count),
        producer=producer,
        compress=bool(header.attributes & Attribute.ZSTD),
        left_out=view.left_out,
        removed=removed,
    )
    return _stamped(frame, view)


def remove_all_rows(view: FrameView, *, keep_dedup_ids: bool) -> bytes:
    """Return the frame without any message; its producer fields stay."""
    header = view.header
    producer = ProducerMark(header.producer_id, header.producer_epoch, header.first_sequence)
    columns = Columns([b""] * header.message_count)
    if keep_dedup_ids:
        columns = replace(columns, dedup_ids=view.columns(0, header.message_count).dedup_ids)
    frame = encode_frame(
        columns, producer=producer, left_out=view.left_out, removed=range(header.message_count)
    )
    return _stamped(frame, view)


def removed_run(base_offset: int, count: int, *, append_time_us: int, leader_epoch: int) -> bytes:
    """Return a frame of ``count`` removed messages, without a producer."""
    frame = encode_frame(Columns([b""] * count), removed=range(count))
    header = stamp(
        parse_header(frame),
        base_offset=base_offset,
        append_time_us=append_time_us,
        leader_epoch=leader_epoch,
    )
    return header.pack() + frame[HEADER_BYTES:]


def _stamped(frame: bytes, view: FrameView) -> bytes:
    header = parse_header(frame)
    header = stamp(
        header._replace(attributes=header.attributes | view.header.attributes & Attribute.COPY),
        base_offset=view.header.base_offset,
        append_time_us=view.header.append_time_us,
        leader_epoch=view.header.leader_epoch,
    )
    return header.pack() + frame[HEADER_BYTES:]
