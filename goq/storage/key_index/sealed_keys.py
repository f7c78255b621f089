"""Finding messages of a sealed segment: in its ``.keys`` file, which is made when it lacks.

That it cannot be written is no failure: the frames are then read each time, slower, never less.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from typing import Any

from goq import limits
from goq.storage.column_index.block import NO_FRAME, SegmentPosition
from goq.storage.disk import Disk
from goq.storage.key_index.extract import PartBuilder, extract_keys
from goq.storage.key_index.file import (
    HEADER_BYTES,
    Hashes,
    KeyFileCorrupt,
    KeyPart,
    PartReader,
    unpack_fences,
    unpack_header,
)
from goq.storage.key_index.lookup import Lookup, Pause, has_frame, scan_offsets
from goq.storage.log.segment import KEYS_SUFFIX, Segment


class KeyCache:
    """Things by name, each with its size. What was not used longest goes first; any thread."""

    def __init__(self, bytes_max: int = limits.KEYS_MEMORY_BYTES) -> None:
        self.size_bytes = 0
        self._bytes_max = bytes_max
        self._things: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._things)

    def get(self, name: Hashable) -> Any:
        """Return what was put there, None if it is gone."""
        with self._lock:
            found = self._things.get(name)
            if found is None:
                return None
            self._things.move_to_end(name)
            return found[0]

    def put(self, name: Hashable, thing: Any, size_bytes: int) -> None:
        """Keep a thing, or note its new size; others go to make room, itself if it is too large."""
        with self._lock:
            self._drop(name)
            self._things[name] = (thing, size_bytes)
            self.size_bytes += size_bytes
            while self.size_bytes > self._bytes_max:
                self._drop(next(iter(self._things)))

    def drop(self, name: Hashable) -> None:
        """Let go of a thing, if it is there."""
        with self._lock:
            self._drop(name)

    def _drop(self, name: Hashable) -> None:
        _, size_bytes = self._things.pop(name, (None, 0))
        self.size_bytes -= size_bytes


class SealedKeys:
    """A segment that does not grow, and its file. From any thread."""

    def __init__(
        self, disk: Disk, segment: Segment, memory: KeyCache, is_held: Callable[[], bool]
    ) -> None:
        self.segment = segment
        self.size_bytes = segment.size_bytes
        self._disk = disk
        self._path = segment.path.with_suffix(KEYS_SUFFIX)
        self._memory = memory
        self._is_held = is_held
        self._parts: list[KeyPart] | None = None  # never changed in place
        self._lock = threading.Lock()

    def offsets(self, lookup: Lookup, pause: Pause) -> Iterator[int]:
        """Yield offsets that the hash may stand for, the highest first.

        Raises ``OSError`` when the segment cannot be read; not for the sake of its file.
        """
        for _ in range(2):  # a file that is damaged once more right after it was made is given up
            try:
                parts = self.parts(pause)
            except _CannotWrite:
                break
            try:
                for part in reversed(parts):
                    for offset in self._offsets_in(part, lookup):
                        lookup = lookup._replace(end=offset)
                        yield offset
                return
            except KeyFileCorrupt:
                self._forget(part)
        base = SegmentPosition(0, self.segment.base_offset)
        yield from scan_offsets(self._disk, self.segment.path, base, self.size_bytes, lookup, pause)

    def make(self, pause: Pause) -> None:
        """Let the segment have its file; that it cannot be written is no failure."""
        with suppress(_CannotWrite):
            self.parts(pause)

    def _offsets_in(self, part: KeyPart, lookup: Lookup) -> Iterator[int]:
        table = lookup.table
        start, end, _, times = part.stretch
        if (
            not part.counts[table]
            or start.offset >= lookup.end
            or end.offset <= lookup.start
            or not lookup.may_be_in(times)
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
        found: tuple[Hashes, Hashes] | None = self._memory.get(name)
        if found is None:
            try:
                found = unpack_fences(part, self._read(part.fences_position, part.fences_bytes))
            except OSError:
                raise KeyFileCorrupt from None
            self._memory.put(name, found, part.fences_bytes + limits.KIB)
        return found

    def parts(self, pause: Pause) -> list[KeyPart]:
        """Return the parts of the file, made anew where they lack or are of another segment."""
        with self._lock:
            parts = self._parts
            if parts is None:
                parts = self._stored_parts()
            while parts and not has_frame(self._disk, self.segment.path, parts[-1].stretch.last):
                parts = parts[:-1]
            if self._reach(parts) != self.size_bytes:
                parts = self._made_parts(parts, pause)
            self._parts = parts
            return parts

    def _forget(self, part: KeyPart) -> None:
        """Let a part be made again, and with it those that follow."""
        with self._lock:
            if self._parts is not None and part in self._parts:
                self._parts = self._parts[: self._parts.index(part)]

    def _stored_parts(self) -> list[KeyPart]:
        """Return the parts from the file's beginning that continue each other."""
        parts: list[KeyPart] = []
        try:
            file_bytes = self._disk.size(self._path)
            while (part := self._next(parts)) is not None and part.file_end <= file_bytes:
                parts.append(part)
        except OSError:
            pass  # what was read until then is sound
        return parts

    def _next(self, parts: list[KeyPart]) -> KeyPart | None:
        position = parts[-1].file_end if parts else 0
        place = parts[-1].stretch.end if parts else SegmentPosition(0, self.segment.base_offset)
        part = unpack_header(self._read(position, HEADER_BYTES), position)
        if part is None or part.stretch.start != place:
            return None
        end_position = part.stretch.end.position
        return part if place.position < end_position <= self.size_bytes else None

    def _reach(self, parts: list[KeyPart]) -> int:
        return parts[-1].stretch.end.position if parts else 0

    def _made_parts(self, parts: list[KeyPart], pause: Pause) -> list[KeyPart]:
        """Write the parts that lack behind these; a part at a time is in memory."""
        start, last = SegmentPosition(0, self.segment.base_offset), NO_FRAME
        if parts:
            _, start, last, _ = parts[-1].stretch
        made = PartBuilder(start)
        for piece in extract_keys(self._disk, self.segment.path, self.size_bytes, start, last):
            pause()
            if not made.has_room_for(piece.tables):
                parts = [*parts, self._write(made, parts)]
                made = PartBuilder(piece.stretch.start)
            made.add(piece.tables, piece.stretch)
        return [*parts, self._write(made, parts)]

    def _write(self, made: PartBuilder, parts: list[KeyPart]) -> KeyPart:
        position = parts[-1].file_end if parts else 0
        part, data = made.pack(position)
        try:
            file = self._disk.open(self._path)
            try:
                if file.size_bytes > position:
                    file.truncate(position)
                file.append([data])
            finally:
                file.close()
            if not self._is_held():  # it was deleted meanwhile: nobody else would find the file
                self._disk.remove(self._path)
        except OSError as error:
            raise _CannotWrite from error
        return part


class _CannotWrite(Exception):
    """There is no file, and there cannot be one."""
