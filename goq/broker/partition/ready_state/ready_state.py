"""Ready state of a partition: its delayed messages and its ready queues, in memory.

It is derived from the columns of the messages and from the delivery state, and is never stored. It
follows each publish, maturation and move.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from goq.config.topic import TopicSettings
from goq.delivery.delay.delayed_messages import DelayedMessages, DueMessages, LoadRequest
from goq.delivery.events.event import Matured
from goq.delivery.group.group import Group
from goq.delivery.group.offset_set import OffsetSet
from goq.delivery.partition_state import PartitionState
from goq.delivery.queues.fair_scheduler import FairScheduler
from goq.delivery.queues.policy import SchedulingPolicy, TenantNumbers
from goq.delivery.queues.ready_queue import COUNT_BITS, COUNT_MAX, ReadyQueue
from goq.delivery.queues.ready_queues import ReadyQueues
from goq.storage.column_index.rows import ColumnRows
from goq.storage.log.log import Log

_LANE_BITS = 8
_LANE_MASK = (1 << _LANE_BITS) - 1
_MATURED_AT_ONCE = 1_000  # messages: about 1 ms
_RUNS_SUMMED_MAX = 50_000  # of all queues: a millisecond or two
_RUNS_COUNTED_MAX = 2_000  # one by one: some milliseconds
_Int64s = npt.NDArray[np.int64]


def first_unfinished(messages: Log, state: PartitionState) -> int:
    """Return the first offset not done in some group; the end without groups."""
    end = messages.end_offset
    needed = [group.taken.first_missing(end) for group in state.groups.values()]
    return max(min(needed, default=end), messages.start_offset)


def policy_of(settings: TopicSettings) -> SchedulingPolicy:
    """Return the scheduling policy of lanes and tenants in a topic's settings."""
    return SchedulingPolicy(
        lane_weights=settings.lane_weights,
        starvation_ms=settings.starvation_ms,
        tenant_weights=dict(settings.tenant_weights),
        tenant_in_flight_max=settings.tenant_in_flight_max,
    )


