"""Leases of one partition: receive, acknowledge, nack, reject, release, extend.

A decision changes the state at once, so no other consumer gets the same message. Its event is
queued for the log in the same turn of the event loop. Each call returns a future that completes
when the event is durable; the client gets its answer after that. If it fails with ``TimedOut``, the
decision may hold; with another error it does not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from goq import limits
from goq.broker.events.deadline_clock import DeadlineClock
from goq.broker.events.group_changes import GroupChanges
from goq.broker.events.recorded_acks import split_recorded
from goq.broker.events.search import IndexedEventLog
from goq.broker.events.writer import EventWriter
from goq.broker.log.frame_cache import CachedFrame, FrameFetch, PartitionFrames, UncachedMessages
from goq.broker.log.pending_appends import Appended
from goq.broker.partition.failure_policy import failure_context
from goq.broker.partition.loader import LoadedPartition
from goq.broker.partition.ready_state.ready_state_manager import ReadyStateManager
from goq.broker.partition_context import Availability, PartitionCallbacks, PartitionContext
from goq.config.topic import Ordering, TopicSettings
from goq.delivery.events.event import AnyEvent, Cause, CopyQueued, Leased, Range, Skipped, Span
from goq.delivery.group.attempt_ranges import gaps
from goq.delivery.selection.redelivery import RetryRule
from goq.delivery.selection.selector import Selector
from goq.delivery.settlement import (
    FailureContext,
    Settlement,
    acknowledge,
    expire_lease,
    extend,
    nack,
    reject,
    release,
    release_undelivered,
    spans_of,
)
from goq.errors import GoqError, StorageFull
from goq.frame.view import FrameView
from goq.model import Receipt
from goq.storage.log.reader import ReadResult
from goq.storage.scanner import Damage

_EVENTS_PER_FRAME_MAX = 2_000  # fit a frame even with reasons of maximum length
_DISK_FULL = "the disk is full; free some space, then send again"


class LeasedBatch(NamedTuple):
    """Messages leased together, and the frames that hold them."""

    partition: int
    token: int
    consumer: str
    deadline_ms: int
    spans: list[Span]
    frames: list[FrameView]
    is_cut: bool
    """Whether the partition may have more ready messages."""
    size_bytes: int = 0
    """The share of the messages in the bytes of their frames."""
    is_paused: bool = False
    """Whether the selection ended early, to let others use the event loop."""
    moved: Mapping[int, int] = MappingProxyType({})
    """The lanes of those messages that were moved to another lane, by offset."""

    @property
    def message_count(self) -> int:
        """The number of messages leased."""
        return sum([end - start for start, end, _ in self.spans])


class MessagesNotCached(Exception):
    """Nothing was leased: the messages must be read from the disk first."""

    def __init__(self, missing: UncachedMessages) -> None:
        super().__init__()
        self.missing = missing


class MustRepeat(Exception):
    """Nothing was leased so far; there is more to look at, in another turn of the event loop."""


Settling = tuple[Settlement, Sequence[asyncio.Future[Appended]]]
"""The decision, and futures that complete when it is durable, with what it rests on."""


class Leases:
    """The consumer side of one partition; ``note_damage`` is called for corrupt messages."""

    def __init__(
        self,
        loaded: LoadedPartition,
        context: PartitionContext,
        callbacks: PartitionCallbacks,
        availability: Availability,
        ready_manager: ReadyStateManager,
        writer: EventWriter,
        clock: DeadlineClock,
        frames: PartitionFrames,
        changes: GroupChanges,
        *,
        note_damage: Callable[[Damage], None],
    ) -> None:
        self._reader = loaded.messages.reader
        self._events = loaded.events
        self._state = loaded.state
        self._context = context
        self._callbacks = callbacks
        self._availability = availability
        self._ready_manager = ready_manager
        self._writer = writer
        self._clock = clock
        self._frames = frames
        self._changes = changes
        self._note_damage = note_damage
        self.has_passed_over = False
        """Whether the latest receive left due retries to other consumers."""

    def check_room(self) -> None:
        """Raise an error if no event can be accepted now."""
        if self._availability.error is not None:
            raise self._availability.error
        self._writer.commit.check_room(0)
        if self._context.is_disk_full():
            raise StorageFull(_DISK_FULL, retry_after_ms=1000)

    def record(self, events: Sequence[AnyEvent]) -> asyncio.Future[Appended]:
        """Apply and record events, also of other parts; they are durable when the future is done.

        Raises an error if no event can be accepted now.
        """
        self.check_room()
        return self._writer.record(events)

    def receive(
        self,
        group_name: str,
        consumer: str,
        messages_max: int,
        visibility_ms: int | None,
        *,
        bytes_max: int,
        wait: bool,
        rule: RetryRule,
        session_id: str,
    ) -> tuple[LeasedBatch, asyncio.Future[Appended]] | None:
        """Lease ready messages to a consumer of a group; return None without any.

        ``session_id`` is as in :class:`Leased`.

        The ready state must fit the group, see :meth:`ReadyStateManager.is_ready_for`. The batch
        may leave the node when the future completes. Raises ``MessagesNotCached``, with nothing
        leased, when messages must be read from the disk and ``wait`` is false. Raises
        ``MustRepeat`` when the caller should repeat the call.
        """
        self.check_room()
        now_ms = self._clock.now_ms()
        settings = self._callbacks.settings_of(group_name)
        group = self._state.ensure_group(group_name)
        ready = self._ready_manager.current
        ready.scheduler_of(group)
        self._changes.on_group(group_name)  # also if it gets nothing: it may hold back more keys
        fetch = FrameFetch(
            self._frames,
            partial(self._read, wait),
            self._note_damage,
            group=group_name,
            bytes_max=bytes_max,
        )
        choice = Selector(
            self._state,
            group,
            settings.ordering,
            ready.default_lane,
            now_ms,
            fetch.facts,
            rule,
            fetch.single,
        )
        self.has_passed_over = choice.take(messages_max)
        for cause, ranges in choice.skipped.items():
            self._skip(group_name, ranges, cause, settings, now_ms)
        spans = choice.spans
        if not spans:
            if choice.must_repeat:
                raise MustRepeat
            if fetch.missing is not None:
                raise MessagesNotCached(fetch.missing)
            return None
        group.add_attributes(choice.attributes)
        deadline_ms = now_ms + (visibility_ms or settings.visibility_timeout_ms)
        token = self._writer.next_token
        done = self._writer.record([Leased(group_name, consumer, deadline_ms, spans, session_id)])
        batch = LeasedBatch(
            self._availability.identity.number,
            token,
            consumer,
            deadline_ms,
            spans,
            fetch.frames,
            choice.is_full(),
            fetch.used_bytes,
            choice.must_yield,
            self._moved_among(spans),
        )
        return batch, done

    def _moved_among(self, spans: Sequence[Span]) -> dict[int, int]:
        moved = self._state.moved
        if not moved:
            return {}
        return {o: moved[o] for start, end, _ in spans for o in range(start, end) if o in moved}

    async def warm(self, offset: int, messages_max: int) -> None:
        """Read messages in a thread, so that a receive finds their frames in memory."""
        reader, end_offset = self._reader, self._state.end_offset
        version = self._frames.version

        def read() -> list[CachedFrame]:
            views = reader.read(offset, end_offset, messages_max=messages_max).frames
            return [CachedFrame(view) for view in views]  # which decompresses them

        with contextlib.suppress(GoqError, OSError):  # the receive that reads by itself meets it
            loop = asyncio.get_running_loop()
            frames = await loop.run_in_executor(self._context.executor, read)
            if version == self._frames.version:
                self._frames.add(frames)

    def _read(self, wait: bool, start: int, end: int, size_bytes: int) -> ReadResult:
        return self._reader.read(
            start, end, messages_max=end - start, bytes_max=size_bytes, wait=wait
        )

    def next_lane(self, group_name: str) -> int | None:
        """Return the lane of a group's next message, approximately: 0 is the most urgent.

        None if a receive would find nothing until an event or a message is added.
        """
        group = self._state.ensure_group(group_name)
        ready = self._ready_manager.current
        fresh = ready.scheduler_of(group).next_lane()
        self._changes.on_group(group_name)  # it may have begun to read its queues
        if not (len(group.retries) or group.locks.held_count):
            return fresh
        lanes = [ready.default_lane if lane < 0 else lane for lane in group.retries.due_lanes()]
        return min([*lanes, limits.LANES_MAX if fresh is None else fresh])

    def acknowledge(self, group: str, receipts: Iterable[Receipt]) -> Settling:
        """Mark leased messages as done."""
        return self._settle(group, acknowledge(self._state, group, receipts))

    async def split_recorded(
        self, group: str, void: Sequence[Receipt]
    ) -> tuple[int, list[Receipt]]:
        """Return how many messages of void receipts an earlier ack of theirs settled, and the rest.

        Only a committed ack counts: a new leader may lack one that is on this disk alone.
        """
        start, end = self._state.start_offset, self._state.end_offset
        next_token = self._writer.next_token
        may_be = [
            each
            for each in void
            if start <= each.start and each.end <= end and each.token < next_token
        ]
        if not may_be:
            return 0, list(void)
        await self._writer.wait_for_commit()
        index = self._writer.live_index
        log = IndexedEventLog(self._events.reader, index.index, index.live_blocks())
        try:
            settled, lost = await asyncio.get_running_loop().run_in_executor(
                self._context.executor, split_recorded, log, group, may_be
            )
        except OSError:  # retention deletes the events meanwhile, or the disk fails
            return 0, list(void)
        never = set(void).difference(may_be)
        return settled, [*lost, *never]

    def extend(self, group: str, receipts: Iterable[Receipt], deadline_ms: int) -> Settling:
        """Set a new deadline for leased messages."""
        self._clock.now_ms()  # the deadline is by the clock as it is now
        return self._settle(group, extend(self._state, group, receipts, deadline_ms))

    def nack(
        self, group: str, receipts: Iterable[Receipt], delay_ms: int | None, reason: str
    ) -> Settling:
        """Return leased messages for another attempt after a delay, None for the backoff."""
        failing = self._failure_now(group, delay_ms, reason)
        return self._settle(group, nack(self._state, group, receipts, failing))

    def reject(self, group: str, receipts: Iterable[Receipt], reason: str) -> Settling:
        """Dead-letter leased messages at once."""
        failing = self._failure_now(group, None, reason)
        return self._settle(group, reject(self._state, group, receipts, failing))

    def release(self, group: str, receipts: Iterable[Receipt]) -> Settling:
        """Return leased messages at once, without counting an attempt."""
        now_ms = self._clock.now_ms()
        return self._settle(group, release(self._state, group, receipts, now_ms))

    def _settle(self, group: str, settled: Settlement) -> Settling:
        if self._availability.error is not None:
            raise self._availability.error
        recorded = [
            self._writer.record(settled.events[first : first + _EVENTS_PER_FRAME_MAX])
            for first in range(0, len(settled.events), _EVENTS_PER_FRAME_MAX)
        ]
        if settled.events:
            self._wake_blocked(group)
        elif settled.void:  # what ended their leases may be lost with this leadership
            recorded.append(self._writer.committed())
        return settled, recorded

    def _wake_blocked(self, group_name: str) -> None:
        """Wake a consumer if the settled messages may have blocked others by their key."""
        group = self._state.groups[group_name]
        settings = self._callbacks.settings_of(group_name)
        if (
            group.locks.held_count
            or len(group.retries)
            or settings.tenant_in_flight_max is not None
            or settings.ordering is Ordering.PARTITION
        ):
            self._callbacks.on_ready(group_name)

    async def wait_for_commit(self) -> None:
        """Wait until everything decided so far is committed; raise if that is unknown."""
        await self._writer.wait_for_commit()

    def undo_receive(
        self, group: str, token: int, spans: Sequence[Span]
    ) -> asyncio.Future[Appended] | None:
        """Release leased messages that were never delivered, without counting an attempt.

        They are released for good when the future completes; None if nothing of them is leased.
        Raises an error if no event can be accepted now.
        """
        self._check_writable()
        if group not in self._state.groups:
            return None
        event = release_undelivered(self._state, group, token, spans, self._clock.now_ms())
        return None if event is None else self._free(group, [event])

    def end_leases(
        self, group: str, tokens: Iterable[int], reason: str
    ) -> asyncio.Future[Appended] | None:
        """End leases at once because their consumer is gone; their messages are ready again.

        Returns and raises as :meth:`undo_receive` does. There are at most
        ``limits.LEASES_ENDED_AT_ONCE``.
        """
        self._check_writable()
        if group not in self._state.groups:
            return None
        failing = self._failure_now(group, 0, reason)
        ended = (expire_lease(self._state, group, token, failing) for token in tokens)
        events = [event for each in ended for event in each]
        return self._free(group, events) if events else None

    def _check_writable(self) -> None:
        """Raise an error if the log takes no event; whether it is confirmed is another matter."""
        self._availability.check()
        if not self._writer.has_room:
            raise StorageFull(_DISK_FULL, retry_after_ms=1000)

    def _free(self, group: str, events: Sequence[AnyEvent]) -> asyncio.Future[Appended]:
        done = self._writer.record(events)
        self._callbacks.on_ready(group)
        return done

    def held_by(self, group: str, holder_id: str) -> list[tuple[int, int, int]]:
        """Return token, first offset and end of the leases of a stream or a receive."""
        known = self._state.groups.get(group)
        leases = known.leases.values() if known is not None else ()
        held = ((each.token, list(each.parts)) for each in leases if each.session_id == holder_id)
        return [(token, parts[0].start, parts[-1].end) for token, parts in held if parts]

    def unsettled_count(self, group: str, token: int) -> int:
        """Return the number of unsettled messages of a lease."""
        lease = self._state.group(group).leases.get(token)
        return 0 if lease is None else lease.parts.message_count

    def members(self, group: str, tokens: Iterable[int]) -> Collection[str]:
        """Return the ids of the members that hold leases with these tokens."""
        leases = self._state.group(group).leases
        return {leases[token].member for token in tokens if token in leases}

    def holder(self, group: str, other_than: str | None) -> str | None:
        """Return the id of a member other than ``other_than`` that holds a lease, else None."""
        known = self._state.groups.get(group)
        leases = known.leases.values() if known is not None else ()
        return next((le.member for le in leases if le.member != other_than), None)

    def failure_context(self, group: str, now_ms: int) -> FailureContext:
        """Return the context that decides about a failed attempt."""
        return failure_context(
            self._availability.identity, self._callbacks.settings_of(group), now_ms, self._context
        )

    def _failure_now(self, group: str, delay_ms: int | None, reason: str) -> FailureContext:
        failing = self.failure_context(group, self._clock.now_ms())
        return failing._replace(delay_ms=delay_ms, reason=reason)

    def _skip(
        self, group: str, ranges: list[Range], cause: Cause, settings: TopicSettings, now_ms: int
    ) -> None:
        """Mark messages as done that must not be delivered."""
        failing = self.failure_context(group, now_ms)
        if cause is Cause.TTL and settings.dead_letter_expired and failing.policy.dead_letters:
            spans = [span for run in ranges for span in self._attempts(group, *run)]
            self._writer.record(
                [CopyQueued(group, 0, spans, cause, "", now_ms, *failing.dead_letters)]
            )
        else:
            self._writer.record([Skipped(group, ranges, cause)])

    def _attempts(self, group: str, start: int, end: int) -> list[Span]:
        """Return the attempts of messages that no consumer holds."""
        tried = self._state.group(group).retries.within(start, end)
        fresh = [(*gap, 0) for gap in gaps(start, end, tried)]
        return sorted([*spans_of(tried), *fresh])
