"""The sections of a frame's body: taken off in order, Arrow's layout where they hold bytes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from goq.errors import InvalidFrame
from goq.frame.encoder import LeftOut
from goq.frame.header import Attribute, FrameHeader, padding_bytes

if TYPE_CHECKING:
    from goq.frame.compacted_rows import GoneRows


class BytesColumn(NamedTuple):
    """An Arrow binary column: entry i is ``data[offsets[i]:offsets[i + 1]]``."""

    offsets: memoryview
    data: memoryview

    def slice(self, start: int, end: int) -> list[bytes]:
        """Return the entries from ``start`` up to ``end`` as bytes."""
        if start == end:
            return []
        bounds = self.offsets[start : end + 1].tolist()
        first = bounds[0]
        raw = bytes(self.data[first : bounds[-1]])
        return [raw[a - first : b - first] for a, b in itertools.pairwise(bounds)]

    def pick(self, rows: Sequence[int]) -> list[bytes]:
        """Return the entries of some rows as bytes."""
        offsets, data = self.offsets, self.data
        return [bytes(data[offsets[row] : offsets[row + 1]]) for row in rows]


class Cursor:
    """Takes sections off a buffer in order; raises ``InvalidFrame`` when one would not fit."""

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer
        self.position = 0

    def take(self, size_bytes: int) -> memoryview:
        """Return the next section, and pass over the zeros behind it."""
        end = self.position + size_bytes
        padded_end = end + padding_bytes(size_bytes)
        if size_bytes < 0 or padded_end > len(self.buffer):
            raise InvalidFrame(
                f"a section of {size_bytes} bytes at {self.position} passes the end of"
                f" {len(self.buffer)} bytes"
            )
        section = self.buffer[self.position : end]
        self.position = padded_end
        return section

    def take_offsets(self, count: int) -> memoryview:
        """Return a section of ``count + 1`` offsets."""
        return self.take(4 * (count + 1)).cast("i")

    def take_bytes_column(self, count: int) -> BytesColumn:
        """Return a bytes column of ``count`` entries."""
        offsets = self.take_offsets(count)
        return BytesColumn(offsets, self.take(offsets[count]))

    def done(self) -> bool:
        """Whether nothing is left."""
        return self.position == len(self.buffer)


class Payload:
    """The sections of an uncompressed payload."""

    def __init__(
        self, buffer: memoryview, header: FrameHeader, gone: GoneRows | None = None
    ) -> None:
        cursor = Cursor(buffer)
        count, attributes = header.message_count, header.attributes
        if gone is not None:
            count = gone.kept_count
        bitmap_bytes = (count + 7) // 8
        nulls = attributes & Attribute.VALUE_NULLS
        self.value_validity = cursor.take(bitmap_bytes) if nulls else None
        self.values = cursor.take_bytes_column(count)
        self.key_validity: memoryview | None = None
        self.keys: BytesColumn | None = None
        self.header_counts: memoryview | None = None
        if attributes & Attribute.KEYS:
            if attributes & Attribute.KEY_NULLS:
                self.key_validity = cursor.take(bitmap_bytes)
            self.keys = cursor.take_bytes_column(count)
        if attributes & Attribute.HEADERS:
            self.header_counts = cursor.take_offsets(count)
            self.header_names = cursor.take_bytes_column(self.header_counts[count])
            self.header_values = cursor.take_bytes_column(self.header_counts[count])
        if not cursor.done():
            raise InvalidFrame("the payload has bytes after its last section")
        if gone is not None:
            self._spread(gone)

    def _spread(self, gone: GoneRows) -> None:
        """Let every row have its place again; a message that is gone has neither key nor value."""
        self.value_validity = gone.spread_bits(self.value_validity)
        self.values = self.values._replace(offsets=gone.spread_offsets(self.values.offsets))
        if self.keys is not None:
            self.key_validity = gone.spread_bits(self.key_validity)
            self.keys = self.keys._replace(offsets=gone.spread_offsets(self.keys.offsets))
        if self.header_counts is not None:
            self.header_counts = gone.spread_offsets(self.header_counts)


def take_gone(cursor: Cursor, count: int) -> GoneRows:
    """Return which of ``count`` messages are gone."""
    from goq.frame.compacted_rows import (
        GoneRows,  # only readers of compacted frames pay for the import
    )

    return GoneRows(cursor.take((count + 7) // 8), count)


def take_left_out(cursor: Cursor, count: int) -> list[LeftOut]:
    """Return the ``count`` messages of the producer's batch that were left out."""
    if not count:
        return []
    rows = cursor.take(2 * count).cast("H")
    offsets, times_us = cursor.take(8 * count).cast("q"), cursor.take(8 * count).cast("q")
    return list(map(LeftOut, rows, offsets, times_us))


def with_nulls(items: list[bytes], validity: memoryview | None, start: int) -> list[bytes | None]:
    """Return entries from row ``start`` on with None for those that the bitmap calls null."""
    if validity is None:
        return items  # type: ignore[return-value]  # list[bytes] read as list[bytes | None]
    return [
        item if validity[i >> 3] >> (i & 7) & 1 else None
        for i, item in enumerate(items, start=start)
    ]


def nulls_at(
    items: list[bytes], validity: memoryview | None, rows: Sequence[int]
) -> list[bytes | None]:
    """Return entries of some rows with None for those that the bitmap calls null."""
    if validity is None:
        return items  # type: ignore[return-value]  # as in with_nulls
    return [
        item if validity[row >> 3] >> (row & 7) & 1 else None
        for row, item in zip(rows, items, strict=True)
    ]


def decompress(stored: memoryview, raw_bytes: int) -> bytes:
    """Return a payload; raises ``InvalidFrame`` unless it is one zstd frame of ``raw_bytes``."""
    import zstandard  # only readers of compressed frames pay for the import

    try:
        declared = zstandard.frame_content_size(stored)
        if declared != raw_bytes:
            raise InvalidFrame(
                f"the zstd frame declares {declared} bytes where the frame declares {raw_bytes}"
            )
        return zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise InvalidFrame(f"the payload is not one sound zstd frame: {error}") from None