class ReadyState:
    """The ready queues and delayed messages of one partition."""

    def __init__(
        self,
        state: PartitionState,
        settings: TopicSettings,
        now_ms: int,
        tenants: TenantNumbers | None = None,
    ) -> None:
        self.ready = ReadyQueues(state.start_offset)
        self.tenants = TenantNumbers() if tenants is None else tenants
        self.schedule = DelayedMessages(
            now_ms,
            state.maturity,
            cancelled=_offsets(state.cancelled.present(state.start_offset, state.cancelled.top())),
            rescheduled=state.rescheduled,
        )
        self._state = state
        self.default_lane = settings.default_lane
        """The lane of messages without one."""
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
        tenants: TenantNumbers | None = None,
    ) -> ReadyState:
        """Return the ready state of a log up to ``end``; blocks on the disk.

        Ready messages before ``start`` are left out: no group needs them. ``tenants`` keep their
        numbers; it adds others.
        """
        built = cls(state, settings, now_ms, tenants)
        built.extend(messages, messages.start_offset, end, now_ms, ready_from=start)
        built.ready.complete_from = start
        return built

    def extend(
        self, messages: Log, start: int, end: int, now_ms: int, *, ready_from: int = 0
    ) -> None:
        """Add the messages of a log from ``start`` up to ``end``; blocks on the disk."""
        ready_from = max(start, ready_from)
        self._restore(messages.reader.rows(start, end), ready_from, end, now_ms)

    def lacks(self, group: Group) -> bool:
        """Return whether a group without a scheduler may need messages that the queues dropped."""
        complete_from = self.ready.complete_from
        return group.taken.first_missing(complete_from) < complete_from

    def follows(self, settings: TopicSettings) -> bool:
        """Return whether the queues follow these settings."""
        return (self.default_lane, self._policy) == (settings.default_lane, policy_of(settings))

    def scheduler_of(self, group: Group) -> FairScheduler:
        """Return a group's scheduler over the ready queues; create it if missing."""
        scheduler = group.scheduler
        if not isinstance(scheduler, FairScheduler):
            floor = group.taken.floor
            scheduler = FairScheduler(self.ready, self.tenants, self._policy, floor_offset=floor)
            group.scheduler = scheduler
        return scheduler

    def waiting(self, group: Group, queues_max: int) -> list[tuple[int, int, int]] | None:
        """Return lane, tenant number and count of a group's messages before a first delivery.

        Without a scheduler they are counted in the queues. None if that would not be exact or take
        long, or if there are more queues than ``queues_max``.
        """
        state, taken, ready = self._state, group.taken, self.ready
        if len(ready) > queues_max:
            return None
        if isinstance(group.scheduler, FairScheduler):
            return list(group.scheduler.waiting())
        if self.lacks(group) or state.moved or state.corrupt:
            return None
        is_plain = taken.is_dense and not taken.has_ceiling
        if ready.entry_count > (_RUNS_SUMMED_MAX if is_plain else _RUNS_COUNTED_MAX):
            return None
        first = max(taken.floor, ready.start_offset)
        counts = [(each, each.count_from(first)) for each in ready]
        if not is_plain:
            counts = [(each, count - _taken_count(each, taken, first)) for each, count in counts]
        return [(each.lane, each.tenant, count) for each, count in counts if count]

    def places(self, rows: ColumnRows) -> tuple[_Int64s, _Int64s]:
        """Return the lane and the tenant number of each row."""
        return self._lanes(rows), self._tenants(rows)

    def trim(self, start_offset: int) -> None:
        """Drop the messages that retention deleted, also those that a group never received."""
        self.ready.trim(start_offset)
        self.schedule.trim(start_offset)

    def release(self) -> None:
        """Drop the messages that no group needs any more."""
        self.ready.release()

    def published(self, start: int, end: int, rows: ColumnRows | None, time_ms: int) -> None:
        """Add the messages of a committed frame; ``rows`` is None for a plain frame."""
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
        """Move due messages to their ready queues; return the event to record, None if none is.

        It moves about ``_MATURED_AT_ONCE``, the earliest ones.
        """
        due = self.schedule.pop_due(now_ms, _MATURED_AT_ONCE)
        if not len(due.offsets):
            return None
        self._enter_due(due, now_ms)
        return Matured(due.up_to_ms, due.end_offset)

    def moved(self, offset: int, lane: int, tenant: int, now_ms: int) -> None:
        """Add a ready message that was moved to the queue of its new lane."""
        self.ready.add(lane, tenant, offset, offset + 1, now_ms)

    def cancelled(self, offset: int, due_ms: int) -> None:
        """Remove a delayed message; ``due_ms`` is its due time in force."""
        self.schedule.cancel(offset, due_ms)

    def rescheduled(self, row: ColumnRows, due_ms: int, new_due_ms: int) -> None:
        """Change the due time of a delayed message; ``due_ms`` was in force."""
        (tag,) = _tags(*self.places(row)).tolist()
        self.schedule.reschedule(int(row.offsets[0]), tag, due_ms, new_due_ms)

    def load(self, messages: Log, load: LoadRequest) -> list[ColumnRows]:
        """Read the rows of a load request; blocks on the disk."""
        found = messages.reader.rows(
            messages.start_offset, load.end_offset, due_from_ms=load.from_ms, due_to_ms=load.to_ms
        )
        return list(found)

    def loaded(self, load: LoadRequest, found: list[ColumnRows]) -> None:
        """Add the rows that were read for a load request."""
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
        if len(due.offsets) == 1:  # vector operations would cost as much as for a hundred
            offset, tag = int(due.offsets[0]), int(due.tags[0])
            lane = self._state.moved.get(offset, tag & _LANE_MASK)
            self.ready.add(lane, tag >> _LANE_BITS, offset, offset + 1, now_ms)
            return
        lanes = due.tags & _LANE_MASK
        tenants = due.tags >> _LANE_BITS
        self._move(due.offsets, lanes)
        self.ready.add_rows(due.offsets, lanes, tenants, now_ms)

    def _restore(self, found: Iterator[ColumnRows], start: int, end: int, now_ms: int) -> None:
        """Add all messages: delayed rows to the schedule, the others to the ready queues.

        The ready queues need offset order. So messages without a row, in the default lane, are
        added between the rows.
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
        """Add messages without a row to the default lane, or to the lane that they moved to."""
        for offset in moved[bisect_left(moved, start) : bisect_left(moved, end)]:
            if start < offset:
                self.ready.add(self.default_lane, 0, start, offset, now_ms)
            self.ready.add(self._state.moved[offset], 0, offset, offset + 1, now_ms)
            start = offset + 1
        if start < end:
            self.ready.add(self.default_lane, 0, start, end, now_ms)

    def _move(self, offsets: _Int64s, lanes: _Int64s) -> None:
        """Replace in ``lanes`` the lanes of messages that were moved."""
        moved = self._state.moved
        if moved:
            for index, offset in enumerate(offsets.tolist()):
                lanes[index] = moved.get(offset, int(lanes[index]))

    def _due_ms(self, rows: ColumnRows, chosen: npt.NDArray[np.bool_]) -> _Int64s:
        """Return the due times in force of rows."""
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
        names = rows.tenant_names
        if len(rows.offsets) < len(names):  # few rows of a large frame
            numbers = np.zeros(len(names) + 1, np.int64)
            for index in set(rows.tenants.tolist()) - {-1}:
                numbers[index] = self.tenants.number(names[index])
        else:
            numbers = np.array([*map(self.tenants.number, names), 0], np.int64)
        return numbers[rows.tenants]  # -1 is no tenant: the last number, 0


def _taken_count(queue: ReadyQueue, taken: OffsetSet, first: int) -> int:
    runs = ((run >> COUNT_BITS, run & COUNT_MAX) for run in queue.runs)
    return sum(taken.count(max(start, first), start + count) for start, count in runs)


def _tags(lanes: _Int64s, tenants: _Int64s) -> _Int64s:
    return tenants << _LANE_BITS | lanes


def _offsets(runs: Iterable[tuple[int, int]]) -> Iterator[int]:
    for start, end in runs:
        yield from range(start, end)
