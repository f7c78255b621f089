"""An open topic: its partitions, its groups, and their settings.

The topic opens, reopens and closes partitions, and connects their callbacks. Its publisher serves
producers, its receiver serves consumers. When a disk fault loses the latest events of a partition,
the topic closes the partition and loads it again. A partition that cannot be loaded is offline, and
tried again in the background or by :meth:`Topic.reopen`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from goq import limits
from goq.broker.group.coordinator import Coordinator
from goq.broker.outbox.worker import DEFAULT_RETRY_BACKOFF, OutboxWorker, RetryBackoff
from goq.broker.partition.loader import (
    LoadedPartition,
    PartitionLogs,
    load_partition,
    open_partition,
    release_logs,
)
from goq.broker.partition.partition import Partition
from goq.broker.partition.publish_target import PublishTarget, TargetLookup
from goq.broker.partition_context import (
    PartitionCallbacks,
    PartitionContext,
    PartitionId,
    Quorums,
)
from goq.broker.runtime.bounded_executor import BoundedExecutor
from goq.broker.runtime.metrics import TopicStats
from goq.broker.runtime.tasks import Tasks
from goq.broker.topic.partition_table import PartitionTable
from goq.broker.topic.publisher import TopicPublisher
from goq.broker.topic.receiver import Receiver
from goq.broker.topic.settler import TopicSettler
from goq.broker.topic.stream_credit import StreamCredits
from goq.config.topic import EffectiveSettings, TopicSettings
from goq.delivery.clock_change import AheadOf, is_ahead_unknown
from goq.errors import GoqError, NotAllowed, PartitionOffline, TopicReadOnly
from goq.model import AUDIT_TOPIC, topic_folder
from goq.storage.node_db import DoubtKind, TopicDoubt, TopicManifest
from goq.storage.scanner import Damage

_log = logging.getLogger("goq.broker")
_GENERATIONS_PER_START = 1_000_000
_OPENED_AT_ONCE = limits.COMMIT_THREADS // 2  # the other threads commit for other topics


class TopicParameters(msgspec.Struct, frozen=True):
    """The internal parameters of a topic, which no user can set."""

    reopen_delay_s: float = 1.0
    """The first pause before a partition that is offline is opened again; each one is doubled."""
    reopen_delay_max_s: float = 10.0
    outbox_retry: RetryBackoff = DEFAULT_RETRY_BACKOFF
    outbox_frame_messages: int = limits.OUTBOX_FRAME_MESSAGES
    """The maximum of copies in one frame of the outbox."""


DEFAULT_PARAMETERS = TopicParameters()


class Leadership(msgspec.Struct, frozen=True):
    """The parameters of a partition that this node leads for the cluster."""

    epoch: int
    quorums: Quorums
    on_failure: Callable[[], None]
    """The partition went offline: a disk fault lost its latest events."""
    on_disk_failure: Callable[[GoqError], None]
    """The disk is full, or has failed."""
    may_be_repaired: Callable[[Damage], bool]
    """Whether another replica may have the damaged data; if so, that replica will lead."""
    node: str = ""
    """This node, to be recorded as the one whose clock counts; "" to record none."""
    ahead_of: AheadOf = is_ahead_unknown
    """How far this node's clock is ahead of another node's."""


class Topic:
    """A topic of this node. ``id`` tells it from others that have, or had, its name.

    ``targets`` returns the partition of another topic that outbox entries are copied to, and
    creates it if necessary. ``remote_target`` finds partitions that other nodes lead.
    ``remember_group`` stores a group at its first use. ``manifest`` returns the known logs.
    """

    def __init__(
        self,
        name: str,
        topic_id: int,
        settings: TopicSettings,
        directory: Path,
        context: PartitionContext,
        tasks: Tasks,
        targets: Callable[[Topic, str, int], Awaitable[PublishTarget]],
        remote_target: TargetLookup | None = None,
        *,
        remember_group: Callable[[Topic, str], Awaitable[None]],
        parameters: TopicParameters = DEFAULT_PARAMETERS,
        doubt: TopicDoubt | None = None,
        manifest: Callable[[], Awaitable[TopicManifest]],
    ) -> None:
        self.name = name
        self.id = topic_id
        self.settings = settings
        self._effective = EffectiveSettings(settings)
        self.directory = directory
        self.partitions = PartitionTable(name)
        self.groups: dict[str, dict[str, str]] = {}
        self.credits = StreamCredits(self._unsettled_count)
        self.stats = TopicStats()
        self.coordinator = Coordinator(
            self, context.clock, first_generation=context.epoch * _GENERATIONS_PER_START
        )
        self.publisher = TopicPublisher(
            name, settings, self.partitions, remote_target, context.random
        )
        self.receiver = Receiver(
            self._effective,
            self.partitions,
            self.coordinator,
            self.stats,
            partial(remember_group, self),
        )
        self.settler = TopicSettler(
            topic_id, self.partitions, self.coordinator, self.credits, self.receiver, self.stats
        )
        threads = BoundedExecutor(context.executor, limits.TOPIC_THREADS_MAX)
        self._context = replace(context, executor=threads)
        self._tasks = tasks
        self._targets = targets
        self._parameters = parameters
        self._manifest = manifest
        self._outbox_workers: dict[int, OutboxWorker] = {}
        self._closing = asyncio.Event()
        self._reopening: list[asyncio.Task[None]] = []
        self._reopen_lock = asyncio.Lock()
        self.doubt: TopicDoubt | None = None
        self.set_doubt(doubt)

    @property
    def folder(self) -> str:
        """The name of the topic's folder."""
        return topic_folder(self.name, self.id)

    @property
    def is_closed(self) -> bool:
        """Whether the topic is closing or closed."""
        return self._closing.is_set()

    @property
    def is_read_only(self) -> bool:
        """Whether the topic takes no messages, and nothing of it is deleted or compacted."""
        return self.doubt is not None and self.doubt.kind is DoubtKind.READ_ONLY

    def set_doubt(self, doubt: TopicDoubt | None) -> None:
        """Set what is not known of the topic; None once a user has decided."""
        self.doubt = doubt
        self.publisher.refusal = None
        if self.name == AUDIT_TOPIC:
            self.publisher.refusal = NotAllowed(f"only the nodes publish to {self.name}")
            return
        if doubt is not None and self.is_read_only:
            self.publisher.refusal = TopicReadOnly(
                f"topic {self.name} is read-only: {doubt.reason}; goq topic show {self.name} shows"
                f" its settings, goq topic alter {self.name} takes them as they are, or as changed"
            )

    # Partitions

    async def open(
        self, partitions: int, manifest: TopicManifest, *, skip_failed: bool = False
    ) -> None:
        """Recover and open the partitions below number ``partitions`` that are not open yet.

        Publishers see all that are added at once: a key moves only once. With ``skip_failed`` one
        that cannot be opened is offline, and tried again later.
        """
        added: list[Partition] = []
        is_served = self.partitions.count > 0
        try:
            for first in range(self.partitions.count, partitions, _OPENED_AT_ONCE):
                numbers = range(first, min(first + _OPENED_AT_ONCE, partitions))
                found = await self._open_some(numbers, manifest)
                failed: BaseException | None = None
                for number, loaded in zip(numbers, found, strict=True):
                    if not isinstance(loaded, BaseException):
                        if failed is None:
                            added.append(self._partition(number, loaded))
                        else:  # partitions are numbered without a gap
                            release_logs(loaded)
                    elif skip_failed and isinstance(loaded, Exception):
                        self._put_offline(number, loaded)
                        self._retry(number)
                    else:
                        failed = failed or loaded
                if failed is not None:
                    raise failed
                if not is_served:
                    self.partitions.put(*added)
                    added.clear()
        finally:
            self.partitions.put(*added)
            self.coordinator.on_partitions_added()

    def _put_offline(self, number: int, error: Exception) -> None:
        why = error.detail if isinstance(error, GoqError) else f"{type(error).__name__}: {error}"
        _log.error("partition %d of %s is offline: %s", number, self.name, why)
        reason = f"partition {number} of {self.name} is offline: {why}"
        pause_ms = int(1000 * self._parameters.reopen_delay_s)
        self.partitions.put_offline(number, PartitionOffline(reason, retry_after_ms=pause_ms))

    def expect(self, partitions: int) -> None:
        """Set the number of partitions; only :meth:`lead` opens them on this node."""
        self.partitions.count = partitions
        self.coordinator.on_partitions_added()

    async def lead(self, number: int, logs: PartitionLogs, leadership: Leadership) -> None:
        """Open a replicated partition from its logs; everything in them is committed."""
        context = replace(self._context, epoch=leadership.epoch)
        loaded = await self._in_thread(load_partition, logs, context, self.settings)
        partition = self._partition(number, loaded, context, leadership)
        if leadership.node:
            partition.take_over_times(leadership.node, loaded.last_event_us, leadership.ahead_of)
        self.partitions.put(partition)
        self.coordinator.on_partitions_added()
        self.coordinator.on_reopened(number)
        self.receiver.wake()

    async def resign(self, number: int, reason: GoqError) -> None:
        """Close a partition that this node leads no longer; waiters get ``reason``."""
        partition = self.partitions.take(number)
        outbox_worker = self._outbox_workers.pop(number)
        await partition.resign(reason)
        await outbox_worker.stop()
        self.credits.on_settled(number, None, 0)
        self.receiver.log_readers.wake(number)

    async def _open_some(
        self, numbers: Sequence[int], manifest: TopicManifest
    ) -> Sequence[LoadedPartition | BaseException]:
        """Open new partitions together, as each waits for syncs; others in turn in one thread."""
        if not all(manifest.of(number).has_existed for number in numbers):
            opening = (self._open(number, manifest) for number in numbers)
            return await asyncio.gather(*opening, return_exceptions=True)

        def open_all() -> list[LoadedPartition | BaseException]:
            found: list[LoadedPartition | BaseException] = []
            for number in numbers:
                parts = self.directory / str(number), self._context, self.settings
                try:
                    found.append(open_partition(*parts, manifest.of(number)))
                except Exception as error:
                    found.append(error)
            return found

        return await asyncio.get_running_loop().run_in_executor(self._context.executor, open_all)

    async def _open(self, number: int, manifest: TopicManifest) -> LoadedPartition:
        parts = self.directory / str(number), self._context, self.settings
        return await self._in_thread(open_partition, *parts, manifest.of(number))

    async def _in_thread(
        self, work: Callable[..., LoadedPartition], *arguments: object
    ) -> LoadedPartition:
        executor = self._context.executor
        return await asyncio.get_running_loop().run_in_executor(executor, work, *arguments)

    def _partition(
        self,
        number: int,
        loaded: LoadedPartition,
        context: PartitionContext | None = None,
        leadership: Leadership | None = None,
    ) -> Partition:
        context = context or self._context
        callbacks = PartitionCallbacks(
            on_ready=partial(self.receiver.on_ready, number),
            on_staged=partial(self.receiver.on_staged, number),
            is_awaited=self.receiver.is_awaited,
            on_failure=(
                leadership.on_failure if leadership is not None else partial(self._reopen, number)
            ),
            on_outbox_entry=lambda: self._outbox_workers[number].wake(),
            on_settled=partial(self.settler.on_settled, number),
            settings_of=self._effective.__getitem__,
            on_disk_failure=(
                leadership.on_disk_failure if leadership is not None else lambda _error: None
            ),
            may_be_repaired=(
                leadership.may_be_repaired if leadership is not None else lambda _damage: False
            ),
        )
        identity = PartitionId(self.name, number, self.id)
        quorums = leadership.quorums if leadership is not None else None
        partition = Partition(
            identity, loaded, context, callbacks, self.settings, self.stats, quorums
        )
        outbox_worker = OutboxWorker(
            partition,
            partial(self._targets, self),
            context,
            self.settings.default_lane,
            self._parameters.outbox_retry,
            self._parameters.outbox_frame_messages,
        )
        self._outbox_workers[number] = outbox_worker
        outbox_worker.wake()
        return partition

    def _unsettled_count(self, group: str, number: int, token: int) -> int:
        return self.partitions[number].leases.unsettled_count(group, token)

    def _reopen(self, number: int) -> None:
        """Load a partition again, in the background, unless its message log has failed."""
        self.receiver.on_offline()
        if not self.is_closed and not self.partitions[number].has_failed_log:
            self._retry(number)

    def _retry(self, number: int) -> None:
        self._reopening = [task for task in self._reopening if not task.done()]
        self._reopening.append(self._tasks.start(self._open_later(number)))

    async def _open_later(self, number: int) -> None:
        """Open a partition once that works; the pauses in between grow."""
        parameters = self._parameters
        pause_s = parameters.reopen_delay_s
        while not await self._closes_within(pause_s):
            try:
                await self.reopen(number)
            except GoqError as error:
                _log.warning("partition %d of %s stays offline: %s", number, self.name, error)
                pause_s = min(2 * pause_s, parameters.reopen_delay_max_s)
            else:
                return

    async def reopen(self, number: int) -> None:
        """Open a partition that is offline, from the disk; nothing happens to one that is online.

        Raises ``PartitionOffline`` if it stays offline, and ``PartitionNotFound``.
        """
        async with self._reopen_lock:
            partition = self.partitions.get(number)
            if self.is_closed or (partition is not None and partition.is_online):
                return
            if partition is None and number not in self.partitions.offline:
                raise self.partitions.not_here(number)
            if partition is not None and number not in self.partitions.offline:
                await self._outbox_workers[number].stop()
                await partition.close()
            try:
                loaded = await self._open(number, await self._manifest())
            except Exception as error:  # whatever keeps it from opening
                self._put_offline(number, error)
                raise self.partitions.offline[number] from error
            self.partitions.put(self._partition(number, loaded))
            self.credits.on_settled(number, None, 0)
            self.coordinator.on_reopened(number)
            self.receiver.wake()

    async def _closes_within(self, delay_s: float) -> bool:
        try:
            await asyncio.wait_for(self._closing.wait(), delay_s)
        except TimeoutError:
            return False
        return True

    # Settings and groups

    def settings_of(self, group: str) -> TopicSettings:
        """Return a group's settings: the topic's, with the group's overrides."""
        return self._effective[group]

    def configure(self, settings: TopicSettings) -> None:
        """Apply changed settings."""
        orderings = {group: self.settings_of(group).ordering for group in self.groups}
        self.settings = self.publisher.settings = self._effective.topic = settings
        for group, before in orderings.items():
            self._set_group_settings(group, self.groups[group])
            if self.settings_of(group).ordering is not before:
                self._change_ordering(group)
        for partition in self.partitions:
            partition.configure(settings)
        self.stats.change_count += 1

    def add_group(self, group: str) -> None:
        """Add a group without overrides of the settings, unless the topic has it."""
        if group not in self.groups:
            self._set_group_settings(group, {})

    def configure_group(self, group: str, written: Mapping[str, str]) -> None:
        """Apply a group's overrides of the settings."""
        before = self.settings_of(group).ordering
        self._set_group_settings(group, written)
        if self.settings_of(group).ordering is not before:
            self._change_ordering(group)

    def _set_group_settings(self, group: str, written: Mapping[str, str]) -> None:
        self.groups[group] = dict(written)
        self.stats.change_count += 1
        self._effective.set_group(group, written)

    def _change_ordering(self, group: str) -> None:
        """Make messages ready that only the old ordering held back."""
        self.coordinator.forget(group)
        for partition in self.partitions:
            partition.start_group_over(group)
        self.receiver.restart(group)

    def forget_group(self, group: str) -> None:
        """Remove a deleted group."""
        self.groups.pop(group, None)
        self.stats.change_count += 1
        self._effective.pop(group, None)
        self.stats.groups.pop(group, None)
        self.coordinator.forget(group)
        self.receiver.restart(group)

    # Queries of the coordinator, see GroupHost

    def partition_count(self) -> int:
        """Return the number of partitions."""
        return self.partitions.count

    def shares_partitions(self, group: str) -> bool:
        """Return whether each partition belongs to one consumer of the group."""
        return self.receiver.has_members(group)

    def holder(self, group: str, partition: int, other_than: str | None) -> str | None:
        """Return a consumer other than ``other_than`` that has a lease in a partition open here."""
        opened = self.partitions.get(partition)
        return None if opened is None else opened.leases.holder(group, other_than)

    def wake_consumers(self, group: str, consumers: Collection[str]) -> None:
        """Wake these consumers of a group, if they wait."""
        self.receiver.wake_consumers(group, consumers)

    def restart_consumers(self, group: str, consumers: Collection[str]) -> None:
        """Have these consumers of a group, if they wait, begin again."""
        self.receiver.restart(group, consumers)

    # Closing

    async def stop_outbox(self) -> None:
        """Stop the outbox workers until the topic is opened again."""
        await asyncio.gather(*(worker.stop() for worker in self._outbox_workers.values()))

    async def close(self, reason: GoqError, *, is_deleted: bool = False) -> None:
        """Make everything durable and close the partitions; waiters get ``reason``."""
        await self.stop_outbox()
        self._closing.set()
        self.receiver.close(reason)
        self.credits.wake_all()
        self.coordinator.close()
        await asyncio.gather(*self._reopening, return_exceptions=True)
        async with self._reopen_lock:
            closing = [partition.close(is_deleted=is_deleted) for partition in self.partitions]
            await asyncio.gather(*closing)
