"""A partition's state as events, and back: the beginning of every rebuild.

A large state comes in many events, so that each frame of them stays well within its limit.

A snapshot is of one moment, and to encode 10,000 groups takes longer than the event loop may be
held. So groups are encoded ahead, a few at a time, while events go on. A group that an event has
changed is encoded again, at the latest at the moment of the snapshot. A group with many ranges is
left to that moment, as each event about it would undo its part. But its leases are encoded ahead,
each on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from goq import limits
from goq.delivery.events.affected import group_of
from goq.delivery.events.event import (
    AnyEvent,
    Failure,
    HeldSpan,
    SnapshotEnded,
    SnapshotGroup,
    SnapshotMarks,
    SnapshotProducers,
    SnapshotStarted,
)
from goq.delivery.events.frame_codec import EncodedEvent, encode_weighed, snapshot_frames
from goq.delivery.group.attempt_ranges import AttemptRange
from goq.delivery.group.encoded_leases import LeaseEncoding
from goq.delivery.group.group import Group
from goq.frame.view import FrameView

if TYPE_CHECKING:
    from goq.delivery.partition_state import PartitionState

T = TypeVar("T")
_BITMAPS_MAX = 2_000  # half a KiB each
_FEW_RANGES = 64  # of a group whose state is one event
_MARKS_MAX = 20_000
_NAMES_MAX = 4_000
_MANY_LEASES = 1_000  # of a group whose leases are encoded ahead
_LEASES_PER_GROUP = 4  # take as long to encode as a group
_PASSES_MAX = 3  # over all groups that are encoded ahead, while events change them again and again


class SnapshotLimits(msgspec.Struct, frozen=True):
    """How large the pieces of a snapshot may be, and what an entry of it may cost."""

    ranges_max: int = 5_000
    """Ranges in one event: well within a frame, with names as long as allowed."""
    frame_weight_max: int = 5_000
    """Entries in one frame, about."""
    entry_cost_bytes: int = limits.KIB
    """New messages that each entry of a snapshot has to wait for."""


DEFAULT_SNAPSHOT_LIMITS = SnapshotLimits()


def snapshot_of(
    state: PartitionState,
    messages_offset: int,
    snapshot_limits: SnapshotLimits = DEFAULT_SNAPSHOT_LIMITS,
) -> Iterator[AnyEvent]:
    """Yield events that rebuild the state from nothing; it must not change meanwhile.

    One that is encoded and dropped before the next is made leaves its memory to that.
    ``messages_offset`` says how far into the messages the producers' table reaches.
    """
    yield from _head(state, messages_offset)
    for group in state.groups.values():
        yield from _group_events(group, snapshot_limits.ranges_max)
    yield from _tail(state)


def _head(state: PartitionState, messages_offset: int) -> Iterator[AnyEvent]:
    """Yield the events of a snapshot that come before those of the groups."""
    outbox = state.outbox
    yield SnapshotStarted(
        state.start_offset,
        messages_offset,
        list(state.corrupt),
        list(state.maturity.pairs),
        state.maturity.exempt,
        outbox.producer_id,
        outbox.sequences(),
        state.clock_node,
    )
    yield from _marks(state)
    yield from outbox.snapshot()


def _tail(state: PartitionState) -> Iterator[AnyEvent]:
    """Yield the events of a snapshot that come after those of the groups."""
    yield state.producers.snapshot()
    for batch in _batches(state.producer_names.items(), _NAMES_MAX):
        yield SnapshotProducers([], batch)
    yield SnapshotEnded()


class EncodedSnapshot:
    """A snapshot of a state to come. It is told of each event once that is applied."""

    def __init__(self, state: PartitionState, limits: SnapshotLimits) -> None:
        self._state = state
        self._limits = limits
        self._encoded: dict[str, EncodedEvent] = {}
        self._left = dict.fromkeys(state.groups)
        self._budget = _PASSES_MAX * len(self._left)
        self._leases = [
            LeaseEncoding(group)
            for group in state.groups.values()
            if len(group.leases) > _MANY_LEASES
        ]

    def prepare(self, groups_max: int) -> bool:
        """Encode up to ``groups_max`` groups ahead; return whether more than these are left.

        False as well after several passes over the groups, if events undo them faster. The leases
        of groups with many come first, as many as take as long.
        """
        leases_max = _LEASES_PER_GROUP * groups_max
        if any(leases.encode(leases_max) for leases in self._leases):
            return True
        if self._budget <= 0 or len(self._left) <= groups_max:
            return False
        for name in list(islice(self._left, groups_max)):
            del self._left[name]
            group = self._state.groups.get(name)
            if group is not None and _is_small(group, self._limits.ranges_max):
                (event,) = _group_events(group, self._limits.ranges_max)
                self._encoded[name] = encode_weighed(event)
        self._budget -= groups_max
        return True

    def on_event(self, event: AnyEvent) -> None:
        """Forget what was encoded of the groups that an event has changed."""
        group = group_of(event)
        if group is None:
            self._encoded.clear()
            self._left = dict.fromkeys(self._state.groups)
        elif group:
            self._encoded.pop(group, None)
            self._left[group] = None

    def frames(self, messages_offset: int) -> Iterator[tuple[FrameView, int]]:
        """Yield the frames of the snapshot of this moment, and what they weigh."""
        events = self._events(messages_offset)
        yield from snapshot_frames(events, self._limits.frame_weight_max, messages_offset)

    def _events(self, messages_offset: int) -> Iterator[EncodedEvent]:
        yield from map(encode_weighed, _head(self._state, messages_offset))
        for name, group in self._state.groups.items():
            encoded = self._encoded.get(name)
            if encoded is not None:
                yield encoded
            else:
                yield from map(encode_weighed, _group_events(group, self._limits.ranges_max))
        yield from map(encode_weighed, _tail(self._state))


def restore_group(group: Group, snapshot: SnapshotGroup) -> None:
    """Restore a group from one event."""
    if snapshot.floor > group.taken.floor:
        group.taken.add(0, snapshot.floor)
    group.taken.restore(snapshot.full, snapshot.partial)
    if snapshot.end_offset >= 0:
        group.taken.ceiling = snapshot.end_offset
    group.dead_count += snapshot.dead
    table = snapshot.failures
    group.restore(
        [
            (token, consumer, [_range_of(span, table) for span in spans])
            for token, consumer, spans in snapshot.leases
        ],
        [_range_of(span, table) for span in snapshot.retries],
        dict(snapshot.sessions),
    )


def _marks(state: PartitionState) -> Iterator[AnyEvent]:
    floor, full, partial = state.cancelled.encode()
    if floor or full:
        yield SnapshotMarks(floor, full)
    for batch in _batches(partial, _BITMAPS_MAX):
        yield SnapshotMarks(cancelled_partial=batch)
    for pairs in _batches(state.moved.items(), _MARKS_MAX):
        yield SnapshotMarks(moved=pairs)
    for pairs in _batches(state.rescheduled.items(), _MARKS_MAX):
        yield SnapshotMarks(rescheduled=pairs)


def restore_marks(state: PartitionState, marks: SnapshotMarks) -> None:
    """Restore the marks on single messages from one event."""
    state.cancelled.add(0, marks.cancelled_floor)
    state.cancelled.restore(marks.cancelled_full, marks.cancelled_partial)
    state.moved.update(marks.moved)
    state.rescheduled.update(marks.rescheduled)


def restore_producers(state: PartitionState, snapshot: SnapshotProducers) -> None:
    """Restore producers from one event."""
    state.producers.restore(snapshot)
    state.producer_names.update(snapshot.names)


def _group_events(group: Group, ranges_max: int) -> Iterator[AnyEvent]:
    """Yield the events that rebuild a group: one if it is small."""
    if _is_small(group, ranges_max):
        yield _small_group(group)
    else:
        yield from _large_group(group, ranges_max)


def _is_small(group: Group, ranges_max: int) -> bool:
    """Return whether one event rebuilds a group."""
    few = min(_FEW_RANGES, ranges_max)
    return _range_count(group, few) <= few


def _range_count(group: Group, few: int) -> int:
    """Return the number of ranges that are leased or wait, or more if they are few."""
    messages = group.leased_count + group.retries.message_count
    if messages <= few:
        return messages
    if len(group.leases) > few:  # each has one at least
        return len(group.leases)
    return sum([len(lease.parts) for lease in group.leases.values()]) + len(group.retries)


def _small_group(group: Group) -> AnyEvent:
    """Return a group of few ranges as one event: there may be 10,000 of them."""
    taken, retries = group.taken, group.retries
    floor, full, partial = (taken.floor, [], []) if taken.is_dense else taken.encode()
    table = _FailureTable()
    span = table.span
    leases: list[tuple[int, str, list[HeldSpan]]] = []
    sessions: list[tuple[int, str]] = []
    for lease in group.leases.values():
        token, consumer = lease.token, lease.consumer
        leases += [(token, consumer, [span(part)]) for part in lease.parts]
        if lease.session_id:
            sessions.append((token, lease.session_id))
    return SnapshotGroup(
        group.name,
        floor,
        full,
        partial,
        leases,
        [span(part) for part in retries] if retries.message_count else [],
        table.rows,
        taken.ceiling if taken.has_ceiling else -1,
        group.dead_count,
        sorted(sessions) if sessions else sessions,
    )


def _large_group(group: Group, ranges_max: int) -> Iterator[AnyEvent]:
    floor, full, partial = group.taken.encode()
    end_offset = -1 if group.end_offset is None else group.end_offset
    yield SnapshotGroup(group.name, floor, full, end_offset=end_offset, dead=group.dead_count)
    for batch in _batches(partial, _BITMAPS_MAX):
        yield SnapshotGroup(group.name, floor, partial=batch)
    for some in _batches(group.leases.values(), ranges_max):
        ahead = [lease for lease in some if lease.parts.encoded is not None]
        if ahead:
            raw: list[Any] = [lease.parts.encoded for lease in ahead]  # stands for what it was
            named = [(lease.token, lease.session_id) for lease in ahead if lease.session_id]
            yield SnapshotGroup(group.name, floor, leases=raw, sessions=sorted(named))
    others = (lease for lease in group.leases.values() if lease.parts.encoded is None)
    held = ((lease, part) for lease in others for part in lease.parts)
    for leased in _batches(held, ranges_max):
        table = _FailureTable()
        number = table.number
        leases = [
            (
                lease.token,
                lease.consumer,
                [(start, end, attempt, time_ms, number(failures) if failures else 0)],
            )
            for lease, (start, end, attempt, time_ms, failures) in leased
        ]
        sessions = {lease.token: lease.session_id for lease, _ in leased if lease.session_id}
        yield SnapshotGroup(
            group.name, floor, leases=leases, failures=table.rows, sessions=sorted(sessions.items())
        )
    for waiting in _batches(group.retries, ranges_max):
        table = _FailureTable()
        retries = [table.span(part) for part in waiting]
        yield SnapshotGroup(group.name, floor, retries=retries, failures=table.rows)


class _FailureTable:
    """The failures of ranges, each list written once however many ranges share it."""

    def __init__(self) -> None:
        self.rows: list[tuple[Failure, ...]] = []
        self._numbers: dict[tuple[Failure, ...], int] = {}

    def span(self, part: AttemptRange) -> HeldSpan:
        start, end, attempt, time_ms, failures = part
        return (start, end, attempt, time_ms, self.number(failures) if failures else 0)

    def number(self, failures: tuple[Failure, ...]) -> int:
        number = self._numbers.setdefault(failures, len(self.rows) + 1)
        if number > len(self.rows):
            self.rows.append(failures)
        return number


def _range_of(span: HeldSpan, table: list[tuple[Failure, ...]]) -> AttemptRange:
    start, end, attempt, time_ms, number = span
    failures = tuple(table[number - 1]) if number else ()
    return AttemptRange(start, end, attempt, time_ms, failures)


def _batches(items: Iterable[T], count: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, count)):
        yield batch
