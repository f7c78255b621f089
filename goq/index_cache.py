"""The cache of the key and event indexes of a node, bounded in bytes together.

The indexes are derived data: what is evicted is read again from its file, or built again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from goq import limits


class IndexCache:
    """The least-recently-used cache of all indexes of a node. Thread-safe."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self.size_bytes = 0
        self._bytes_max = limits.INDEX_CACHE_BYTES if bytes_max is None else bytes_max
        self._items: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, name: Hashable) -> Any:
        """Return the cached value, or None."""
        with self._lock:
            found = self._items.get(name)
            if found is None:
                return None
            self._items.move_to_end(name)
            return found[0]

    def put(self, name: Hashable, value: Any, size_bytes: int) -> None:
        """Cache a value, or update its size. Evicts others, or the value itself if too large."""
        with self._lock:
            self._drop(name)
            self._items[name] = (value, size_bytes)
            self.size_bytes += size_bytes
            while self.size_bytes > self._bytes_max:
                self._drop(next(iter(self._items)))

    def drop(self, name: Hashable) -> None:
        """Remove a value, if it is cached."""
        with self._lock:
            self._drop(name)

    def _drop(self, name: Hashable) -> None:
        _, size_bytes = self._items.pop(name, (None, 0))
        self.size_bytes -= size_bytes
