"""One partition: its message log, its event log, and the delivery state that follows from them.

:class:`Partition` composes the parts, each of which owns its share of the work: the appender takes
published frames, the leases serve consumers, the timers handle due times, the marks change single
messages, the ready state manager keeps the derived state. The partition applies each event to all
of them and answers queries. No other package reads the state or the logs: so there are many queries
here, of a few lines each.

Everything runs on the event loop except the writes. When a disk fault loses events, the state in
memory is ahead of the log: the partition goes offline, and its topic loads it from the disk again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar

from goq.broker.events.damage_recorder import DamageRecorder
from goq.broker.events.deadline_clock import DeadlineClock
from goq.broker.events.group_changes import GroupChanges
from goq.broker.events.live_index import LiveEventIndex
from goq.broker.events.writer import EventWriter
from goq.broker.log.pending_appends import Appended
from goq.broker.partition.appender import Appender
from goq.broker.partition.compactor import Compactor
from goq.broker.partition.delayed_reader import DelayedReader
from goq.broker.partition.group_view import GroupCounts, GroupView
from goq.broker.partition.leases import Leases
from goq.broker.partition.loader import LoadedPartition, PartitionLogs, configure_logs
from goq.broker.partition.message_marks import MessageMarks
from goq.broker.partition.producers import Producers
from goq.broker.partition.ready_state.ready_state_manager import ReadyStateManager
from goq.broker.partition.timers import Timers
from goq.broker.partition.trimmer import Trimmer
from goq.broker.partition_context import (
    Availability,
    PartitionCallbacks,
    PartitionContext,
    PartitionId,
    Quorums,
)
from goq.broker.runtime.disposal import Container, dispose
from goq.broker.runtime.metrics import TopicStats
from goq.config.topic import TopicSettings
from goq.delivery.clock_change import AheadOf, clock_change
from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cause,
    CopyQueued,
    Corrupted,
    Dropped,
    Expired,
    Extended,
    GroupDeleted,
    Leased,
    Nacked,
    Reset,
    Trimmed,
)
from goq.delivery.group_tally import GroupTally, PartitionBounds, group_tallies
from goq.delivery.outbox import OutboxEntry
from goq.errors import GoqError, MessageNotFound, StorageFailed
from goq.storage.column_index.rows import ColumnRows
from goq.storage.log.reader import LogReader, ReadResult
from goq.storage.scanner import Damage

T = TypeVar("T")


class Partition:
    """An open partition."""

    def __init__(
        self,
        identity: PartitionId,
        loaded: LoadedPartition,
        context: PartitionContext,
        callbacks: PartitionCallbacks,
        settings: TopicSettings,
        stats: TopicStats,
        quorums: Quorums | None = None,
    ) -> None:
        self.identity = identity
        self._state = loaded.state
        self._messages = loaded.messages
        self._events = loaded.events
        self._context = context
        self._callbacks = callbacks
        self._stats = stats
        self.availability = Availability(identity)
        self._loop = asyncio.get_running_loop()
        self.group_changes = GroupChanges(stats, callbacks.on_group_change)
        self.ready_manager = ReadyStateManager(
            loaded.ready,
            loaded.messages,
            loaded.state,
            context,
            self.availability,
            settings,
            on_rebuilt=self._on_rebuilt,
        )
        self._writer = EventWriter(
            identity,
            loaded.events,
            loaded.state,
            context,
            messages=loaded.messages,
            rebuilds_from=loaded.snapshot_sequence,
            quorum=quorums and quorums.events,
            changes=self.group_changes,
            on_event=self._on_event,
            on_failure=self._on_events_lost,
        )
        frames = context.frames.of_partition()
        parts = (loaded, context, callbacks, self.availability, self.ready_manager, self._writer)
        self._damage = DamageRecorder(
            loaded.state, callbacks, self.availability, self._writer, self.group_changes
        )
        self._clock = DeadlineClock(
            context.clock,
            loaded.state,
            self._writer,
            self.availability,
            on_moved=lambda: self._timers.arm_all(),
        )
        self.leases = Leases(
            *parts, self._clock, frames, self.group_changes, note_damage=self._damage.record
        )
        self._timers = Timers(*parts, self._clock, self.leases, stats)
        self.appender = Appender(
            *parts,
            stats,
            quorums and quorums.messages,
            frames,
            on_delayed=self._timers.arm_for_delayed,
            on_failure=self._take_offline,
        )
        self.marks = MessageMarks(
            loaded.state,
            context,
            callbacks,
            self.ready_manager,
            self._writer,
            self.leases,
            on_rescheduled=self._timers.arm_for_delayed,
        )
        self.producers = Producers(loaded.state, loaded.events)
        self.trimmer = Trimmer(identity, context, self.appender.commit, self._writer)
        self.compactor = Compactor(
            identity, context, self.appender.commit, frames, record=self.leases.record
        )
        self._timers.arm_all()

    def take_over_times(self, node: str, last_event_us: int | None, ahead_of: AheadOf) -> None:
        """Convert deadlines and due times of retries to the clock of this node, and follow it.

        ``node`` is the name under which the clock is recorded. Call it before any other event.
        ``last_event_us`` is the time of the last event in the log.
        """
        now_ms = self._context.clock.wall_ms()
        self._clock.follow(clock_change(self._state, node, now_ms, last_event_us, ahead_of))

    # Availability

    @property
    def is_online(self) -> bool:
        """Whether the partition is usable."""
        return self.availability.error is None

    @property
    def is_sound(self) -> bool:
        """Whether the partition is usable and no damage of its logs is known."""
        is_damaged = self._messages.reader.damage or self._events.reader.damage
        return self.availability.error is None and not is_damaged

    @property
    def is_quiet(self) -> bool:
        """Whether no append is under way."""
        return self.appender.commit.is_quiet and self._writer.commit.is_quiet

    def check_room(self) -> None:
        """Raise an error if no event can be accepted now."""
        self.leases.check_room()

    def note_damage(self, damage: Damage) -> None:
        """Record damage found by a read as an event; raise as :meth:`check_repairable` does."""
        self._damage.record(damage)

    def check_repairable(self, damage: Damage) -> None:
        """Go offline and raise ``PartitionOffline`` if another replica may have the data."""
        self._damage.check_repairable(damage)

    # Bounds

    @property
    def start_offset(self) -> int:
        """The first offset that a group can receive."""
        return self._state.start_offset

    @property
    def end_offset(self) -> int:
        """The offset before which everything is committed: the high watermark."""
        return self._state.end_offset

    @property
    def log_start_offset(self) -> int:
        """The first offset in the message log."""
        return self._messages.start_offset

    @property
    def log_end_offset(self) -> int:
        """The next offset of the message log, committed or not."""
        return self._messages.end_offset

    @property
    def event_high_watermark(self) -> int:
        """The sequence before which all events are committed."""
        return self._writer.commit.high_watermark

    @property
    def size_bytes(self) -> int:
        """The size of the message log in bytes."""
        return self._messages.size_bytes

    @property
    def message_damage(self) -> Sequence[Damage]:
        """The damage found in the message log."""
        return self._messages.damage

    @property
    def event_damage(self) -> Sequence[Damage]:
        """The damage found in the event log."""
        return self._events.damage

    # Read

    @property
    def message_reader(self) -> LogReader:
        """The reader of the message log, for any thread; one object while the partition is open."""
        return self._messages.reader

    @property
    def event_reader(self) -> LogReader:
        """The reader of the event log, for any thread; one object while the partition is open."""
        return self._events.reader

    @property
    def live_event_index(self) -> LiveEventIndex:
        """The index of events by message."""
        return self._writer.live_index

    def read(self, offset: int, *, messages_max: int, wait: bool = True) -> ReadResult:
        """Read whole frames of committed messages; damage found is recorded as an event."""
        reading = self._messages.reader.read(
            offset, self._state.end_offset, messages_max=messages_max, wait=wait
        )
        for damage in reading.damage:
            self.note_damage(damage)
        return reading

    async def read_in_thread(self, offset: int, *, messages_max: int) -> ReadResult:
        """Read as :meth:`read` does, where that would hold the event loop."""
        reader, end_offset = self._messages.reader, self._state.end_offset
        reading = await self.in_thread(
            lambda: reader.read(offset, end_offset, messages_max=messages_max)
        )
        for damage in reading.damage:
            self.note_damage(damage)
        return reading

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run work that blocks on the disk in a thread."""
        return await self._loop.run_in_executor(self._context.executor, work)

    async def row(self, offset: int) -> ColumnRows | None:
        """Return the columns of one message; None for a message in a plain frame."""
        reader = self._messages.reader
        return await self.in_thread(lambda: next(reader.rows(offset, offset + 1), None))

    @property
    def delayed_count(self) -> int:
        """The number of delayed messages."""
        return self.ready_manager.current.schedule.count

    async def read_delayed(self, work: Callable[[DelayedReader], T]) -> T:
        """Run a query of the delayed messages in a thread."""
        reader = DelayedReader(self._messages.reader, self._state)
        return await self._loop.run_in_executor(self._context.executor, work, reader)

    # Queries of the state

    @property
    def group_names(self) -> Collection[str]:
        """The groups with events in this partition."""
        return self._state.groups.keys()

    def group(self, name: str) -> GroupView:
        """Return a view of a group's current progress."""
        return GroupView(self._state, name)

    def group_counts(self, name: str, now_ms: int, scheduled_max: int | None = None) -> GroupCounts:
        """Count a group's messages by state, with at most ``scheduled_max`` scheduled ones.

        The default is all scheduled messages of the partition, as far as the group has as many
        undelivered.
        """
        scheduled = self.delayed_count if scheduled_max is None else scheduled_max
        return GroupView(self._state, name).counts(scheduled, now_ms)

    def group_tallies(self, names: Iterable[str], now_ms: int) -> list[GroupTally]:
        """Return what changes the counts of groups, for all that look at many of them."""
        return group_tallies(self._state, names, now_ms)

    @property
    def bounds(self) -> PartitionBounds:
        """The numbers that change the counts of all groups."""
        return PartitionBounds(self.start_offset, self.end_offset, self.delayed_count)

    def waiting(self, name: str, queues_max: int) -> list[tuple[int, int, int]] | None:
        """Return lane, tenant number and count of a group's messages before a first delivery.

        Those behind another message of their key are left out. None where that is not known: with
        more queues than ``queues_max``, or if the queues lack what only a receive reads again.
        """
        waiting = None
        if not self.ready_manager.is_rebuilding:
            waiting = self.ready_manager.current.waiting(self._state.group(name), queues_max)
        if waiting is None and self.group(name).untaken_count() <= self.delayed_count:
            return []  # nothing is ready, as all counts say
        return waiting

    def tenant_name(self, number: int) -> str:
        """Return the tenant of a number of :meth:`waiting`; "" for none."""
        return self.ready_manager.current.tenants.name(number)

    def check_exists(self, offset: int) -> None:
        """Raise ``MessageNotFound`` for an offset not yet assigned or already deleted."""
        name = f"{self.identity}:{offset}"
        if offset >= self._state.end_offset:
            raise MessageNotFound(f"{name} does not exist yet", field="id")
        if offset < self._state.start_offset:
            raise MessageNotFound(
                f"{name} is gone: retention keeps {self.identity} from offset"
                f" {self._state.start_offset} on",
                field="id",
            )

    @property
    def outbox_entries(self) -> Collection[OutboxEntry]:
        """The entries of the outbox: messages to copy to other topics, oldest first."""
        return self._state.outbox.entries.values()

    @property
    def outbox_producer_id(self) -> int:
        """The producer id of the outbox; 0 before the first entry."""
        return self._state.outbox.producer_id

    def new_producer_id(self) -> int:
        """Return a new producer id, for an outbox that has none yet."""
        return self._context.new_id()

    # Changes

    def record(self, events: Sequence[AnyEvent]) -> asyncio.Future[Appended]:
        """Apply and record events; they are durable when the future completes."""
        return self.leases.record(events)

    async def write_deferred(self) -> None:
        """Wait until events that no request waits for are durable too."""
        if self.is_online:
            await self._writer.write_deferred()

    async def recorded(self) -> None:
        """Wait until all events so far are committed; raise if any of them may be lost."""
        commit = self._writer.commit
        self.availability.check()
        await commit.run_exclusive(lambda: None)
        self.availability.check()
        await commit.wait_for_commit(commit.log.end_offset)

    async def wait_for_times_before(self, time_us: int) -> None:
        """Wait until no message that has got an earlier append time can still appear.

        Raises ``TimedOut`` if other nodes do not confirm one, and ``NotLeader`` if another node may
        have taken some.
        """
        await self.appender.commit.wait_for_times_before(time_us)

    async def wait_for_history_before(self, time_us: int) -> None:
        """Do as :meth:`wait_for_times_before`, for events too."""
        await self._writer.commit.wait_for_times_before(time_us)
        await self.appender.commit.wait_for_times_before(time_us)

    async def rebuilt(self) -> None:
        """Wait for a rebuild of the ready state under way; raise if it fails."""
        await self.ready_manager.rebuilt()

    async def reset(self, group: str, offset: int, end_offset: int | None = None) -> None:
        """Set a group's position to ``offset``, and its end to ``end_offset`` or to none."""
        self.leases.check_room()
        known = self._state.groups.get(group)
        ends = (end_offset, None if known is None else known.end_offset)
        dropped = [] if known is None else known.containers()
        done = self._writer.record(
            [Reset(group, offset, *(-1 if end is None else end for end in ends))]
        )
        self._callbacks.on_ready(group)
        await done
        await dispose(dropped)

    def start_group_over(self, group: str) -> None:
        """Reconsider messages that a group's ordering held back: the ordering has changed."""
        if group in self._state.groups:
            self._state.groups[group].restart_reading()
            self.group_changes.on_group(group)

    async def delete_group(self, group: str) -> None:
        """Delete a group and its progress."""
        if group in self._state.groups:
            self.availability.check()
            dropped = self._state.groups[group].containers()
            await self._writer.record([GroupDeleted(group)], is_vital=True)
            await dispose(dropped)

    # Callbacks

    def _on_event(self, event: AnyEvent) -> None:
        """Follow an event that was applied to the state."""
        if isinstance(event, Leased | Nacked | Expired | Extended):
            self._timers.arm_for_group(event.group)
        elif isinstance(event, CopyQueued):
            if event.group:
                dead = sum(end - start for start, end, _ in event.spans)
                self._stats.groups[event.group].dead_messages += dead
            self._callbacks.on_outbox_entry()
        elif isinstance(event, Trimmed):
            self.ready_manager.current.trim(event.start_offset)
        on_settled = self._callbacks.on_settled
        if isinstance(event, Acked):
            count = sum([end - start for start, end in event.ranges])
            on_settled(event.group, event.token, count, False)
        elif isinstance(event, Nacked | Expired | Dropped | CopyQueued):
            count = sum([end - start for start, end, _ in event.spans])
            has_expired = isinstance(event, Expired) or (
                isinstance(event, Dropped | CopyQueued) and event.cause is Cause.EXPIRED
            )
            on_settled(event.group, event.token, count, has_expired)
        elif isinstance(event, Reset | GroupDeleted):
            on_settled(event.group, None, 0, False)
        elif isinstance(event, Corrupted | Trimmed):
            on_settled(None, None, 0, False)
            self._callbacks.on_ready(None)  # what held back others by its tenant may be gone

    def _on_events_lost(self, error: GoqError) -> None:
        """Go offline: the state is ahead of its log and must be loaded again."""
        self._callbacks.on_disk_failure(error)
        self._take_offline(error)

    def _on_rebuilt(self) -> None:
        self.group_changes.on_all_groups()
        self._timers.arm_all()
        self._callbacks.on_ready(None)

    def _take_offline(self, error: GoqError) -> None:
        if self.is_online:
            self._timers.cancel()
            self.group_changes.on_all_groups()
            self.availability.take_offline(f"is offline: {error.detail}", retry_after_ms=1000)
            self._callbacks.on_failure()

    # Settings and close

    def configure(self, settings: TopicSettings) -> None:
        """Apply changed settings to all later writes."""
        self.ready_manager.configure(settings)
        if self.ready_manager.is_rebuilding:
            self._callbacks.on_ready(None)  # what is ready is not known until it ends
        configure_logs(PartitionLogs(self._messages, self._events), settings)
        self.appender.admission.configure(settings)

    async def resign(self, reason: GoqError) -> None:
        """Release the logs without further writes, because another node leads."""
        self.availability.error = self.availability.error or reason
        self.appender.commit.abort(reason)
        self._writer.commit.abort(reason)
        await self.close(is_needed=False)

    async def close(self, *, is_needed: bool = True) -> None:
        """Write queued frames, snapshot the state for a fast open, and close the logs.

        The snapshot is left out if it is not needed, because the partition is not opened from here
        again. The state may be large: it is freed in slices.
        """
        await self.compactor.stop()
        self._timers.cancel()
        self._clock.close()
        if self.is_online and is_needed:
            self._writer.record_last_snapshot()
        self.availability.take_offline("is closed")
        await self.ready_manager.close()
        for writer in (self.appender, self._writer):
            try:
                await writer.close()
            except (StorageFailed, OSError):
                continue  # it failed before, and its waiters got the error then
        self._context.tasks.start(dispose(self._take_containers(with_groups=not is_needed)))

    def _take_containers(self, *, with_groups: bool) -> Iterator[Container]:
        """Yield what holds the ready queues and, if asked, the progress of one group after another.

        They are no part of the partition any more.
        """
        yield from self.ready_manager.current.ready.containers()
        groups = self._state.groups if with_groups else {}
        while groups:
            _, group = groups.popitem()
            yield from group.containers()
