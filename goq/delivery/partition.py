"""A partition's delivery state, and the decisions on it.

``decide``-methods return events and change nothing; :meth:`PartitionState.apply` changes the
state and is the only thing that does, while running and while recovering alike. Times are
arguments, in wall-clock milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from goq.delivery.events import (
    Acked,
    AnyEvent,
    Corrupted,
    Event,
    Expired,
    Extended,
    GroupDeleted,
    Leased,
    Nacked,
    Range,
    Reset,
    SnapshotEnded,
    SnapshotGroup,
    SnapshotProducers,
    SnapshotStarted,
    Span,
    Trimmed,
    Truncated,
    token_of,
)
from goq.delivery.group import Group
from goq.delivery.parts import Part, gaps
from goq.delivery.producers import ProducerTable
from goq.model import OffsetRange, Receipt


class Settled(NamedTuple):
    """What a settling call comes to: events, messages settled, and the receipts that are void."""

    events: list[AnyEvent]
    done: int
    lost: list[Receipt]


class PartitionState:
    """Groups and their progress over the offsets ``start_offset`` up to ``end_offset``."""

    def __init__(self, start_offset: int = 0) -> None:
        self.start_offset = start_offset
        self.end_offset = start_offset
        self.groups: dict[str, Group] = {}
        self.corrupt: list[OffsetRange] = []
        self.producers = ProducerTable()

    def group(self, name: str) -> Group:
        """Return a group; one that nothing has happened to stands at the start of the log."""
        return self.groups.get(name) or Group(name, self.start_offset)

    def extend_to(self, end_offset: int) -> None:
        """Make messages available that have become durable."""
        self.end_offset = end_offset

    # Decisions

    def candidates(self, group_name: str, now_ms: int, messages_max: int) -> list[Span]:
        """Return what the group should get next: due retries, then fresh messages in order."""
        group = self.group(group_name)
        spans: list[Span] = []
        for part in group.retries.due(now_ms, messages_max):
            spans.append((part.start, part.end, part.attempt + 1))
            messages_max -= part.end - part.start
        for start, end in self._readable(max(group.cursor, self.start_offset)):
            if messages_max <= 0:
                break
            end = min(end, start + messages_max)
            spans.append((start, end, 1))
            messages_max -= end - start
        return spans

    def has_ready(self, group_name: str, now_ms: int) -> bool:
        """Whether a receive would give the group anything now."""
        return bool(self.candidates(group_name, now_ms, 1))

    def acknowledge(self, group_name: str, receipts: list[Receipt]) -> Settled:
        """Decide which messages are done."""
        return self._settle(
            group_name,
            receipts,
            lambda token, parts: Acked(group_name, token, [(p.start, p.end) for p in parts]),
        )

    def give_back(
        self, group_name: str, receipts: list[Receipt], due_ms: int, reason: str
    ) -> Settled:
        """Decide which messages wait for another attempt."""
        return self._settle(
            group_name,
            receipts,
            lambda token, parts: Nacked(
                group_name, token, [(p.start, p.end, p.attempt) for p in parts], due_ms, reason
            ),
        )

    def extend_leases(self, group_name: str, receipts: list[Receipt], deadline_ms: int) -> Settled:
        """Decide which leases get a new deadline."""
        return self._settle(
            group_name,
            receipts,
            lambda token, parts: Extended(
                group_name, token, [(p.start, p.end) for p in parts], deadline_ms
            ),
        )

    def _settle(
        self,
        group_name: str,
        receipts: list[Receipt],
        make: Callable[[int, list[Part]], AnyEvent],
    ) -> Settled:
        leases = self.group(group_name).leases
        by_token: dict[int, dict[int, Part]] = {}
        lost: list[Receipt] = []
        for receipt in receipts:
            lease = leases.get(receipt.token)
            parts = lease.parts.within(receipt.start, receipt.end) if lease else []
            chosen = by_token.setdefault(receipt.token, {})
            reached = receipt.start
            for part in parts:
                if part.start > reached:
                    lost.append(receipt._replace(start=reached, end=part.start))
                reached = part.end
                known = chosen.get(part.start)
                if known is None or known.end < part.end:
                    chosen[part.start] = part
            if reached < receipt.end:
                lost.append(receipt._replace(start=reached))
        events, done = [], 0
        for token, chosen in by_token.items():
            if merged := _merged(chosen):
                events.append(make(token, merged))
                done += sum(part.end - part.start for part in merged)
        return Settled(events, done, lost)

    def expire(self, now_ms: int) -> Iterator[Expired]:
        """Yield the expiry of every lease that is due; each is applied before the next is taken."""
        for group in list(self.groups.values()):
            for token, spans in group.expired(now_ms):
                yield Expired(group.name, token, spans, now_ms)

    def ripen(self, now_ms: int) -> bool:
        """Return whether retries of any group have become due since this was asked last."""
        return sum(group.retries.ripen(now_ms) for group in self.groups.values()) > 0

    def next_timer_ms(self, group_name: str | None = None) -> int | None:
        """Return when to ask :meth:`expire` and :meth:`ripen` next, None if not before a change.

        With a name, what that one group needs.
        """
        if group_name is not None:
            group = self.groups.get(group_name)
            return group.next_timer_ms() if group else None
        times = [group.next_timer_ms() for group in self.groups.values()]
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    # Transitions

    def apply(self, event: Event, sequence: int, epoch: int) -> None:
        """Change the state as ``event`` says; ``sequence`` is its offset in the events log."""
        if isinstance(event, Leased):
            self._leased(event, token_of(epoch, sequence))
        else:
            _TRANSITIONS[type(event)](self, event)

    def _grown(self, name: str) -> Group:
        if name not in self.groups:
            self.groups[name] = Group(name, self.start_offset)
        return self.groups[name]

    def _leased(self, event: Leased, token: int) -> None:
        group = self._grown(event.group)
        cursor = group.cursor
        for start, end, _ in event.spans:
            if start > cursor:
                self._let_wait(group, cursor, start)
            elif start < cursor:
                self._check_waiting(group, start, min(end, cursor), cursor)
            cursor = max(cursor, end)
        group.lease(token, event.consumer, event.deadline_ms, event.spans)

    def _acked(self, event: Acked) -> None:
        group = self._holder(event.group, event.token, [(s, e, 0) for s, e in event.ranges])
        group.finish(event.token, event.ranges)

    def _given_back(self, event: Nacked | Expired) -> None:
        group = self._holder(event.group, event.token, event.spans)
        group.give_back(event.token, event.spans, event.due_ms)

    def _extended(self, event: Extended) -> None:
        group = self._holder(event.group, event.token, [(s, e, 0) for s, e in event.ranges])
        group.extend(event.token, event.ranges, event.deadline_ms)

    def _holder(self, name: str, token: int, spans: list[Span]) -> Group:
        """Return the group, holding the lease even if the event that gave it was damaged."""
        group = self._grown(name)
        lease = group.leases.get(token)
        missing: list[Span] = []
        for start, end, attempt in spans:
            held = lease.parts.within(start, end) if lease else []
            missing += [
                (gap_start, gap_end, attempt) for gap_start, gap_end in gaps(start, end, held)
            ]
        if missing:
            self._leased(Leased(name, "", 0, missing), token)
        return group

    def _check_waiting(self, group: Group, start: int, end: int, cursor: int) -> None:
        """Make up for a damaged event if what is leased again does not wait for a retry.

        If it is in another lease, that one ended. If it is done, the group was set back, and all
        from there on is to be delivered again.
        """
        missing = end - start - group.waiting_count(start, end)
        if missing and missing > group.release(start, end):
            self._let_wait(group, start, cursor)

    def _let_wait(self, group: Group, start: int, end: int) -> None:
        """Put back what lies between the cursor and a lease beyond it, or was skipped otherwise.

        Only damage leaves such a gap: corrupt messages, which stay held back, or a damaged event
        that would have moved the cursor; delivering its messages again is safe, skipping is not.
        """
        for readable_start, readable_end in self._readable(start):
            if readable_start < end:
                group.let_wait(readable_start, min(readable_end, end))

    def _reset(self, event: Reset) -> None:
        self._grown(event.group).reset(event.offset)

    def _group_deleted(self, event: GroupDeleted) -> None:
        self.groups.pop(event.group, None)

    def _corrupted(self, event: Corrupted) -> None:
        self.corrupt = _joined([*self.corrupt, OffsetRange(event.start, event.end)])
        for group in self.groups.values():
            group.forget(event.start, event.end)

    def _trimmed(self, event: Trimmed) -> None:
        self.start_offset = event.start_offset
        self.corrupt = [r for r in self.corrupt if r.end > event.start_offset]
        for group in self.groups.values():
            group.cursor = max(group.cursor, event.start_offset)
            group.forget(0, event.start_offset)

    def _truncated(self, event: Truncated) -> None:
        end = event.end_offset
        self.start_offset = min(self.start_offset, end)
        self.corrupt = [
            OffsetRange(r.start, min(r.end, end)) for r in self.corrupt if r.start < end
        ]
        self.producers.truncate(end)
        for group in self.groups.values():
            group.forget(end, max(end, group.cursor))
            group.cursor = min(group.cursor, end)

    def _snapshot_started(self, event: SnapshotStarted) -> None:
        self.groups.clear()
        self.start_offset = event.start_offset
        self.corrupt = [OffsetRange(*r) for r in event.corrupt]

    def _snapshot_group(self, event: SnapshotGroup) -> None:
        group = self._grown(event.group)
        group.cursor = event.cursor
        for token, consumer, spans in event.leases:
            group.add_lease(token, consumer, spans)
        for span in event.retries:
            group.retries.add(Part(*span))

    def reach(self) -> int:
        """Return the offset that everything known here lies before."""
        ends = [group.cursor for group in self.groups.values()] + [r.end for r in self.corrupt]
        return max(self.start_offset, self.producers.reach(), *ends)

    def snapshot(self, messages_offset: int) -> list[AnyEvent]:
        """Return events that rebuild this state from nothing.

        ``messages_offset`` says how far into the messages the producers' table reaches.
        """
        corrupt: list[Range] = list(self.corrupt)
        events: list[AnyEvent] = [SnapshotStarted(self.start_offset, messages_offset, corrupt)]
        for group in self.groups.values():
            events.extend(group.snapshot())
        events += (self.producers.snapshot(), SnapshotEnded())
        return events

    def _readable(self, cursor: int) -> Iterator[OffsetRange]:
        """Yield the ranges from ``cursor`` to the end that are not held back as corrupt."""
        for start, end in self.corrupt:
            if cursor < min(start, self.end_offset):
                yield OffsetRange(cursor, min(start, self.end_offset))
            cursor = max(cursor, end)
        if cursor < self.end_offset:
            yield OffsetRange(cursor, self.end_offset)


def _joined(ranges: list[OffsetRange]) -> list[OffsetRange]:
    """Return ranges in order, those that touch or overlap as one."""
    joined: list[OffsetRange] = []
    for each in sorted(ranges):
        if joined and each.start <= joined[-1].end:
            joined[-1] = joined[-1]._replace(end=max(joined[-1].end, each.end))
        else:
            joined.append(each)
    return joined


def _merged(parts: dict[int, Part]) -> list[Part]:
    """Return parts in order, neighbours of one attempt joined and overlaps counted once."""
    merged: list[Part] = []
    for part in sorted(parts.values()):
        last = merged[-1] if merged else None
        if last and part.start <= last.end and part.attempt == last.attempt:
            merged[-1] = last._replace(end=max(last.end, part.end))
        elif last and part.start < last.end:
            merged.append(part._replace(start=last.end))
        else:
            merged.append(part)
    return merged


_TRANSITIONS: dict[type[Event], Callable[[PartitionState, Any], None]] = {
    Acked: PartitionState._acked,
    Nacked: PartitionState._given_back,
    Expired: PartitionState._given_back,
    Extended: PartitionState._extended,
    Reset: PartitionState._reset,
    GroupDeleted: PartitionState._group_deleted,
    Corrupted: PartitionState._corrupted,
    Trimmed: PartitionState._trimmed,
    Truncated: PartitionState._truncated,
    SnapshotStarted: PartitionState._snapshot_started,
    SnapshotGroup: PartitionState._snapshot_group,
    SnapshotProducers: lambda state, event: state.producers.restore(event),
    SnapshotEnded: lambda _state, _event: None,
}
