"""Cache of frames by partition, bounded in bytes for the whole node, and the fetch of a receive.

Lanes, tenants and keys scatter the messages of one receive over many frames, and the next receive
reads the same frames. Without a cache each frame would be read and checked once for each message.

A fetch serves one receive. It reads the frames when the selection needs the attributes of their
messages, and the receive delivers from the same frames. So every selected message is readable.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from goq import limits
from goq.delivery.selection.redelivery import AttributeColumns
from goq.errors import InvalidFrame
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.storage.disk import NotCached
from goq.storage.log.reader import ReadResult
from goq.storage.scanner import Damage

REDRIVE_GROUP_HEADER = "goq-redrive-group"
"""The header with the group that a redriven dead letter is for."""
_SPREAD_ROW_BYTES = 64


class CachedFrame:
    """A frame with the attributes of its messages that a receive reads."""

    __slots__ = (
        "average_bytes",
        "base_offset",
        "end_offset",
        "expires_ms",
        "groups",
        "keys",
        "removed_rows",
        "view",
    )

    def __init__(self, view: FrameView) -> None:
        self.view = view
        self.base_offset = view.header.base_offset
        self.end_offset = view.header.end_offset
        self.average_bytes = view.header.frame_bytes // view.header.message_count
        self.removed_rows = view.removed_rows
        self.groups: dict[int, str] | None = None
        """The one group that a redriven message is for, by row."""
        if view.header.attributes & Attribute.COPY:
            found = view.header_values(REDRIVE_GROUP_HEADER.encode())
            self.groups = {row: value.decode() for row, value in found.items()} or None
        keys = view.column(Attribute.KEY_HASH)
        self.keys = keys.cast("Q") if keys is not None else None
        expires = view.column(Attribute.EXPIRES_AT)
        self.expires_ms = expires.cast("q") if expires is not None else None


class FrameCache:
    """The least recently used cache of frames of all partitions."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self._bytes_max = limits.FRAME_CACHE_BYTES if bytes_max is None else bytes_max
        self.size_bytes = 0
        self._used: OrderedDict[tuple[PartitionFrames, int], int] = OrderedDict()

    def of_partition(self) -> PartitionFrames:
        """Return the part of one partition."""
        return PartitionFrames(self)

    def note(self, owner: PartitionFrames, base_offset: int, frame_bytes: int) -> None:
        """Count an added frame, and evict the least recently used ones."""
        self._used[owner, base_offset] = frame_bytes
        self.size_bytes += frame_bytes
        while self.size_bytes > self._bytes_max and len(self._used) > 1:
            (oldest, offset), size_bytes = self._used.popitem(last=False)
            self.size_bytes -= size_bytes
            oldest.drop(offset)

    def use(self, owner: PartitionFrames, base_offset: int) -> None:
        """Mark a frame as used."""
        self._used.move_to_end((owner, base_offset))

    def forget(self, owner: PartitionFrames, base_offset: int) -> None:
        """Count a removed frame."""
        self.size_bytes -= self._used.pop((owner, base_offset))


class PartitionFrames:
    """The cached frames of one partition, found by offset."""

    def __init__(self, cache: FrameCache) -> None:
        self.version = 0
        """Changes when frames that were read before may be others now."""
        self._cache = cache
        self._bases: list[int] = []
        self._frames: dict[int, CachedFrame] = {}

    def at(self, offset: int) -> CachedFrame | None:
        """Return the cached frame that contains ``offset``, or None."""
        number = bisect_right(self._bases, offset) - 1
        if number < 0:
            return None
        frame = self._frames[self._bases[number]]
        return frame if offset < frame.end_offset else None

    def use(self, frame: CachedFrame) -> None:
        """Mark a frame as used: it stays longer."""
        if frame.base_offset in self._frames:
            self._cache.use(self, frame.base_offset)

    def add(self, frames: Sequence[CachedFrame]) -> None:
        """Add frames; those that have no messages left are not needed."""
        for frame in frames:
            base = frame.base_offset
            if base not in self._frames and not _is_empty(frame.view):
                self._frames[base] = frame
                insort(self._bases, base)
                self._cache.note(self, base, _memory_bytes(frame.view))

    def drop(self, base_offset: int) -> None:
        """Drop an evicted frame."""
        del self._frames[base_offset]
        del self._bases[bisect_right(self._bases, base_offset) - 1]

    def clear(self) -> None:
        """Drop all frames."""
        self.version += 1
        for base in self._bases:
            self._cache.forget(self, base)
        self._bases.clear()
        self._frames.clear()


def _memory_bytes(view: FrameView) -> int:
    """Return the approximate memory of a frame.

    A compacted one has all its rows in memory, one with tenants has their names.
    """
    header = view.header
    if not header.attributes & (Attribute.REMOVED | Attribute.TENANT):
        return header.frame_bytes
    spread_rows = header.message_count if header.attributes & Attribute.REMOVED else 0
    names = 0 if view.tenants is None else len(view.tenants.offsets) - 1
    return header.frame_bytes + _SPREAD_ROW_BYTES * (spread_rows + names)


_GONE_FRAME_COSTS_BYTES = 64 * 1024  # bounds how many removed frames one receive skips


