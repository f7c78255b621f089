"""A bounded queue between workers and one reader."""

from __future__ import annotations

import time
from collections import deque
from typing import Generic, TypeVar

from goq.client._async.runtime import Monitor

Item = TypeVar("Item")


class _Entry(Generic[Item]):
    """An item, and the number of the take that took it."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.taken_in: int | None = None


class Channel(Generic[Item]):
    """Holds up to ``room`` items. The error of a worker is raised after the items before it."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._entries: deque[_Entry[Item]] = deque()
        self._takes = 0
        self._error: Exception | None = None
        self._monitor = Monitor()
        self.closed = False

    async def put(self, item: Item, *, until_done: bool = False) -> bool:
        """Add an item once there is room; return False when the channel is closed.

        With ``until_done`` return only when the reader of the item comes back for more.
        """
        entry = _Entry(item)
        with self._monitor:
            while len(self._entries) >= self._room and not self.closed:
                await self._monitor.wait()
            if not self.closed:
                self._entries.append(entry)
                self._monitor.notify_all()
            while until_done and entry.taken_in in (None, self._takes) and not self.closed:
                await self._monitor.wait()
            return not self.closed

    def offer(self, item: Item) -> None:
        """Add an item if there is room."""
        with self._monitor:
            if len(self._entries) < self._room and not self.closed:
                self._entries.append(_Entry(item))
                self._monitor.notify_all()

    async def take(self, timeout: float | None = None) -> list[Item]:
        """Return all items there are, waiting for the first; an empty list after ``timeout``.

        Raises the error of a worker once everything put before it is taken.
        """
        with self._monitor:
            self._takes += 1
            self._monitor.notify_all()
            if not self._entries and self._error is None:
                await self._monitor.wait(timeout)
            if not self._entries and self._error is not None:
                raise self._error
            entries = list(self._entries)
            self._entries.clear()
            for entry in entries:
                entry.taken_in = self._takes
            self._monitor.notify_all()
            return [entry.item for entry in entries]

    async def is_closed_within(self, timeout: float) -> bool:
        """Wait until the channel is closed, or for ``timeout`` seconds; return whether it is."""
        end_s = time.monotonic() + timeout
        with self._monitor:
            while not self.closed and (left_s := end_s - time.monotonic()) > 0:
                await self._monitor.wait(left_s)
            return self.closed

    def fail(self, error: Exception) -> None:
        """End the channel with a worker's error."""
        with self._monitor:
            self._error = self._error or error
            self._monitor.notify_all()

    def close(self) -> None:
        """Wake all workers that put, and refuse their items."""
        with self._monitor:
            self.closed = True
            self._monitor.notify_all()
