"""A segment in the archive, as ``00000000000000045678.log.zst``.

It holds the bytes of the segment unchanged, damaged ones included, compressed with zstd in chunks
of 128 MiB, so that nearly every segment is one chunk. A skippable zstd frame follows with the
footer, which describes the file completely. ``zstd -d`` restores the segment. The file ends with

    size  field
       4  0x184D2A5E, little-endian as all below: a frame that zstd skips
       4  how much of it follows
       n  the footer, JSON: base_offset, end_offset, size_bytes, crc32c (of the segment's bytes),
          first_time_us, last_time_us, archived_at_us, stretches (compressed bytes of each chunk)
       4  n
       4  crc32c of the JSON
       8  ``GOQARCH1``

A file gets its name only after it was written, synced, read back and compared by the CRC.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import zstandard

from goq import limits
from goq.errors import CorruptData
from goq.frame.checksum import crc32c
from goq.storage.disk import Disk, File
from goq.storage.log.segment import SUFFIX as LOG_SUFFIX
from goq.storage.scanner import BadPages

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SUFFIX: Final = ".log.zst"
PART_SUFFIX: Final = ".part"
LEVEL: Final = 6  # measured, see docs/internals/retention.md
_CHUNK_BYTES = limits.MIB
_SKIPPABLE: Final = 0x184D2A5E
_HEAD = struct.Struct("<II")
_TAIL = struct.Struct("<II8s")
_MAGIC: Final = b"GOQARCH1"
_FOOTER_BYTES_MAX = 64 * limits.KIB
_WINDOW_LOG_MIN, _WINDOW_LOG_MAX = 10, 27
_LDM_MATCH_BYTES, _LDM_HASH_RATE_LOG, _LDM_BUCKET_LOG = 64, 7, 3


class Footer(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """The description of an archived segment; ``crc32c`` is of its uncompressed bytes.

    ``chunks`` (JSON: ``stretches``) are the compressed bytes of each chunk. The times are the
    earliest append time and the running maximum at the end, 0 if no frame was sound.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    crc32c: int
    first_time_us: int
    last_time_us: int
    archived_at_us: int
    chunks: list[int] = msgspec.field(name="stretches")


class Interrupted(Exception):
    """The caller stopped the archiving; the unfinished file has no name yet."""


def archive_path(directory: Path, segment_path: Path) -> Path:
    """Return the path in the archive of a segment, or of a file beside it.

    An archived segment has no generations, because it never changes.
    """
    base_offset, suffix = segment_path.name.partition(".")[0], segment_path.suffix
    return directory / f"{base_offset}{SUFFIX if suffix == LOG_SUFFIX else suffix}"


def write_archive(
    disk: Disk, source: Path, path: Path, footer: Footer, check: Callable[[], None]
) -> Footer:
    """Compress the ``footer.size_bytes`` of ``source`` into ``path``; return the complete footer.

    Memory is bounded by the window. The file is synced, read back and compared before it gets its
    name. ``check`` is called for every MiB and may raise. Raises ``OSError``, and ``CorruptData``
    when the disk does not return what was written; no file is then left.
    """
    part = path.with_name(path.name + PART_SUFFIX)
    try:
        file = disk.open(part)
        try:
            file.truncate(0)  # drop the leftovers of a crash
            footer = _compress(disk, source, file, footer, check)
            file.append([_packed(footer)])
            file.sync()
        finally:
            file.close()
        _verify(disk, part, footer, check)
    except Exception:
        disk.remove(part)
        raise
    disk.rename(part, path)
    return footer


def copy_file(disk: Disk, source: Path, path: Path) -> None:
    """Copy a file of any size; the copy gets its name only when it is complete and durable."""
    part = path.with_name(path.name + PART_SUFFIX)
    try:
        file = disk.open(part)
        try:
            file.truncate(0)
            for block in _blocks(disk, source, 0, disk.size(source)):
                file.append([block])
            file.sync()
        finally:
            file.close()
    except Exception:
        disk.remove(part)
        raise
    disk.rename(part, path)


def read_footer(disk: Disk, path: Path) -> Footer:
    """Return the footer of a file; raises ``CorruptData``, or ``OSError``."""
    size_bytes = disk.size(path)
    tail = bytes(BadPages().read(disk, path, max(0, size_bytes - _TAIL.size), _TAIL.size))
    if len(tail) == _TAIL.size:
        json_bytes, crc, magic = _TAIL.unpack(tail)
        start = size_bytes - _TAIL.size - json_bytes
        if magic == _MAGIC and json_bytes <= _FOOTER_BYTES_MAX and start >= _HEAD.size:
            data = bytes(BadPages().read(disk, path, start, json_bytes))
            if crc32c(data) == crc:
                footer = msgspec.json.decode(data, type=Footer)
                if sum(footer.chunks) == start - _HEAD.size:
                    return footer
    raise CorruptData(f"{path} is no whole archive: its end is missing or damaged")


