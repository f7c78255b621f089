"""Finding messages of a log by the hash of a key or dedup id, over all its segments.

What is found is a candidate: another key may have the same hash. Whoever looks one up reads the
message to see. Nothing here is written by publishing, and nothing is lost with a file.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from goq.storage.disk import Disk
from goq.storage.key_index.active_keys import ActiveKeys
from goq.storage.key_index.lookup import Lookup, Pause
from goq.storage.key_index.sealed_keys import KeyCache, SealedKeys
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment


class KeyIndex:
    """The keys of what ``reader`` reads from ``disk``; from any thread.

    ``grows`` says whether the last segment is one that still grows.
    """

    def __init__(
        self, disk: Disk, reader: LogReader, memory: KeyCache, *, grows: bool = True
    ) -> None:
        self.disk = disk
        self.reader = reader
        self._memory = memory
        self._grows = grows
        self._sealed: dict[int, SealedKeys] = {}
        self._lock = threading.Lock()
        self._catching_up = threading.Lock()

    def offsets(self, lookup: Lookup, pause: Pause) -> Iterator[int]:
        """Yield offsets that the hash may stand for, the highest first.

        A segment that is deleted meanwhile is passed over, one that another generation or its
        archive has replaced is looked through there. Of one that is missing the last offset stands
        for all: whoever reads it sees the damage. Raises ``OSError`` when the log cannot be read,
        and what ``pause`` raises.
        """
        self._forget_all_but(self.reader.segments)
        while (segment := self._last_within(lookup)) is not None:
            is_growing = self._grows and segment is self.reader.segments[-1]
            find = self._in_growing if is_growing else self._in_sealed
            try:
                for offset in find(segment, lookup, pause):
                    lookup = lookup._replace(end=offset)
                    yield offset
            except FileNotFoundError:
                if segment not in self.reader.segments:
                    continue
                yield min(lookup.end, segment.end_offset) - 1
            lookup = lookup._replace(end=min(lookup.end, segment.base_offset))

    def _last_within(self, lookup: Lookup) -> Segment | None:
        segments = self.reader.segments
        number = bisect_left(segments, lookup.end, key=lambda s: s.base_offset) - 1
        found = segments[number] if number >= 0 else None
        return found if found is not None and found.end_offset > lookup.start else None

    def make(self, segment: Segment, pause: Pause) -> None:
        """Let a sealed segment have its file if it can; raises as :meth:`offsets` does."""
        if segment in self.reader.segments:
            self._of(segment).make(pause)

    def _in_sealed(self, segment: Segment, lookup: Lookup, pause: Pause) -> Iterator[int]:
        return self._of(segment).offsets(lookup, pause)

    def _in_growing(self, segment: Segment, lookup: Lookup, pause: Pause) -> Iterator[int]:
        size_bytes = segment.size_bytes
        with self._catching_up:
            keys: ActiveKeys | None = self._memory.get(segment.path)
            if keys is None or not keys.is_of(segment):
                keys = ActiveKeys(self.disk, segment)
            try:
                keys.catch_up(size_bytes, pause)
            finally:
                self._memory.put(segment.path, keys, keys.memory_bytes)
            return keys.offsets(lookup, size_bytes, pause)

    def _of(self, segment: Segment) -> SealedKeys:
        with self._lock:
            known = self._sealed.get(segment.base_offset)
            if known is None or (known.segment, known.size_bytes) != (segment, segment.size_bytes):
                known = SealedKeys(
                    self.disk, segment, self._memory, lambda: segment in self.reader.segments
                )
                self._sealed[segment.base_offset] = known
                self._memory.drop(segment.path)  # it grew until now
            return known

    def _forget_all_but(self, segments: Sequence[Segment]) -> None:
        """Let go of segments that were deleted."""
        with self._lock:
            if len(self._sealed) >= len(segments):
                held = {segment.base_offset for segment in segments}
                self._sealed = {base: k for base, k in self._sealed.items() if base in held}
