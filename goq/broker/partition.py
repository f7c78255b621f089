"""One partition at work: its two logs, its delivery state, and the timer of its leases.

Everything runs on the event loop but the writes. A decision is applied to the state at once, so
that nobody else gets the same message, and told to the client only when its event is durable.
When events were lost to the disk, the state in memory is ahead of the log: the partition goes
offline, and its topic builds it anew from what the disk has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from goq import limits
from goq.broker.commit import Appended, Committed, GroupCommit
from goq.broker.eventlog import encode_event_frame, snapshot_frames
from goq.broker.frameset import FrameSet
from goq.broker.intake import Intake
from goq.broker.opening import (
    Machinery,
    Opened,
    PartitionId,
    events_config,
    messages_config,
)
from goq.broker.stats import TopicStats
from goq.delivery.events import (
    AnyEvent,
    Corrupted,
    Expired,
    Extended,
    GroupDeleted,
    Leased,
    Nacked,
    Reset,
    SnapshotGroup,
    Span,
    Trimmed,
    token_of,
)
from goq.delivery.partition import PartitionState, Settled
from goq.errors import GoqError, LogFailed, PartitionOffline
from goq.frame.view import FrameView
from goq.model import OffsetRange
from goq.settings import TopicSettings
from goq.storage.damage import Damage
from goq.storage.files import NotCached
from goq.storage.log import Log
from goq.storage.reader import Reading
from goq.storage.segment import Segment

_TIMER_MS_MAX = 30_000  # a wall clock that is set forward is noticed within this
_EXPIRE_AT_ONCE_MAX = 256  # leases, before others get a turn
_EVENTS_PER_FRAME_MAX = 2_000  # with reasons as long as they may be, well within a frame
_SNAPSHOT_COST_BYTES = limits.KIB  # of new messages that an entry of a snapshot has to wait for


class Delivery(NamedTuple):
    """Messages leased together, and the frames that they lie in."""

    partition: int
    token: int
    consumer: str
    deadline_ms: int
    spans: list[Span]
    frames: list[FrameView]

    @property
    def message_count(self) -> int:
        """How many messages were leased."""
        return sum(end - start for start, end, _ in self.spans)


class Partition:
    """A partition that is open."""

    def __init__(
        self,
        identity: PartitionId,
        opened: Opened,
        machinery: Machinery,
        *,
        on_ready: Callable[[], None],
        on_failure: Callable[[], None],
        stats: TopicStats,
    ) -> None:
        self.identity = identity
        self._stats = stats
        self.state = opened.state
        self.messages = opened.messages
        self.events = opened.events
        self._machinery = machinery
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._offline: GoqError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_sequence = opened.events.end_offset
        self._snapshot_sequence = opened.events.end_offset
        self._snapshot_weight = 0
        self._bytes_since_snapshot = 0
        self._rebuilds_from = opened.snapshot_sequence
        self._intake = Intake(opened.state.producers, opened.dedup, self._read_frame, stats)
        self._publisher = GroupCommit(
            opened.messages,
            machinery.executor,
            machinery.clock,
            machinery.epoch,
            on_commit=self._published,
            on_seal=lambda segment: machinery.on_seal(identity, "messages", segment),
            on_failure=self._publishing_failed,
            admission=self._intake,
            write_seconds=machinery.write_seconds,
        )
        self._recorder = GroupCommit(
            opened.events,
            machinery.executor,
            machinery.clock,
            machinery.epoch,
            on_commit=lambda _committed: None,
            on_seal=lambda segment: machinery.on_seal(identity, "events", segment),
            on_failure=self._recording_failed,
            write_seconds=machinery.write_seconds,
        )
        self._arm_timer(self.state.next_timer_ms())

    @property
    def is_online(self) -> bool:
        """Whether the partition can be used."""
        return self._offline is None

    # Publishing

    def check_publish(self, frame_bytes: int) -> None:
        """Raise why a frame cannot be taken now."""
        self._check_online()
        self._publisher.check_room(frame_bytes)

    def publish(self, view: FrameView) -> asyncio.Future[Appended]:
        """Queue a checked frame; the future is done when it is durable as the topic promises."""
        self._check_online()
        return self._publisher.append(view)

    def _read_frame(self, offset: int) -> FrameView | None:
        """Return the frame that begins at ``offset``; None if it is gone or damaged."""
        frames = self.messages.reader.read(offset, offset + 1, messages_max=1).frames
        return frames[0] if frames and frames[0].header.base_offset == offset else None

    def _published(self, committed: Committed) -> None:
        for header, appended in committed:
            self.state.producers.add(header, appended.offset, appended.time_us)
            self._stats.published_messages += header.message_count
            self._stats.published_bytes += header.frame_bytes
            self._bytes_since_snapshot += header.frame_bytes
            self.state.extend_to(appended.offset + header.message_count)
        self._on_ready()
        enough = limits.CHECKPOINT_INTERVAL_BYTES + _SNAPSHOT_COST_BYTES * self._snapshot_weight
        if self._bytes_since_snapshot > enough and self.is_online:
            self._record_snapshot(begins_segment=self._events_are_full())

    def _publishing_failed(self, error: GoqError) -> None:
        if self.messages.failed:
            self._go_offline(error)

    # Reading

    def read(self, offset: int, *, messages_max: int, wait: bool = True) -> Reading:
        """Read whole frames of durable messages; damage met is recorded as an event."""
        reading = self.messages.reader.read(
            offset, self.state.end_offset, messages_max=messages_max, wait=wait
        )
        for damage in reading.damage:
            self._record_corruption(damage.start_offset, damage.end_offset, damage.reason)
        return reading

    async def warm(self, offset: int, messages_max: int) -> None:
        """Bring into memory, in a thread, what :meth:`read` would have had to wait for."""

        def read() -> None:
            self.messages.reader.read(offset, self.state.end_offset, messages_max=messages_max)

        with contextlib.suppress(OSError, IndexError):  # trimmed meanwhile, or the next read fails
            await self._loop.run_in_executor(self._machinery.executor, read)

    def _record_corruption(self, start: int, end: int, reason: str) -> None:
        known = self.state.corrupt
        if not any(r.start <= start and end <= r.end for r in known) and self.is_online:
            self._record([Corrupted(start, end, reason)])

    # Delivery

    def receive(
        self,
        group: str,
        consumer: str,
        messages_max: int,
        visibility_ms: int,
        *,
        bytes_max: int,
        wait: bool = False,
    ) -> tuple[Delivery, asyncio.Future[Appended]] | None:
        """Lease what is ready; None when nothing is.

        The delivery may leave the node when the future is done. Raises ``NotCached`` with
        nothing leased when the messages have to be fetched from the disk first, and ``wait`` does
        not allow that here.
        """
        self.check_room()
        now_ms = self._machinery.clock.wall_ms()
        spans, frames = self._readable(group, now_ms, messages_max, bytes_max, wait)
        if not spans:
            return None
        deadline_ms = now_ms + visibility_ms
        token = token_of(self._machinery.epoch, self._next_sequence)
        done = self._record([Leased(group, consumer, deadline_ms, spans)])
        number = self.identity.number
        return Delivery(number, token, consumer, deadline_ms, spans, frames.views), done

    def _readable(
        self, group: str, now_ms: int, messages_max: int, bytes_max: int, wait: bool
    ) -> tuple[list[Span], FrameSet]:
        """Return what can be read of what the group should get next.

        Damage met is recorded and passed over: if there was nothing else, what is behind it.
        """
        corrupt = None
        spans: list[Span] = []
        frames = FrameSet()
        while not spans and corrupt != self.state.corrupt:
            corrupt = self.state.corrupt
            for start, end, attempt in self.state.candidates(group, now_ms, messages_max):
                held_to = min(frames.held_from(start), end)
                damage: list[Damage] = []
                if held_to < end and frames.size_bytes < bytes_max:
                    try:
                        room = bytes_max - frames.size_bytes
                        reading = self._read_span(held_to, end, room, wait)
                    except NotCached:
                        if not spans and held_to == start:
                            raise
                    else:
                        frames.add(reading.frames)
                        held_to = min(reading.next_offset, end)
                        damage = reading.damage
                spans.extend(_readable_spans(start, held_to, attempt, damage))
                if held_to < end:
                    break  # hand over what is at hand
        return spans, frames

    def _read_span(self, start: int, end: int, bytes_max: int, wait: bool) -> Reading:
        try:
            reading = self.messages.reader.read(
                start, end, messages_max=end - start, bytes_max=bytes_max, wait=wait
            )
        except NotCached:
            raise NotCached((start, end - start)) from None
        for damage in reading.damage:
            self._record_corruption(damage.start_offset, damage.end_offset, damage.reason)
        return reading

    def undo_receive(self, group: str, delivery: Delivery) -> None:
        """Give back a lease that never left the node: it counts as no attempt."""
        if group in self.state.groups and self.is_online:
            lease = self.state.groups[group].leases.get(delivery.token)
            if lease is not None:
                spans = [(p.start, p.end, p.attempt - 1) for p in lease.parts]
                now_ms = self._machinery.clock.wall_ms()
                self._record([Nacked(group, delivery.token, spans, now_ms, "consumer gone")])
                self._on_ready()

    def check_room(self) -> None:
        """Raise why no event can be taken now."""
        self._check_online()
        self._recorder.check_room(0)

    def settle(self, decide: Callable[[PartitionState], Settled]) -> tuple[Settled, Settling]:
        """Take a settling decision; what it says holds when the future, if any, is done."""
        self._check_online()
        settled = decide(self.state)
        recorded = None
        for first in range(0, len(settled.events), _EVENTS_PER_FRAME_MAX):
            recorded = self._record(settled.events[first : first + _EVENTS_PER_FRAME_MAX])
        return settled, recorded

    async def reset(self, group: str, offset: int) -> None:
        """Let a group go on from ``offset``."""
        self.check_room()
        done = self._record([Reset(group, offset)])
        self._on_ready()
        await done

    async def delete_group(self, group: str) -> None:
        """Forget a group."""
        if group in self.state.groups:
            self._check_online()
            await self._record([GroupDeleted(group)])

    # Events

    def _record(self, events: Sequence[AnyEvent]) -> asyncio.Future[Appended]:
        """Apply events and queue them for the log; the future is done when they are durable."""
        done = self._recorder.append(encode_event_frame(events))
        for event in events:
            self.state.apply(event, self._next_sequence, self._machinery.epoch)
            self._next_sequence += 1
            if isinstance(event, Leased | Nacked | Expired | Extended):
                self._arm_timer(self.state.next_timer_ms(event.group))
        enough = max(limits.SNAPSHOT_EVENTS_MIN, self._snapshot_weight)
        if self._events_are_full() and self._next_sequence - self._snapshot_sequence >= enough:
            self._record_snapshot(begins_segment=True)
        return done

    def _events_are_full(self) -> bool:
        return self.events.active.size_bytes >= limits.EVENT_SEGMENT_BYTES

    def _record_snapshot(self, *, begins_segment: bool) -> None:
        events = self.state.snapshot(self.state.end_offset)
        first, *others = snapshot_frames(events)
        done = self._recorder.append(first, begins_segment=begins_segment)
        for view in others:
            done = self._recorder.append(view)
        if begins_segment:
            sequence = self._next_sequence
            done.add_done_callback(lambda last: self._snapshot_done(last, sequence))
        self._next_sequence += len(events)
        self._snapshot_sequence = self._next_sequence
        self._snapshot_weight = sum(
            len(e.leases) + len(e.retries) for e in events if isinstance(e, SnapshotGroup)
        )
        self._bytes_since_snapshot = 0

    def _snapshot_done(self, last: asyncio.Future[Appended], sequence: int) -> None:
        """A segment that begins with a whole snapshot is all that a rebuild needs."""
        if not last.cancelled() and last.exception() is None:
            self._rebuilds_from = sequence

    def _recording_failed(self, error: GoqError) -> None:
        """The state is ahead of its log: it must be built anew before it is used again."""
        self._go_offline(error)

    # Timers

    def _arm_timer(self, due_ms: int | None) -> None:
        if due_ms is None:
            return
        delay_ms = min(max(0, due_ms - self._machinery.clock.wall_ms()), _TIMER_MS_MAX)
        at = self._loop.time() + delay_ms / 1000
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._on_time)

    def _on_time(self) -> None:
        """Expire leases and let retries become ready, as far as their time has come."""
        self._timer = None
        if not self.is_online:
            return
        now_ms = self._machinery.clock.wall_ms()
        for event in islice(self.state.expire(now_ms), _EXPIRE_AT_ONCE_MAX):
            self._record([event])
            self._stats.expired_messages += sum(end - start for start, end, _ in event.spans)
        if self.state.ripen(now_ms):
            self._on_ready()
        self._arm_timer(self.state.next_timer_ms())

    # Keeping

    async def trim(self, offset: int) -> list[tuple[str, Segment]]:
        """Delete the whole segments before ``offset``, and events that speak of nothing else.

        Returns what was deleted, each with the name of its log.
        """
        end = _last_sealed_end(self.messages, offset)
        if end <= self.messages.start_offset or not self.is_online:
            return []
        await self._record([Trimmed(end)])
        deleted = self.messages.detach_before(end)
        await self._publisher.run_alone(lambda: self.messages.remove(deleted))
        return [("messages", s) for s in deleted] + [
            ("events", s) for s in await self._trim_events()
        ]

    async def _trim_events(self) -> list[Segment]:
        """Delete segments of events older than every message: an event is never older than that.

        Those that a rebuild would begin with stay.
        """
        old = [s for s in self.events.segments[:-1] if s.end_offset <= self._rebuilds_from]
        first = self.messages.segments[0]
        disk = self._machinery.disk

        def find_end() -> int:
            end, first_us = self.events.start_offset, first.read_first_time(disk)
            for segment in old:
                segment.load_index(disk)
                if first_us is None or segment.time_us >= first_us:
                    break
                end = segment.end_offset
            return end

        end = await self._loop.run_in_executor(self._machinery.executor, find_end)
        deleted = self.events.detach_before(end)
        await self._recorder.run_alone(lambda: self.events.remove(deleted))
        return deleted

    async def roll(self) -> None:
        """Seal the active segment of messages."""
        sealed: list[Segment | None] = []
        await self._publisher.run_alone(lambda: sealed.append(self.messages.roll()))
        if sealed[0]:
            self._machinery.on_seal(self.identity, "messages", sealed[0])

    def configure(self, settings: TopicSettings) -> None:
        """Take over changed settings; what is written from now on follows them."""
        self.messages.config = messages_config(settings)
        self.events.config = events_config(settings)
        self._intake.configure(settings)

    def _check_online(self) -> None:
        if self._offline is not None:
            raise self._offline

    def _go_offline(self, error: GoqError) -> None:
        if self._offline is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        topic, number = self.identity
        self._offline = PartitionOffline(
            f"partition {number} of {topic} is offline: {error.detail}", retry_after_ms=1000
        )
        self._on_failure()

    async def close(self) -> None:
        """Write what is queued, note the state so that opening is quick, close the logs."""
        if self._timer is not None:
            self._timer.cancel()
        if self.is_online and (
            self._bytes_since_snapshot or self._next_sequence > self._snapshot_sequence
        ):
            self._record_snapshot(begins_segment=False)
        self._offline = self._offline or PartitionOffline("the partition is closed")
        for commit in (self._publisher, self._recorder):
            try:
                await commit.close()
            except (LogFailed, OSError):
                continue  # it failed before, and everybody was told then


Settling = asyncio.Future[Appended] | None


def _readable_spans(start: int, end: int, attempt: int, damage: list[Damage]) -> list[Span]:
    """Return what of a span is not damaged."""
    spans: list[Span] = []
    for gap in sorted(OffsetRange(d.start_offset, d.end_offset) for d in damage):
        if start < min(gap.start, end):
            spans.append((start, min(gap.start, end), attempt))
        start = max(start, gap.end)
    if start < end:
        spans.append((start, end, attempt))
    return spans


def _last_sealed_end(log: Log, offset: int) -> int:
    ends = [s.end_offset for s in log.segments[:-1] if s.end_offset <= offset]
    return max(ends, default=log.start_offset)
