"""The index of a sealed segment: its ``.keys`` file, built on first use.

A failed write of the file is not an error: lookups then scan the frames, slower but complete.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from goq import limits
from goq.index_cache import IndexCache
from goq.storage.column_index.block import NO_FRAME, SegmentPosition
from goq.storage.disk import Disk
from goq.storage.key_index.extract import DEFAULT_LIMITS, PartBuilder, ScanLimits, extract_keys
from goq.storage.key_index.file import (
    HEADER_BYTES,
    Hashes,
    KeyFileCorrupt,
    KeyPart,
    PartReader,
    unpack_fences,
    unpack_header,
)
from goq.storage.key_index.lookup import KeyLookup, Pause, has_frame, scan_offsets
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import KEYS_SUFFIX, Segment


class SealedKeys:
    """The index of one sealed segment. Thread-safe.

    There is one for each segment that was ever searched, so it is small: the cache has the rest.
    """

    __slots__ = ("_cache", "_disk", "_limit", "_lock", "_reader", "segment", "size_bytes")

    def __init__(
        self,
        disk: Disk,
        segment: Segment,
        cache: IndexCache,
        reader: LogReader,
        limit: ScanLimits = DEFAULT_LIMITS,
    ) -> None:
        self.segment = segment
        self.size_bytes = segment.size_bytes
        self._disk = disk
        self._cache = cache
        self._reader = reader
        self._limit = limit
        self._lock = threading.Lock()

    @property
    def _path(self) -> Path:
        return self.segment.path.with_suffix(KEYS_SUFFIX)

    def offsets(self, lookup: KeyLookup, pause: Pause) -> Iterator[int]:
        """Yield candidate offsets, highest first.

        Raises ``OSError`` when the segment cannot be read. A failure of its file does not raise.
        """
        for _ in range(2):  # a file that is corrupt again right after a rebuild is abandoned
            try:
                parts = self.parts(pause)
            except _WriteFailed:
                break
            try:
                for part in reversed(parts):
                    for offset in self._offsets_in(part, lookup):
                        lookup = lookup._replace(end=offset)
                        yield offset
                return
            except KeyFileCorrupt:
                self._drop_from(part)
        base = SegmentPosition(0, self.segment.base_offset)
        yield from scan_offsets(
            self._disk, self.segment.path, base, self.size_bytes, lookup, pause, self._limit
        )

    def build(self, pause: Pause) -> None:
        """Build the segment's file; a failed write is not an error."""
        with suppress(_WriteFailed):
            self.parts(pause)

    def _offsets_in(self, part: KeyPart, lookup: KeyLookup) -> Iterator[int]:
        table = lookup.table
        start, end, _, times = part.frames
        if (
            not part.counts[table]
            or start.offset >= lookup.end
            or end.offset <= lookup.start
            or not lookup.overlaps(times)
        ):
            return
        reader = PartReader(self._read, part, table, self._fences(part)[table])
        for offset in reader.offsets(lookup.hashed, lookup.end):
            if offset < lookup.start:
                return
            yield offset

    def _read(self, position: int, size_bytes: int) -> memoryview:
        return self._disk.read(self._path, position, size_bytes)

    def _fences(self, part: KeyPart) -> tuple[Hashes, Hashes]:
        name = (self._path, part.file_position, part.header_crc32c)
        found: tuple[Hashes, Hashes] | None = self._cache.get(name)
        if found is None:
            try:
                found = unpack_fences(part, self._read(part.fences_position, part.fences_bytes))
            except OSError:
                raise KeyFileCorrupt from None
            self._cache.put(name, found, part.fences_bytes + limits.KIB)
        return found

    def parts(self, pause: Pause) -> list[KeyPart]:
        """Return the parts of the file; missing parts, or parts of another segment, are rebuilt."""
        with self._lock:
            parts = self._known_parts()
            while parts and not has_frame(self._disk, self.segment.path, parts[-1].frames.last):
                parts = parts[:-1]
            if self._covered_bytes(parts) != self.size_bytes:
                parts = self._build_parts(parts, pause)
            self._remember(parts)
            return parts

    def _known_parts(self) -> list[KeyPart]:
        """Return the parts as they were, never changed in place, or as the file has them."""
        found: list[KeyPart] | None = self._cache.get((self._path, self.size_bytes))
        return self._read_parts() if found is None else found

    def _remember(self, parts: list[KeyPart]) -> None:
        name = (self._path, self.size_bytes)
        self._cache.put(name, parts, (1 + len(parts)) * limits.KIB)

    def _drop_from(self, part: KeyPart) -> None:
        """Discard a part and the parts after it; the next lookup rebuilds them."""
        with self._lock:
            parts = self._known_parts()
            if part in parts:
                self._remember(parts[: parts.index(part)])

    def _read_parts(self) -> list[KeyPart]:
        """Return the parts at the start of the file, as long as each continues the one before."""
        parts: list[KeyPart] = []
        try:
            file_bytes = self._disk.size(self._path)
            while (part := self._next(parts)) is not None and part.file_end <= file_bytes:
                parts.append(part)
        except OSError:
            pass  # the parts read so far are sound
        return parts

    def _next(self, parts: list[KeyPart]) -> KeyPart | None:
        position = parts[-1].file_end if parts else 0
        place = parts[-1].frames.end if parts else SegmentPosition(0, self.segment.base_offset)
        part = unpack_header(self._read(position, HEADER_BYTES), position)
        if part is None or part.frames.start != place:
            return None
        end_position = part.frames.end.position
        return part if place.position < end_position <= self.size_bytes else None

    def _covered_bytes(self, parts: list[KeyPart]) -> int:
        return parts[-1].frames.end.position if parts else 0

    def _build_parts(self, parts: list[KeyPart], pause: Pause) -> list[KeyPart]:
        """Write the missing parts after ``parts``; only one part at a time is in memory."""
        start, last = SegmentPosition(0, self.segment.base_offset), NO_FRAME
        if parts:
            _, start, last, _ = parts[-1].frames
        builder = PartBuilder(start)
        for piece in extract_keys(
            self._disk, self.segment.path, self.size_bytes, start, last, self._limit
        ):
            pause()
            if not builder.has_room_for(piece.tables):
                parts = [*parts, self._write(builder, parts)]
                builder = PartBuilder(piece.frames.start)
            builder.add(piece.tables, piece.frames)
        return [*parts, self._write(builder, parts)]

    def _write(self, builder: PartBuilder, parts: list[KeyPart]) -> KeyPart:
        position = parts[-1].file_end if parts else 0
        part, data = builder.pack(position)
        try:
            file = self._disk.open(self._path)
            try:
                if file.size_bytes > position:
                    file.truncate(position)
                file.append([data])
            finally:
                file.close()
            if (
                self.segment not in self._reader.segments
            ):  # the segment was deleted meanwhile, so its file is an orphan
                self._disk.remove(self._path)
        except OSError as error:
            raise _WriteFailed from error
        return part


class _WriteFailed(Exception):
    """The file does not exist and cannot be written."""
