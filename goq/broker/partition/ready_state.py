"""Ready state of a partition: its delayed messages and its ready queues, in memory.

It is derived from the columns of the messages and the delivery state, and follows both: messages
are published, mature and move. Nothing of it is stored. It is rebuilt when the settings change
lanes or tenants, and when a group needs messages that the queues have dropped. The rebuild reads
the log in a thread; until it ends, no message is received or matures, and no single message
changes.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from goq.broker.partition_context import Availability, PartitionContext
from goq.config.topic import TopicSettings
from goq.delivery.delay.delayed_messages import DelayedMessages, DueMessages, LoadRequest
from goq.delivery.events.event import Matured
from goq.delivery.group.group import Group
from goq.delivery.group.key_locks import MessageAttributes
from goq.delivery.partition_state import PartitionState
from goq.delivery.queues.fair_scheduler import FairScheduler
from goq.delivery.queues.policy import SchedulingPolicy, TenantNumbers
from goq.delivery.queues.ready_queues import ReadyQueues
from goq.errors import TooManyRequests
from goq.storage.column_index.rows import ColumnRows
from goq.storage.log.log import Log

_LANE_BITS = 8
_Int64s = npt.NDArray[np.int64]


def first_unfinished(messages: Log, state: PartitionState) -> int:
    """Return the first offset that some group may come to; the end where there is no group."""
    end = messages.end_offset
    needed = [group.taken.first_missing(end) for group in state.groups.values()]
    return max(min(needed, default=end), messages.start_offset)


def policy_of(settings: TopicSettings) -> SchedulingPolicy:
    """Return how a topic's settings want lanes and tenants to take turns."""
    return SchedulingPolicy(
        lane_weights=settings.lane_weights,
        starvation_ms=settings.starvation_ms,
        tenant_weights=dict(settings.tenant_weights),
        tenant_in_flight_max=settings.tenant_in_flight_max,
    )


