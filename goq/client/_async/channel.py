"""A short queue between workers and the one who reads them all."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from goq.client._async.backend import Monitor

Item = TypeVar("Item")


class Channel(Generic[Item]):
    """Holds up to ``room`` items. A worker's error comes out where its items would have."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._items: deque[Item] = deque()
        self._error: Exception | None = None
        self.closed = False
        self._monitor = Monitor()

    async def put(self, item: Item) -> bool:
        """Add an item once there is room; return False when the channel is closed."""
        with self._monitor:
            while len(self._items) >= self._room and not self.closed:
                await self._monitor.wait()
            if not self.closed:
                self._items.append(item)
                self._monitor.notify_all()
            return not self.closed

    async def take(self, timeout: float | None = None) -> list[Item]:
        """Return all items there are, waiting for the first; an empty list after ``timeout``.

        Raises the error of a worker once everything put before it is taken.
        """
        with self._monitor:
            if not self._items and self._error is None:
                await self._monitor.wait(timeout)
            if not self._items and self._error is not None:
                raise self._error
            items = list(self._items)
            self._items.clear()
            self._monitor.notify_all()
            return items

    def fail(self, error: Exception) -> None:
        """End the channel with a worker's error."""
        with self._monitor:
            self._error = self._error or error
            self._monitor.notify_all()

    def close(self) -> None:
        """Wake and refuse everyone who puts."""
        with self._monitor:
            self.closed = True
            self._monitor.notify_all()
