"""The file that finds a segment's messages by key: ``00000000000000045678.keys``.

It is parts end to end, each for a stretch of the segment. A part has two tables, one of the keys
and one of the dedup ids in its stretch. An entry is the 64-bit hash of a key (the first 64 bits of
a dedup id's 128) and how far the message's offset lies behind the part's first; entries are sorted
by both. Neither keys nor ids are stored: whoever looks one up reads the messages that it may be.

A part has a header of 96 bytes, little-endian:

    offset  size  field
         0     4  magic and version, ``gok`` 0x01
         4     4  keys           entries of the first table
         8     4  dedup_ids      entries of the second
        12     4  fences_crc32c
        16     8  base_offset    what the entries count from
        24    16  start          position and offset where the stretch begins, 2 x i64
        40    16  end            where it ends
        56     8  last_position  the last sound frame before the end; -1: there is none
        64     8  last_crcs      the last 8 bytes of that frame's header: its two CRCs
        72    16  times          the earliest and latest append time of its frames, µs, 2 x i64
        88     4  unused, 0
        92     4  header_crc32c  of the 92 bytes before it

Then the fences of both tables: the first hash of each page, u64 each. Then the pages of both, each
of 341 entries, the last of a table of what is left: the hashes (u64), the distances (u32), and the
CRC32C of both, begun with header_crc32c + the number of the page in the part. So a page is sound
only in its own part and place. A whole page has 4096 bytes.

A part continues the one before it, and belongs to the segment if its last frame is there as it
says: see :mod:`goq.storage.column_index.block`.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from goq.storage.column_index.block import LastFrame, SegmentPosition

MAGIC: Final = b"gok\x01"
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
    """A byte of the file is not as it was written."""


class KeyTable(IntEnum):
    """What a message is looked up by."""

    KEYS = 0
    DEDUP_IDS = 1


class KeyEntries(NamedTuple):
    """The hashes of some messages, whose offsets rise: parallel, read-only."""

    hashes: Hashes
    offsets: Offsets


class AppendTimes(NamedTuple):
    """When the earliest and the latest of some frames were appended, in microseconds."""

    earliest_us: int
    latest_us: int


class PartRange(NamedTuple):
    """Frames that follow each other in a segment, and by what they are known again."""

    start: SegmentPosition
    end: SegmentPosition
    last: LastFrame
    times: AppendTimes


class KeyPart(NamedTuple):
    """What a part's header says, and where in the file it lies."""

    counts: tuple[int, int]
    fences_crc32c: int
    base_offset: int
    stretch: PartRange
    header_crc32c: int
    file_position: int

    def pages(self, table: KeyTable) -> int:
        """How many pages a table has."""
        return -(-self.counts[table] // PAGE_ENTRIES)

    @property
    def fences_bytes(self) -> int:
        """How long the fences of both tables are."""
        return 8 * (self.pages(KeyTable.KEYS) + self.pages(KeyTable.DEDUP_IDS))

    @property
    def fences_position(self) -> int:
        """The byte in the file where the fences begin."""
        return self.file_position + HEADER_BYTES

    @property
    def file_end(self) -> int:
        """The byte in the file after the part."""
        return self._table_position(KeyTable.DEDUP_IDS) + _table_bytes(
            self.counts[KeyTable.DEDUP_IDS]
        )

    def page_place(self, table: KeyTable, number: int) -> tuple[int, int]:
        """Return where in the file a page of a table begins, and how long it is."""
        rest = self.counts[table] - number * PAGE_ENTRIES
        size_bytes = min(rest, PAGE_ENTRIES) * _ENTRY_BYTES + _CRC.size
        return self._table_position(table) + number * PAGE_BYTES, size_bytes

    def _table_position(self, table: KeyTable) -> int:
        position = self.fences_position + self.fences_bytes
        return position + (_table_bytes(self.counts[KeyTable.KEYS]) if table else 0)


def _table_bytes(count: int) -> int:
    return count * _ENTRY_BYTES + -(-count // PAGE_ENTRIES) * _CRC.size


def pack_part(
    tables: Sequence[KeyEntries], base_offset: int, stretch: PartRange, file_position: int
) -> tuple[KeyPart, bytes]:
    """Return a part and its bytes.

    No offset in the tables may be before ``base_offset``, or over ``DISTANCE_MAX`` behind it.
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
        *stretch.start,
        *stretch.end,
        *stretch.last,
        *stretch.times,
    )
    header_crc32c = crc32c(fixed)
    part = KeyPart(
        (keys, dedup_ids), crc32c(fences), base_offset, stretch, header_crc32c, file_position
    )
    pages = [_pack_pages(*ordered[table], _seed(part, table, 0)) for table in (0, 1)]
    return part, b"".join((fixed, _CRC.pack(header_crc32c), fences, *pages))


def _sorted(entries: KeyEntries, base_offset: int) -> tuple[Hashes, npt.NDArray[np.uint32]]:
    order = np.argsort(entries.hashes, kind="stable")  # offsets rise: so they do in each hash
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
    """Return what the CRC of a page begins with."""
    before = part.pages(KeyTable.KEYS) if table else 0
    return (part.header_crc32c + before + number) & 0xFFFFFFFF


def unpack_header(data: bytes | memoryview, file_position: int) -> KeyPart | None:
    """Return the part whose header is ``data``, None if a byte of it is not as it was written."""
    data = bytes(data)
    fixed = data[: _FIELDS.size]
    if data[:4] != MAGIC or data[_FIELDS.size :] != _CRC.pack(crc32c(fixed)):
        return None
    _, keys, dedup_ids, fences_crc32c, base_offset, *rest = _FIELDS.unpack(fixed)
    stretch = PartRange(
        SegmentPosition(*rest[:2]),
        SegmentPosition(*rest[2:4]),
        LastFrame(*rest[4:6]),
        AppendTimes(*rest[6:]),
    )
    counts = (keys, dedup_ids)
    return KeyPart(counts, fences_crc32c, base_offset, stretch, crc32c(fixed), file_position)


def unpack_fences(part: KeyPart, data: memoryview) -> tuple[Hashes, Hashes]:
    """Return the first hash of each page of both tables; raises ``KeyFileCorrupt``."""
    if len(data) != part.fences_bytes or crc32c(data) != part.fences_crc32c:
        raise KeyFileCorrupt
    fences = np.frombuffer(data, np.uint64)
    keys = part.pages(KeyTable.KEYS)
    return fences[:keys], fences[keys:]


class PartReader:
    """Looks up hashes in one table of a part.

    ``read`` gives bytes of the file from a position; it may raise ``OSError``. Everything here
    raises ``KeyFileCorrupt`` where a byte is not as it was written, and where it cannot be read.
    """

    def __init__(
        self, read: Callable[[int, int], memoryview], part: KeyPart, table: KeyTable, fences: Hashes
    ) -> None:
        self._read = read
        self._part = part
        self._table = table
        self._fences = fences

    def offsets(self, hashed: int, end: int) -> Iterator[int]:
        """Yield the offsets before ``end`` that a hash may stand for, the highest first."""
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
            number -= 1  # it may begin on the page before

    def _last_page(self, wanted: np.uint64, distance_end: int) -> int:
        """Return the last page that can have the hash with a distance before the end."""
        low = int(self._fences.searchsorted(wanted))  # from here on pages begin with the hash
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
