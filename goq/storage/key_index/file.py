"""The ``.keys`` file of a segment, as ``00000000000000045678.keys``: offsets by key hash.

The file is a sequence of parts, each for a range of the segment. A part has two tables: one of the
keys and one of the dedup ids in its range. An entry is a 64-bit hash of a key (for a dedup id: the
first 64 of its 128 bits), and the distance of the message's offset from the part's first offset.
Entries are sorted by both. Keys and ids are not stored: a lookup reads the candidate messages.

A part has a header of 96 bytes, little-endian:

    offset  size  field
         0     4  magic and version, ``gok`` 0x02
         4     4  keys           entries of the first table
         8     4  dedup_ids      entries of the second
        12     4  fences_crc32c
        16     8  base_offset    the offset that distances count from
        24    16  start          position and offset where the range begins, 2 x i64
        40    16  end            position and offset where it ends
        56     8  last_position  the last sound frame before the end; -1: none
        64     8  last_crcs      the last 8 bytes of that frame's header: its two CRCs
        72    16  times          the earliest and latest append time of its frames, µs, 2 x i64
        88     4  unused, 0
        92     4  header_crc32c  of the 92 bytes before it

Then follow the fences of both tables: the first hash of each page, u64 each. Then follow the pages
of both. A page has 341 entries; the last page of a table has the rest. A page is the hashes (u64),
the distances (u32), and the CRC32C of both, seeded with header_crc32c + the number of the page in
the part. So a page is sound only in its own part and place. A full page has 4096 bytes.

A part continues the part before it. It belongs to the segment if the segment holds its last frame:
see :mod:`goq.storage.column_index.block`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from goq.frame.checksum import crc32c
from goq.storage.column_index.block import LastFrame, SegmentPosition

MAGIC: Final = b"gok\x02"
PAGE_ENTRIES: Final = 341
DISTANCE_MAX: Final = 2**32 - 1
_ENTRY_BYTES = 12
_FIELDS = struct.Struct("<4s3Iq4qq8s2q4x")
_CRC = struct.Struct("<I")
HEADER_BYTES: Final = _FIELDS.size + _CRC.size
PAGE_BYTES: Final = PAGE_ENTRIES * _ENTRY_BYTES + _CRC.size

Hashes = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]


class KeyFileCorrupt(Exception):
    """A byte of the file differs from what was written."""


class KeyTable(IntEnum):
    """The attribute that a table finds messages by."""

    KEYS = 0
    DEDUP_IDS = 1


class KeyEntries(NamedTuple):
    """Hashes of messages and their rising offsets: parallel arrays, read-only."""

    hashes: Hashes
    offsets: Offsets


class AppendTimes(NamedTuple):
    """The earliest and the latest append time of some frames, in microseconds."""

    earliest_us: int
    latest_us: int


class PartRange(NamedTuple):
    """The consecutive frames of a segment that a part covers."""

    start: SegmentPosition
    end: SegmentPosition
    last: LastFrame
    times: AppendTimes


class KeyPart(NamedTuple):
    """A part's header, and the position of the part in the file."""

    counts: tuple[int, int]
    fences_crc32c: int
    base_offset: int
    frames: PartRange
    header_crc32c: int
    file_position: int

    def pages(self, table: KeyTable) -> int:
        """Return the number of pages of a table."""
        return -(-self.counts[table] // PAGE_ENTRIES)

    @property
    def fences_bytes(self) -> int:
        """Length of the fences of both tables."""
        return 8 * (self.pages(KeyTable.KEYS) + self.pages(KeyTable.DEDUP_IDS))

    @property
    def fences_position(self) -> int:
        """Position in the file where the fences begin."""
        return self.file_position + HEADER_BYTES

    @property
    def file_end(self) -> int:
        """Position in the file after the part."""
        return self._table_position(KeyTable.DEDUP_IDS) + _table_bytes(
            self.counts[KeyTable.DEDUP_IDS]
        )

    def page_place(self, table: KeyTable, number: int) -> tuple[int, int]:
        """Return the position of a page in the file, and its length."""
        rest = self.counts[table] - number * PAGE_ENTRIES
        size_bytes = min(rest, PAGE_ENTRIES) * _ENTRY_BYTES + _CRC.size
        return self._table_position(table) + number * PAGE_BYTES, size_bytes

    def _table_position(self, table: KeyTable) -> int:
        position = self.fences_position + self.fences_bytes
        return position + (_table_bytes(self.counts[KeyTable.KEYS]) if table else 0)


def _table_bytes(count: int) -> int:
    return count * _ENTRY_BYTES + -(-count // PAGE_ENTRIES) * _CRC.size


def pack_part(
    tables: Sequence[KeyEntries], base_offset: int, frames: PartRange, file_position: int
) -> tuple[KeyPart, bytes]:
    """Return a part and its bytes.

    Offsets in the tables must lie at most ``DISTANCE_MAX`` after ``base_offset``, and not before.
    """
    ordered = [_sorted(entries, base_offset) for entries in tables]
    fences = b"".join(hashes[::PAGE_ENTRIES].tobytes() for hashes, _ in ordered)
    keys, dedup_ids = (len(hashes) for hashes, _ in ordered)
    fixed = _FIELDS.pack(
        MAGIC,
        keys,
        dedup_ids,
        crc32c(fences),
        base_offset,
        *frames.start,
        *frames.end,
        *frames.last,
        *frames.times,
    )
    header_crc32c = crc32c(fixed)
    part = KeyPart(
        (keys, dedup_ids), crc32c(fences), base_offset, frames, header_crc32c, file_position
    )
    pages = [_pack_pages(*ordered[table], _seed(part, table, 0)) for table in (0, 1)]
    return part, b"".join((fixed, _CRC.pack(header_crc32c), fences, *pages))


def _sorted(entries: KeyEntries, base_offset: int) -> tuple[Hashes, npt.NDArray[np.uint32]]:
    order = np.argsort(entries.hashes, kind="stable")  # keeps offsets rising within a hash
    distances = (entries.offsets - base_offset).astype(np.uint32)
    return entries.hashes[order], distances[order]


def _pack_pages(hashes: Hashes, distances: npt.NDArray[np.uint32], seed: int) -> bytes:
    parts: list[bytes] = []
    for number, first in enumerate(range(0, len(hashes), PAGE_ENTRIES)):
        rows = slice(first, first + PAGE_ENTRIES)
        data = hashes[rows].tobytes() + distances[rows].tobytes()
        parts += data, _CRC.pack(crc32c(data, (seed + number) & 0xFFFFFFFF))
    return b"".join(parts)


def _seed(part: KeyPart, table: int, number: int) -> int:
    """Return the seed of a page's CRC."""
    before = part.pages(KeyTable.KEYS) if table else 0
    return (part.header_crc32c + before + number) & 0xFFFFFFFF


def unpack_header(data: bytes | memoryview, file_position: int) -> KeyPart | None:
    """Return the part with the header ``data``, or None if the header is corrupt."""
    data = bytes(data)
    fixed = data[: _FIELDS.size]
    if data[:4] != MAGIC or data[_FIELDS.size :] != _CRC.pack(crc32c(fixed)):
        return None
    _, keys, dedup_ids, fences_crc32c, base_offset, *rest = _FIELDS.unpack(fixed)
    frames = PartRange(
        SegmentPosition(*rest[:2]),
        SegmentPosition(*rest[2:4]),
        LastFrame(*rest[4:6]),
        AppendTimes(*rest[6:]),
    )
    counts = (keys, dedup_ids)
    return KeyPart(counts, fences_crc32c, base_offset, frames, crc32c(fixed), file_position)


def unpack_fences(part: KeyPart, data: memoryview) -> tuple[Hashes, Hashes]:
    """Return the first hash of each page of both tables; raises ``KeyFileCorrupt``."""
    if len(data) != part.fences_bytes or crc32c(data) != part.fences_crc32c:
        raise KeyFileCorrupt
    fences = np.frombuffer(data, np.uint64)
    keys = part.pages(KeyTable.KEYS)
    return fences[:keys], fences[keys:]


class PartReader:
    """Looks up hashes in one table of a part.

    ``read`` returns bytes of the file from a position, and may raise ``OSError``. All methods raise
    ``KeyFileCorrupt`` for corrupt and for unreadable bytes.
    """

    def __init__(
        self, read: Callable[[int, int], memoryview], part: KeyPart, table: KeyTable, fences: Hashes
    ) -> None:
        self._read = read
        self._part = part
        self._table = table
        self._fences = fences

    def offsets(self, hashed: int, end: int) -> Iterator[int]:
        """Yield candidate offsets before ``end``, highest first."""
        wanted = np.uint64(hashed)
        distance_end = end - self._part.base_offset
        number = self._last_page(wanted, distance_end)
        while number >= 0:
            hashes, distances = self._page(number)
            first, last = hashes.searchsorted(wanted), hashes.searchsorted(wanted, "right")
            found = distances[first:last].tolist()
            for distance in reversed(found[: bisect_left(found, distance_end)]):
                yield self._part.base_offset + distance
            if self._fences[number] != wanted:
                return
            number -= 1  # the hash may begin on the page before

    def _last_page(self, wanted: np.uint64, distance_end: int) -> int:
        """Return the last page that can hold the hash with a distance before the end."""
        low = int(self._fences.searchsorted(wanted))  # pages from here on begin with the hash
        high = int(self._fences.searchsorted(wanted, "right"))
        pages = range(low, high)
        return low - 1 + bisect_left(pages, distance_end, key=lambda n: int(self._page(n)[1][0]))

    def _page(self, number: int) -> tuple[Hashes, npt.NDArray[np.uint32]]:
        position, size_bytes = self._part.page_place(self._table, number)
        try:
            data = self._read(position, size_bytes)
        except OSError:
            raise KeyFileCorrupt from None
        entries = (size_bytes - _CRC.size) // _ENTRY_BYTES
        crc = crc32c(data[: -_CRC.size], _seed(self._part, self._table, number))
        if len(data) != size_bytes or data[-_CRC.size :] != _CRC.pack(crc):
            raise KeyFileCorrupt
        hashes = np.frombuffer(data, np.uint64, entries)
        return hashes, np.frombuffer(data, np.uint32, entries, 8 * entries)
