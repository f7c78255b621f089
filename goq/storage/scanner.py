"""A scan of a segment file: its frames, its damage, and the next sound frame after damage.

A read that fails with a medium error is repeated page by page, and pages that fail read as zeros.
All that storage reads has a CRC. So a bad page is damage like a flipped bit: it costs the frames
that it touches. A frame that is sound with zeros there is what was written.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from goq import limits
from goq.errors import InvalidFrame
from goq.frame.header import ALIGNMENT_BYTES, HEADER_BYTES, MAGIC, FrameHeader, parse_header
from goq.frame.validation import check_body_crc
from goq.frame.view import FrameView
from goq.storage.disk import Disk, NotCached

_log = logging.getLogger("goq.storage")
PAGE_BYTES: Final = 4096
BAD_PAGE_REASON: Final = "the disk cannot read these bytes"
_TOLD_MAX: Final = 16  # ranges of one log: a bad disk may have any number
_MEDIUM_ERRORS: Final = (errno.EIO, errno.ENODATA, errno.EBADMSG, errno.EUCLEAN)


def is_medium_error(error: OSError) -> bool:
    """Return whether a read failed because the disk does not have the bytes any more."""
    return error.errno in _MEDIUM_ERRORS


class ScannedFrame(NamedTuple):
    """A sound frame and its position in the file."""

    position: int
    view: FrameView

    @property
    def end_position(self) -> int:
        """Position of the byte after the frame."""
        return self.position + self.view.header.frame_bytes


class BadRegion(NamedTuple):
    """Bytes that are no sound frame, up to where the next frame may begin.

    ``end_offset`` is None if nothing in the file tells how many messages are lost.
    """

    position: int
    end_position: int
    start_offset: int
    end_offset: int | None
    reason: str


class Damage(msgspec.Struct, frozen=True):
    """Acknowledged offsets that cannot be read: quarantined, never served.

    The bytes stay in place, from ``position`` up to ``end_position`` of ``path``. Both are 0 if the
    whole file is missing.
    """

    path: Path
    position: int
    end_position: int
    start_offset: int
    end_offset: int
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.path}: bytes {self.position} to {self.end_position}"
            f" (offsets {self.start_offset} to {self.end_offset - 1}): {self.reason}"
        )


def tell_damage(damage: Damage, number: int) -> None:
    """Write the ``number``-th known damage of a log to the node's log; nothing after a bound."""
    if number > _TOLD_MAX:
        return
    _log.error("damaged: %s", damage)
    if number == _TOLD_MAX:
        _log.error(
            "damaged: more in %s is not written here; goq doctor --verify names all",
            damage.path.parent,
        )


class DamageRegistry:
    """The known damage of one log, each range of offsets once. Thread-safe."""

    def __init__(self, items: list[Damage]) -> None:
        self.items = items
        self._lock = threading.Lock()

    def record(self, path: Path, region: BadRegion, segment_end_offset: int) -> Damage:
        """Return the damage of a region, and remember it if its offsets are not known yet."""
        end_offset = segment_end_offset if region.end_offset is None else region.end_offset
        with self._lock:
            for known in self.items:
                if (known.start_offset, known.end_offset) == (region.start_offset, end_offset):
                    return known
            damage = Damage(
                path,
                region.position,
                region.end_position,
                region.start_offset,
                end_offset,
                region.reason,
            )
            self.items.append(damage)
            number = len(self.items)
        tell_damage(damage, number)
        return damage

    def clear(self, start_offset: int, end_offset: int) -> None:
        """Forget the damage that overlaps these offsets."""
        with self._lock:
            self.items[:] = [
                damage
                for damage in self.items
                if damage.end_offset <= start_offset or end_offset <= damage.start_offset
            ]


class BadPages:
    """The known bad pages of some files. Thread-safe.

    They are not read again until the log is reopened: a disk may try for seconds.
    """

    def __init__(self) -> None:
        self._pages: dict[Path, frozenset[int]] = {}
        self._lock = threading.Lock()

    def read(
        self, disk: Disk, path: Path, position: int, size_bytes: int, *, wait: bool = True
    ) -> memoryview:
        """Return bytes of a file as ``Disk.read`` does, with zeros for bad pages."""
        if not self.within(path, position, position + size_bytes):
            try:
                return disk.read(path, position, size_bytes, wait=wait)
            except OSError as error:
                if not is_medium_error(error):
                    raise
        return self._by_page(disk, path, position, size_bytes, wait=wait)

    def within(self, path: Path, start: int, end: int) -> bool:
        """Return whether bytes from ``start`` up to ``end`` are known to be bad."""
        pages = self._pages.get(path)
        return pages is not None and not pages.isdisjoint(_pages(start, end))

    def _by_page(
        self, disk: Disk, path: Path, position: int, size_bytes: int, *, wait: bool
    ) -> memoryview:
        end = min(position + size_bytes, disk.size(path))
        data = bytearray(max(0, end - position))
        known = self._pages.get(path, frozenset())
        found: set[int] = set()
        for page in _pages(position, end):
            first, last = max(position, page * PAGE_BYTES), min(end, (page + 1) * PAGE_BYTES)
            if page in known:
                continue
            try:
                some = disk.read(path, first, last - first, wait=wait)
            except OSError as error:
                if not is_medium_error(error):
                    raise
                found.add(page)
            else:
                data[first - position : first - position + len(some)] = some
        with self._lock:
            self._pages[path] = self._pages.get(path, frozenset()) | found
        return memoryview(bytes(data))


