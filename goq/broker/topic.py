"""A topic at work: placing messages on partitions, and leasing from all of them in one call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from goq import limits
from goq.broker.commit import Appended
from goq.broker.coordinator import Coordinator
from goq.broker.credits import Credits
from goq.broker.opening import Machinery, Opened, PartitionId, open_logs
from goq.broker.partition import (
    Callbacks,
    ColdMessages,
    ColdQueues,
    Delivery,
    Partition,
)
from goq.broker.stats import TopicStats
from goq.broker.tasks import Tasks
from goq.broker.waiters import Waiters
from goq.delivery.settling import Settled
from goq.errors import GoqError, InvalidInput, PartitionNotFound
from goq.frame.encode import columns_of, encode_frame, encode_value
from goq.frame.header import Attribute
from goq.frame.keys import partition_of
from goq.frame.view import FrameView
from goq.model import Message, Receipt
from goq.settings import TopicSettings

_log = logging.getLogger("goq.broker")
_REOPEN_DELAY_S = 1.0

ANY_PARTITION = 0xFFFF_FFFF


class Placed(NamedTuple):
    """A message or frame and the partition asked for, None to leave that to the topic."""

    partition: int | None
    content: Message


@dataclass(frozen=True, slots=True)
class Stored:
    """Where one published message or frame lies."""

    partition: int
    offset: int
    message_count: int
    time_us: int
    duplicate: bool


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
        self.groups: dict[str, dict[str, str]] = {}
        self.waiters = Waiters()
        self.readers = Waiters()  # of the log, by partition
        self.credits = Credits(self._count_held)
        self.stats = TopicStats()
        self.coordinator: Coordinator | None = None  # of groups that share partitions
        self._machinery = machinery
        self._tasks = tasks
        self._group_settings: dict[str, TopicSettings] = {}
        self._sticky = 0
        self._sticky_bytes = 0
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
        callbacks = Callbacks(
            on_ready=lambda group: self._ready(number, group),
            on_failure=lambda: self._failed(number),
            on_departing=lambda: None,
            on_settled=lambda group, token, count: self._settled(number, group, token, count),
            settings_of=self.settings_of,
        )
        identity = PartitionId(self.name, number)
        return Partition(identity, opened, self._machinery, callbacks, self.stats)

    def settings_of(self, group: str) -> TopicSettings:
        """Return the settings that hold for a group: the topic's, and its own over them."""
        return self._group_settings.get(group) or self.settings

    def configure_group(self, group: str, written: Mapping[str, str]) -> None:
        """Take over a group's own settings."""
        self.groups[group] = dict(written)
        if written:
            self._group_settings[group] = self.settings.for_group(written)
        else:
            self._group_settings.pop(group, None)

    def forget_group(self, group: str) -> None:
        """Let go of a group that was deleted."""
        self.groups.pop(group, None)
        self._group_settings.pop(group, None)

    def partition(self, number: int) -> Partition:
        """Return a partition; raise ``PartitionNotFound`` if the topic has no such one."""
        if not 0 <= number < len(self.partitions):
            raise PartitionNotFound(
                f"topic {self.name} has partitions 0 to {len(self.partitions) - 1}, not {number}",
                field="partition",
            )
        return self.partitions[number]

    # Publishing

    async def publish_messages(self, placed: Sequence[Placed]) -> list[Stored]:
        """Store messages, those of a partition in one frame; return where each lies."""
        if len(placed) == 1:  # the common request of a service deserves the short way
            return [await self._publish_one(*placed[0])]
        chosen: dict[int, list[int]] = {}
        for number, (partition, message) in enumerate(placed):
            chosen.setdefault(self._place(partition, message), []).append(number)
        frames = [
            (
                partition,
                FrameView.parse(encode_frame(columns_of([placed[n].content for n in some]))),
            )
            for partition, some in chosen.items()
        ]
        pending = self._publish(frames)
        results: dict[int, Stored] = {}
        for (partition, numbers), appended in zip(chosen.items(), await _all(pending), strict=True):
            for index, number in enumerate(numbers):
                results[number] = Stored(
                    partition, appended.offset + index, 1, appended.time_us, appended.duplicate
                )
        return [results[number] for number in range(len(placed))]

    async def _publish_one(self, asked: int | None, message: Message) -> Stored:
        number = self._place(asked, message)
        if message.value is None or message.key is not None or message.headers:
            frame = encode_frame(columns_of([message]))
        else:
            frame = encode_value(message.value)
        view = FrameView.parse(frame)
        self.partitions[number].check_publish(len(view.buffer))
        appended = await self._publish_to(number, view)
        return Stored(number, appended.offset, 1, appended.time_us, appended.duplicate)

    async def publish_frames(self, frames: Sequence[tuple[int, FrameView]]) -> list[Stored]:
        """Store checked frames; return where each lies."""
        targets = [self._place_frame(partition, view) for partition, view in frames]
        pending = self._publish([(n, view) for n, (_, view) in zip(targets, frames, strict=True)])
        return [
            Stored(
                target,
                appended.offset,
                view.header.message_count,
                appended.time_us,
                appended.duplicate,
            )
            for target, (_, view), appended in zip(
                targets, frames, await _all(pending), strict=True
            )
        ]

    def _publish(self, frames: Sequence[tuple[int, FrameView]]) -> list[asyncio.Future[Appended]]:
        """Queue all frames, or raise before any of them is."""
        for number, view in frames:
            self.partition(number).check_publish(len(view.buffer))
        return [self._publish_to(number, view) for number, view in frames]

    def _publish_to(self, number: int, view: FrameView) -> asyncio.Future[Appended]:
        if number == self._sticky:
            self._sticky_bytes += len(view.buffer)
        return self.partitions[number].publish(view)

    def _place(self, partition: int | None, message: Message) -> int:
        if partition is not None:
            self.partition(partition)
            return partition
        if message.key is not None:
            return partition_of(message.key, len(self.partitions))
        return self._keyless()

    def _keyless(self) -> int:
        """Return the partition that keyless messages go to now.

        They stay with one until it got its share and then move on, as in Kafka: so that those of
        one moment share a write, and so do their leases and acks.
        """
        count = len(self.partitions)
        if self._sticky_bytes >= limits.STICKY_BYTES:
            self._sticky, self._sticky_bytes = (self._sticky + 1) % count, 0
        for number in range(self._sticky, self._sticky + count):
            if self.partitions[number % count].is_online:
                self._sticky = number % count
                break
        return self._sticky

    def _place_frame(self, partition: int, view: FrameView) -> int:
        if partition != ANY_PARTITION:
            self.partition(partition)
            return partition
        if view.header.attributes & Attribute.KEYS:
            raise InvalidInput(
                "a frame with keys must name its partition: the hash of a key modulo"
                f" {len(self.partitions)}",
                field="partition",
            )
        return self._keyless()

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
            except _Refill as refill:
                await self.partitions[refill.partition].refill()

    def _lease(
        self, group: str, options: ReceiveOptions, fetched: int | None
    ) -> list[tuple[Delivery, asyncio.Future[Appended]]]:
        messages, size_bytes = options.messages_max, options.bytes_max
        leased: list[tuple[Delivery, asyncio.Future[Appended]]] = []
        failed: GoqError | OSError | None = None
        is_cut = False
        for partition in self._in_turn(fetched):
            if messages <= 0 or size_bytes <= 0:
                is_cut = True
                break
            if not partition.is_online:
                continue
            try:
                found = partition.receive(
                    group,
                    options.consumer,
                    messages,
                    options.visibility_ms,
                    bytes_max=size_bytes,
                    wait=partition.identity.number == fetched,
                )
            except ColdMessages as error:
                if leased:
                    is_cut = True
                    break  # hand over what is at hand; the next call fetches the rest
                raise _Fetch(partition.identity.number, *error.missing) from None
            except ColdQueues:
                if leased:
                    is_cut = True
                    break
                raise _Refill(partition.identity.number) from None
            except (GoqError, OSError) as error:
                failed = error  # the others may have something
                continue
            if found is not None:
                leased.append(found)
                is_cut |= found[0].is_cut
                messages -= found[0].message_count
                size_bytes -= sum(view.header.frame_bytes for view in found[0].frames)
        if failed is not None and not leased:
            raise failed
        if leased and (is_cut or messages <= 0):
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
                self.partitions[delivery.partition].undo_receive(group, delivery, delivery.spans)
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
        group: str,
        receipts: Sequence[Receipt],
        decide: Callable[[Partition, list[Receipt]], Settled],
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
            partition = self.partitions[number]
            settled, recorded = partition.settle(group, decide(partition, some))
            done += settled.done
            lost.extend(settled.lost)
            if recorded is not None:
                pending.append(recorded)
        await _all(pending)
        return done, lost

    def wake(self) -> None:
        """Wake one waiting consumer of each group: something may have become ready."""
        for group in self.waiters.groups:
            self.waiters.wake(group)

    def _count_held(self, group: str, number: int, token: int) -> int:
        return self.partitions[number].count_held(group, token)

    # Keeping

    @property
    def is_closed(self) -> bool:
        """Whether the topic is going away."""
        return self._closed is not None

    def _settled(self, number: int, group: str | None, token: int | None, count: int) -> None:
        self.credits.settled(number, token, count)

    def _ready(self, number: int, group: str | None) -> None:
        if group is not None:
            self.waiters.wake(group)
            return
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
            self.credits.settled(number, None, 0)
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
        self.settings = settings
        for group, written in self.groups.items():
            self.configure_group(group, written)
        for partition in self.partitions:
            partition.configure(settings)

    async def close(self, reason: GoqError) -> None:
        """Make everything durable and close the partitions; who waits is told ``reason``."""
        self._closed = reason
        self._closing.set()
        self.waiters.wake_all()
        self.readers.wake_all()
        self.credits.wake_all()
        await asyncio.gather(*self._reopening, return_exceptions=True)
        await asyncio.gather(*(partition.close() for partition in self.partitions))


class _Fetch(Exception):
    """What a receive must have in memory before it can lease."""

    def __init__(self, partition: int, offset: int, messages: int) -> None:
        super().__init__()
        self.partition = partition
        self.offset = offset
        self.messages = messages


class _Refill(Exception):
    """The partition whose ready queues have to be made anew before a receive can lease."""

    def __init__(self, partition: int) -> None:
        super().__init__()
        self.partition = partition


async def _all(pending: Sequence[asyncio.Future[Appended]]) -> list[Appended]:
    """Wait for all appends, then return them or raise the first error."""
    if len(pending) == 1:
        return [await pending[0]]
    results = await asyncio.gather(*pending, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, Appended)]
