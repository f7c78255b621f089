"""The sections of a frame's body, read in order; sections of bytes have Arrow's layout."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from goq.errors import InvalidFrame
from goq.frame.encoder import DuplicateRow
from goq.frame.header import Attribute, FrameHeader, padding_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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


class SectionReader:
    """Reads the sections of a buffer in order; raises ``InvalidFrame`` if one does not fit."""

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer
        self.position = 0

    def take(self, size_bytes: int) -> memoryview:
        """Return the next section, and skip the padding after it."""
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
        """Return whether the buffer is used up."""
        return self.position == len(self.buffer)


class RemovedRows:
    """The rows of a frame that compaction removed.

    A frame with the attribute REMOVED keeps its offsets and its count. A bitmap marks the removed
    rows. The sections after it hold only the other rows, so a removed row costs a bit. A view
    expands the sections to all rows. A reader counts rows as in any frame, and finds no content in
    a removed row. Dedup ids are the exception: their section includes removed rows, because a
    duplicate of a removed message is still a duplicate.
    """

    def __init__(self, bitmap: memoryview, count: int) -> None:
        import numpy as np  # only readers of compacted frames pay for the import

        bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=count, bitorder="little")
        self.mask: npt.NDArray[np.bool_] = bits.view(np.bool_)
        self._kept = np.flatnonzero(~self.mask)
        self.kept_count = len(self._kept)
        self._bounds: list[int] = [*(np.flatnonzero(np.diff(self.mask)) + 1).tolist(), count]

    @property
    def is_all(self) -> bool:
        """Whether no message of the frame is left."""
        return not self.kept_count

    def has(self, row: int) -> bool:
        """Return whether a row is removed."""
        return bool(self.mask[row])

    def run_end(self, row: int) -> int:
        """Return the end of the run of removed, or of kept, rows that contains ``row``."""
        return self._bounds[bisect_right(self._bounds, row)]

    def kept(self, start: int, end: int) -> list[bool]:
        """Return for each row from ``start`` up to ``end`` whether it is kept."""
        found: list[bool] = (~self.mask[start:end]).tolist()
        return found

    def rows(self, start: int, end: int) -> list[int]:
        """Return the removed rows from ``start`` up to ``end``, counted from ``start``."""
        import numpy as np

        found: list[int] = np.flatnonzero(self.mask[start:end]).tolist()
        return found

    def expand(self, section: memoryview, code: str, fill: int = 0) -> memoryview:
        """Return a section of numbers, as bytes, with ``fill`` in each removed row."""
        import numpy as np

        dense = np.frombuffer(section, code)
        wide = np.full(len(self.mask), fill, dense.dtype)
        wide[self._kept] = dense
        return wide.data.cast("B")

    def expand_offsets(self, offsets: memoryview) -> memoryview:
        """Return offsets in which a removed row has no bytes."""
        import numpy as np

        wide = np.zeros(len(self.mask) + 1, np.int32)
        wide[1:][self._kept] = np.diff(np.frombuffer(offsets, np.int32))
        return np.cumsum(wide, dtype=np.int32).data

    def expand_bits(self, bitmap: memoryview | None) -> memoryview:
        """Return a bitmap with 0 in each removed row; without a bitmap the other rows are 1."""
        import numpy as np

        wide = np.zeros(len(self.mask), np.uint8)
        if bitmap is None:
            wide[self._kept] = 1
        else:
            dense = np.frombuffer(bitmap, np.uint8)
            wide[self._kept] = np.unpackbits(dense, count=self.kept_count, bitorder="little")
        return np.packbits(wide, bitorder="little").data


class Payload:
    """The sections of an uncompressed payload."""

    def __init__(
        self, buffer: memoryview, header: FrameHeader, removed: RemovedRows | None = None
    ) -> None:
        cursor = SectionReader(buffer)
        count, attributes = header.message_count, header.attributes
        if removed is not None:
            count = removed.kept_count
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
        if removed is not None:
            self._expand(removed)

    def _expand(self, removed: RemovedRows) -> None:
        """Expand the sections to all rows; a removed message has neither key nor value."""
        self.value_validity = removed.expand_bits(self.value_validity)
        self.values = self.values._replace(offsets=removed.expand_offsets(self.values.offsets))
        if self.keys is not None:
            self.key_validity = removed.expand_bits(self.key_validity)
            self.keys = self.keys._replace(offsets=removed.expand_offsets(self.keys.offsets))
        if self.header_counts is not None:
            self.header_counts = removed.expand_offsets(self.header_counts)


def read_removed_rows(cursor: SectionReader, count: int) -> RemovedRows:
    """Read which of ``count`` messages are removed."""
    return RemovedRows(cursor.take((count + 7) // 8), count)


def read_left_out(cursor: SectionReader, count: int) -> list[DuplicateRow]:
    """Read the ``count`` duplicates that were left out of the producer's batch."""
    if not count:
        return []
    rows = cursor.take(2 * count).cast("H")
    offsets, times_us = cursor.take(8 * count).cast("q"), cursor.take(8 * count).cast("q")
    return list(zip(rows, offsets, times_us, strict=True))


def apply_nulls(items: list[bytes], validity: memoryview | None, start: int) -> list[bytes | None]:
    """Return entries from row ``start`` on, with None for null entries of the bitmap."""
    if validity is None:
        return items  # type: ignore[return-value]  # list[bytes] read as list[bytes | None]
    return [
        item if validity[i >> 3] >> (i & 7) & 1 else None
        for i, item in enumerate(items, start=start)
    ]


def apply_nulls_at(
    items: list[bytes], validity: memoryview | None, rows: Sequence[int]
) -> list[bytes | None]:
    """Return entries of some rows, with None for null entries of the bitmap."""
    if validity is None:
        return items  # type: ignore[return-value]  # as in apply_nulls
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
