"""Queues of consumers that wait for messages, in FIFO order, and readers that wait for appends.

One message wakes one waiter. A woken receive that leaves ready messages wakes the next waiter. A
cancelled waiter passes its wake-up on. A waiter that got no messages returns to the front. One that
may not take a due retry wakes one that may. A waiter that was served has its messages already when
it wakes up.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from goq import limits
from goq.broker.topic.partition_table import PartitionTable
from goq.errors import TooManyRequests


class _Waiter(NamedTuple):
    consumer: str | None
    serve: Callable[[], None] | None


_Queue = OrderedDict[asyncio.Future[None], _Waiter]

_NOBODY: _Queue = OrderedDict()


class Waiters:
    """The waiting receives of each group of a topic, at most ``count_max`` of a group."""

    def __init__(self, count_max: int = limits.WAITERS_PER_GROUP_MAX) -> None:
        self.count_max = count_max
        self.queues: dict[str, _Queue] = {}
        """The queues by name; empty ones are removed."""
        self.change_count = 0
        """Grows when a receive begins to wait, or waits no more."""

    def count(self, group: str) -> int:
        """Return the number of waiters in a group."""
        return len(self.queues.get(group, ()))

    async def wait(
        self,
        group: str,
        timeout_s: float,
        *,
        in_front: bool = False,
        consumer: str | None = "",
        serve: Callable[[], None] | None = None,
    ) -> None:
        """Wait for a wake-up, at most ``timeout_s``; ``in_front`` if the receive waited before.

        A ``consumer`` of None takes no retries. ``serve`` leases messages at once, if there are
        any; it is called before the wake-up where the messages are about to be written.
        """
        if self.count(group) >= self.count_max:
            raise TooManyRequests(
                f"{self.count(group)} receives already wait in group {group}", retry_after_ms=1000
            )
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        queue = self.queues.setdefault(group, OrderedDict())
        queue[woken] = _Waiter(consumer, serve)
        self.change_count += 1
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

    def wake(self, group: str, *, serves: bool = False) -> None:
        """Wake the waiter of a group that has waited longest; ``serves`` it before."""
        for woken, waiter in self.queues.get(group, _NOBODY).items():
            if not woken.done():
                self._leave(group, woken)
                if serves and waiter.serve is not None:
                    waiter.serve()
                _finish(woken)
                return

    def other_takes_retries(self, group: str, consumer: str) -> bool:
        """Return whether another consumer waits that takes retries."""
        return any(
            waiter.consumer is not None and waiter.consumer != consumer
            for waiter in self.queues.get(group, _NOBODY).values()
        )

    def wake_other(self, group: str, consumer: str | None) -> None:
        """Wake the waiter that has waited longest of those that take retries, except this one."""
        for woken, (name, _) in self.queues.get(group, _NOBODY).items():
            if name is not None and name != consumer and not woken.done():
                self._leave(group, woken)
                woken.set_result(None)
                return

    def wake_silent(self, group: str) -> None:
        """Wake the waiters that take no retries: one of them may from now on."""
        for woken, (name, _) in list(self.queues.get(group, _NOBODY).items()):
            if name is None:
                self._leave(group, woken)
                _finish(woken)

    def wake_group(self, group: str) -> None:
        """Wake all waiters of a group."""
        self.change_count += 1
        for woken in self.queues.pop(group, ()):
            _finish(woken)

    def wake_all(self) -> None:
        """Wake all waiters: the topic closes."""
        for group in list(self.queues):
            self.wake_group(group)

    def _leave(self, group: str, woken: asyncio.Future[None]) -> None:
        queue = self.queues.get(group)
        if queue is not None:
            queue.pop(woken, None)
            self.change_count += 1
            if not queue:
                del self.queues[group]


class LogReaders:
    """The reads of a topic's logs that wait for an append, by partition."""

    def __init__(self, partitions: PartitionTable) -> None:
        self.waiters = Waiters()
        self._partitions = partitions
        self._is_closed = False

    async def wait(self, number: int, offset: int, wait_ms: int) -> None:
        """Wait until a partition has a message at ``offset``, at most ``wait_ms``."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        while not self._is_closed and self._partitions[number].end_offset <= offset:
            left_s = until - loop.time()
            if left_s <= 0:
                return
            await self.waiters.wait(str(number), left_s)

    def wake(self, number: int) -> None:
        """Wake the readers of a partition: it has new messages, or is led by another node."""
        self.waiters.wake_group(str(number))

    def close(self) -> None:
        """End all waiting: the topic is closing."""
        self._is_closed = True
        self.waiters.wake_all()


def _finish(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
