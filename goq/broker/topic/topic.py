"""An open topic: its partitions, its groups, and their settings.

The topic makes partitions of what its opener loads, connects their callbacks, and closes them. Its
publisher serves producers, its receiver serves consumers. When a disk fault loses the latest events
of a partition, the partition is closed and loaded again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from goq import limits
from goq.broker.group.coordinator import Coordinator
from goq.broker.outbox.worker import DEFAULT_RETRY_BACKOFF, OutboxWorker, RetryBackoff
from goq.broker.partition.leases import LeasedBatch
from goq.broker.partition.loader import (
    LoadedPartition,
    PartitionLogs,
    load_partition,
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
from goq.broker.topic.partition_opener import PartitionOpener, ReopenPause
from goq.broker.topic.partition_table import PartitionTable
from goq.broker.topic.publisher import TopicPublisher
from goq.broker.topic.receiver import Receiver
from goq.broker.topic.settler import TopicSettler
from goq.broker.topic.stream_credit import StreamCredits
from goq.config.topic import EffectiveSettings, TopicSettings
from goq.delivery.clock_change import AheadOf, is_ahead_unknown
from goq.errors import GoqError, NotAllowed, TopicReadOnly
from goq.model import AUDIT_TOPIC, topic_folder
from goq.storage.catalog.rows import DoubtKind, TopicDoubt, TopicManifest
from goq.storage.scanner import Damage

_log = logging.getLogger("goq.broker")
_GENERATIONS_PER_START = 1_000_000
_CLOSED_AT_ONCE = 50  # 1,000 in one pass of the event loop held it for 60 ms


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
    ``return_lease`` has other nodes release leases of a topic's group that reached no consumer.
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
        return_lease: Callable[[str, str, LeasedBatch], None] | None = None,
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
        self.credits = StreamCredits(partial(_unsettled_count, self.partitions))
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
            _return_nothing if return_lease is None else partial(return_lease, name),
        )
        self.settler = TopicSettler(
            topic_id, self.partitions, self.coordinator, self.credits, self.receiver, self.stats
        )
        threads = BoundedExecutor(context.executor, limits.TOPIC_THREADS_MAX)
        self._context = replace(context, executor=threads)
        self._targets = targets
        self._parameters = parameters
        self._outbox_workers: dict[int, OutboxWorker] = {}
        self._closing = asyncio.Event()
        self.opener = PartitionOpener(
            directory,
            self.partitions,
            self._effective,
            self._context,
            tasks,
            ReopenPause(parameters.reopen_delay_s, parameters.reopen_delay_max_s),
            manifest,
            self._closing,
            build=self._partition,
            close_failed=self._close_failed,
            on_added=self.coordinator.on_partitions_added,
            on_reopened=self._on_reopened,
        )
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

    def expect(self, partitions: int) -> None:
        """Set the number of partitions; only :meth:`lead` opens them on this node."""
        self.partitions.count = partitions
        self.coordinator.on_partitions_added()

    async def lead(self, number: int, logs: PartitionLogs, leadership: Leadership) -> None:
        """Open a replicated partition from its logs; everything in them is committed."""
        context = replace(self._context, epoch=leadership.epoch)
        loaded = await asyncio.get_running_loop().run_in_executor(
            context.executor, load_partition, logs, context, self.settings
        )
        self.partitions.put(self._partition(number, loaded, context, leadership))
        self.coordinator.on_partitions_added()
        self.coordinator.on_reopened(number)
        self.receiver.wake()

    async def resign(self, number: int, reason: GoqError) -> None:
        """Close a partition that this node leads no longer; waiters get ``reason``."""
        partition = self.partitions.take(number)
        outbox_worker = self._outbox_workers.pop(number)
        await partition.resign(reason)
        await outbox_worker.stop()
        self.settler.on_resigned(number)
        self.receiver.log_readers.wake(number)

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
            on_group_change=partial(self.receiver.ready_partitions.note_change, number),
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
        if leadership is None:
            clock_node = loaded.state.clock_node
            partition.take_over_times(clock_node, loaded.last_event_us, is_ahead_unknown)
        elif leadership.node:
            partition.take_over_times(leadership.node, loaded.last_event_us, leadership.ahead_of)
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

    def _reopen(self, number: int) -> None:
        """Load a partition that went offline again, in the background."""
        self.receiver.on_offline()
        if not self.is_closed:
            self.opener.reopen_later(number)

    async def _close_failed(self, partition: Partition) -> None:
        await self._outbox_workers[partition.identity.number].stop()
        await partition.close()

    def _on_reopened(self, number: int) -> None:
        self.credits.on_settled(number, None, 0)
        self.coordinator.on_reopened(number)
        self.receiver.wake()

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
        await self.opener.close()
        left, failures = list(self.partitions), list[BaseException]()
        while left:
            closing = [each.close(is_needed=not is_deleted) for each in left[:_CLOSED_AT_ONCE]]
            found = await asyncio.gather(*closing, return_exceptions=True)
            failures += [each for each in found if each is not None]
            del left[:_CLOSED_AT_ONCE]
        self.partitions.close(reason)
        self._outbox_workers.clear()
        if failures:
            raise failures[0]


def _return_nothing(_group: str, _batch: LeasedBatch) -> None:
    """No other node has leases of a standalone node."""


def _unsettled_count(partitions: PartitionTable, group: str, number: int, token: int) -> int | None:
    partition = partitions.get(number)  # None once another node leads it
    return None if partition is None else partition.leases.unsettled_count(group, token)
