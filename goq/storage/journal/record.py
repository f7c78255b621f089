"""Records of the journal: what one turn appended, to any number of logs.

A record counts whole or not at all. All numbers are little-endian:

    header: "GOQR" · CRC32C u32 of all after it · body bytes u32 · entries u32 ·
            number u64 · journal id u64
    entry:  path bytes u16 · data bytes u32 · segment i64 · position i64 · end offset i64 ·
            path · data

Records are numbered in order from 1 on, over all pieces and starts of a journal. So a record of an
earlier use of a piece has a lower number than the piece begins with. ``segment`` is the base offset
of the segment that ``data`` belongs to, at ``position``. ``end offset`` is the log's end behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from goq.frame.checksum import crc32c

MAGIC = b"GOQR"
_HEADER = struct.Struct("<4sIIIQQ")
_ENTRY = struct.Struct("<HIqqq")
_CHECKED_FROM = 8
HEADER_BYTES = _HEADER.size
ENTRY_BYTES = _ENTRY.size


class JournalEntry(NamedTuple):
    """Bytes that were appended to one segment; ``path`` is the log's below the topics' folder."""

    path: str
    segment: int
    position: int
    end_offset: int
    data: bytes | memoryview


class JournalRecord(NamedTuple):
    """A sound record; ``size_bytes`` with its header."""

    number: int
    journal_id: int
    size_bytes: int
    body: memoryview
    entry_count: int

    def entries(self) -> Iterator[JournalEntry]:
        """Yield the entries in order, over the bytes of the record."""
        body, at = self.body, 0
        for _ in range(self.entry_count):
            path_bytes, data_bytes, segment, position, end_offset = _ENTRY.unpack_from(body, at)
            at += ENTRY_BYTES
            path = str(body[at : at + path_bytes], "utf-8")
            at += path_bytes
            yield JournalEntry(path, segment, position, end_offset, body[at : at + data_bytes])
            at += data_bytes


def encode_record(number: int, journal_id: int, entries: Sequence[EncodedEntry]) -> bytes:
    """Return a record."""
    body = b"".join([buffer for entry in entries for buffer in entry.buffers])
    head = _HEADER.pack(MAGIC, 0, len(body), len(entries), number, journal_id)
    crc = crc32c(body, crc32c(head[_CHECKED_FROM:]))
    return b"".join((MAGIC, crc.to_bytes(4, "little"), head[_CHECKED_FROM:], body))


class EncodedEntry(NamedTuple):
    """An entry as it is written: its head, then the buffers of its data. ``path`` is its log's."""

    path: str
    buffers: list[bytes | memoryview]
    size_bytes: int


def encode_entry(
    path: str,
    segment: int,
    position: int,
    end_offset: int,
    data: Sequence[bytes | memoryview],
    data_bytes: int,
) -> EncodedEntry:
    """Return an entry over ``data``, which is not copied."""
    name = path.encode()
    head = _ENTRY.pack(len(name), data_bytes, segment, position, end_offset)
    return EncodedEntry(path, [head, name, *data], ENTRY_BYTES + len(name) + data_bytes)


def parse_record(data: memoryview, at: int) -> JournalRecord | None:
    """Return the record at a position; None unless there is a sound one, whole."""
    if len(data) - at < HEADER_BYTES:
        return None
    magic, crc, body_bytes, count, number, journal_id = _HEADER.unpack_from(data, at)
    end = at + HEADER_BYTES + body_bytes
    if magic != MAGIC or end > len(data) or crc32c(data[at + _CHECKED_FROM : end]) != crc:
        return None
    return JournalRecord(number, journal_id, end - at, data[at + HEADER_BYTES : end], count)
