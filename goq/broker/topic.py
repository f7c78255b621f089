"""A topic at work: its partitions, and leasing from all of them in one call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from goq.broker.commit import Appended
from goq.broker.opening import Machinery, Opened, PartitionId, open_logs
from goq.broker.partition import Delivery, Partition
from goq.broker.publishing import Publishing, wait_for_all
from goq.broker.stats import TopicStats
from goq.broker.tasks import Tasks
from goq.broker.waiters import Waiters
from goq.delivery.partition import PartitionState, Settled
from goq.errors import GoqError
from goq.model import Receipt
from goq.settings import TopicSettings
from goq.storage.files import NotCached

_log = logging.getLogger("goq.broker")
_REOPEN_DELAY_S = 1.0


@dataclass(frozen=True, slots=True)
class ReceiveOptions:
    """What a consumer asks of a receive."""

    consumer: str
    messages_max: int
    bytes_max: int
    wait_ms: int
    visibility_ms: int | None


class Topic:
    """An open topic."""

    def __init__(
        self,
        name: str,
        settings: TopicSettings,
        directory: Path,
        machinery: Machinery,
        tasks: Tasks,
    ) -> None:
        self.name = name
        self.settings = settings
        self.directory = directory
        self.partitions: list[Partition] = []
        self.groups: set[str] = set()
        self.waiters = Waiters()
        self.readers = Waiters()  # of the log, by partition
        self.stats = TopicStats()
        self.publishing = Publishing(name, settings, self.partitions)
        self._machinery = machinery
        self._tasks = tasks
        self._turn = 0
        self._closed: GoqError | None = None
        self._closing = asyncio.Event()
        self._reopening: list[asyncio.Task[None]] = []

    async def open(self, partitions: int) -> None:
        """Recover and open partitions until there are so many; more can be added later."""
        for number in range(len(self.partitions), partitions):
            self.partitions.append(self._partition(number, await self._open_logs(number)))

    async def _open_logs(self, number: int) -> Opened:
        machinery = self._machinery
        return await asyncio.get_running_loop().run_in_executor(
            machinery.executor,
            open_logs,
            self.directory / str(number),
            machinery,
            self.settings,
        )

    def _partition(self, number: int, opened: Opened) -> Partition:
        return Partition(
            PartitionId(self.name, number),
            opened,
            self._machinery,
            on_ready=lambda: self._ready(number),
            on_failure=lambda: self._failed(number),
            stats=self.stats,
        )

    def partition(self, number: int) -> Partition:
        """Return a partition; raise ``PartitionNotFound`` if the topic has no such one."""
        return self.publishing.partition(number)

    # Delivery

    async def receive(self, group: str, options: ReceiveOptions) -> list[Delivery]:
        """Lease what is ready in any partition, waiting for it as long as asked."""
        loop = asyncio.get_running_loop()
        until = loop.time() + options.wait_ms / 1000
        has_waited = False
        while True:
            try:
                leased = await self._lease_fetched(group, options)
            except BaseException:
                self.waiters.wake(group)  # what woke this one is for another
                raise
            if leased:
                return await self._handed_over(group, leased)
            left_s = until - loop.time()
            if left_s <= 0:
                return []
            if self._closed is not None:
                raise self._closed
            await self.waiters.wait(group, left_s, in_front=has_waited)
            has_waited = True

    async def _lease_fetched(
        self, group: str, options: ReceiveOptions
    ) -> list[tuple[Delivery, asyncio.Future[Appended]]]:
        """Lease, with messages that are not in memory fetched in a thread before."""
        fetched: int | None = None
        while True:
            try:
                return self._lease(group, options, fetched)
            except _Fetch as fetch:
                fetched = fetch.partition
                await self.partitions[fetched].warm(fetch.offset, fetch.messages)

    def _lease(
        self, group: str, options: ReceiveOptions, fetched: int | None
    ) -> list[tuple[Delivery, asyncio.Future[Appended]]]:
        messages, size_bytes = options.messages_max, options.bytes_max
        visibility_ms = options.visibility_ms or self.settings.visibility_timeout_ms
        leased: list[tuple[Delivery, asyncio.Future[Appended]]] = []
        failed: GoqError | OSError | None = None
        for partition in self._in_turn(fetched):
            if messages <= 0 or size_bytes <= 0:
                break
            if not partition.is_online:
                continue
            try:
                found = partition.receive(
                    group,
                    options.consumer,
                    messages,
                    visibility_ms,
                    bytes_max=size_bytes,
                    wait=partition.identity.number == fetched,
                )
            except NotCached as error:
                if leased:
                    break  # hand over what is at hand; the next call fetches the rest
                raise _Fetch(partition.identity.number, *error.args[0]) from None
            except (GoqError, OSError) as error:
                failed = error  # the others may have something
                continue
            if found is not None:
                leased.append(found)
                messages -= found[0].message_count
                size_bytes -= sum(view.header.frame_bytes for view in found[0].frames)
        if failed is not None and not leased:
            raise failed
        if leased:
            self.waiters.wake(group)  # there may be more; who finds nothing waits again
        return leased

    def _in_turn(self, first: int | None) -> list[Partition]:
        """Return all partitions, beginning with the next in turn, or with ``first``."""
        if first is None:
            self._turn = first = (self._turn + 1) % len(self.partitions)
        return self.partitions[first:] + self.partitions[:first]

    async def _handed_over(
        self, group: str, leased: list[tuple[Delivery, asyncio.Future[Appended]]]
    ) -> list[Delivery]:
        """Return deliveries once their leases are durable; give them back if nobody waits."""
        try:
            results = await asyncio.gather(*(done for _, done in leased), return_exceptions=True)
        except asyncio.CancelledError:
            for delivery, _ in leased:
                self.partitions[delivery.partition].undo_receive(group, delivery)
            raise
        durable = []
        for (delivery, _), result in zip(leased, results, strict=True):
            if not isinstance(result, BaseException):
                durable.append(delivery)
                self.stats.delivered_messages += delivery.message_count
        if not durable and isinstance(results[0], BaseException):
            raise results[0]
        return durable

    async def wait_for_append(self, number: int, offset: int, wait_ms: int) -> None:
        """Return when a partition holds a message at ``offset``, or after ``wait_ms``."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        while self._closed is None and self.partition(number).state.end_offset <= offset:
            left_s = until - loop.time()
            if left_s <= 0:
                return
            await self.readers.wait(str(number), left_s)

    async def settle(
        self,
        receipts: Sequence[Receipt],
        decide: Callable[[PartitionState, list[Receipt]], Settled],
    ) -> tuple[int, list[Receipt]]:
        """Settle receipts of any partitions; return how many messages, and the void receipts."""
        by_partition: dict[int, list[Receipt]] = {}
        done, lost, pending = 0, [], []
        for receipt in receipts:
            by_partition.setdefault(receipt.partition, []).append(receipt)
        for number in list(by_partition):
            if number >= len(self.partitions):
                lost.extend(by_partition.pop(number))
            else:
                self.partitions[number].check_room()
        for number, some in by_partition.items():
            settled, recorded = self.partitions[number].settle(
                lambda state, some=some: decide(state, some)  # type: ignore[misc]
            )
            done += settled.done
            lost.extend(settled.lost)
            if recorded is not None:
                pending.append(recorded)
        await wait_for_all(pending)
        return done, lost

    def wake(self) -> None:
        """Wake one waiting consumer of each group: something may have become ready."""
        for group in self.waiters.groups:
            self.waiters.wake(group)

    # Keeping

    def _ready(self, number: int) -> None:
        self.wake()
        self.readers.wake_group(str(number))

    def _failed(self, number: int) -> None:
        if self._closed is None and not self.partitions[number].messages.failed:
            self._reopening = [task for task in self._reopening if not task.done()]
            self._reopening.append(self._tasks.start(self._reopen(number)))

    async def _reopen(self, number: int) -> None:
        """Build a partition anew from the disk after events were lost, until that works."""
        await self.partitions[number].close()
        while not await self._closes_within(_REOPEN_DELAY_S):
            try:
                opened = await self._open_logs(number)
            except (GoqError, OSError) as error:
                _log.warning("partition %d of %s stays offline: %s", number, self.name, error)
                continue
            self.partitions[number] = self._partition(number, opened)
            self.wake()
            return

    async def _closes_within(self, delay_s: float) -> bool:
        try:
            await asyncio.wait_for(self._closing.wait(), delay_s)
        except TimeoutError:
            return False
        return True

    def configure(self, settings: TopicSettings) -> None:
        """Take over changed settings."""
        self.settings = self.publishing.settings = settings
        for partition in self.partitions:
            partition.configure(settings)

    async def close(self, reason: GoqError) -> None:
        """Make everything durable and close the partitions; who waits is told ``reason``."""
        self._closed = reason
        self._closing.set()
        self.waiters.wake_all()
        self.readers.wake_all()
        await asyncio.gather(*self._reopening, return_exceptions=True)
        await asyncio.gather(*(partition.close() for partition in self.partitions))


class _Fetch(Exception):
    """What a receive must have in memory before it can lease."""

    def __init__(self, partition: int, offset: int, messages: int) -> None:
        super().__init__()
        self.partition = partition
        self.offset = offset
        self.messages = messages
