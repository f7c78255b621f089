"""Consumers that wait for messages, first come first served.

One message wakes one of them; whoever is woken and leaves more behind wakes the next. A waiter
that has gone (its time ran out, its connection closed) passes its wake-up on.
"""

from __future__ import annotations

import asyncio
from collections import deque

from goq import limits
from goq.errors import TooManyRequests


class Waiters:
    """The waiting receives of each group of a topic."""

    def __init__(self) -> None:
        self._groups: dict[str, deque[asyncio.Future[bool]]] = {}

    @property
    def groups(self) -> list[str]:
        """The groups in which somebody waits."""
        return list(self._groups)

    def count(self, group: str) -> int:
        """Return how many wait in a group."""
        return len(self._groups.get(group, ()))

    async def wait(self, group: str, timeout_s: float) -> None:
        """Return when woken, or after ``timeout_s``."""
        queue = self._groups.setdefault(group, deque())
        if len(queue) >= limits.WAITERS_PER_GROUP_MAX:
            raise TooManyRequests(
                f"{len(queue)} receives already wait in group {group}", retry_after_ms=1000
            )
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        queue.append(woken)
        timer = loop.call_later(timeout_s, _time_out, woken)
        try:
            await woken
        except asyncio.CancelledError:
            if woken.done() and not woken.cancelled():
                self.wake(group)
            raise
        finally:
            timer.cancel()
            self._leave(group, woken)

    def wake(self, group: str) -> None:
        """Wake the one in the group that has waited longest."""
        queue = self._groups.get(group)
        while queue:
            woken = queue.popleft()
            if not woken.done():
                woken.set_result(True)
                return

    def wake_group(self, group: str) -> None:
        """Wake everybody in a group."""
        for woken in self._groups.get(group, ()):
            if not woken.done():
                woken.set_result(True)

    def wake_all(self) -> None:
        """Wake everybody: the topic is going away."""
        for group in self._groups:
            self.wake_group(group)

    def _leave(self, group: str, woken: asyncio.Future[bool]) -> None:
        queue = self._groups.get(group)
        if queue is None:
            return
        try:
            queue.remove(woken)
        except ValueError:
            pass  # it was woken, not timed out
        if not queue:
            del self._groups[group]


def _time_out(woken: asyncio.Future[bool]) -> None:
    if not woken.done():
        woken.set_result(False)
