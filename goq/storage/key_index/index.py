"""The key index of a log: candidate offsets by the hash of a key or dedup id.

A result is a candidate, because another key may have the same hash. The caller reads the message
to check. Publishing writes nothing here, and a lost file loses nothing.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from goq.index_cache import IndexCache
from goq.storage.disk import Disk
from goq.storage.key_index.active_keys import ActiveKeys
from goq.storage.key_index.extract import DEFAULT_LIMITS, ScanLimits
from goq.storage.key_index.lookup import KeyLookup, Pause
from goq.storage.key_index.sealed_keys import SealedKeys
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment


class KeyIndex:
    """The index of the segments of ``reader``, read from ``disk``. Thread-safe.

    ``has_active`` states whether the last segment is still appended to.
    """

    def __init__(
        self,
        disk: Disk,
        reader: LogReader,
        cache: IndexCache,
        *,
        has_active: bool = True,
        limit: ScanLimits = DEFAULT_LIMITS,
    ) -> None:
        self.disk = disk
        self.reader = reader
        self._cache = cache
        self._has_active = has_active
        self._limit = limit
        self._sealed: dict[int, SealedKeys] = {}
        self._lock = threading.Lock()
        self._catch_up_lock = threading.Lock()

    def offsets(self, lookup: KeyLookup, pause: Pause) -> Iterator[int]:
        """Yield candidate offsets, highest first.

        A segment deleted meanwhile is skipped. A segment replaced by another generation, or by its
        archive, is searched there. For a missing segment its last offset is yielded, so that the
        caller's read reports the damage. Raises ``OSError`` when the log cannot be read, and what
        ``pause`` raises.
        """
        self._drop_all_but(self.reader.segments)
        while (segment := self._last_within(lookup)) is not None:
            is_active = self._has_active and segment is self.reader.segments[-1]
            find = self._find_in_active if is_active else self._find_in_sealed
            try:
                for offset in find(segment, lookup, pause):
                    lookup = lookup._replace(end=offset)
                    yield offset
            except FileNotFoundError:
                if segment not in self.reader.segments:
                    continue
                yield min(lookup.end, segment.end_offset) - 1
            lookup = lookup._replace(end=min(lookup.end, segment.base_offset))

    def _last_within(self, lookup: KeyLookup) -> Segment | None:
        segments = self.reader.segments
        number = bisect_left(segments, lookup.end, key=lambda s: s.base_offset) - 1
        found = segments[number] if number >= 0 else None
        return found if found is not None and found.end_offset > lookup.start else None

    def build(self, segment: Segment, pause: Pause) -> None:
        """Build the file of a sealed segment if possible; raises as :meth:`offsets` does."""
        self._drop_all_but(self.reader.segments)  # there may never be a lookup
        if segment in self.reader.segments:
            self._of(segment).build(pause)

    def _find_in_sealed(self, segment: Segment, lookup: KeyLookup, pause: Pause) -> Iterator[int]:
        return self._of(segment).offsets(lookup, pause)

    def _find_in_active(self, segment: Segment, lookup: KeyLookup, pause: Pause) -> Iterator[int]:
        size_bytes = segment.size_bytes
        with self._catch_up_lock:
            keys: ActiveKeys | None = self._cache.get(segment.path)
            if keys is None or not keys.matches(segment):
                keys = ActiveKeys(self.disk, segment, self._limit)
            try:
                keys.catch_up(size_bytes, pause)
            finally:
                self._cache.put(segment.path, keys, keys.memory_bytes)
            return keys.offsets(lookup, size_bytes, pause)

    def _of(self, segment: Segment) -> SealedKeys:
        with self._lock:
            known = self._sealed.get(segment.base_offset)
            if known is None or (known.segment, known.size_bytes) != (segment, segment.size_bytes):
                known = SealedKeys(self.disk, segment, self._cache, self.reader, self._limit)
                self._sealed[segment.base_offset] = known
                self._cache.drop(segment.path)  # entries of the segment while it was active
            return known

    def _drop_all_but(self, segments: Sequence[Segment]) -> None:
        """Drop the indexes of deleted segments."""
        with self._lock:
            if len(self._sealed) >= len(segments):
                held = {segment.base_offset for segment in segments}
                self._sealed = {base: k for base, k in self._sealed.items() if base in held}
