"""A topic at work: its partitions, and leasing from all of them in one call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from goq.broker.group.coordinator import Coordinator
from goq.broker.log.group_commit import Appended
from goq.broker.outbox.worker import Departures
from goq.broker.partition.loader import (
    LoadedPartition,
    PartitionLogs,
    load_partition,
    open_partition,
)
from goq.broker.partition.partition import (
    ColdMessages,
    LeasedBatch,
    OnlySkipped,
    Partition,
    PartitionCallbacks,
)
from goq.broker.partition.publish_target import PublishTarget, TargetLookup
from goq.broker.partition_context import PartitionContext, PartitionId, Quorums
from goq.broker.runtime.metrics import TopicStats
from goq.broker.runtime.tasks import Tasks
from goq.broker.topic.partition_table import PartitionTable
from goq.broker.topic.publisher import TopicPublisher, wait_for_all
from goq.broker.topic.stream_credit import StreamCredits
from goq.broker.topic.waiters import ReadyCounter, Waiters
from goq.config.topic import Ordering, TopicSettings
from goq.delivery.settlement import Settlement
from goq.errors import GoqError, NotLeader
from goq.model import Receipt
from goq.storage.scanner import Damage

_log = logging.getLogger("goq.broker")
_REOPEN_DELAY_S = 1.0
_PASS_ON_S = 0.2
_GENERATIONS_PER_START = 1_000_000
_LINE = "/"  # no name of a group has it


@dataclass(frozen=True, slots=True)
class ReceiveRequest:
    """What a consumer asks of a receive."""

    consumer: str
    messages_max: int
    bytes_max: int
    wait_ms: int
    visibility_ms: int | None


@dataclass(frozen=True, slots=True)
class Leadership:
    """This node's part in a partition of which other nodes have replicas."""

    epoch: int
    quorums: Quorums
    on_failure: Callable[[], None]
    """Hears that the partition went offline: what it decided last was lost to the disk."""
    on_disk_failure: Callable[[GoqError], None]
    """Hears that the disk is full, or has failed."""
    may_be_repaired: Callable[[Damage], bool]
    """Whether another replica may have what is damaged; if so, it is going to lead."""


