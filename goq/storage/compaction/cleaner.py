"""The log cleaner: which messages compaction removes from sealed segments.

A *pass* maps keys to their newest offset in one range of the log. The range starts where the last
pass ended, and ends where the map is full. Before the end of the range, a message is removed if the
map has a higher offset for its key. The log before the range was cleaned by earlier passes, so each
key is there once. A tombstone, a key with a null value, is removed when it is old enough and no
older message of its key is left. Segments are rewritten in offset order, so a crash never leaves an
older message without the tombstone that follows it.

:mod:`goq.broker.retention.compaction_manager` decides when a pass runs.
:mod:`goq.storage.compaction.segment_rewriter` writes the segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.storage.compaction.checkpoint import CleanerCheckpoint
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment

_HASH_BYTES = 16
_READ_MESSAGES = 20_000


class OffsetMap:
    """The newest offset of each key from ``start`` up to ``end``, of at most ``keys_max`` keys.

    Keys are identified by a hash of 128 bits under ``secret``, so that no client can choose two
    keys that collide.
    """

    def __init__(self, start: int, *, secret: bytes, keys_max: int) -> None:
        self.start = self.end = start
        self._keyed = blake2b(digest_size=_HASH_BYTES, key=secret)
        self._keys_max = keys_max
        self._newest: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def hash(self, key: bytes) -> bytes:
        """Return the hash that identifies a key."""
        hashed = self._keyed.copy()
        hashed.update(key)
        return hashed.digest()

    def is_superseded(self, key: bytes, offset: int) -> bool:
        """Return whether the key has a newer message than the one at ``offset``."""
        return self._newest.get(self.hash(key), -1) > offset

    def add(self, view: FrameView) -> bool:
        """Add a frame's keys, from ``end`` on; False if the map is full before the frame's end."""
        base, stop = view.header.base_offset, view.header.end_offset
        first = max(0, self.end - base)
        if not view.header.attributes & Attribute.KEYS:
            self.end = stop
            return True
        newest = self._newest
        count = view.header.message_count
        offset = base + first
        for key, kept in zip(view.keys(first, count), view.kept(first, count), strict=True):
            if key is not None and kept:
                known = self.hash(key)
                if known not in newest and len(newest) >= self._keys_max:
                    self.end = offset
                    return False
                newest[known] = offset
            offset += 1
        self.end = stop
        return True


def build_offset_map(
    reader: LogReader, offset_map: OffsetMap, end_offset: int, pause: Callable[[], None]
) -> None:
    """Add the keys up to ``end_offset`` to a map, or as many as fit; blocks on the disk.

    ``pause`` is called between frames.
    """
    offset_map.end = max(offset_map.end, reader.segments[0].base_offset)
    while offset_map.end < end_offset:
        reading = reader.read(offset_map.end, end_offset, messages_max=_READ_MESSAGES)
        for view in reading.frames:
            if not offset_map.add(view):
                return
            pause()
        if reading.next_offset <= offset_map.end and not reading.frames:
            return
        offset_map.end = max(offset_map.end, reading.next_offset)


class Removal(NamedTuple):
    """The rows that a pass removes from one frame."""

    removed: Sequence[int]
    """All rows removed afterwards, in rising order."""
    removed_count: int
    """The number of rows that this pass removes."""
    tombstones: int
    """The number of tombstones that stay, of those within reach of the offset map."""


def plan_removal(view: FrameView, offset_map: OffsetMap, is_over: bool) -> Removal:
    """Return which messages of a frame to remove, as far as the map reaches.

    Tombstones are removed if their time ``is_over``.
    """
    header = view.header
    count = header.message_count
    before = [] if view.removed_rows is None else view.removed_rows.rows(0, count)
    judged = min(count, offset_map.end - header.base_offset)
    if judged <= 0 or not header.attributes & Attribute.KEYS or len(before) == count:
        return Removal(before, 0, 0)
    was_removed = set(before)
    nulls = _null_values(view, judged)
    removed, tombstones = list(before), 0
    for row, key in enumerate(view.keys(0, judged)):
        if key is None or row in was_removed:
            continue
        if offset_map.is_superseded(key, header.base_offset + row) or (is_over and row in nulls):
            removed.append(row)
        elif row in nulls:
            tombstones += 1
    return Removal(sorted(removed), len(removed) - len(before), tombstones)


def _null_values(view: FrameView, count: int) -> set[int]:
    validity = view.payload.value_validity
    if validity is None:
        return set()
    return {row for row in range(count) if not validity[row >> 3] >> (row & 7) & 1}


def dirty_bytes(segments: Sequence[Segment], progress: CleanerCheckpoint) -> tuple[int, int]:
    """Return how many bytes of the sealed segments no pass has read, and how many they have."""
    dirty = total = 0
    for segment in segments[:-1]:
        total += segment.size_bytes
        unseen = segment.end_offset - max(segment.base_offset, progress.compacted_to)
        if unseen > 0:
            dirty += segment.size_bytes * unseen // segment.message_count
    return dirty, total


def is_mostly_dirty(segments: Sequence[Segment], progress: CleanerCheckpoint) -> bool:
    """Return whether no pass has read half of the sealed bytes or more: a pass is worth it."""
    dirty, total = dirty_bytes(segments, progress)
    return dirty > 0 and 2 * dirty >= total


def first_dirty_segment(segments: Sequence[Segment], progress: CleanerCheckpoint) -> Segment | None:
    """Return the first sealed segment that no pass has read whole."""
    return next((s for s in segments[:-1] if s.end_offset > progress.compacted_to), None)


def cleaning_due_us(
    progress: CleanerCheckpoint, tombstone_age_us: int, dirty_us: int | None, lag_us: int
) -> int | None:
    """Return when a pass is due whatever it is worth, None if it is not.

    That is when the first tombstone may be removed, or the first dirty segment, whose first append
    time is ``dirty_us``, reaches the maximum lag: it may hold tombstones that no pass knows of.
    """
    dues_us = [progress.tombstone_us + tombstone_age_us] if progress.tombstone_us else []
    if dirty_us is not None:
        dues_us.append(dirty_us + lag_us)
    return min(dues_us, default=None)
