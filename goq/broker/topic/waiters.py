"""Consumers that wait for messages, first come first served.

One message wakes one of them; whoever is woken and leaves more behind wakes the next. A waiter
that has gone (its time ran out, its connection closed) passes its wake-up on; one that was woken
in vain goes back to the front.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from goq import limits
from goq.errors import TooManyRequests

_Queue = OrderedDict[asyncio.Future[None], None]


class Waiters:
    """The waiting receives of each group of a topic."""

    def __init__(self) -> None:
        self.by_line: dict[str, _Queue] = {}
        """The lines in which somebody waits: never an empty one."""

    def count(self, group: str) -> int:
        """Return how many wait in a group."""
        return len(self.by_line.get(group, ()))

    async def wait(self, group: str, timeout_s: float, *, in_front: bool = False) -> None:
        """Return when woken, or after ``timeout_s``; ``in_front`` for one that waited before."""
        if self.count(group) >= limits.WAITERS_PER_GROUP_MAX:
            raise TooManyRequests(
                f"{self.count(group)} receives already wait in group {group}", retry_after_ms=1000
            )
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        queue = self.by_line.setdefault(group, OrderedDict())
        queue[woken] = None
        if in_front:
            queue.move_to_end(woken, last=False)
        timer = loop.call_later(timeout_s, _finish, woken)
        try:
            await woken
        except asyncio.CancelledError:
            if not woken.cancelled():
                self.wake(group)
            raise
        finally:
            timer.cancel()
            self._leave(group, woken)

    def wake(self, group: str) -> None:
        """Wake the one in the group that has waited longest."""
        queue = self.by_line.get(group, ())
        for woken in queue:
            if not woken.done():
                self._leave(group, woken)
                woken.set_result(None)
                return

    def wake_group(self, group: str) -> None:
        """Wake everybody in a group."""
        for woken in self.by_line.pop(group, ()):
            _finish(woken)

    def wake_all(self) -> None:
        """Wake everybody: the topic is going away."""
        for group in list(self.by_line):
            self.wake_group(group)

    def _leave(self, group: str, woken: asyncio.Future[None]) -> None:
        queue = self.by_line.get(group)
        if queue is not None:
            queue.pop(woken, None)
            if not queue:
                del self.by_line[group]


def _finish(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