class Scanner:
    """Reads a segment's frames in order from a known position, a chunk at a time.

    A frame with a sound header and a damaged body is skipped by its length. After a damaged header
    the next frame is searched for. A message may itself contain the bytes of a frame. So a found
    frame is accepted only if it ends at the end of the file, or where a frame that continues it
    begins. (A single sound frame between two damaged headers is therefore lost with them.)
    Bytes that the disk cannot read are damage like others.
    """

    def __init__(
        self,
        disk: Disk,
        path: Path,
        size_bytes: int,
        *,
        chunk_bytes: int = limits.READ_CHUNK_BYTES,
        wait: bool = True,
        bad_pages: BadPages | None = None,
    ) -> None:
        self._disk = disk
        self._path = path
        self._size_bytes = size_bytes
        self._chunk_bytes = chunk_bytes
        self._wait = wait
        self._bad_pages = BadPages() if bad_pages is None else bad_pages
        self._chunk = memoryview(b"")
        self._chunk_position = 0
        self.offset = 0
        """The offset after the last frame or region yielded or skipped."""

    def frames(
        self, position: int, offset: int, *, skip_to: int = 0
    ) -> Iterator[ScannedFrame | BadRegion]:
        """Yield frames and bad regions from ``position`` on, where ``offset`` is the next message.

        Frames that end at or before ``skip_to`` are skipped by their header alone. Every yielded
        frame has passed both CRC checks, and continues the offsets without a gap.
        """
        self.offset = offset
        while position < self._size_bytes:
            found = self._at(position, self.offset, skip_to)
            if isinstance(found, FrameHeader):
                self.offset = found.end_offset
                position += found.frame_bytes
                continue
            if isinstance(found, ScannedFrame):
                self.offset = found.view.header.end_offset
            else:
                if found.end_offset is not None:
                    self.offset = found.end_offset
                if self._bad_pages.within(self._path, position, found.end_position):
                    found = found._replace(reason=BAD_PAGE_REASON)
            position = found.end_position
            yield found

    def _at(
        self, position: int, offset: int, skip_to: int
    ) -> ScannedFrame | BadRegion | FrameHeader:
        """Return the frame or region at ``position``; only the header of a frame to skip."""
        try:
            header = parse_header(self._bytes(position, HEADER_BYTES))
        except InvalidFrame as error:
            return self._search(position, offset, error.detail)
        end_position, end_offset = position + header.frame_bytes, header.end_offset
        if header.base_offset > offset:
            reason = f"offset {offset} expected, the frame begins at {header.base_offset}"
            return BadRegion(position, position, offset, header.base_offset, reason)
        if header.base_offset < offset:
            reason = f"the frame repeats offset {header.base_offset}"
            return self._search(position, offset, reason)
        if end_position > self._size_bytes:
            reason = f"the frame is cut off: {header.frame_bytes} bytes, {self._size_bytes} in all"
            return BadRegion(position, self._size_bytes, offset, None, reason)
        if end_offset <= skip_to:
            return header
        try:
            return ScannedFrame(position, self._frame(position, header))
        except InvalidFrame as error:
            return BadRegion(position, end_position, offset, end_offset, error.detail)

    def _frame(self, position: int, header: FrameHeader) -> FrameView:
        view = FrameView(header, self._bytes(position, header.frame_bytes))
        if len(view.buffer) < header.frame_bytes:
            raise InvalidFrame("the file is shorter than it was")
        check_body_crc(view)
        return view

    def _bytes(self, position: int, size_bytes: int) -> memoryview:
        start = position - self._chunk_position
        if start < 0 or start + size_bytes > len(self._chunk):
            wanted = max(size_bytes, self._chunk_bytes)
            wanted = min(wanted, self._size_bytes - position)
            self._chunk = self._read(position, wanted)
            self._chunk_position, start = position, 0
        return self._chunk[start : start + size_bytes]

    def _read(self, position: int, size_bytes: int) -> memoryview:
        if not self._wait and size_bytes > limits.READ_AT_ONCE_BYTES:
            raise NotCached
        return self._bad_pages.read(self._disk, self._path, position, size_bytes, wait=self._wait)

    def has_bad_pages(self, position: int) -> bool:
        """Return whether bytes from ``position`` on cannot be read, as far as they were tried."""
        return self._bad_pages.within(self._path, position, self._size_bytes)

    def _search(self, position: int, offset: int, reason: str) -> BadRegion:
        """Return the bad region up to the first frame after ``position`` that can come next."""
        overlap = HEADER_BYTES - 1
        start = position + ALIGNMENT_BYTES
        while start < self._size_bytes:
            chunk = bytes(self._read(start, limits.MIB + overlap))
            found = chunk.find(MAGIC)
            while 0 <= found < limits.MIB:
                candidate = start + found
                if candidate % ALIGNMENT_BYTES == 0 and self._is_next(candidate, offset):
                    next_offset = parse_header(self._bytes(candidate, HEADER_BYTES)).base_offset
                    return BadRegion(position, candidate, offset, next_offset, reason)
                found = chunk.find(MAGIC, found + 1)
            start += limits.MIB
        return BadRegion(position, self._size_bytes, offset, None, reason)

    def _is_next(self, position: int, damaged_offset: int) -> bool:
        """Return whether the frame at ``position`` can follow the one at ``damaged_offset``."""
        try:
            header = parse_header(self._bytes(position, HEADER_BYTES))
            end_position = position + header.frame_bytes
            if header.base_offset <= damaged_offset or end_position > self._size_bytes:
                return False  # because the damaged frame held at least one message
            if end_position < self._size_bytes:
                after = parse_header(self._bytes(end_position, HEADER_BYTES))
                if after.base_offset != header.end_offset:
                    return False
            self._frame(position, header)
        except InvalidFrame:
            return False
        return True


def _pages(start: int, end: int) -> range:
    return range(start // PAGE_BYTES, -(-end // PAGE_BYTES))
