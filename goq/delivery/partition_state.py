"""A partition's delivery state, built by its events.

:meth:`PartitionState.apply` is the only method that changes the state, while running and while
recovering. Decisions are made elsewhere (:mod:`goq.delivery.settlement`,
:mod:`goq.delivery.selection.selector`) from the state and the time, and come back as events. The
state knows offsets only. What depends on the messages themselves is derived (ready queues, delayed
messages, attributes of outstanding messages) and built by the owner of the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from goq import limits
from goq.delivery.dedup.producer_table import ProducerTable
from goq.delivery.delay.maturity import Maturity
from goq.delivery.events.event import (
    Acked,
    Cancelled,
    Cause,
    ClockChanged,
    Compacted,
    CopyQueued,
    CopyStored,
    Corrupted,
    Dropped,
    Event,
    Expired,
    Extended,
    Failure,
    GroupDeleted,
    Leased,
    Matured,
    Moved,
    Nacked,
    Named,
    Range,
    Repaired,
    Rescheduled,
    Reset,
    Skipped,
    SnapshotEnded,
    SnapshotGroup,
    SnapshotMarks,
    SnapshotOutboxEntry,
    SnapshotProducers,
    SnapshotStarted,
    Span,
    Trimmed,
    Truncated,
    dues,
    token_of,
)
from goq.delivery.group.attempt_ranges import AttemptRange, gaps
from goq.delivery.group.group import Group
from goq.delivery.group.offset_set import NO_CEILING, OffsetSet
from goq.delivery.outbox import Outbox
from goq.delivery.snapshot import restore_group, restore_marks, restore_producers
from goq.model import OffsetRange

_EVERYTHING = 2**62


class PartitionState:
    """Groups and their progress over the offsets ``start_offset`` up to ``end_offset``."""

    def __init__(self, start_offset: int = 0) -> None:
        self.start_offset = start_offset
        self.end_offset = start_offset
        self.groups: dict[str, Group] = {}
        self.corrupt: list[OffsetRange] = []
        self.cancelled = OffsetSet()
        self.moved: dict[int, int] = {}
        """The lane of each message whose priority was changed."""
        self.rescheduled: dict[int, int] = {}
        """The due time, in ms, of each message that was rescheduled."""
        self.maturity = Maturity()
        self.outbox = Outbox()
        self.producers = ProducerTable()
        self.producer_names: dict[int, str] = {}
        """The client names of producers by id, the one named longest ago first."""
        self.clock_node = ""
        """The node whose clock deadlines and due times of retries are by; "" if not recorded."""

    def group(self, name: str) -> Group:
        """Return a group; a group without any events is at the start of the log."""
        return self.groups.get(name) or self._new_group(name)

    def ensure_group(self, name: str) -> Group:
        """Return a group that is kept from now on: it is about to take messages."""
        if name not in self.groups:
            self.groups[name] = self._new_group(name)
        return self.groups[name]

    def extend_to(self, end_offset: int) -> None:
        """Make messages up to an offset available: they are durable."""
        self.end_offset = end_offset

    def deliverable(self, group: Group, start: int, end: int) -> Iterable[OffsetRange]:
        """Return what the group has not taken yet and is not damaged, in order of offset.

        Delayed messages that have not matured are included: they are in no ready queue.
        """
        start, end = max(start, self.start_offset), min(end, self.end_offset)
        holes = group.taken.missing(start, end)
        return self._readable(holes) if self.corrupt else holes

    def is_deliverable(self, group: Group, offset: int) -> bool:
        """Return whether :meth:`deliverable` includes one message."""
        return (
            self.start_offset <= offset < self.end_offset
            and offset not in group.taken
            and not any(r.start <= offset < r.end for r in self.corrupt)
        )

    def _readable(self, holes: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
        for hole in holes:
            for piece in gaps(*hole, [AttemptRange(r.start, r.end, 0, 0) for r in self.corrupt]):
                yield OffsetRange(*piece)

    def next_timer_ms(self, group_name: str) -> int | None:
        """Return when a lease of a group ends or a retry is due next, None without such a time."""
        group = self.groups.get(group_name)
        return group.next_timer_ms() if group else None

    def advance_retries(self, group_name: str, now_ms: int) -> bool:
        """Return whether retries of a group have become due since the last call."""
        group = self.groups.get(group_name)
        return group.retries.advance(now_ms) if group else False

    def known_end(self) -> int:
        """Return the end of the messages that the state knows of."""
        ends = [group.taken.top() for group in self.groups.values()]
        ends += [r.end for r in self.corrupt]
        ends += [end for _, end in self.maturity.pairs]
        ends += (self.cancelled.top(), self.producers.end_offset())
        ends += [offset + 1 for offset in (*self.moved, *self.rescheduled)]
        return max(self.start_offset, *ends)

    def mark_count(self) -> int:
        """Return the number of marks: messages cancelled, moved or rescheduled, each."""
        cancelled = self.cancelled.count(self.start_offset, self.cancelled.top())
        return cancelled + len(self.moved) + len(self.rescheduled)

    def apply(self, event: Event, sequence: int, epoch: int) -> None:
        """Change the state by an event; ``sequence`` is its offset in the events log."""
        if isinstance(event, Leased):
            self._leased(event, token_of(epoch, sequence))
        elif isinstance(event, CopyQueued):
            self._copy_queued(event, token_of(epoch, sequence))
        else:
            _TRANSITIONS[type(event)](self, event)

    def _new_group(self, name: str) -> Group:
        group = Group(name, self.start_offset)
        group.taken.update(self.cancelled.all())
        return group

    def _leased(self, event: Leased, token: int) -> None:
        group = self.ensure_group(event.group)
        if group.lease_new(token, event.consumer, event.deadline_ms, event.spans, event.session_id):
            return
        for start, end, _ in event.spans:
            self._check_waiting(group, start, end)
        group.lease(token, event.consumer, event.deadline_ms, event.spans, event.session_id)

    def _check_waiting(self, group: Group, start: int, end: int) -> None:
        """Repair the state after a damaged event, if leased messages do not wait for a retry.

        A message that is in another lease: that lease ended. A message that is done: the group was
        reset, and everything from there on is to be delivered again; whether it has an end is not
        known.
        """
        known = group.taken.count(start, end)
        if not known:
            return
        missing = known - sum(p.end - p.start for p in group.retries.within(start, end))
        if missing and missing > group.end_leases(start, end):
            group.taken.remove(start, max(group.taken.top(), start))
            group.taken.ceiling = NO_CEILING
            group.taken.update(self.cancelled.all())
            for part in list(group.outstanding()):
                group.taken.add(part.start, part.end)

    def _acked(self, event: Acked) -> None:
        group = self.ensure_group(event.group)
        lease = group.leases.get(event.token)
        if lease is None or not lease.parts.equals(event.ranges):
            self._holder(event.group, event.token, [(s, e, 0) for s, e in event.ranges])
        group.finish(event.token, event.ranges)

    def _dropped(self, event: Dropped) -> None:
        group = self._holder(event.group, event.token, event.spans)
        group.finish(event.token, [(start, end) for start, end, _ in event.spans])

    def _returned(self, event: Nacked | Expired) -> None:
        group = self._holder(event.group, event.token, event.spans)
        lease = group.leases[event.token]
        cause = Cause.NACKED if isinstance(event, Nacked) else Cause.EXPIRED
        failure = Failure(event.time_ms, lease.consumer, cause, event.reason)
        back: list[AttemptRange] = []
        for (start, end, attempt), due_ms in dues(event):
            for part in lease.parts.within(start, end):
                failures = (
                    _with_failure(part, failure) if attempt >= part.attempt else part.failures
                )
                part = part._replace(attempt=attempt, time_ms=due_ms, failures=failures)
                back += self._not_cancelled(part)
        group.return_for_retry(event.token, back)
        group.finish(event.token, [(start, end) for start, end, _ in event.spans])

    def _not_cancelled(self, part: AttemptRange) -> Iterator[AttemptRange]:
        for start, end in self.cancelled.missing(part.start, part.end):
            yield part._replace(start=start, end=end)

    def _extended(self, event: Extended) -> None:
        group = self._holder(event.group, event.token, [(s, e, 0) for s, e in event.ranges])
        group.extend(event.token, event.ranges, event.deadline_ms)

    def _holder(self, name: str, token: int, spans: Iterable[Span]) -> Group:
        """Return the group with the lease, also if the event of the lease was damaged."""
        group = self.ensure_group(name)
        lease = group.leases.get(token)
        if lease and all(lease.parts.contains(start, end) for start, end, _ in spans):
            return group
        missing: list[Span] = []
        for start, end, attempt in spans:
            held = lease.parts.within(start, end) if lease else []
            missing += [
                (gap_start, gap_end, attempt) for gap_start, gap_end in gaps(start, end, held)
            ]
        if missing:
            self._leased(Leased(name, "", 0, missing), token)
        return group

    def _skipped(self, event: Skipped) -> None:
        group = self.ensure_group(event.group)
        for start, end in event.ranges:
            group.skip(start, end)

    def _copy_queued(self, event: CopyQueued, number: int) -> None:
        histories: list[tuple[int, int, tuple[Failure, ...]]] = []
        ranges = [(start, end) for start, end, _ in event.spans]
        if event.group:
            group = self.ensure_group(event.group)
            group.dead_count += sum(end - start for start, end in ranges)
        if not event.group:
            self._cancel(ranges)
        elif not event.token:
            waiting = [part for run in ranges for part in group.retries.within(*run)]
            histories = [(part.start, part.end, part.failures) for part in waiting]
            self._skipped(Skipped(event.group, ranges, event.cause))
        else:
            group = self._holder(event.group, event.token, event.spans)
            consumer = group.leases[event.token].consumer
            failure = Failure(event.time_ms, consumer, event.cause, event.reason)
            histories = [
                (part.start, part.end, _with_failure(part, failure))
                for part in group.finish(event.token, ranges)
            ]
        self.outbox.add(number, event, sorted(histories))

    def _cancel(self, ranges: Iterable[Range]) -> None:
        for start, end in ranges:
            self.cancelled.add(start, end)
            for group in self.groups.values():
                group.skip(start, end)

    def _moved(self, event: Moved) -> None:
        self.moved[event.offset] = event.lane
        for group in self.groups.values():
            group.set_lane(event.offset, event.lane)

    def _rescheduled(self, event: Rescheduled) -> None:
        self.rescheduled[event.offset] = event.due_ms
        self.maturity.reschedule(event.offset, event.due_ms)

    def _named(self, event: Named) -> None:
        self.producer_names.pop(event.producer_id, None)
        self.producer_names[event.producer_id] = event.client_id
        if len(self.producer_names) > limits.PRODUCERS_PER_PARTITION_MAX:
            del self.producer_names[next(iter(self.producer_names))]

    def _clock_changed(self, event: ClockChanged) -> None:
        self.clock_node = event.node
        for group in self.groups.values():
            group.shift_times(event.lease_shift_ms, event.retry_shift_ms)

    def _reset(self, event: Reset) -> None:
        group = self.ensure_group(event.group)
        group.reset(event.offset, None if event.end_offset < 0 else event.end_offset)
        group.taken.update(self.cancelled.all())

    def _group_deleted(self, event: GroupDeleted) -> None:
        group = self.groups.pop(event.group, None)
        if group is not None:
            group.restart_reading()

    def _corrupted(self, event: Corrupted) -> None:
        self.corrupt = _joined([*self.corrupt, OffsetRange(event.start, event.end)])
        for group in self.groups.values():
            group.drop(event.start, event.end)

    def _repaired(self, event: Repaired) -> None:
        self.corrupt = [
            piece
            for r in self.corrupt
            for piece in (
                OffsetRange(r.start, min(r.end, event.start)),
                OffsetRange(max(r.start, event.end), r.end),
            )
            if piece.start < piece.end
        ]

    def _trimmed(self, event: Trimmed) -> None:
        start = self.start_offset = event.start_offset
        self.corrupt = [r for r in self.corrupt if r.end > start]
        self.cancelled.add(0, start)
        self.moved = {o: lane for o, lane in self.moved.items() if o >= start}
        self.rescheduled = {o: due_ms for o, due_ms in self.rescheduled.items() if o >= start}
        self.maturity.trim(start)
        for group in self.groups.values():
            group.taken.add(0, start)
            group.drop(0, start)

    def _truncated(self, event: Truncated) -> None:
        end = event.end_offset
        self.start_offset = min(self.start_offset, end)
        self.corrupt = [
            OffsetRange(r.start, min(r.end, end)) for r in self.corrupt if r.start < end
        ]
        self.cancelled.remove(end, _EVERYTHING)
        self.moved = {o: lane for o, lane in self.moved.items() if o < end}
        self.rescheduled = {o: due_ms for o, due_ms in self.rescheduled.items() if o < end}
        self.maturity.truncate(end)
        self.producers.truncate(end)
        self.outbox.truncate(end)
        for group in self.groups.values():
            group.drop(end, _EVERYTHING)
            group.taken.remove(end, _EVERYTHING)
            if group.taken.has_ceiling:  # new messages at these offsets are past the end
                group.taken.ceiling = min(group.taken.ceiling, end)

    def _snapshot_started(self, event: SnapshotStarted) -> None:
        self.groups.clear()
        self.start_offset = event.start_offset
        self.corrupt = [OffsetRange(*r) for r in event.corrupt]
        self.cancelled = OffsetSet()
        self.moved.clear()
        self.rescheduled.clear()
        self.producers.clear()
        self.producer_names.clear()
        self.maturity = Maturity(event.maturity, event.exempt)
        self.outbox.restore(event.outbox_id, event.outbox_sequences)
        self.clock_node = event.clock_node

    def _snapshot_group(self, event: SnapshotGroup) -> None:
        if event.group not in self.groups:
            self.groups[event.group] = Group(event.group, event.floor)
        restore_group(self.groups[event.group], event)


def _with_failure(part: AttemptRange, failure: Failure) -> tuple[Failure, ...]:
    return (*part.failures, failure)[-limits.FAILURES_REMEMBERED_MAX :]


def _joined(ranges: list[OffsetRange]) -> list[OffsetRange]:
    """Return ranges in order, those that touch or overlap as one."""
    joined: list[OffsetRange] = []
    for each in sorted(ranges):
        if joined and each.start <= joined[-1].end:
            joined[-1] = joined[-1]._replace(end=max(joined[-1].end, each.end))
        else:
            joined.append(each)
    return joined


_TRANSITIONS: dict[type[Event], Callable[[PartitionState, Any], None]] = {
    Acked: PartitionState._acked,
    Nacked: PartitionState._returned,
    Expired: PartitionState._returned,
    Extended: PartitionState._extended,
    Dropped: PartitionState._dropped,
    Skipped: PartitionState._skipped,
    CopyStored: lambda state, event: state.outbox.remove(event.entry),
    Cancelled: lambda state, event: state._cancel(event.ranges),
    Moved: PartitionState._moved,
    Rescheduled: PartitionState._rescheduled,
    Named: PartitionState._named,
    ClockChanged: PartitionState._clock_changed,
    Matured: lambda state, event: state.maturity.mature(event.up_to_ms, event.end_offset),
    Reset: PartitionState._reset,
    GroupDeleted: PartitionState._group_deleted,
    Corrupted: PartitionState._corrupted,
    Repaired: PartitionState._repaired,
    Compacted: lambda _state, _event: None,
    Trimmed: PartitionState._trimmed,
    Truncated: PartitionState._truncated,
    SnapshotStarted: PartitionState._snapshot_started,
    SnapshotMarks: restore_marks,
    SnapshotOutboxEntry: lambda state, event: state.outbox.restore_entry(event),
    SnapshotGroup: PartitionState._snapshot_group,
    SnapshotProducers: restore_producers,
    SnapshotEnded: lambda _state, _event: None,
}
