"""The file of a segment's columns, ``00000000000000045678.columns``: blocks end to end.

It is written in place and never synced. What a crash, a bad disk or another program leaves in it
is found out by the blocks' CRCs, and by the last frame that each names; the segment is then read
in its stead. So no failure here is more than a delay.
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
    """Reads from any thread; one thread at a time writes."""

    def __init__(self, disk: Disk, segment_path: Path) -> None:
        self._disk = disk
        self._segment_path = segment_path
        self._path = segment_path.with_suffix(SUFFIX)
        self._is_removed = False

    def blocks(self, start: SegmentPosition, size_bytes: int) -> list[ColumnBlock]:
        """Return the blocks from the file's beginning that speak of the segment as it is.

        Their bodies are not read.
        """
        found: list[ColumnBlock] = []
        try:
            file_bytes = self._disk.size(self._path)
            while (block := self._next(found, start)) is not None:
                if block.file_end > file_bytes or block.frames.end.position > size_bytes:
                    break
                found.append(block)
        except OSError:
            pass  # what was found until then is sound
        while found and not self._is_there(found[-1].frames.last):
            found.pop()
        return found

    def _next(self, found: list[ColumnBlock], start: SegmentPosition) -> ColumnBlock | None:
        position, place = (found[-1].file_end, found[-1].frames.end) if found else (0, start)
        block = unpack_header(self._disk.read(self._path, position, HEADER_BYTES), position)
        follows = block is not None and block.frames.start == place
        return block if follows else None

    def _is_there(self, last: LastFrame) -> bool:
        """Whether the segment has the frame that a block names as its last."""
        if last == NO_FRAME:
            return True
        try:
            header = self._disk.read(self._segment_path, last.position, FRAME_HEADER_BYTES)
        except OSError:
            return False
        return last_frame(last.position, header) == last

    def body(self, block: ColumnBlock) -> memoryview | None:
        """Return a block's body, None where the file does not have it as it was written."""
        if block.file_position < 0:
            return None
        try:
            position = block.file_position + HEADER_BYTES
            body = self._disk.read(self._path, position, block.body_bytes)
        except OSError:
            return None
        return body if is_body_of(block, body) else None

    def write(self, block: ColumnBlock, data: bytes, position: int) -> ColumnBlock:
        """Let the file have a block at ``position`` and end there; say whether it has."""
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
            file.write_at(data, position)
            if file.size_bytes > position + len(data):
                file.truncate(position + len(data))
        finally:
            file.close()
        return True

    def remove(self) -> None:
        """Delete the file, also from under a thread that is writing it."""
        self._is_removed = True
        try:
            self._disk.size(self._path)
        except FileNotFoundError:
            return
        self._disk.remove(self._path)
