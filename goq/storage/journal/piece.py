"""A piece of the journal: one file, filled with zeros ahead, so that a sync writes no metadata.

    header: "GOQJ" · version u16 · is free u16 · journal id u64 · number u64 · pieces u32 · CRC32C

The header and the first record are one write. ``number`` is that of the first record, or of the
next one of the journal while the piece is free. ``pieces`` is how many there were: a piece that is
missing is noticed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from goq import limits
from goq.frame.checksum import crc32c
from goq.storage.disk import Disk, File
from goq.storage.journal.record import MAGIC, JournalRecord, parse_record
from goq.storage.log.recovery_point import JournalMark
from goq.storage.scanner import BAD_PAGE_REASON, BadPages

SUFFIX = ".journal"
NEW_SUFFIX = ".new"
DAMAGED_SUFFIX = ".damaged"
_TOLD_BYTES_MAX = 4096
_HEADER_MAGIC = b"GOQJ"
_VERSION = 1
_HEADER = struct.Struct("<4sHHQQI")
_CRC = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _CRC.size
_ZEROS = memoryview(bytes(limits.MIB))


class PieceHeader(NamedTuple):
    """Header of a piece, see the module."""

    is_free: bool
    journal_id: int
    number: int
    piece_count: int

    def pack(self) -> bytes:
        """Return the bytes of the header."""
        fields = _HEADER.pack(_HEADER_MAGIC, _VERSION, *self)
        return fields + _CRC.pack(crc32c(fields))


def read_header(data: bytes | memoryview) -> PieceHeader | None:
    """Return a piece's header; None unless it is sound."""
    if len(data) < HEADER_BYTES:
        return None
    if crc32c(data[: _HEADER.size]) != _CRC.unpack_from(data, _HEADER.size)[0]:
        return None
    magic, version, is_free, *fields = _HEADER.unpack_from(data)
    is_known = (magic, version) == (_HEADER_MAGIC, _VERSION)
    return PieceHeader(bool(is_free), *fields) if is_known else None


class JournalPiece:
    """A file of the journal that is open for writing. ``marks`` has the last record of each log."""

    def __init__(self, path: Path, file: File) -> None:
        self.path = path
        self.size_bytes = file.size_bytes
        self.end_position = HEADER_BYTES
        self.marks: dict[str, JournalMark] = {}
        self._file = file

    @classmethod
    def create(cls, disk: Disk, path: Path, size_bytes: int, header: PieceHeader) -> JournalPiece:
        """Create a free piece, durably."""
        new = path.with_name(path.name + NEW_SUFFIX)
        disk.remove(new)
        file = disk.open(new)
        try:
            file.append([header.pack()])
            while file.size_bytes < size_bytes:
                file.append([_ZEROS[: size_bytes - file.size_bytes]])
            file.sync()
        except OSError:
            file.close()
            disk.remove(new)
            raise
        file.close()
        disk.rename(new, path)
        return cls(path, disk.open(path))

    @classmethod
    def reopen(cls, disk: Disk, path: Path, marks: Mapping[str, JournalMark]) -> JournalPiece:
        """Open a piece that exists; one that has records takes no more."""
        piece = cls(path, disk.open(path))
        if marks:
            piece.marks, piece.end_position = dict(marks), piece.size_bytes
        return piece

    def begin(self, header: PieceHeader, record: bytes) -> None:
        """Write and sync the header with the first record, as :meth:`append` does."""
        self._file.write_at(header.pack() + record, 0)
        self.end_position = HEADER_BYTES + len(record)
        self._file.sync()

    def append(self, record: bytes) -> None:
        """Write and sync another record.

        After a failure the disk may have the record if ``end_position`` has moved.
        """
        self._file.write_at(record, self.end_position)
        self.end_position += len(record)
        self._file.sync()

    def has_room_for(self, record_bytes: int) -> bool:
        """Return whether a record fits."""
        return self.end_position + record_bytes <= self.size_bytes

    def free(self, header: PieceHeader) -> None:
        """Forget the records, durably."""
        self._file.write_at(header.pack(), 0)
        self._file.sync()
        self.end_position = HEADER_BYTES
        self.marks = {}

    def close(self) -> None:
        """Release the file."""
        self._file.close()


