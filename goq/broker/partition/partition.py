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
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from goq import limits
from goq.broker.events.live_index import LiveSpans
from goq.broker.events.writer import EventWriter
from goq.broker.log.admission import Admission
from goq.broker.log.frame_fetch import FrameFetch, UncachedMessages
from goq.broker.log.group_commit import Appended, CommittedFrames, GroupCommit
from goq.broker.partition.compactor import Compactor
from goq.broker.partition.delayed import DelayedReader
from goq.broker.partition.failure_policy import failure_context, retry_policy
from goq.broker.partition.loader import LoadedPartition, events_config, messages_config
from goq.broker.partition.producer_names import name_when_stored
from goq.broker.partition.ready_state import ReadyState, first_unfinished
from goq.broker.partition.trimmer import Trimmer
from goq.broker.partition_context import PartitionContext, PartitionId, Quorums
from goq.broker.runtime.metrics import TopicStats
from goq.config.topic import Ordering, TopicSettings
from goq.delivery.dedup.producer_table import ProducerTable
from goq.delivery.delay.delayed_messages import LoadRequest
from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cancelled,
    Cause,
    CopyQueued,
    Corrupted,
    Dropped,
    Expired,
    Extended,
    GroupDeleted,
    Leased,
    Moved,
    Nacked,
    Range,
    Rescheduled,
    Reset,
    Skipped,
    Span,
    Trimmed,
)
from goq.delivery.group.attempt_ranges import gaps
from goq.delivery.selection.selector import Selector
from goq.delivery.settlement import (
    FailureContext,
    Settlement,
    expire_due,
    expire_lease,
    release_undelivered,
    spans_of,
)
from goq.errors import GoqError, PartitionOffline, StorageFailed, TooManyRequests
from goq.frame.view import FrameView
from goq.storage.column_index.extract import ROW_ATTRIBUTES, rows_of
from goq.storage.column_index.rows import ColumnRows
from goq.storage.log.reader import ReadResult
from goq.storage.scanner import Damage

T = TypeVar("T")

_TIMER_MS_MAX = 1_000  # a wall clock that is set forward is noticed within this
_LOAD_AGAIN_S = 1.0
_EXPIRE_AT_ONCE_MAX = 256  # leases, before others get a turn
_EVENTS_PER_FRAME_MAX = 2_000  # with reasons as long as they may be, well within a frame


class LeasedBatch(NamedTuple):
    """Messages leased together, and the frames that they lie in."""

    partition: int
    token: int
    consumer: str
    deadline_ms: int
    spans: list[Span]
    frames: list[FrameView]
    is_cut: bool
    """Whether the partition may have more that is ready."""

    @property
    def message_count(self) -> int:
        """How many messages were leased."""
        return sum(end - start for start, end, _ in self.spans)


class ColdMessages(Exception):
    """Nothing was leased: the messages have to be read from the device before."""

    def __init__(self, missing: UncachedMessages) -> None:
        super().__init__()
        self.missing = missing


class OnlySkipped(Exception):
    """Nothing was leased, but something passed over; behind it there may be more."""


@dataclass(frozen=True, slots=True)
class PartitionCallbacks:
    """What a partition tells its topic."""

    on_ready: Callable[[str | None], None]
    """There may be something to receive: for one group, or with None for all."""
    on_failure: Callable[[], None]
    on_departing: Callable[[], None]
    on_settled: Callable[[str | None, int | None, int], None]
    """So many messages of a lease, by group and token, are no longer with their consumer; without
    a token, any of any lease; without a group, of any group."""
    settings_of: Callable[[str], TopicSettings]
    """The settings that hold for a group."""
    on_disk_failure: Callable[[GoqError], None]
    """Hears that the disk is full, or has failed."""
    may_be_repaired: Callable[[Damage], bool]
    """Whether another replica may have what is damaged; if so, it is going to lead."""