class ReadyState:
    """The ready queues and delayed messages of one partition."""

    def __init__(self, state: PartitionState, settings: TopicSettings, now_ms: int) -> None:
        self.ready = ReadyQueues(state.start_offset)
        self.tenants = TenantNumbers()
        self.schedule = DelayedMessages(
            now_ms,
            state.maturity,
            cancelled=_offsets(state.cancelled.present(state.start_offset, state.cancelled.top())),
            rescheduled=state.rescheduled,
        )
        self._state = state
        self.default_lane = settings.default_lane
        """The lane of messages that name none."""
        self._policy = policy_of(settings)

    @classmethod
    def build(
        cls,
        messages: Log,
        state: PartitionState,
        settings: TopicSettings,
        now_ms: int,
        *,
        start: int,
        end: int,
    ) -> ReadyState:
        """Return what follows from a log up to ``end`` and the state; blocks on the disk.

        Ready messages before ``start`` are left out: nobody has to come to them.
        """
        dispatch = cls(state, settings, now_ms)
        dispatch.extend(messages, messages.start_offset, end, now_ms, ready_from=start)
        dispatch.ready.complete_from = start
        return dispatch

    def extend(
        self, messages: Log, start: int, end: int, now_ms: int, *, ready_from: int = 0
    ) -> None:
        """Take what the log has from ``start`` up to ``end``; blocks on the disk."""
        ready_from = max(start, ready_from)
        self._restore(messages.reader.rows(start, end), ready_from, end, now_ms)

    def renumbered(
        self, facts: Mapping[int, MessageAttributes], before: ReadyState
    ) -> dict[int, MessageAttributes]:
        """Return facts with the numbers that tenants have here."""
        return {
            offset: fact._replace(tenant=self.tenants.number(before.tenants.name(fact.tenant)))
            for offset, fact in facts.items()
        }

    def lacks(self, group: Group) -> bool:
        """Whether a group that has no place in the queues yet may need what was let go of."""
        complete_from = self.ready.complete_from
        return group.scheduler is None and group.taken.first_missing(complete_from) < complete_from

    def follows(self, settings: TopicSettings) -> bool:
        """Whether the queues are as these settings want them."""
        return (self.default_lane, self._policy) == (settings.default_lane, policy_of(settings))

    def scheduler_of(self, group: Group) -> FairScheduler:
        """Return a group's places in the ready queues."""
        scheduler = group.scheduler
        if not isinstance(scheduler, FairScheduler):
            floor = group.taken.floor
            scheduler = FairScheduler(self.ready, self.tenants, self._policy, floor_offset=floor)
            group.scheduler = scheduler
        return scheduler

    def places(self, rows: ColumnRows) -> tuple[_Int64s, _Int64s]:
        """Return the lane and the tenant's number of each row."""
        return self._lanes(rows), self._tenants(rows)

    def trim(self, start_offset: int) -> None:
        """Let go of what retention deleted, also where a group never came to it."""
        self.ready.trim(start_offset)
        self.schedule.trim(start_offset)

    def release(self) -> None:
        """Let go of what no group will come to any more."""
        self.ready.release()

    def published(self, start: int, end: int, rows: ColumnRows | None, time_ms: int) -> None:
        """Take a frame's messages that have become durable; ``rows`` None for a plain frame."""
        if rows is None:
            self.ready.add(self.default_lane, 0, start, end, time_ms)
            return
        lanes, tenants = self.places(rows)
        waits = rows.deliver_at_ms != 0
        if waits.any():
            tags = _tags(lanes[waits], tenants[waits])
            self.schedule.add(rows.offsets[waits], tags, rows.deliver_at_ms[waits], time_ms)
            if waits.all():
                return
            now = ~waits
            self.ready.add_rows(rows.offsets[now], lanes[now], tenants[now], time_ms)
            return
        self.ready.add_rows(rows.offsets, lanes, tenants, time_ms)

    def mature(self, now_ms: int) -> Matured | None:
        """Let what is due enter its ready queue; return what to record of it, if anything is."""
        due = self.schedule.pop_due(now_ms)
        if not len(due.offsets):
            return None
        self._enter_due(due, now_ms)
        return Matured(due.up_to_ms, due.end_offset)

    def moved(self, offset: int, lane: int, tenant: int, now_ms: int) -> None:
        """Let a message that is ready stand in another lane's queue."""
        self.ready.add(lane, tenant, offset, offset + 1, now_ms)

    def cancelled(self, offset: int, due_ms: int) -> None:
        """Take out a message that waits for its time; ``due_ms`` is the one in force."""
        self.schedule.cancel(offset, due_ms)

    def rescheduled(self, row: ColumnRows, due_ms: int, new_due_ms: int) -> None:
        """Let a message that waits for its time be due at another; ``due_ms`` was in force."""
        (tag,) = _tags(*self.places(row)).tolist()
        self.schedule.reschedule(int(row.offsets[0]), tag, due_ms, new_due_ms)

    def load(self, messages: Log, load: LoadRequest) -> list[ColumnRows]:
        """Read the rows that a load wants; blocks on the disk."""
        found = messages.reader.rows(
            messages.start_offset, load.end_offset, due_from_ms=load.from_ms, due_to_ms=load.to_ms
        )
        return list(found)

    def loaded(self, load: LoadRequest, found: list[ColumnRows]) -> None:
        """Take what was read for a load."""
        empty = np.empty(0, np.int64)
        offsets, tags, due_ms = [empty], [empty], [empty]
        for rows in found:
            offsets.append(rows.offsets)
            tags.append(_tags(*self.places(rows)))
            due_ms.append(rows.deliver_at_ms)
        self.schedule.loaded(
            load.to_ms, np.concatenate(offsets), np.concatenate(tags), np.concatenate(due_ms)
        )

    def _enter_due(self, due: DueMessages, now_ms: int) -> None:
        lanes = due.tags & ((1 << _LANE_BITS) - 1)
        tenants = due.tags >> _LANE_BITS
        self._move(due.offsets, lanes)
        self.ready.add_rows(due.offsets, lanes, tenants, now_ms)

    def _restore(self, found: Iterator[ColumnRows], start: int, end: int, now_ms: int) -> None:
        """Take all rows there are: those that wait into the schedule, the others as ready.

        Everything enters in order of offset, so what no row speaks of, which stands in the default
        lane, in between.
        """
        maturity = self._state.maturity
        moved = sorted(self._state.moved)
        at = start
        for rows in found:
            lanes, tenants = self.places(rows)
            delayed = rows.deliver_at_ms != 0
            if delayed.any():
                tags = _tags(lanes[delayed], tenants[delayed])
                self.schedule.restore(rows.offsets[delayed], tags, rows.deliver_at_ms[delayed])
                delayed[delayed] = ~maturity.matured(
                    rows.offsets[delayed], self._due_ms(rows, delayed)
                )
            self._move(rows.offsets, lanes)
            breaks = np.flatnonzero(np.diff(rows.offsets) != 1) + 1
            for run in np.split(np.arange(len(rows.offsets)), breaks):
                if not len(run):
                    continue
                self._enter_plain(at, int(rows.offsets[run[0]]), moved, now_ms)
                at = max(at, int(rows.offsets[run[-1]]) + 1)
                ready = run[~delayed[run] & (rows.offsets[run] >= start)]
                self.ready.add_rows(rows.offsets[ready], lanes[ready], tenants[ready], now_ms)
        self._enter_plain(at, end, moved, now_ms)

    def _enter_plain(self, start: int, end: int, moved: list[int], now_ms: int) -> None:
        """Let messages that no row speaks of stand in the default lane, or where they moved."""
        for offset in moved[bisect_left(moved, start) : bisect_left(moved, end)]:
            if start < offset:
                self.ready.add(self.default_lane, 0, start, offset, now_ms)
            self.ready.add(self._state.moved[offset], 0, offset, offset + 1, now_ms)
            start = offset + 1
        if start < end:
            self.ready.add(self.default_lane, 0, start, end, now_ms)

    def _move(self, offsets: _Int64s, lanes: _Int64s) -> None:
        """Put into ``lanes`` where messages were moved to."""
        moved = self._state.moved
        if moved:
            for index, offset in enumerate(offsets.tolist()):
                lanes[index] = moved.get(offset, int(lanes[index]))

    def _due_ms(self, rows: ColumnRows, chosen: npt.NDArray[np.bool_]) -> _Int64s:
        """Return when rows are due, by the time in force."""
        due_ms = rows.deliver_at_ms[chosen].copy()
        changed = self._state.rescheduled
        if changed:
            for index, offset in enumerate(rows.offsets[chosen].tolist()):
                due_ms[index] = changed.get(offset, int(due_ms[index]))
        return due_ms

    def _lanes(self, rows: ColumnRows) -> _Int64s:
        lanes = rows.lanes.astype(np.int64)
        return np.where(lanes < 0, self.default_lane, lanes)

    def _tenants(self, rows: ColumnRows) -> _Int64s:
        if not rows.tenant_names:
            return np.zeros(len(rows.offsets), np.int64)
        numbers = np.array([*map(self.tenants.number, rows.tenant_names), 0], np.int64)
        return numbers[rows.tenants]  # -1, for none, is the last: 0


