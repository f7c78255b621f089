"""A read-only view of one group's progress in one partition.

The view answers queries of the partition state: counts, cursors, leases by consumer, and the
offsets in each delivery state. It reads the live state on the event loop, or a state rebuilt for a
past time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple

from goq.delivery.events.transitions import MessageState
from goq.delivery.group.attempt_ranges import AttemptRange
from goq.delivery.group.group import DEFAULT_LANE
from goq.delivery.partition_state import PartitionState
from goq.delivery.queues.fair_scheduler import FairScheduler
from goq.model import OffsetRange
from goq.storage.column_index.rows import ColumnRows

Run = tuple[int, int]
_NO_END = 2**63 - 1
_START = itemgetter(0)


class GroupCounts(NamedTuple):
    """The number of a group's messages in one partition, by state.

    ``lag`` counts messages that are not done, without the delayed ones (``scheduled``). It is the
    sum of ``ready``, ``leased`` and ``retry``. ``blocked`` counts those of ``ready`` that are known
    to be held back by their key. ``dead`` counts all messages ever dead-lettered.
    """

    lag: int
    ready: int
    leased: int
    retry: int
    blocked: int
    scheduled: int
    dead: int


class MessageStatus(NamedTuple):
    """A message's status in its partition, by its frame and by later changes.

    ``due_ms`` is its due time, 0 if it was never delayed. ``row`` holds its columns, None for a
    message in a plain frame.
    """

    offset: int
    lane: int
    tenant: int
    due_ms: int
    is_scheduled: bool
    is_cancelled: bool
    row: ColumnRows | None


class GroupMessageStatus(NamedTuple):
    """A message's delivery state for a group.

    ``time_ms`` is a lease's end, or the due time of a retry or a scheduled message.
    """

    state: MessageState
    attempt: int = 0
    consumer: str | None = None
    time_ms: int | None = None


class GroupView:
    """The view of one group; an unknown group has received nothing."""

    def __init__(self, state: PartitionState, name: str) -> None:
        self.name = name
        self.is_known = name in state.groups
        """Whether the partition has any event of the group."""
        self._state = state
        self._group = state.group(name)

    @property
    def cursor(self) -> int:
        """The offset before which every message was delivered."""
        return self._group.taken.floor

    @property
    def ceiling(self) -> int:
        """The offset from which on no message is delivered."""
        return self._group.taken.ceiling

    @property
    def end_offset(self) -> int | None:
        """The end offset of the group, None without an end."""
        return self._group.end_offset

    @property
    def has_scheduler(self) -> bool:
        """Whether the group has read the ready queues since they were built."""
        return self._group.scheduler is not None

    @property
    def leased_count(self) -> int:
        """The number of leased messages."""
        return self._group.leased_count

    def counts(self, scheduled_max: int, now_ms: int) -> GroupCounts:
        """Count messages by state; at most ``scheduled_max`` count as scheduled."""
        group, untaken = self._group, self.untaken_count()
        scheduled = min(scheduled_max, untaken)
        fresh = untaken - scheduled
        waiting = group.retries.message_count
        due = sum(p.end - p.start for p in group.retries if p.time_ms <= now_ms)
        return GroupCounts(
            lag=fresh + group.leased_count + waiting,
            ready=fresh + due,
            leased=group.leased_count,
            retry=waiting - due,
            blocked=group.locks.blocked_count,
            scheduled=scheduled,
            dead=group.dead_count,
        )

    def untaken_count(self) -> int:
        """Return how many messages were never delivered, scheduled ones too, without damage."""
        taken, start, end = self._group.taken, self._state.start_offset, self._state.end_offset
        unreadable = sum(
            hole.end - hole.start
            for r in self._state.corrupt
            for hole in taken.missing(max(r.start, start), min(r.end, end))
        )
        return end - start - taken.count(start, end) - unreadable

    def leased_by_consumer(self) -> dict[str, int]:
        """Return the number of leased messages by consumer."""
        held: dict[str, int] = {}
        for lease in self._group.leases.values():
            held[lease.consumer] = held.get(lease.consumer, 0) + lease.parts.message_count
        return held

    def taken_count(self, start: int, end: int) -> int:
        """Return how many messages from ``start`` up to ``end`` were delivered."""
        return self._group.taken.count(start, min(end, self._group.taken.ceiling))

    def untaken(self, start: int, end: int) -> Iterable[OffsetRange]:
        """Return the ranges from ``start`` up to ``end`` that were never delivered."""
        return self._group.taken.missing(start, end)

    def first_unfinished(self) -> int | None:
        """Return the first offset that is not done, None if all are; damage does not count."""
        state, group = self._state, self._group
        fresh = next(iter(state.deliverable(group, state.start_offset, state.end_offset)), None)
        firsts = [part.start for part in group.outstanding()]
        return min(firsts if fresh is None else [fresh.start, *firsts], default=None)

    def unfinished_count(self, start: int, end: int) -> int:
        """Return how many messages from ``start`` up to ``end`` are not done, without damage."""
        fresh = self._state.deliverable(self._group, start, end)
        held = (
            min(part.end, end) - max(part.start, start)
            for part in self._group.outstanding()
            if part.start < end and part.end > start
        )
        return sum(run.end - run.start for run in fresh) + sum(held)

    def ready_since_ms(self, now_ms: int, queues_max: int) -> int | None:
        """Return when the message that waits longest became ready, in the memory of this node.

        None if no consumer has come since the partition was opened here, or if there are more
        queues than ``queues_max``.
        """
        scheduler = self._group.scheduler
        if not isinstance(scheduler, FairScheduler) or scheduler.queue_count > queues_max:
            return None
        fresh_ms = scheduler.oldest_ready_ms()
        times_ms = [part.time_ms for part in self._group.retries if part.time_ms <= now_ms]
        return min(times_ms if fresh_ms is None else [*times_ms, fresh_ms], default=None)

    def leased(self, messages_max: int) -> Counter[tuple[int, int]] | None:
        """Return how many messages are leased, by lane and tenant number; lane -1 is the default.

        None if there are more than ``messages_max``.
        """
        group = self._group
        if group.leased_count > messages_max:
            return None
        found: Counter[tuple[int, int]] = Counter()
        for lease in group.leases.values():
            for part in lease.parts:
                if not group.attributes:
                    found[DEFAULT_LANE, 0] += part.end - part.start
                    continue
                for offset in range(part.start, part.end):
                    attributes = group.attributes.get(offset)
                    queue = (
                        (attributes.lane, attributes.tenant) if attributes else (DEFAULT_LANE, 0)
                    )
                    found[queue] += 1
        return found

    def first_due_retry(self, now_ms: int) -> int | None:
        """Return the first offset whose retry is due, None without one."""
        due = (part.start for part in self._group.retries if part.time_ms <= now_ms)
        return min(due, default=None)

    def message_status(
        self, message: MessageStatus, now_ms: int, *, expires_ms: int = 0
    ) -> GroupMessageStatus:
        """Return a message's status for the group; ``expires_ms`` 0 for never."""
        group, offset = self._group, message.offset
        held = self._outstanding(offset, now_ms) if self.is_known else None
        if held is not None:
            return held
        if message.is_cancelled:
            return GroupMessageStatus(MessageState.CANCELLED)
        if self.is_known and offset in group.taken:
            return GroupMessageStatus(
                MessageState.DEAD if self._is_in_outbox(offset) else MessageState.DONE
            )
        if message.is_scheduled:
            return GroupMessageStatus(MessageState.SCHEDULED, time_ms=message.due_ms)
        if expires_ms and expires_ms <= now_ms:
            return GroupMessageStatus(MessageState.EXPIRED)
        waiting = group.locks.held_at(offset) if self.is_known else None
        if waiting is not None and waiting.attributes.lane == message.lane:
            return GroupMessageStatus(MessageState.BLOCKED)
        return GroupMessageStatus(MessageState.READY)

    def parts(self, state: MessageState, start: int, now_ms: int) -> Iterable[AttemptRange]:
        """Return the ranges that are leased, in retry or blocked, from offset ``start`` on."""
        group = self._group
        if state is MessageState.LEASED:
            held = [part for lease in group.leases.values() for part in lease.parts]
            held.sort(key=_START)  # a plain number: three times as fast
            return (part for part in held if part.end > start)
        if state is MessageState.RETRY:
            return (p for p in list(group.retries) if p.time_ms > now_ms and p.end > start)
        assert state is MessageState.BLOCKED
        return (AttemptRange(o, o + 1, 0, 0) for o in self._blocked(start))

    def bounds(self, state: MessageState, start: int) -> Run:
        """Return the range from ``start`` on that may contain a state of :data:`WINDOWED`."""
        group, end = self._group, self._state.end_offset
        if state not in (MessageState.READY, MessageState.EXPIRED, MessageState.SCHEDULED):
            return start, end
        first = group.retries.first() if state is MessageState.READY else None
        floor = group.taken.floor if first is None else min(group.taken.floor, first.start)
        return max(start, floor), min(end, group.taken.ceiling)

    def window(
        self, state: MessageState, delayed: list[Run], start: int, stop: int, now_ms: int
    ) -> Iterable[AttemptRange]:
        """Return the ranges from ``start`` up to ``stop`` in a state of :data:`WINDOWED`.

        ``delayed`` holds the runs of delayed messages among them.
        """
        return _WINDOWS[state](self, delayed, start, stop, now_ms)

    def fresh_runs(self, delayed: list[Run], start: int, stop: int) -> Iterator[Run]:
        """Yield the runs from ``start`` up to ``stop`` that are ready for a first delivery."""
        fresh = list(_minus(self._state.deliverable(self._group, start, stop), delayed))
        if not fresh or not self._group.locks.held_count:
            return iter(fresh)
        return _minus(fresh, [(offset, offset + 1) for offset in self._blocked(start, stop)])

    def _ready(self, delayed: list[Run], start: int, stop: int, now_ms: int) -> list[AttemptRange]:
        due = [p for p in self._group.retries.within(start, stop) if p.time_ms <= now_ms]
        fresh = (AttemptRange(*run, 0, 0) for run in self.fresh_runs(delayed, start, stop))
        return sorted([*due, *fresh])

    def _expired(
        self, delayed: list[Run], start: int, stop: int, _now_ms: int
    ) -> Iterator[AttemptRange]:
        return (AttemptRange(*run, 0, 0) for run in self.fresh_runs(delayed, start, stop))

    def _scheduled(
        self, delayed: list[Run], start: int, stop: int, _now_ms: int
    ) -> Iterator[AttemptRange]:
        taken = self._group.taken.present(start, stop)
        return (AttemptRange(*run, 0, 0) for run in _minus(delayed, taken))

    def _done(
        self, _delayed: list[Run], start: int, stop: int, _now_ms: int
    ) -> Iterator[AttemptRange]:
        cancelled = self._state.cancelled.present(start, stop)
        done = _minus(self._group.taken.present(start, stop), cancelled)
        return self._not_outstanding(done, start, stop)

    def _cancelled(
        self, _delayed: list[Run], start: int, stop: int, _now_ms: int
    ) -> Iterator[AttemptRange]:
        return self._not_outstanding(self._state.cancelled.present(start, stop), start, stop)

    def _not_outstanding(
        self, runs: Iterable[Run], start: int, stop: int
    ) -> Iterator[AttemptRange]:
        found, held = list(runs), self._group.retries.within(start, stop)
        if found:
            for lease in self._group.leases.values():
                held += lease.parts.within(start, stop)
        held.sort(key=_START)
        holes = ((part.start, part.end) for part in held)
        return (AttemptRange(*run, 0, 0) for run in _minus(found, holes))

    def _outstanding(self, offset: int, now_ms: int) -> GroupMessageStatus | None:
        for lease in self._group.leases.values():
            part = lease.parts.at(offset)
            if part is not None:
                return GroupMessageStatus(
                    MessageState.LEASED, part.attempt, lease.consumer, part.time_ms
                )
        for part in self._group.retries.within(offset, offset + 1):
            state = MessageState.READY if part.time_ms <= now_ms else MessageState.RETRY
            return GroupMessageStatus(state, part.attempt, time_ms=part.time_ms)
        return None

    def _is_in_outbox(self, offset: int) -> bool:
        return any(
            each.event.group == self.name and start <= offset < end
            for each in self._state.outbox.entries.values()
            for start, end, _ in each.event.spans
        )

    def _blocked(self, start: int, stop: int = _NO_END) -> Iterator[int]:
        """Yield the offsets from ``start`` up to ``stop`` held back by their key in their lane."""
        moved, taken = self._state.moved, self._group.taken
        return (
            held.offset
            for held in self._group.locks.held_within(start, stop)
            if held.offset not in taken
            and moved.get(held.offset, held.attributes.lane) == held.attributes.lane
        )


_Window = Callable[[GroupView, list[Run], int, int, int], Iterable[AttemptRange]]
_WINDOWS: dict[MessageState, _Window] = {
    MessageState.READY: GroupView._ready,
    MessageState.EXPIRED: GroupView._expired,
    MessageState.SCHEDULED: GroupView._scheduled,
    MessageState.DONE: GroupView._done,
    MessageState.CANCELLED: GroupView._cancelled,
}
WINDOWED = frozenset(_WINDOWS)
"""The states queried by windows of offsets, see :meth:`GroupView.window`."""


def _minus(runs: Iterable[Run], holes: Iterable[Run]) -> Iterator[Run]:
    """Yield ``runs`` without ``holes``; both are in order and disjoint."""
    remaining = iter(holes)
    hole = next(remaining, None)
    for start, end in runs:
        while hole is not None and hole[1] <= start:
            hole = next(remaining, None)
        while hole is not None and hole[0] < end:
            if start < hole[0]:
                yield start, hole[0]
            start = max(start, hole[1])
            if hole[1] >= end:
                break
            hole = next(remaining, None)
        if start < end:
            yield start, end