class Partition:
    """A partition that is open."""

    def __init__(
        self,
        identity: PartitionId,
        opened: LoadedPartition,
        context: PartitionContext,
        callbacks: PartitionCallbacks,
        settings: TopicSettings,
        stats: TopicStats,
        quorums: Quorums | None = None,
    ) -> None:
        self.identity = identity
        self._topic_settings = settings
        self._stats = stats
        self.state = opened.state
        self.dispatch = opened.dispatch
        self.messages = opened.messages
        self.events = opened.events
        self._context = context
        self._callbacks = callbacks
        self._cached = context.frames.of_partition()
        self._loop = asyncio.get_running_loop()
        self._offline: GoqError | None = None
        self._rebuilding: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._intake = Admission(
            opened.state.producers,
            opened.dedup,
            self._read_frame,
            stats,
            is_ahead=quorums is not None,
        )
        self._publisher = GroupCommit(
            opened.messages,
            context.executor,
            context.clock,
            context.epoch,
            on_commit=self._published,
            on_seal=lambda segment: context.on_seal(identity, "messages", segment),
            on_failure=self._publishing_failed,
            admission=self._intake,
            quorum=quorums and quorums.messages,
            write_seconds=context.write_seconds,
        )
        self._recorder = EventWriter(
            identity,
            opened,
            context,
            quorum=quorums and quorums.events,
            on_event=self._applied,
            on_failure=self._recording_failed,
        )
        self.keeping = Trimmer(
            identity,
            context,
            self._publisher,
            self._recorder.commit,
            record=lambda event: self._record([event]),
            rebuilds_from=lambda: self._recorder.rebuilds_from,
        )
        self.compaction = Compactor(
            identity,
            context,
            self._publisher,
            self._cached,
            record=lambda event: self.record([event]),
        )
        self._arm_all()

    @property
    def is_online(self) -> bool:
        """Whether the partition can be used."""
        return self._offline is None

    def holders(self, offset: int) -> Sequence[str]:
        """Return which nodes have a message on their disks; none where there is one node alone."""
        return self._publisher.holders(offset)

    @property
    def is_quiet(self) -> bool:
        """Whether nobody waits for anything to be safe."""
        return self._publisher.is_quiet and self._recorder.commit.is_quiet

    # Publishing

    def check_publish(self, frame_bytes: int) -> None:
        """Raise why a frame cannot be taken now."""
        self._check_online()
        self._publisher.check_room(frame_bytes)

    def publish(
        self, view: FrameView, client_id: str | None = None, *, on_leader: bool = False
    ) -> asyncio.Future[Appended]:
        """Queue a checked frame; the future is done when it is durable as the topic promises.

        With ``on_leader`` it is done when this node has it, whatever others have. Whoever asks for
        the name of its producer is told ``client_id``.
        """
        self._check_online()
        done = self._publisher.append(view, on_leader=on_leader)
        if client_id is not None:
            name_when_stored(self, done, view.header.producer_id, client_id)
        return done

    async def producers(self, _producer_id: int) -> ProducerTable:
        """Return what the partition knows of producers."""
        return self.state.producers

    def _read_frame(self, offset: int) -> FrameView | None:
        """Return the frame that begins at ``offset``; None if it is gone or damaged."""
        frames = self.messages.reader.read(offset, offset + 1, messages_max=1).frames
        return frames[0] if frames and frames[0].header.base_offset == offset else None

    def _published(self, committed: CommittedFrames) -> None:
        self._stats.begin(self._loop.time())
        for view, appended in committed:
            header = view.header
            end = appended.offset + header.message_count
            self.state.producers.add(header, appended.offset, appended.time_us)
            self._stats.published_messages += header.message_count
            self._stats.published_bytes += header.frame_bytes
            self._recorder.note_published(header.frame_bytes)
            self.state.extend_to(end)
            rows = self._rows_of(view, appended)
            self.dispatch.published(appended.offset, end, rows, appended.time_us // 1000)
            if rows is not None:
                self._arm_timer(self.dispatch.schedule.next_ms())
        self.dispatch.release()
        self._callbacks.on_ready(None)
        if self._recorder.is_snapshot_due() and self.is_online:
            self._recorder.record_snapshot()

    def _rows_of(self, view: FrameView, appended: Appended) -> ColumnRows | None:
        if not view.header.attributes & ROW_ATTRIBUTES:
            return None
        header = view.header._replace(base_offset=appended.offset, append_time_us=appended.time_us)
        return rows_of(FrameView(header, view.buffer))

    def _publishing_failed(self, error: GoqError) -> None:
        self._callbacks.on_disk_failure(error)
        if self.messages.failed:
            self._go_offline(error)

    # Reading

    def read(self, offset: int, *, messages_max: int, wait: bool = True) -> ReadResult:
        """Read whole frames of durable messages; damage met is recorded as an event."""
        reading = self.messages.reader.read(
            offset, self.state.end_offset, messages_max=messages_max, wait=wait
        )
        for damage in reading.damage:
            self.note_damage(damage)
        return reading

    async def warm(self, offset: int, messages_max: int) -> None:
        """Bring into memory, in a thread, what :meth:`read` would have had to wait for."""

        def read() -> None:
            self.messages.reader.read(offset, self.state.end_offset, messages_max=messages_max)

        with contextlib.suppress(OSError, IndexError):  # trimmed meanwhile, or the next read fails
            await self._loop.run_in_executor(self._context.executor, read)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run what blocks on the disk beside the event loop."""
        return await self._loop.run_in_executor(self._context.executor, work)

    def new_producer_id(self) -> int:
        """Return a producer id for what leaves, if the partition has none yet."""
        return self._context.new_id()

    def _record_corruption(self, start: int, end: int, reason: str) -> None:
        known = self.state.corrupt
        if not any(r.start <= start and end <= r.end for r in known) and self.is_online:
            self._record([Corrupted(start, end, reason)])

    async def look(self, work: Callable[[DelayedReader], T]) -> T:
        """Ask, in a thread, something about the messages that wait for their time."""
        waiting = DelayedReader(self.messages.reader, self.state)
        return await self._loop.run_in_executor(self._context.executor, work, waiting)

    async def row(self, offset: int) -> ColumnRows | None:
        """Return what the columns say of one message; None for one in a plain frame."""

        def read() -> ColumnRows | None:
            return next(self.messages.reader.rows(offset, offset + 1), None)

        return await self._loop.run_in_executor(self._context.executor, read)

    # Single messages

    def cancel(self, offset: int, reason: str, due_ms: int | None) -> asyncio.Future[Appended]:
        """Deliver a message to no group that has not got it; with ``due_ms`` it waits till then."""
        self.check_settled()
        self.check_room()
        done = self._record([Cancelled([(offset, offset + 1)], reason)])
        if due_ms is not None:
            self.dispatch.cancelled(offset, due_ms)
        self._callbacks.on_ready(None)  # what stood behind it may go
        return done

    def move(self, offset: int, lane: int, tenant: int | None) -> asyncio.Future[Appended]:
        """Let a message go on in another lane, at once unless it waits (``tenant`` None)."""
        self.check_settled()
        self.check_room()
        done = self._record([Moved(offset, lane)])
        if tenant is not None:
            self.dispatch.moved(offset, lane, tenant, self._context.clock.wall_ms())
            self._callbacks.on_ready(None)
        return done

    def reschedule(self, row: ColumnRows, due_ms: int, new_due_ms: int) -> asyncio.Future[Appended]:
        """Let a message that waits be due at another time; ``due_ms`` is the one in force."""
        self.check_settled()
        self.check_room()
        done = self._record([Rescheduled(int(row.offsets[0]), new_due_ms)])
        self.dispatch.rescheduled(row, due_ms, new_due_ms)
        self._arm_timer(self.dispatch.schedule.next_ms())
        return done

    # LeasedBatch

    def receive(
        self,
        group_name: str,
        consumer: str,
        messages_max: int,
        visibility_ms: int | None,
        *,
        bytes_max: int,
        wait: bool = False,
    ) -> tuple[LeasedBatch, asyncio.Future[Appended]] | None:
        """Lease what is ready to a group that :meth:`is_ready_for`; None when nothing is.

        The delivery may leave the node when the future is done. Raises ``ColdMessages`` with
        nothing leased when the messages have to be fetched from the disk first, and ``wait`` does
        not allow that here, and ``OnlySkipped`` where to ask again.
        """
        self.check_room()
        now_ms = self._context.clock.wall_ms()
        settings = self._callbacks.settings_of(group_name)
        group = self.state.join(group_name)
        self.dispatch.turns_of(group)

        def read(start: int, end: int, size_bytes: int) -> ReadResult:
            return self.messages.reader.read(
                start, end, messages_max=end - start, bytes_max=size_bytes, wait=wait
            )

        fetch = FrameFetch(self._cached, read, self.note_damage, bytes_max=bytes_max)
        default_lane = self.dispatch.default_lane
        choice = Selector(self.state, group, settings.ordering, default_lane, now_ms, fetch.facts)
        choice.take(messages_max)
        for cause, ranges in choice.skipped.items():
            self._skip(group_name, ranges, cause, settings, now_ms)
        if not choice.spans:
            if choice.skipped or choice.must_yield:
                raise OnlySkipped
            if fetch.missing is not None:
                raise ColdMessages(fetch.missing)
            return None
        group.add_attributes(choice.attributes)
        deadline_ms = now_ms + (visibility_ms or settings.visibility_timeout_ms)
        token = self._recorder.next_token
        done = self._record([Leased(group_name, consumer, deadline_ms, choice.spans)])
        number = self.identity.number
        is_cut = choice.is_full()
        return (
            LeasedBatch(number, token, consumer, deadline_ms, choice.spans, fetch.frames, is_cut),
            done,
        )

    def note_damage(self, damage: Damage) -> None:
        """Record, as an event, damage that somebody met in reading.

        Where another replica may have the messages they are not lost: nothing is recorded, and
        this raises ``PartitionOffline`` until that one leads.
        """
        self.note_mendable(damage)
        self._record_corruption(damage.start_offset, damage.end_offset, damage.reason)

    def note_mendable(self, damage: Damage) -> None:
        """Raise ``PartitionOffline`` for damage that others may not have: they are to lead."""
        if self._callbacks.may_be_repaired(damage):
            topic, number = self.identity
            self._offline = self._offline or PartitionOffline(
                f"partition {number} of {topic} is damaged on this node; another is to lead it",
                retry_after_ms=1000,
            )
            raise self._offline

    def _skip(
        self, group: str, ranges: list[Range], cause: Cause, settings: TopicSettings, now_ms: int
    ) -> None:
        """Count messages as done that are not to be handed out any more."""
        failure_context = self._failing(group, now_ms)
        if (
            cause is Cause.TTL
            and settings.dead_letter_expired
            and failure_context.policy.dead_letters
        ):
            spans = [span for run in ranges for span in self._attempts(group, *run)]
            self._record([CopyQueued(group, 0, spans, cause, "", now_ms, *failure_context.grave)])
        else:
            self._record([Skipped(group, ranges, cause)])

    def _attempts(self, group: str, start: int, end: int) -> list[Span]:
        """Return how often messages were tried that are not with a consumer."""
        tried = self.state.group(group).retries.within(start, end)
        fresh = [(*gap, 0) for gap in gaps(start, end, tried)]
        return sorted([*spans_of(tried), *fresh])

    def _failing(self, group: str, now_ms: int) -> FailureContext:
        return failure_context(
            self.identity, retry_policy(self._callbacks.settings_of(group)), now_ms, self._context
        )

    def failing(
        self, group: str, *, delay_ms: int | None = None, reason: str = ""
    ) -> FailureContext:
        """Return what is to be known to decide on an attempt that fails now."""
        now_ms = self._context.clock.wall_ms()
        return self._failing(group, now_ms)._replace(delay_ms=delay_ms, reason=reason)

    def undo_receive(self, group: str, token: int, spans: Sequence[Span]) -> None:
        """Give back what was leased and never left the node: it counts as no attempt."""
        if group in self.state.groups and self.is_online:
            now_ms = self._context.clock.wall_ms()
            event = release_undelivered(self.state, group, token, spans, now_ms)
            if event is not None:
                self._record([event])
                self._callbacks.on_ready(group)

    def end_lease(self, group: str, token: int, reason: str) -> None:
        """End a lease at once, because its consumer is gone; its messages are ready again."""
        self._check_online()
        failure_context = self.failing(group, delay_ms=0, reason=reason)
        events = expire_lease(self.state, group, token, failure_context)
        if events:
            self._record(events)
            self._callbacks.on_ready(group)

    def count_held(self, group: str, token: int) -> int:
        """Return how many messages of a lease are not settled."""
        lease = self.state.group(group).leases.get(token)
        return 0 if lease is None else lease.parts.message_count

    def next_lane(self, group_name: str) -> int:
        """Return about how urgent the next message of a group is: the number of its lane."""
        group = self.state.join(group_name)
        fresh = self.dispatch.turns_of(group).next_lane()
        default_lane = self.dispatch.default_lane
        lanes = [default_lane if lane < 0 else lane for lane in group.retries.due_lanes()]
        return min([*lanes, limits.LANES_MAX if fresh is None else fresh])

    def check_room(self) -> None:
        """Raise why no event can be taken now."""
        self._check_online()
        self._recorder.commit.check_room(0)

    def settle(self, group: str, settled: Settlement) -> tuple[Settlement, Settling]:
        """Carry out a settling decision; what it says holds when the future, if any, is done."""
        self._check_online()
        recorded = None
        for first in range(0, len(settled.events), _EVENTS_PER_FRAME_MAX):
            recorded = self._record(settled.events[first : first + _EVENTS_PER_FRAME_MAX])
        if settled.events:
            self._wake_blocked(group)
        return settled, recorded

    def _wake_blocked(self, group_name: str) -> None:
        """Wake a consumer if something may have stood behind what was settled."""
        group = self.state.groups[group_name]
        settings = self._callbacks.settings_of(group_name)
        if (
            group.locks.held_count
            or len(group.retries)
            or settings.tenant_in_flight_max is not None
            or settings.ordering is Ordering.PARTITION
        ):
            self._callbacks.on_ready(group_name)

    async def reset(self, group: str, offset: int, end_offset: int | None = None) -> None:
        """Let a group go on from ``offset``; with an end, up to there and no further."""
        self.check_room()
        done = self._record([Reset(group, offset, -1 if end_offset is None else end_offset)])
        self._callbacks.on_ready(group)
        await done

    async def delete_group(self, group: str) -> None:
        """Forget a group."""
        if group in self.state.groups:
            self._check_online()
            await self._record([GroupDeleted(group)])

    # Events

    def record(self, events: Sequence[AnyEvent]) -> asyncio.Future[Appended]:
        """Carry out what was decided elsewhere; it holds when the future is done."""
        self.check_room()
        return self._record(events)

    @property
    def spans(self) -> LiveSpans:
        """Where in the events to look for a message."""
        return self._recorder.spans

    async def write_deferred(self) -> None:
        """Return when what nobody had to wait for is durable too."""
        if self.is_online:
            await self._recorder.write_deferred()

    async def recorded(self) -> None:
        """Return when all events so far are durable; raise if any of them is lost."""
        self._check_online()
        await self._recorder.commit.run_alone(lambda: None)
        self._check_online()

    def _record(self, events: Sequence[AnyEvent]) -> asyncio.Future[Appended]:
        return self._recorder.record(events)

    def _applied(self, event: AnyEvent) -> None:
        """Follow an event that was applied to the state."""
        if isinstance(event, Leased | Nacked | Expired | Extended):
            self._arm_timer(self.state.next_timer_ms(event.group))
        elif isinstance(event, CopyQueued):
            self._callbacks.on_departing()
        elif isinstance(event, Trimmed):
            self.dispatch.trim(event.start_offset)
        self._tell_settled(event)

    def _tell_settled(self, event: AnyEvent) -> None:
        """Tell how many messages have left a lease by ``event``; without a token, any lease."""
        told = self._callbacks.on_settled
        if isinstance(event, Acked):
            told(event.group, event.token, sum([end - start for start, end in event.ranges]))
        elif isinstance(event, Nacked | Expired | Dropped | CopyQueued):
            told(event.group, event.token, sum([end - start for start, end, _ in event.spans]))
        elif isinstance(event, Reset | GroupDeleted):
            told(event.group, None, 0)
        elif isinstance(event, Corrupted | Trimmed):
            told(None, None, 0)

    def _recording_failed(self, error: GoqError) -> None:
        """The state is ahead of its log: it must be built anew before it is used again."""
        self._callbacks.on_disk_failure(error)
        self._go_offline(error)

    # Timers

    def _arm_timer(self, due_ms: int | None) -> None:
        if due_ms is None:
            return
        delay_ms = min(max(0, due_ms - self._context.clock.wall_ms()), _TIMER_MS_MAX)
        at = self._loop.time() + delay_ms / 1000
        if self._timer is not None:
            if self._timer_s <= at:
                return
            self._timer.cancel()
        # uvloop's handle of a call that is due at once does not know when it is
        self._timer, self._timer_s = self._loop.call_at(at, self._on_time), at

    def _arm_all(self) -> None:
        self._arm_timer(self.state.next_timer_ms())
        self._arm_timer(self.dispatch.schedule.next_ms())

    def _on_time(self) -> None:
        """End leases and let messages become ready, as far as their time has come."""
        self._timer = None
        if not self.is_online:
            return
        now_ms = self._context.clock.wall_ms()
        expired = expire_due(self.state, now_ms, lambda group: self._failing(group, now_ms))
        has_freed = self._mature(now_ms)
        for events in islice(expired, _EXPIRE_AT_ONCE_MAX):
            has_freed = True
            self._record(events)
            for event in events:
                assert isinstance(event, Expired | CopyQueued | Dropped)
                self._stats.expired_messages += sum(end - start for start, end, _ in event.spans)
        if self.state.ripen(now_ms) or has_freed:
            self._callbacks.on_ready(None)
        self._arm_all()

    # What is derived

    def _rebuild(self) -> None:
        """Have ready queues and schedule built anew; until then nothing is received or matures."""
        if self._rebuilding is None:
            self._rebuilding = self._context.tasks.start(self._build_anew())

    async def rebuilt(self) -> None:
        """Return when the ready queues are as they should be; raise why they cannot be."""
        if self._rebuilding is not None:
            await asyncio.shield(self._rebuilding)

    def is_ready_for(self, group_name: str) -> bool:
        """Whether a group can receive; if not, :meth:`rebuilt` is to be waited for."""
        if self.is_online and self.dispatch.lacks(self.state.join(group_name)):
            self._rebuild()
        return self._rebuilding is None

    def check_settled(self) -> None:
        """Raise ``TooManyRequests`` while what is known of single messages must not change."""
        self._check_online()
        if self._rebuilding is not None:
            raise TooManyRequests("the partition is being looked through", retry_after_ms=100)

    async def _build_anew(self) -> None:
        try:
            settings, end = self._topic_settings, self.state.end_offset
            start = first_unfinished(self.messages, self.state)
            build = partial(ReadyState.build, start=start, end=end)
            now_ms = self._context.clock.wall_ms()
            dispatch = await self._loop.run_in_executor(
                self._context.executor, build, self.messages, self.state, settings, now_ms
            )
            dispatch.extend(self.messages, end, self.state.end_offset, now_ms)
            for group in self.state.groups.values():
                group.restart_reading()
                group.restore_attributes(dispatch.renumbered(group.attributes, self.dispatch))
            self.dispatch = dispatch
        finally:
            self._rebuilding = None
        self._arm_all()
        self._callbacks.on_ready(None)
        if not self.dispatch.follows(self._topic_settings):
            self._rebuild()

    def _mature(self, now_ms: int) -> bool:
        """Let delayed messages become ready, and have those read that come near."""
        if self._rebuilding is not None:
            return False
        event = self.dispatch.mature(now_ms)
        if event is not None:  # lost, it happens again: a lease of what matured waits for it
            self._recorder.record_later(event)
        load = self.dispatch.schedule.load_wanted(now_ms)
        if load is not None:
            self._context.tasks.start(self._load(load))
        return event is not None

    async def _load(self, load: LoadRequest) -> None:
        dispatch = self.dispatch
        try:
            found = await self._loop.run_in_executor(
                self._context.executor, dispatch.load, self.messages, load
            )
        except (GoqError, OSError):
            self._loop.call_later(_LOAD_AGAIN_S, dispatch.schedule.load_failed)
            raise
        if dispatch is self.dispatch and self.is_online:
            dispatch.loaded(load, found)
            self._arm_all()

    def configure(self, settings: TopicSettings) -> None:
        """Take over changed settings; what is written from now on follows them."""
        self._topic_settings = settings
        if not self.dispatch.follows(settings):
            self._rebuild()
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
        self._callbacks.on_failure()

    async def resign(self, reason: GoqError) -> None:
        """Let go of the logs because another node leads: nothing more is written to them."""
        self._offline = self._offline or reason
        self._publisher.give_up(reason)
        self._recorder.commit.give_up(reason)
        await self.close()

    async def close(self) -> None:
        """Write what is queued, note the state so that opening is quick, close the logs."""
        await self.compaction.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self.is_online:
            self._recorder.record_last_snapshot()
        self._offline = self._offline or PartitionOffline("the partition is closed")
        if self._rebuilding is not None:
            await asyncio.wait([self._rebuilding])
        for commit in (self._publisher, self._recorder.commit):
            try:
                await commit.close()
            except (StorageFailed, OSError):
                continue  # it failed before, and everybody was told then


Settling = asyncio.Future[Appended] | None
