"""The ``.columns`` file of a segment, as ``00000000000000045678.columns``: a sequence of blocks.

It is written in place and never synced. Corruption by a crash, a bad disk or another program is
detected by the blocks' CRCs, and by the last frame that each names. The segment is then read
instead. So a failure of this file only costs time.
"""

from __future__ import annotations

from pathlib import Path

from goq.frame.header import HEADER_BYTES as FRAME_HEADER_BYTES
from goq.storage.column_index.block import (
    HEADER_BYTES,
    NO_FRAME,
    ColumnBlock,
    LastFrame,
    SegmentPosition,
    is_body_of,
    last_frame,
    unpack_header,
)
from goq.storage.disk import Disk

SUFFIX = ".columns"


class ColumnFile:
    """The file of one segment. Any thread reads, one thread at a time writes."""

    def __init__(self, disk: Disk, segment_path: Path) -> None:
        self._disk = disk
        self._segment_path = segment_path
        self._path = segment_path.with_suffix(SUFFIX)
        self._is_removed = False

    def blocks(self, start: SegmentPosition, size_bytes: int) -> list[ColumnBlock]:
        """Return the blocks at the start of the file that match the segment; reads no bodies."""
        found: list[ColumnBlock] = []
        try:
            file_bytes = self._disk.size(self._path)
            while (block := self._next(found, start)) is not None:
                if block.file_end > file_bytes or block.frames.end.position > size_bytes:
                    break
                found.append(block)
        except OSError:
            pass  # the blocks found so far are sound
        while found and not self._is_there(found[-1].frames.last):
            found.pop()
        return found

    def _next(self, found: list[ColumnBlock], start: SegmentPosition) -> ColumnBlock | None:
        position, place = (found[-1].file_end, found[-1].frames.end) if found else (0, start)
        block = unpack_header(self._disk.read(self._path, position, HEADER_BYTES), position)
        follows = block is not None and block.frames.start == place
        return block if follows else None

    def _is_there(self, last: LastFrame) -> bool:
        """Return whether the segment holds the last frame of a block."""
        if last == NO_FRAME:
            return True
        try:
            header = self._disk.read(self._segment_path, last.position, FRAME_HEADER_BYTES)
        except OSError:
            return False
        return last_frame(last.position, header) == last

    def body(self, block: ColumnBlock) -> memoryview | None:
        """Return a block's body, or None if the file does not have it or it is corrupt."""
        if block.file_position < 0:
            return None
        try:
            position = block.file_position + HEADER_BYTES
            body = self._disk.read(self._path, position, block.body_bytes)
        except OSError:
            return None
        return body if is_body_of(block, body) else None

    def write(self, block: ColumnBlock, data: bytes, position: int) -> ColumnBlock:
        """Write a block at ``position`` as the last of the file; return it with its place."""
        try:
            is_written = self._write(data, position)
            if self._is_removed:
                self._disk.remove(self._path)
        except OSError:
            return block
        return block._replace(file_position=position) if is_written else block

    def _write(self, data: bytes, position: int) -> bool:
        file = self._disk.open(self._path)
        try:
            if not 0 <= position <= file.size_bytes:
                return False
            file.write_at(data, position, must_last=False)
            if file.size_bytes > position + len(data):
                file.truncate(position + len(data))
        finally:
            file.close()
        return True

    def remove(self) -> None:
        """Delete the file, even while another thread writes it."""
        self._is_removed = True
        try:
            self._disk.size(self._path)
        except FileNotFoundError:
            return
        self._disk.remove(self._path)
