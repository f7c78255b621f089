"""The event writer of a partition.

It applies each event to the state at once and queues the event for the event log.

From time to time it writes the whole state as a snapshot. If the active segment is full, the
snapshot starts a new segment. Older events may then be deleted, and opening stays fast.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from goq import limits
from goq.broker.events.group_changes import GroupChanges
from goq.broker.events.live_index import LiveEventIndex
from goq.broker.log.group_commit import GroupCommit
from goq.broker.log.pending_appends import Appended
from goq.broker.log.quorum import Quorum
from goq.broker.partition_context import PartitionContext, PartitionId
from goq.broker.runtime.callbacks import ignore
from goq.delivery.events.event import AnyEvent, token_of
from goq.delivery.events.frame_codec import encode_event_frame
from goq.delivery.partition_state import PartitionState
from goq.delivery.snapshot import EncodedSnapshot
from goq.errors import GoqError
from goq.storage.log.log import Log
from goq.storage.log.segment import Segment

_DEFERRED_MAX = 32
GROUPS_AT_ONCE = 256
"""How many groups one step of the event loop encodes ahead of a snapshot: 1 to 3 ms."""
_EVENTS_PER_ENTRY = 4  # a snapshot that does not start a segment needs so many


class EventWriter:
    """Writes the events of a partition, of what ``messages`` has or is about to have.

    ``on_event`` is called for each recorded event that was applied; ``changes`` gets all of them.
    """

    def __init__(
        self,
        identity: PartitionId,
        log: Log,
        state: PartitionState,
        context: PartitionContext,
        *,
        messages: Log,
        rebuilds_from: int,
        quorum: Quorum | None,
        changes: GroupChanges,
        on_event: Callable[[AnyEvent], None],
        on_failure: Callable[[GoqError], None],
    ) -> None:
        self.rebuilds_from = rebuilds_from
        """The sequence of the event that a rebuild would start with."""
        self._state = state
        self._epoch = context.epoch
        self._is_disk_full = context.is_disk_full
        self._changes = changes
        self._on_event = on_event
        self._deferred: list[AnyEvent] = []
        self._next_sequence = log.end_offset
        self._snapshot_sequence = log.end_offset
        self._snapshot_weight = 0
        self._bytes_since_snapshot = 0
        self._snapshot_limits = context.snapshot_limits
        self._snapshot: EncodedSnapshot | None = None
        """The next snapshot while its groups are encoded ahead."""
        self.commit = GroupCommit(
            log,
            context.executor,
            context.clock,
            context.epoch,
            on_commit=lambda _committed: None,
            on_seal=lambda segment: self._on_seal(identity, segment, context),
            on_failure=on_failure,
            follows=messages,
            uses_reserve=True,
            quorum=quorum,
            write_seconds=context.write_seconds,
            turn=context.turn,
        )
        self.live_index = LiveEventIndex(
            log,
            self.commit,
            state.outbox,
            context.epoch,
            context.disk,
            context.executor,
            context.indexes,
        )

    @property
    def next_token(self) -> int:
        """The token of a lease whose event is recorded next."""
        return token_of(self._epoch, self._next_sequence + len(self._deferred))

    @property
    def has_room(self) -> bool:
        """Whether the disk takes events that are not vital, as far as is known.

        An event is applied before it is written. If the disk then refuses it, the partition goes
        offline, and with it what would make room. So events that were under way when the disk
        became full are written with the reserve, and no others begin.
        """
        return not self._is_disk_full()

    def record_later(self, event: AnyEvent) -> None:
        """Apply an event without writing it yet. It is written before the next recorded event.

        A crash before that loses the event, so it must be an event that would happen again.
        """
        self._apply(event, self._next_sequence + len(self._deferred))
        self._deferred.append(event)
        if len(self._deferred) >= _DEFERRED_MAX or self.live_index.is_watched(event):
            self.record(())

    async def wait_for_commit(self) -> None:
        """Wait until all events recorded so far are committed; raise if that is unknown."""
        await self.committed()

    def committed(self) -> asyncio.Future[Appended]:
        """Return a future that completes when all events recorded so far are committed.

        It fails with the error of the log, or with ``TimedOut`` if that is unknown.
        """
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.commit.complete_when_committed(self._next_sequence, done)
        return done

    async def write_deferred(self) -> None:
        """Wait until all deferred events are durable."""
        if self._deferred:
            await self.record(())

    def record(
        self, events: Sequence[AnyEvent], *, is_vital: bool = False
    ) -> asyncio.Future[Appended]:
        """Apply events and queue them for the log. The future completes when they are durable.

        What ``is_vital`` is tried again on a full disk after others were refused.
        """
        together = [*self._deferred, *events]
        view = encode_event_frame(together, self._state.end_offset)
        done = self.commit.append(view, is_vital=is_vital)
        self.live_index.on_record(together, view.header.frame_bytes)
        self._next_sequence += len(self._deferred)
        self._deferred.clear()
        for event in events:
            self._apply(event, self._next_sequence)
            self._next_sequence += 1
            self._on_event(event)
        if self._has_many_events():
            self.record_snapshot()
        return done

    def count_published(self, size_bytes: int) -> bool:
        """Count the bytes of new messages; return whether a snapshot is due.

        A snapshot stores the offset up to which the state is complete.
        """
        self._bytes_since_snapshot += size_bytes
        cost_bytes = self._snapshot_limits.entry_cost_bytes * self._snapshot_weight
        return self._bytes_since_snapshot > limits.CHECKPOINT_INTERVAL_BYTES + cost_bytes

    def record_snapshot(self) -> None:
        """Write the whole state: at once, or after some steps of the loop if it has many groups."""
        if self._snapshot is None:
            self._snapshot = EncodedSnapshot(self._state, self._snapshot_limits)
            self._prepare_snapshot(self._snapshot)

    def _prepare_snapshot(self, snapshot: EncodedSnapshot) -> None:
        """Encode groups ahead, a few in each step of the event loop, then write the snapshot."""
        if snapshot is not self._snapshot or self.commit.is_closed:
            return  # written meanwhile, or never to be
        if snapshot.prepare(GROUPS_AT_ONCE):
            asyncio.get_running_loop().call_soon(self._prepare_snapshot, snapshot)
        else:
            self._record_snapshot(begins_segment=self._is_full())

    def record_last_snapshot(self) -> None:
        """Write the whole state if it has changed, so that the next start is fast."""
        has_events = self._deferred or self._next_sequence > self._snapshot_sequence
        if self._bytes_since_snapshot or has_events:
            self._record_snapshot(begins_segment=False)

    async def close(self) -> None:
        """Make recorded events durable and close the log; raise as the log does."""
        try:
            await self.commit.close()
        finally:
            self._on_event = ignore

    def _apply(self, event: AnyEvent, sequence: int) -> None:
        self._state.apply(event, sequence, self._epoch)
        self._changes.on_event(event)
        if self._snapshot is not None:
            self._snapshot.on_event(event)

    def _on_seal(self, identity: PartitionId, segment: Segment, context: PartitionContext) -> None:
        self.live_index.on_seal(segment)
        context.on_seal(identity, "events", segment)

    def _has_many_events(self) -> bool:
        """Return whether a snapshot is due: to start a segment, or for fast reads of the past."""
        count = self._next_sequence - self._snapshot_sequence
        if self._is_full():
            return count >= max(limits.SNAPSHOT_EVENTS_MIN, self._snapshot_weight)
        return count >= max(limits.SNAPSHOT_EVENTS_MAX, _EVENTS_PER_ENTRY * self._snapshot_weight)

    def _is_full(self) -> bool:
        return self.commit.log.active.size_bytes >= limits.EVENT_SEGMENT_BYTES

    def _record_snapshot(self, *, begins_segment: bool) -> None:
        if self._snapshot is None:
            self._snapshot = EncodedSnapshot(self._state, self._snapshot_limits)
        if self._deferred:
            self.record(())
        frames, weights = zip(*self._snapshot.frames(self._state.end_offset), strict=True)
        self._snapshot = None
        done = self.commit.append(frames[0], begins_segment=begins_segment)
        for view in frames[1:]:
            done = self.commit.append(view)
        count = sum(view.header.message_count for view in frames)
        self.live_index.on_snapshot(count, begins_segment=begins_segment)
        if begins_segment:
            sequence = self._next_sequence
            done.add_done_callback(lambda last: self._on_snapshot_written(last, sequence))
        self._next_sequence += count
        self._snapshot_sequence = self._next_sequence
        self._snapshot_weight = sum(weights) - count
        self._bytes_since_snapshot = 0

    def _on_snapshot_written(self, last: asyncio.Future[Appended], sequence: int) -> None:
        """Record that rebuilds can start at this segment: its snapshot is complete."""
        if not last.cancelled() and last.exception() is None:
            self.rebuilds_from = sequence