def _tags(lanes: _Int64s, tenants: _Int64s) -> _Int64s:
    return tenants << _LANE_BITS | lanes


def _offsets(runs: Iterable[tuple[int, int]]) -> Iterator[int]:
    for start, end in runs:
        yield from range(start, end)


class ReadyStateManager:
    """The current ready state of a partition; ``on_rebuilt`` is called when another replaced it."""

    def __init__(
        self,
        ready: ReadyState,
        messages: Log,
        state: PartitionState,
        context: PartitionContext,
        availability: Availability,
        settings: TopicSettings,
        *,
        on_rebuilt: Callable[[], None],
    ) -> None:
        self.current = ready
        self._messages = messages
        self._state = state
        self._context = context
        self._availability = availability
        self._settings = settings
        self._on_rebuilt = on_rebuilt
        self._rebuilding: asyncio.Task[None] | None = None

    @property
    def is_rebuilding(self) -> bool:
        """Whether a rebuild is under way."""
        return self._rebuilding is not None

    def is_ready_for(self, group_name: str) -> bool:
        """Whether a group can receive; if not, wait for :meth:`rebuilt`."""
        if self._availability.error is None:
            group = self._state.ensure_group(group_name)
            if self.current.lacks(group):
                self._start()
        return self._rebuilding is None

    async def rebuilt(self) -> None:
        """Return when the ready state fits; raise why it cannot be rebuilt."""
        if self._rebuilding is not None:
            await asyncio.shield(self._rebuilding)

    def check_changeable(self) -> None:
        """Raise ``TooManyRequests`` while no single message may be changed."""
        self._availability.check()
        if self._rebuilding is not None:
            raise TooManyRequests("the partition is being rebuilt", retry_after_ms=100)

    def configure(self, settings: TopicSettings) -> None:
        """Take over changed settings, with a rebuild where they ask for one."""
        self._settings = settings
        if not self.current.follows(settings):
            self._start()

    async def close(self) -> None:
        """Wait for a rebuild that is under way."""
        if self._rebuilding is not None:
            await asyncio.wait([self._rebuilding])

    def _start(self) -> None:
        if self._rebuilding is None:
            self._rebuilding = self._context.tasks.start(self._rebuild())

    async def _rebuild(self) -> None:
        messages, state = self._messages, self._state
        try:
            end = state.end_offset
            start = first_unfinished(messages, state)
            build = partial(ReadyState.build, start=start, end=end)
            now_ms = self._context.clock.wall_ms()
            new = await asyncio.get_running_loop().run_in_executor(
                self._context.executor, build, messages, state, self._settings, now_ms
            )
            new.extend(messages, end, state.end_offset, now_ms)
            for group in state.groups.values():
                group.restart_reading()
                group.restore_attributes(new.renumbered(group.attributes, self.current))
            self.current = new
        finally:
            self._rebuilding = None
        self._on_rebuilt()
        if not self.current.follows(self._settings):
            self._start()
