"""The messages of a frame that compaction took away, and the frame without them.

A frame with the attribute GONE keeps its offsets and its count. A bitmap says which of its rows
are gone; the sections behind it hold the others alone, so that a gone row costs a bit. A view
spreads what is there over all rows again: whoever reads counts rows as in any frame, and finds
nothing where a row is gone.

Dedup ids are the exception: the section has those of gone rows too, because a repetition of a
message that is gone is a repetition still.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.header import HEADER_BYTES, Attribute, parse_header, stamp
from goq.frame.view import FrameView


class GoneRows:
    """Which of ``count`` rows are gone; ``bitmap`` as the frame has it."""

    def __init__(self, bitmap: memoryview, count: int) -> None:
        bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=count, bitorder="little")
        self.mask = bits.view(np.bool_)
        self._kept = np.flatnonzero(~self.mask)
        self.kept_count = len(self._kept)
        self._bounds: list[int] = [*(np.flatnonzero(np.diff(self.mask)) + 1).tolist(), count]

    @property
    def is_all(self) -> bool:
        """Whether no message of the frame is left."""
        return not self.kept_count

    def has(self, row: int) -> bool:
        """Whether a row is gone."""
        return bool(self.mask[row])

    def run_end(self, row: int) -> int:
        """Return the row behind ``row`` from which on it is the other way round, or the count."""
        return self._bounds[bisect_right(self._bounds, row)]

    def kept(self, start: int, end: int) -> list[bool]:
        """Return for each row from ``start`` up to ``end`` whether it is still there."""
        found: list[bool] = (~self.mask[start:end]).tolist()
        return found

    def rows(self, start: int, end: int) -> list[int]:
        """Return the rows from ``start`` up to ``end`` that are gone, counted from ``start``."""
        found: list[int] = np.flatnonzero(self.mask[start:end]).tolist()
        return found

    def spread(self, section: memoryview, code: str, fill: int = 0) -> memoryview:
        """Return a section of numbers with ``fill`` where a row is gone, as bytes."""
        dense = np.frombuffer(section, code)
        wide = np.full(len(self.mask), fill, dense.dtype)
        wide[self._kept] = dense
        return wide.data.cast("B")

    def spread_offsets(self, offsets: memoryview) -> memoryview:
        """Return offsets in which a row that is gone has no bytes."""
        wide = np.zeros(len(self.mask) + 1, np.int32)
        wide[1:][self._kept] = np.diff(np.frombuffer(offsets, np.int32))
        return np.cumsum(wide, dtype=np.int32).data

    def spread_bits(self, bitmap: memoryview | None) -> memoryview:
        """Return a bitmap with 0 where a row is gone; without one the others are 1."""
        wide = np.zeros(len(self.mask), np.uint8)
        if bitmap is None:
            wide[self._kept] = 1
        else:
            dense = np.frombuffer(bitmap, np.uint8)
            wide[self._kept] = np.unpackbits(dense, count=self.kept_count, bitorder="little")
        return np.packbits(wide, bitorder="little").data


def compacted(view: FrameView, gone: Sequence[int]) -> bytes:
    """Return the frame without the messages of the rows ``gone``, of which some remain.

    Rows are counted from the frame's first, rising, with those that were gone before.
    """
    header = view.header
    producer = ProducerMark(header.producer_id, header.producer_epoch, header.first_sequence)
    frame = encode_frame(
        view.columns(0, header.message_count),
        producer=producer,
        compress=bool(header.attributes & Attribute.ZSTD),
        left_out=view.left_out,
        gone=gone,
    )
    return _stamped(frame, view)


def emptied(view: FrameView, *, keep_dedup_ids: bool) -> bytes:
    """Return the frame without any of its messages; what it says of its producer stays."""
    header = view.header
    producer = ProducerMark(header.producer_id, header.producer_epoch, header.first_sequence)
    columns = Columns([b""] * header.message_count)
    if keep_dedup_ids:
        columns = replace(columns, dedup_ids=view.columns(0, header.message_count).dedup_ids)
    frame = encode_frame(
        columns, producer=producer, left_out=view.left_out, gone=range(header.message_count)
    )
    return _stamped(frame, view)


def gone_run(base_offset: int, count: int, *, append_time_us: int, leader_epoch: int) -> bytes:
    """Return a frame of ``count`` messages that are all gone, of no producer."""
    frame = encode_frame(Columns([b""] * count), gone=range(count))
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
        header._replace(attributes=header.attributes | view.header.attributes & Attribute.REDRIVEN),
        base_offset=view.header.base_offset,
        append_time_us=view.header.append_time_us,
        leader_epoch=view.header.leader_epoch,
    )
    return header.pack() + frame[HEADER_BYTES:]
