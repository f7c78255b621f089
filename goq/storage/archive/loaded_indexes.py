"""The sparse indexes of archived segments that are in memory: a bound in bytes for the whole node.

A segment of 64 MiB has an index of 320 KiB, and archived segments are never deleted. What was
loaded first is dropped first, and read again from its file when it is needed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from goq import limits
from goq.storage.log.segment import Segment

_ENTRY_BYTES = 40
_OTHER_BYTES = 4096  # mostly of the column index


class LoadedIndexes:
    """The archived segments with an index in memory, in the order of loading. Thread-safe."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self.size_bytes = 0
        self._bytes_max = limits.ARCHIVE_INDEXES_BYTES if bytes_max is None else bytes_max
        self._sizes: OrderedDict[Segment, int] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sizes)

    def on_load(self, segment: Segment, entries: int) -> None:
        """Record that a segment has loaded its index; drop others beyond the bound."""
        with self._lock:
            self._forget(segment)
            size_bytes = self._sizes[segment] = entries * _ENTRY_BYTES + _OTHER_BYTES
            self.size_bytes += size_bytes
            dropped = []
            while self.size_bytes > self._bytes_max:
                first = next(iter(self._sizes))
                self._forget(first)
                dropped.append(first)
        for each in dropped:
            each.unload_index()

    def forget(self, segment: Segment) -> None:
        """Count a segment of a deleted topic no more."""
        with self._lock:
            self._forget(segment)

    def _forget(self, segment: Segment) -> None:
        self.size_bytes -= self._sizes.pop(segment, 0)