class Topic:
    """An open topic."""

    def __init__(
        self,
        name: str,
        settings: TopicSettings,
        directory: Path,
        context: PartitionContext,
        tasks: Tasks,
        targets: Callable[[Topic, str, int], Awaitable[PublishTarget]],
        elsewhere: TargetLookup | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.directory = directory
        self.partitions = PartitionTable(name)
        self.groups: dict[str, dict[str, str]] = {}
        self.waiters = Waiters()
        self.readers = Waiters()  # of the log, by partition
        self.readiness = ReadyCounter()
        self.credits = StreamCredits(self._count_held)
        self.stats = TopicStats()
        self.coordinator = Coordinator(
            self, context.clock, first_generation=context.epoch * _GENERATIONS_PER_START
        )
        self.publishing = TopicPublisher(settings, self.partitions, self.target)
        self._context = context
        self._tasks = tasks
        self._targets = targets
        self._elsewhere = elsewhere
        self._departures: dict[int, Departures] = {}
        self._group_settings: dict[str, TopicSettings] = {}
        self._turn = 0
        self._closed: GoqError | None = None
        self._closing = asyncio.Event()
        self._reopening: list[asyncio.Task[None]] = []

    async def open(self, partitions: int) -> None:
        """Recover and open partitions until there are so many; more can be added later."""
        for number in range(self.partitions.count, partitions):
            self.partitions.put(self._partition(number, await self._open(number)))
        self.coordinator.partitions_added()

    def expect(self, partitions: int) -> None:
        """Take note that there are so many partitions, opened here only by :meth:`lead`."""
        self.partitions.count = partitions
        self.coordinator.partitions_added()

    async def lead(self, number: int, logs: PartitionLogs, leadership: Leadership) -> None:
        """Open a partition of which other nodes have replicas, with its logs as they are.

        Everything in them is to be safe already.
        """
        context = replace(self._context, epoch=leadership.epoch)
        opened = await self._in_thread(load_partition, logs, context, self.settings)
        self.partitions.put(self._partition(number, opened, context, leadership))
        self.coordinator.partitions_added()
        self.coordinator.reopened(number)
        self.wake()

    async def resign(self, number: int, reason: GoqError) -> None:
        """Close a partition that this node does not lead any more; who waits hears ``reason``."""
        partition = self.partitions.take(number)
        departures = self._departures.pop(number)
        await partition.resign(reason)
        await departures.stop()
        self.credits.settled(number, None, 0)
        self.readers.wake_group(str(number))

    async def _open(self, number: int) -> LoadedPartition:
        directory = self.directory / str(number)
        return await self._in_thread(open_partition, directory, self._context, self.settings)

    async def _in_thread(
        self, work: Callable[..., LoadedPartition], *arguments: object
    ) -> LoadedPartition:
        executor = self._context.executor
        return await asyncio.get_running_loop().run_in_executor(executor, work, *arguments)

    def _partition(
        self,
        number: int,
        opened: LoadedPartition,
        context: PartitionContext | None = None,
        leadership: Leadership | None = None,
    ) -> Partition:
        context = context or self._context
        failed = leadership.on_failure if leadership is not None else partial(self._failed, number)
        callbacks = PartitionCallbacks(
            on_ready=lambda group: self._ready(number, group),
            on_failure=failed,
            on_departing=lambda: self._departures[number].wake(),
            on_settled=lambda group, token, count: self._settled(number, group, token, count),
            settings_of=self.settings_of,
            on_disk_failure=(
                leadership.on_disk_failure if leadership is not None else lambda _error: None
            ),
            may_be_repaired=(
                leadership.may_be_repaired if leadership is not None else lambda _damage: False
            ),
        )
        identity = PartitionId(self.name, number)
        quorums = leadership.quorums if leadership is not None else None
        partition = Partition(
            identity, opened, context, callbacks, self.settings, self.stats, quorums
        )
        departures = Departures(
            partition,
            lambda topic, number: self._targets(self, topic, number),
            context,
            self.settings.default_lane,
        )
        self._departures[number] = departures
        departures.wake()
        return partition

    def settings_of(self, group: str) -> TopicSettings:
        """Return the settings that hold for a group: the topic's, and its own over them."""
        return self._group_settings.get(group) or self.settings

    def configure_group(self, group: str, written: Mapping[str, str]) -> None:
        """Take over a group's own settings."""
        before = self.settings_of(group).ordering
        self._put_settings(group, written)
        if self.settings_of(group).ordering is not before:
            self._order_anew(group)

    def _put_settings(self, group: str, written: Mapping[str, str]) -> None:
        self.groups[group] = dict(written)
        if written:
            self._group_settings[group] = self.settings.for_group(written)
        else:
            self._group_settings.pop(group, None)

    def _order_anew(self, group: str) -> None:
        """What was held back by the old ordering is looked at again by the new one."""
        self.coordinator.forget(group)
        for partition in self.partitions:
            if group in partition.state.groups:
                partition.state.groups[group].restart_reading()
        self.wake()

    def forget_group(self, group: str) -> None:
        """Let go of a group that was deleted."""
        self.groups.pop(group, None)
        self._group_settings.pop(group, None)
        self.coordinator.forget(group)

    def partition(self, number: int) -> Partition:
        """Return a partition; raise ``PartitionNotFound`` if the topic has no such one."""
        return self.publishing.partition(number)

    def target(self, number: int) -> PublishTarget:
        """Return a partition to publish to, also one that another node leads."""
        if self._elsewhere is None or self.partitions.get(number) is not None:
            return self.partition(number)
        self.partitions.check(number)
        return self._elsewhere(self.name, number)

    # LeasedBatch

    async def receive(self, group: str, options: ReceiveRequest) -> list[LeasedBatch]:
        """Lease what is ready in any partition, waiting for it as long as asked.

        Where each partition belongs to one consumer, in the consumer's own; it takes part in the
        group while it waits.
        """
        if not self.shares_partitions(group):
            return await self._receive(group, options, group)
        with self.coordinator.present(group, options.consumer):
            return await self._receive(group, options, _line_of(group, options.consumer))

    async def _receive(self, group: str, options: ReceiveRequest, line: str) -> list[LeasedBatch]:
        loop = asyncio.get_running_loop()
        until = loop.time() + options.wait_ms / 1000
        has_waited = False
        while True:
            try:
                leased = await self._lease_fetched(group, options)
            except BaseException:
                self.waiters.wake(line)  # what woke this one is for another
                raise
            if leased:
                return await self._handed_over(group, leased)
            left_s = until - loop.time()
            if left_s <= 0:
                return []
            if self._closed is not None:
                raise self._closed
            await self.waiters.wait(line, left_s, in_front=has_waited)
            has_waited = True

    async def _lease_fetched(
        self, group: str, options: ReceiveRequest
    ) -> list[tuple[LeasedBatch, asyncio.Future[Appended]]]:
        """Lease, with messages that are not in memory fetched in a thread before."""
        fetched: int | None = None
        while True:
            try:
                return self._lease(group, options, fetched)
            except _Fetch as fetch:
                fetched = fetch.partition
                await self.partitions[fetched].warm(fetch.offset, fetch.messages)
            except OnlySkipped:
                await asyncio.sleep(0)  # there may be millions to pass over: let others have a turn
            except _Rebuild as rebuild:
                await self.partitions[rebuild.partition].rebuilt()

    def _lease(
        self, group: str, options: ReceiveRequest, fetched: int | None
    ) -> list[tuple[LeasedBatch, asyncio.Future[Appended]]]:
        messages, size_bytes = options.messages_max, options.bytes_max
        leased: list[tuple[LeasedBatch, asyncio.Future[Appended]]] = []
        failed: GoqError | OSError | None = None
        is_cut = False
        partitions = self._in_turn(fetched)
        if self.shares_partitions(group):
            own = self.coordinator.partitions_for(group, options.consumer)
            partitions = [p for p in partitions if p.identity.number in own]
        for partition in partitions:
            if partition.is_online and not partition.is_ready_for(group):
                raise _Rebuild(partition.identity.number)
        if fetched is None and self.settings.lane_weights is None:
            partitions = _most_urgent_first(partitions, group)
        for partition in partitions:
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
            except OnlySkipped:
                is_cut = True
                continue
            except (GoqError, OSError) as error:
                failed = error  # the others may have something
                continue
            if found is not None:
                leased.append(found)
                is_cut |= found[0].is_cut
                messages -= found[0].message_count
                size_bytes -= sum(view.header.frame_bytes for view in found[0].frames)
        if is_cut and not leased:
            raise OnlySkipped
        if failed is not None and not leased:
            raise failed
        if leased and (is_cut or messages <= 0):
            self._wake_group(group)  # there may be more; who finds nothing waits again
        return leased

    def _in_turn(self, first: int | None) -> list[Partition]:
        """Return all partitions, beginning with the next in turn, or with ``first``."""
        if first is None:
            self._turn = first = (self._turn + 1) % self.partitions.count
        return self.partitions.in_turn(first)

    async def _handed_over(
        self, group: str, leased: list[tuple[LeasedBatch, asyncio.Future[Appended]]]
    ) -> list[LeasedBatch]:
        """Return deliveries once their leases are durable; give them back if nobody waits."""
        try:
            results = await asyncio.gather(*(done for _, done in leased), return_exceptions=True)
        except asyncio.CancelledError:
            for delivery, _ in leased:
                with suppress(NotLeader):  # then who leads it now lets the lease end
                    partition = self.partitions[delivery.partition]
                    partition.undo_receive(group, delivery.token, delivery.spans)
            raise
        durable = []
        self.stats.begin(asyncio.get_running_loop().time())
        for (delivery, _), result in zip(leased, results, strict=True):
            if not isinstance(result, BaseException):
                durable.append(delivery)
                self.stats.delivered_messages += delivery.message_count
        if not durable and isinstance(results[0], BaseException):
            raise results[0]
        return durable

    async def wait_until_ready(self, group: str, consumer: str, seen: int, wait_ms: int) -> int:
        """Return the count of readiness once it is not ``seen``, or after ``wait_ms``.

        For a consumer that takes through another node: nothing is leased to it. What wakes it is
        soon for the next too, as nobody knows here whether it still comes to take it.
        """
        if not self.shares_partitions(group):
            return await self._until_ready(group, group, seen, wait_ms)
        with self.coordinator.present(group, consumer):
            return await self._until_ready(group, _line_of(group, consumer), seen, wait_ms)

    async def _until_ready(self, group: str, line: str, seen: int, wait_ms: int) -> int:
        if self.readiness.count(group) == seen and self._closed is None:
            await self.waiters.wait(line, wait_ms / 1000)
            if self.readiness.count(group) != seen:
                asyncio.get_running_loop().call_later(_PASS_ON_S, self.waiters.wake, line)
        if self._closed is not None:
            raise self._closed
        return self.readiness.count(group)

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
        decide: Callable[[Partition, list[Receipt]], Settlement],
    ) -> tuple[int, list[Receipt]]:
        """Settle receipts of any partitions; return how many messages, and the void receipts."""
        by_partition: dict[int, list[Receipt]] = {}
        done, lost, pending = 0, [], []
        for receipt in receipts:
            by_partition.setdefault(receipt.partition, []).append(receipt)
        for number in list(by_partition):
            if number >= self.partitions.count:
                lost.extend(by_partition.pop(number))
            else:
                self.partitions[number].check_room()
        for number, some in by_partition.items():
            partition = self.partitions[number]
            self._see(group, partition, some)
            settled, recorded = partition.settle(group, decide(partition, some))
            done += settled.done
            lost.extend(settled.lost)
            if recorded is not None:
                pending.append(recorded)
        await wait_for_all(pending)
        return done, lost

    def _see(self, group: str, partition: Partition, receipts: Sequence[Receipt]) -> None:
        """Take the settling of a lease for a sign of life."""
        if self.shares_partitions(group):
            leases = partition.state.group(group).leases
            for token in {receipt.token for receipt in receipts} & leases.keys():
                self.coordinator.seen(group, leases[token].consumer)

    def wake(self) -> None:
        """Wake one waiting consumer of each group: something may have become ready."""
        self.readiness.note(None)
        for line in self.waiters.groups:
            self.waiters.wake(line)

    def _wake_group(self, group: str) -> None:
        self.readiness.note(group)
        for line in self.waiters.groups:
            if line.partition(_LINE)[0] == group:
                self.waiters.wake(line)

    def _count_held(self, group: str, number: int, token: int) -> int:
        return self.partitions[number].count_held(group, token)

    # Keeping

    @property
    def is_closed(self) -> bool:
        """Whether the topic is going away."""
        return self._closed is not None

    def _settled(self, number: int, group: str | None, token: int | None, count: int) -> None:
        self.credits.settled(number, token, count)
        for name in (group,) if group is not None else list(self.groups):
            self.coordinator.settled(name, number)

    def _ready(self, number: int, group: str | None) -> None:
        """Wake whoever may take from a partition, one of each group, or of one group."""
        self.readiness.note(group)
        for line in self.waiters.groups:
            name, _, consumer = line.partition(_LINE)
            if group in (None, name) and (
                not consumer or self.coordinator.owner(name, number) == consumer
            ):
                self.waiters.wake(line)
        if group is None:
            self.readers.wake_group(str(number))

    # What the coordinator asks

    def partition_count(self) -> int:
        """Return how many partitions there are."""
        return self.partitions.count

    def shares_partitions(self, group: str) -> bool:
        """Return whether each partition belongs to one consumer of a group."""
        return self.settings_of(group).ordering is Ordering.PARTITION

    def holder(self, group: str, partition: int, other_than: str | None) -> str | None:
        """Return a consumer, other than that one, that has a lease in a partition open here."""
        opened = self.partitions.get(partition)
        if opened is None:
            return None
        leases = opened.state.group(group).leases.values()
        return next((le.consumer for le in leases if le.consumer != other_than), None)

    def wake_consumers(self, group: str, consumers: Collection[str]) -> None:
        """Let these consumers look again if they wait."""
        self.readiness.note(group)
        for consumer in consumers:
            self.waiters.wake_group(_line_of(group, consumer))

    def _failed(self, number: int) -> None:
        if self._closed is None and not self.partitions[number].messages.failed:
            self._reopening = [task for task in self._reopening if not task.done()]
            self._reopening.append(self._tasks.start(self._reopen(number)))

    async def _reopen(self, number: int) -> None:
        """Build a partition anew from the disk after events were lost, until that works."""
        await self._departures[number].stop()
        await self.partitions[number].close()
        while not await self._closes_within(_REOPEN_DELAY_S):
            try:
                opened = await self._open(number)
            except (GoqError, OSError) as error:
                _log.warning("partition %d of %s stays offline: %s", number, self.name, error)
                continue
            self.partitions.put(self._partition(number, opened))
            self.credits.settled(number, None, 0)
            self.coordinator.reopened(number)
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
        orderings = {group: self.settings_of(group).ordering for group in self.groups}
        self.settings = self.publishing.settings = settings
        for group, before in orderings.items():
            self._put_settings(group, self.groups[group])
            if self.settings_of(group).ordering is not before:
                self._order_anew(group)
        for partition in self.partitions:
            partition.configure(settings)

    async def stop_departures(self) -> None:
        """Let what leaves for other topics wait until the topic is opened again."""
        await asyncio.gather(*(departures.stop() for departures in self._departures.values()))

    async def close(self, reason: GoqError) -> None:
        """Make everything durable and close the partitions; who waits is told ``reason``."""
        await self.stop_departures()
        self._closed = reason
        self._closing.set()
        self.waiters.wake_all()
        self.readers.wake_all()
        self.credits.wake_all()
        self.coordinator.close()
        await asyncio.gather(*self._reopening, return_exceptions=True)
        await asyncio.gather(*(partition.close() for partition in self.partitions))


def _most_urgent_first(partitions: Sequence[Partition], group: str) -> list[Partition]:
    """Return partitions by the lane of what comes next in each; else in the order given."""
    online = [partition for partition in partitions if partition.is_online]
    return sorted(online, key=lambda partition: partition.next_lane(group))


def _line_of(group: str, consumer: str) -> str:
    """Return where a consumer waits that has partitions of its own."""
    return f"{group}{_LINE}{consumer}"


class _Fetch(Exception):
    """What a receive must have in memory before it can lease."""

    def __init__(self, partition: int, offset: int, messages: int) -> None:
        super().__init__()
        self.partition = partition
        self.offset = offset
        self.messages = messages


class _Rebuild(Exception):
    """Which partition must be ready before a receive can lease."""

    def __init__(self, partition: int) -> None:
        super().__init__()
        self.partition = partition
