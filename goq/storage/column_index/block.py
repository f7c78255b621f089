"""A column block: the stored rows of a range of a segment.

It has a header of 104 bytes, little-endian, and a body of arrays:

    offset  size  field
         0     4  magic and version, ``goc`` 0x01
         4     4  present        bit 0: lanes, 1: tenants, 2: delivery times
         8    16  start          position and offset where the range begins, 2 x i64
        24    16  end            position and offset where it ends
        40     8  last_position  the last sound frame before the end; -1: none
        48     8  last_crcs      the last 8 bytes of that frame's header: its two CRCs
        56     8  due_min_ms     the earliest delivery time, 0 where no message is delayed
        64     8  due_max_ms     the latest
        72     4  rows           then, 4 bytes each: runs of their offsets, tenants,
        84     4  names_bytes    bytes of the tenants' names
        88     4  dedup_rows     then, 4 bytes: runs of their offsets
        96     4  body_crc32c
       100     4  header_crc32c  of the 100 bytes before it

The body, each section padded to 8 bytes: starts and counts of the runs (i64 each); delivery times
(i64); starts and counts of the dedup rows' runs; dedup ids (16 bytes each); tenants (i32), the ends
of their names (i32), the names; lanes (i16). A column that is not present is -1 in every row, or 0
for a time.

A block continues the block before it. It belongs to the segment if the segment holds its last
frame. A log only grows, and is cut only at its end, so all frames before it are then the same too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from goq.frame.checksum import crc32c
from goq.frame.header import HEADER_BYTES as FRAME_HEADER_BYTES
from goq.frame.header import padding_bytes
from goq.storage.column_index.rows import ColumnRows, ColumnsBuilder, DedupIdRows, expand_runs

MAGIC: Final = b"goc\x01"
HEADER_BYTES: Final = 104
_FIELDS = struct.Struct("<4sI5q8s2q7I")
_CRC = struct.Struct("<I")
_LANES, _TENANTS, _DUE = 1, 2, 4


class SegmentPosition(NamedTuple):
    """A boundary between two frames of a segment: a byte position and a message offset."""

    position: int
    offset: int


class LastFrame(NamedTuple):
    """The position and CRCs of a frame, which identify it again."""

    position: int
    crcs: bytes


NO_FRAME: Final = LastFrame(-1, bytes(8))


def last_frame(position: int, frame: bytes | memoryview) -> LastFrame:
    """Return the identity of the frame at ``position``; its header is enough."""
    return LastFrame(position, bytes(frame[FRAME_HEADER_BYTES - 8 : FRAME_HEADER_BYTES]))


class BlockRange(NamedTuple):
    """The consecutive frames of a segment that a block covers."""

    start: SegmentPosition
    end: SegmentPosition
    last: LastFrame


class ColumnBlock(NamedTuple):
    """A block's header, and the position of the block in the file; -1 if it is not in the file."""

    present: int
    frames: BlockRange
    due_min_ms: int
    due_max_ms: int
    rows: int
    runs: int
    tenants: int
    names_bytes: int
    dedup_rows: int
    dedup_runs: int
    body_crc32c: int
    file_position: int = -1

    @property
    def body_bytes(self) -> int:
        """Length of the body."""
        words = 2 * self.runs + 2 * self.dedup_runs + 2 * self.dedup_rows
        words += self.rows * bool(self.present & _DUE)
        sections = [self.names_bytes, 4 * self.tenants]
        sections.append(4 * self.rows * bool(self.present & _TENANTS))
        sections.append(2 * self.rows * bool(self.present & _LANES))
        return 8 * words + sum(size + padding_bytes(size) for size in sections)

    @property
    def file_end(self) -> int:
        """Position in the file after the block."""
        return self.file_position + HEADER_BYTES + self.body_bytes

    def has_due(self, due_ms: tuple[int, int]) -> bool:
        """Return whether a delivery time may lie between two times, both included."""
        return self.due_min_ms <= due_ms[1] and due_ms[0] <= self.due_max_ms


