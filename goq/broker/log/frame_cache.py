"""Frames that were read lately, by partition, bounded in bytes over the whole node.

Lanes, tenants and keys scatter what one receive hands out over many frames, and the next receive
over the same ones: without a cache each would be read and checked once a message.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence

from goq import limits
from goq.frame.header import Attribute
from goq.frame.view import FrameView

_SPREAD_ROW_BYTES = 64


class CachedFrame:
    """A frame with what a receive asks about its messages."""

    __slots__ = ("base_offset", "end_offset", "expires_ms", "keys", "removed_rows", "view")

    def __init__(self, view: FrameView) -> None:
        self.view = view
        self.base_offset = view.header.base_offset
        self.end_offset = view.header.end_offset
        self.removed_rows = view.removed_rows
        keys = view.column(Attribute.KEY_HASH)
        self.keys = keys.cast("Q") if keys is not None else None
        expires = view.column(Attribute.EXPIRES_AT)
        self.expires_ms = expires.cast("q") if expires is not None else None


class FrameCache:
    """The frames of all partitions that were read lately."""

    def __init__(self, bytes_max: int = limits.FRAME_CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._used: OrderedDict[tuple[PartitionFrames, int], int] = OrderedDict()

    def of_partition(self) -> PartitionFrames:
        """Return a partition's own part of the cache."""
        return PartitionFrames(self)

    def note(self, owner: PartitionFrames, base_offset: int, frame_bytes: int) -> None:
        """Count a frame that was put in, and let go of those used longest ago."""
        self._used[owner, base_offset] = frame_bytes
        self._size_bytes += frame_bytes
        while self._size_bytes > self._bytes_max and len(self._used) > 1:
            (oldest, offset), size_bytes = self._used.popitem(last=False)
            self._size_bytes -= size_bytes
            oldest.drop(offset)

    def use(self, owner: PartitionFrames, base_offset: int) -> None:
        """Note that a frame was of use."""
        self._used.move_to_end((owner, base_offset))

    def forget(self, owner: PartitionFrames, base_offset: int) -> None:
        """Count a frame out that its owner dropped."""
        self._size_bytes -= self._used.pop((owner, base_offset))


class PartitionFrames:
    """The cached frames of one partition, found by offset."""

    def __init__(self, cache: FrameCache) -> None:
        self._cache = cache
        self._bases: list[int] = []
        self._frames: dict[int, CachedFrame] = {}

    def at(self, offset: int) -> CachedFrame | None:
        """Return the frame that holds ``offset``, if it is here."""
        number = bisect_right(self._bases, offset) - 1
        if number < 0:
            return None
        frame = self._frames[self._bases[number]]
        return frame if offset < frame.end_offset else None

    def use(self, frame: CachedFrame) -> None:
        """Note that a frame was of use: it stays for longer."""
        if frame.base_offset in self._frames:
            self._cache.use(self, frame.base_offset)

    def add(self, views: Sequence[FrameView]) -> None:
        """Put in frames that were read."""
        for view in views:
            base = view.header.base_offset
            if base not in self._frames:
                self._frames[base] = CachedFrame(view)
                insort(self._bases, base)
                self._cache.note(self, base, _memory_bytes(view))

    def drop(self, base_offset: int) -> None:
        """Let go of a frame, as the cache says."""
        del self._frames[base_offset]
        del self._bases[bisect_right(self._bases, base_offset) - 1]

    def clear(self) -> None:
        """Let go of all frames."""
        for base in self._bases:
            self._cache.forget(self, base)
        self._bases.clear()
        self._frames.clear()


def _memory_bytes(view: FrameView) -> int:
    """Return about what a frame takes; one that was compacted is spread over all its rows."""
    header = view.header
    spread_bytes = _SPREAD_ROW_BYTES if header.attributes & Attribute.REMOVED else 0
    return header.frame_bytes + spread_bytes * header.message_count
