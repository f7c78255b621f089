"""Walking the frames of a segment file, and finding the next sound one past bad bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from goq import limits
from goq.errors import InvalidFrame
from goq.frame.check import check_body_crc
from goq.frame.header import ALIGNMENT_BYTES, HEADER_BYTES, MAGIC, FrameHeader, parse_header
from goq.frame.view import FrameView
from goq.storage.files import Disk


class FramePlace(NamedTuple):
    """A sound frame and where it lies in its file."""

    position: int
    view: FrameView

    @property
    def end_position(self) -> int:
        """The byte after the frame."""
        return self.position + self.view.header.frame_bytes


class BadRegion(NamedTuple):
    """Bytes that are no sound frame, up to the next that is.

    ``end_offset`` is None where no sound frame follows in the file.
    """

    position: int
    end_position: int
    start_offset: int
    end_offset: int | None
    reason: str


class Scan:
    """Reads a segment's frames in order from a known place, a chunk at a time."""

    def __init__(
        self,
        disk: Disk,
        path: Path,
        size_bytes: int,
        *,
        chunk_bytes: int = limits.READ_CHUNK_BYTES,
        wait: bool = True,
    ) -> None:
        self._disk = disk
        self._path = path
        self._size_bytes = size_bytes
        self._chunk_bytes = chunk_bytes
        self._wait = wait
        self._chunk = memoryview(b"")
        self._chunk_position = 0
        self.offset = 0
        """The offset after the last frame or region passed."""

    def frames(
        self, position: int, offset: int, *, skip_to: int = 0
    ) -> Iterator[FramePlace | BadRegion]:
        """Yield what lies from ``position`` on, where the next message should be ``offset``.

        Frames that end at or before ``skip_to`` are passed over by their header alone. Every
        frame yielded has passed both CRCs and continues the offsets without a gap.
        """
        self.offset = offset
        while position < self._size_bytes:
            try:
                header = self._header(position, self.offset)
                view = self._frame(position, header) if header.end_offset > skip_to else None
            except InvalidFrame as error:
                region = self._bad_region(position, self.offset, error.detail)
                if region.end_offset is not None:
                    self.offset = region.end_offset
                yield region
                position = region.end_position
            else:
                self.offset = header.end_offset
                if view is not None:
                    yield FramePlace(position, view)
                position += header.frame_bytes

    def _header(self, position: int, offset: int) -> FrameHeader:
        header = parse_header(self._bytes(position, HEADER_BYTES))
        if header.base_offset != offset:
            raise InvalidFrame(
                f"offset {offset} expected, the frame begins at {header.base_offset}"
            )
        if position + header.frame_bytes > self._size_bytes:
            raise InvalidFrame(
                f"the frame is cut off: {header.frame_bytes} bytes at {position} of a file of"
                f" {self._size_bytes}"
            )
        return header

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
            self._chunk = self._disk.read(self._path, position, wanted, wait=self._wait)
            self._chunk_position, start = position, 0
        return self._chunk[start : start + size_bytes]

    def _bad_region(self, position: int, offset: int, reason: str) -> BadRegion:
        """Find the first sound frame behind ``position`` whose offset can follow."""
        overlap = HEADER_BYTES - 1
        start = position + ALIGNMENT_BYTES
        while start < self._size_bytes:
            chunk = bytes(self._disk.read(self._path, start, limits.MIB + overlap, wait=self._wait))
            found = chunk.find(MAGIC)
            while 0 <= found < limits.MIB:
                candidate = start + found
                if candidate % ALIGNMENT_BYTES == 0 and self._is_sound(candidate, offset):
                    next_offset = parse_header(self._bytes(candidate, HEADER_BYTES)).base_offset
                    return BadRegion(position, candidate, offset, next_offset, reason)
                found = chunk.find(MAGIC, found + 1)
            start += limits.MIB
        return BadRegion(position, self._size_bytes, offset, None, reason)

    def _is_sound(self, position: int, offset_min: int) -> bool:
        try:
            header = parse_header(self._bytes(position, HEADER_BYTES))
            if header.base_offset < offset_min:
                return False
            self._frame(position, self._header(position, header.base_offset))
        except InvalidFrame:
            return False
        return True