def pack_block(builder: ColumnsBuilder, frames: BlockRange) -> tuple[ColumnBlock, bytes]:
    """Return a block of the gathered rows, and its bytes."""
    rows, dedup = builder.rows(), builder.dedup_rows()
    names = [name.encode() for name in builder.names]
    present = _LANES * bool((rows.lanes >= 0).any())
    present |= _TENANTS * bool(names) | _DUE * bool(builder.due_ms)
    sections: list[bytes] = [
        builder.runs.starts.tobytes(),
        builder.runs.counts.tobytes(),
        rows.deliver_at_ms.tobytes() if present & _DUE else b"",
        builder.dedup_runs.starts.tobytes(),
        builder.dedup_runs.counts.tobytes(),
        dedup.ids.tobytes(),
        rows.tenants.tobytes() if present & _TENANTS else b"",
        np.cumsum([len(name) for name in names], dtype=np.int32).tobytes(),
        b"".join(names),
        rows.lanes.tobytes() if present & _LANES else b"",
    ]
    body = b"".join(section + bytes(padding_bytes(len(section))) for section in sections)
    due_min_ms, due_max_ms = builder.due_ms or (0, 0)
    block = ColumnBlock(
        present=present,
        frames=frames,
        due_min_ms=due_min_ms,
        due_max_ms=due_max_ms,
        rows=builder.count,
        runs=len(builder.runs.starts),
        tenants=len(names),
        names_bytes=len(sections[8]),
        dedup_rows=builder.dedup_count,
        dedup_runs=len(builder.dedup_runs.starts),
        body_crc32c=crc32c(body),
    )
    return block, _pack_header(block) + body


def _pack_header(block: ColumnBlock) -> bytes:
    start, end, last = block.frames
    fixed = _FIELDS.pack(MAGIC, block.present, *start, *end, *last, *block[2:11])
    return fixed + _CRC.pack(crc32c(fixed))


def unpack_header(data: bytes | memoryview, file_position: int) -> ColumnBlock | None:
    """Return the block with the header ``data``, or None if the header is corrupt."""
    data = bytes(data)
    fixed = data[: _FIELDS.size]
    if data[:4] != MAGIC or data[_FIELDS.size :] != _CRC.pack(crc32c(fixed)):
        return None
    fields = _FIELDS.unpack(fixed)
    frames = BlockRange(
        SegmentPosition(*fields[2:4]), SegmentPosition(*fields[4:6]), LastFrame(*fields[6:8])
    )
    return ColumnBlock(fields[1], frames, *fields[8:])._replace(file_position=file_position)


def is_body_of(block: ColumnBlock, body: memoryview) -> bool:
    """Return whether a body is complete and matches its CRC."""
    return len(body) == block.body_bytes and crc32c(body) == block.body_crc32c


def unpack_rows(block: ColumnBlock, body: memoryview) -> ColumnRows:
    """Return the rows in a sound body; most arrays are views of it."""
    take = _sections(block, body)
    starts, counts = next(take).view(np.int64), next(take).view(np.int64)
    due_ms = next(take).view(np.int64)
    for _ in range(3):
        next(take)
    tenants = next(take).view(np.int32)
    ends, names = next(take).view(np.int32).tolist(), next(take).tobytes()
    lanes = next(take).view(np.int16)
    return ColumnRows(
        expand_runs(starts, counts),
        lanes if block.present & _LANES else np.full(block.rows, -1, np.int16),
        tenants if block.present & _TENANTS else np.full(block.rows, -1, np.int32),
        due_ms if block.present & _DUE else np.zeros(block.rows, np.int64),
        [names[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)],
    )


def unpack_dedup_rows(block: ColumnBlock, body: memoryview) -> DedupIdRows:
    """Return the dedup ids in a sound body."""
    take = _sections(block, body)
    for _ in range(3):
        next(take)
    starts, counts = next(take).view(np.int64), next(take).view(np.int64)
    ids = next(take).view(np.uint64).reshape(block.dedup_rows, 2)
    return DedupIdRows(expand_runs(starts, counts), ids)


def _sections(block: ColumnBlock, body: memoryview) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the sections of a body in order."""
    data, position = np.frombuffer(body, np.uint8), 0
    for size_bytes in (
        8 * block.runs,
        8 * block.runs,
        8 * block.rows * bool(block.present & _DUE),
        8 * block.dedup_runs,
        8 * block.dedup_runs,
        16 * block.dedup_rows,
        4 * block.rows * bool(block.present & _TENANTS),
        4 * block.tenants,
        block.names_bytes,
        2 * block.rows * bool(block.present & _LANES),
    ):
        yield data[position : position + size_bytes]
        position += size_bytes + padding_bytes(size_bytes)