def read_chunk(disk: Disk, path: Path, footer: Footer, number: int) -> bytes:
    """Return the bytes of a chunk; of a damaged chunk the bytes before the damage.

    Some of these may be wrong too: the frames in it have their own CRCs.
    """
    start = sum(footer.chunks[:number])
    data = BadPages().read(disk, path, start, footer.chunks[number])
    try:
        return _decompressor().decompress(data, max_output_size=limits.ARCHIVE_CHUNK_BYTES)
    except zstandard.ZstdError:
        found = io.BytesIO()
        try:
            with _decompressor().stream_reader(data) as reader:
                while piece := reader.read(_CHUNK_BYTES):
                    found.write(piece)
        except zstandard.ZstdError:
            pass
        return found.getvalue()


def check_archive(disk: Disk, path: Path) -> Footer:
    """Read a whole archive file and compare its CRC; raises ``CorruptData``."""
    footer = read_footer(disk, path)
    _verify(disk, path, footer, lambda: None)
    return footer


def crc_of(disk: Disk, path: Path, size_bytes: int) -> int:
    """Return the CRC32C of a file's first bytes."""
    crc = 0
    for block in _blocks(disk, path, 0, size_bytes):
        crc = crc32c(block, crc)
    return crc


def _compress(
    disk: Disk, source: Path, file: File, footer: Footer, check: Callable[[], None]
) -> Footer:
    crc, chunks = 0, list[int]()
    for start in range(0, footer.size_bytes, limits.ARCHIVE_CHUNK_BYTES):
        size_bytes = min(limits.ARCHIVE_CHUNK_BYTES, footer.size_bytes - start)
        before = file.size_bytes
        stream = _compressor(size_bytes).compressobj(size_bytes)
        for block in _blocks(disk, source, start, size_bytes):
            check()
            crc = crc32c(block, crc)
            file.append([stream.compress(block)])
        file.append([stream.flush()])
        chunks.append(file.size_bytes - before)
    return msgspec.structs.replace(footer, crc32c=crc, chunks=chunks)


def _verify(disk: Disk, path: Path, footer: Footer, check: Callable[[], None]) -> None:
    crc = size_bytes = position = 0
    try:
        for compressed_bytes in footer.chunks:
            source = io.BufferedReader(_Part(disk, path, position, compressed_bytes), _CHUNK_BYTES)
            with _decompressor().stream_reader(source) as reader:
                while piece := reader.read(_CHUNK_BYTES):
                    check()
                    crc = crc32c(piece, crc)
                    size_bytes += len(piece)
            position += compressed_bytes
    except zstandard.ZstdError as error:
        raise CorruptData(f"{path} cannot be decompressed: {error}") from None
    if (crc, size_bytes) != (footer.crc32c, footer.size_bytes):
        raise CorruptData(f"{path} does not hold the bytes that were archived: their CRC differs")


def _packed(footer: Footer) -> bytes:
    data = msgspec.json.encode(footer)
    tail = _TAIL.pack(len(data), crc32c(data), _MAGIC)
    return _HEAD.pack(_SKIPPABLE, len(data) + len(tail)) + data + tail


def _blocks(disk: Disk, path: Path, start: int, size_bytes: int) -> Iterator[memoryview]:
    bad_pages = BadPages()
    for position in range(start, start + size_bytes, _CHUNK_BYTES):
        wanted = min(_CHUNK_BYTES, start + size_bytes - position)
        block = bad_pages.read(disk, path, position, wanted)
        if len(block) != wanted:
            raise CorruptData(f"{path} is shorter than it was: {position + len(block)} bytes")
        yield block


def _compressor(size_bytes: int) -> zstandard.ZstdCompressor:
    window_log = max(_WINDOW_LOG_MIN, min(_WINDOW_LOG_MAX, (size_bytes - 1).bit_length()))
    parameters = zstandard.ZstdCompressionParameters.from_level(
        LEVEL,
        source_size=size_bytes,
        window_log=window_log,
        enable_ldm=True,
        ldm_min_match=_LDM_MATCH_BYTES,
        ldm_hash_log=max(6, window_log - _LDM_HASH_RATE_LOG),
        ldm_bucket_size_log=_LDM_BUCKET_LOG,
        ldm_hash_rate_log=_LDM_HASH_RATE_LOG,
        write_checksum=True,
    )
    return zstandard.ZstdCompressor(compression_params=parameters)


def _decompressor() -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG_MAX)


class _Part(io.RawIOBase):
    """A range of a file, as a stream."""

    def __init__(self, disk: Disk, path: Path, position: int, size_bytes: int) -> None:
        self._disk, self._path = disk, path
        self._position, self._end = position, position + size_bytes

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read the next bytes into ``buffer``; return their number, 0 at the end."""
        view = memoryview(buffer)
        wanted = min(len(view), self._end - self._position)
        data = BadPages().read(self._disk, self._path, self._position, wanted)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)