class UncachedMessages(NamedTuple):
    """Messages that must be read from the disk before they can be delivered."""

    offset: int
    messages: int


class FrameFetch:
    """The frames of one receive of a group from one partition.

    ``read`` is the log's bounded read. ``on_damage`` records unreadable ranges at once. ``missing``
    are the uncached messages that ended the selection, if any.
    """

    def __init__(
        self,
        cached: PartitionFrames,
        read: Callable[[int, int, int], ReadResult],
        on_damage: Callable[[Damage], None],
        *,
        group: str,
        bytes_max: int,
    ) -> None:
        self.missing: UncachedMessages | None = None
        self._cached = cached
        self._read = read
        self._on_damage = on_damage
        self._group = group
        self._bytes_left = bytes_max
        self.used_bytes = 0
        """The share of the messages so far in the bytes of their frames."""
        self._frames: dict[int, FrameView] = {}
        self._last: CachedFrame | None = None

    @property
    def frames(self) -> list[FrameView]:
        """The frames used so far, in order of use."""
        return list(self._frames.values())

    def facts(self, start: int, end: int) -> AttributeColumns | None:
        """Return the attributes of messages from ``start`` on; None when the receive is full."""
        if self._bytes_left <= 0:
            return None
        frame = self._last
        if frame is None or not frame.base_offset <= start < frame.end_offset:
            found = self._frame(start, end)
            if not isinstance(found, CachedFrame):
                return found
            frame = self._last = found
        view, base = frame.view, frame.base_offset
        header = view.header
        if frame.removed_rows is not None:
            run_end = base + frame.removed_rows.run_end(start - base)
            if frame.removed_rows.has(start - base):
                return self._pass_gone(frame, start, run_end)
            end = min(end, run_end)
        end = min(end, frame.end_offset)
        cost = (end - start) * header.frame_bytes // header.message_count
        if cost > self._bytes_left:
            fitting = self._bytes_left * header.message_count // header.frame_bytes
            if not fitting and self._frames:
                self._bytes_left = 0
                return None
            end = start + max(1, fitting)  # the first message always has room
            cost = (end - start) * header.frame_bytes // header.message_count
        self._bytes_left -= cost
        self.used_bytes += cost
        if base not in self._frames:
            self._frames[base] = view
            self._cached.use(frame)
        first, last = start - base, end - base
        return AttributeColumns(
            end,
            True,
            frame.keys[first:last].tolist() if frame.keys is not None else None,
            frame.expires_ms[first:last].tolist() if frame.expires_ms is not None else None,
            [frame.groups.get(row) for row in range(first, last)] if frame.groups else None,
        )

    def single(self, offset: int) -> tuple[int, int] | None:
        """Return the key's hash and the expiry of one message; None where :meth:`facts` is needed.

        See :data:`~goq.delivery.selection.redelivery.SingleReader`.
        """
        frame = self._last
        if frame is None or not frame.base_offset <= offset < frame.end_offset:
            frame = self._cached.at(offset)
            if frame is None:
                return None
            self._last = frame
        cost, row = frame.average_bytes, offset - frame.base_offset
        if frame.removed_rows is not None or cost > self._bytes_left:
            return None
        if frame.groups is not None and frame.groups.get(row) not in (None, self._group):
            return None
        self._bytes_left -= cost
        self.used_bytes += cost
        base = frame.base_offset
        if base not in self._frames:
            self._frames[base] = frame.view
            self._cached.use(frame)
        keys, expires_ms = frame.keys, frame.expires_ms
        return (
            keys[row] if keys is not None else 0,
            expires_ms[row] if expires_ms is not None else 0,
        )

    def _pass_gone(self, frame: CachedFrame, start: int, end: int) -> AttributeColumns:
        """Return the attributes of removed messages; skipping them uses up the bound too."""
        header = frame.view.header
        share_bytes = (end - start) * header.frame_bytes // header.message_count
        is_whole = end - start == header.message_count
        self._bytes_left -= max(share_bytes, _GONE_FRAME_COSTS_BYTES if is_whole else 0)
        return AttributeColumns(end, is_gone=True)

    def _frame(self, start: int, end: int) -> CachedFrame | AttributeColumns | None:
        """Return the frame at ``start`` from the cache or the log, or the removed range there."""
        frame = self._cached.at(start)
        if frame is not None:
            return frame
        try:
            reading = self._read(start, end, self._bytes_left)
        except NotCached:
            self.missing = UncachedMessages(start, max(end - start, 1))
            return None
        frames = [CachedFrame(view) for view in reading.frames]
        self._cached.add(frames)
        for damage in reading.damage:
            self._on_damage(damage)
        for frame in frames:
            if frame.base_offset <= start < frame.end_offset:
                return frame
        after = min((v.header.base_offset for v in reading.frames), default=reading.next_offset)
        if after <= start:
            raise InvalidFrame(f"offset {start} cannot be read")
        return AttributeColumns(min(after, end), is_readable=False)


def _is_empty(view: FrameView) -> bool:
    """Return whether a frame has no messages left."""
    return view.removed_rows is not None and view.removed_rows.is_all
