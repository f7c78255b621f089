"""What lookups by key keep in memory, for all logs of a node together, within one bound."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from goq import limits


class KeyMemory:
    """Things by name, each with its size. What was not used longest goes first; any thread."""

    def __init__(self, bytes_max: int = limits.KEYS_MEMORY_BYTES) -> None:
        self.size_bytes = 0
        self._bytes_max = bytes_max
        self._things: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._things)

    def get(self, name: Hashable) -> Any:
        """Return what was put there, None if it is gone."""
        with self._lock:
            found = self._things.get(name)
            if found is None:
                return None
            self._things.move_to_end(name)
            return found[0]

    def put(self, name: Hashable, thing: Any, size_bytes: int) -> None:
        """Keep a thing, or note its new size; others go to make room, itself if it is too large."""
        with self._lock:
            self._drop(name)
            self._things[name] = (thing, size_bytes)
            self.size_bytes += size_bytes
            while self.size_bytes > self._bytes_max:
                self._drop(next(iter(self._things)))

    def drop(self, name: Hashable) -> None:
        """Let go of a thing, if it is there."""
        with self._lock:
            self._drop(name)

    def _drop(self, name: Hashable) -> None:
        _, size_bytes = self._things.pop(name, (None, 0))
        self.size_bytes -= size_bytes