class ScannedPiece(NamedTuple):
    """A piece on disk, and what is wrong with it."""

    path: Path
    header: PieceHeader
    records: list[JournalRecord]
    damage: str | None

    @property
    def next_number(self) -> int:
        """The number that follows the last sound record."""
        return self.records[-1].number + 1 if self.records else self.header.number


_NO_HEADER = PieceHeader(True, 0, 0, 0)


def scan_piece(disk: Disk, path: Path) -> ScannedPiece:
    """Read and check a piece. Without a sound header it has no records.

    A torn last record was never acknowledged, and is no damage. One that the disk cannot read may
    have been.
    """
    bad_pages = BadPages()
    header = read_header(bad_pages.read(disk, path, 0, HEADER_BYTES))
    if header is None:
        return ScannedPiece(path, _NO_HEADER, [], "the header is damaged")
    if header.is_free:
        return ScannedPiece(path, header, [], None)
    records: list[JournalRecord] = []
    damage = None
    raw = bytes(bad_pages.read(disk, path, 0, disk.size(path)))
    number, position = header.number, HEADER_BYTES
    for record, start in _records(raw, position, header.journal_id, number):
        if (record.number, start) != (number, position):
            damage = damage or f"the bytes from {position} to {start} are damaged"
        records.append(record)
        number, position = record.number + 1, start + record.size_bytes
    if bad_pages.within(path, position, len(raw)):
        damage = damage or f"from {position} on: {BAD_PAGE_REASON}"
    return ScannedPiece(path, header, records, damage)


def scan_pieces(disk: Disk, directory: Path) -> list[ScannedPiece]:
    """Return the pieces in a folder in the order of their records; a node may be running.

    The newest is read first: when it exists, the ones before it are complete. One that is used anew
    meanwhile is left out.
    """
    paths = [directory / name for name in disk.names(directory) if name.endswith(SUFFIX)]
    bad_pages = BadPages()
    headers = {
        path: read_header(bad_pages.read(disk, path, 0, HEADER_BYTES)) or _NO_HEADER
        for path in paths
    }
    paths.sort(key=lambda path: headers[path][1:3], reverse=True)
    found = [piece for path in paths if (piece := scan_piece(disk, path)).header == headers[path]]
    return found[::-1]


def journal_damage(pieces: Sequence[ScannedPiece]) -> list[tuple[Path, str]]:
    """Return what is wrong with the pieces of a journal, in the order of their records."""
    found = [(piece.path, piece.damage) for piece in pieces if piece.damage is not None]
    used = [piece for piece in pieces if not piece.header.is_free]
    for piece, after in pairwise(used):
        is_next = piece.header.journal_id == after.header.journal_id
        if is_next and piece.next_number < after.header.number:
            reason = f"records {piece.next_number} to {after.header.number - 1} are missing"
            found.append((piece.path, reason))
    missing = max((piece.header.piece_count for piece in pieces), default=0) - len(pieces)
    if missing > 0:
        found.append((pieces[-1].path, f"{missing} other files of the journal are missing"))
    return found


def told_damage(disk: Disk, directory: Path) -> list[str]:
    """Return the damage that earlier starts found, until a user deletes the files that tell it."""
    names = [name for name in disk.names(directory) if name.endswith(DAMAGED_SUFFIX)]
    told = [bytes(disk.read(directory / name, 0, _TOLD_BYTES_MAX)) for name in names]
    return [text.decode(errors="replace") for text in told]


def _records(
    raw: bytes, position: int, journal_id: int, number: int
) -> Iterator[tuple[JournalRecord, int]]:
    """Yield the sound records of this use of the piece, with their positions."""
    data = memoryview(raw)
    while position >= 0:
        record = parse_record(data, position)
        if record is None or record.number < number or record.journal_id != journal_id:
            position = raw.find(MAGIC, position + 1)
            continue
        yield record, position
        number, position = record.number + 1, position + record.size_bytes
