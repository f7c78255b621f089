"""A group's state at a past time, rebuilt from a snapshot and the events after it.

The logs decide, in their order. The state at a time is the state after the last event, by sequence,
whose time is not later. The messages are those up to the last one, by offset, that was appended by
then. If the clock was set back, a time occurred twice; the result is the state at the second.

Two transitions have no event: a delayed message becomes ready when it is due, and so does a retry.
Both count at their due time, even if no node ran then.

The functions read the two logs from any thread. They never access the state of an open partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from goq.broker.events.replay import ReplayResult, replay
from goq.broker.partition.delayed_reader import DelayedReader
from goq.broker.partition.group_view import GroupCounts, GroupView
from goq.delivery.events.event import Matured
from goq.delivery.events.frame_codec import begins_snapshot
from goq.delivery.partition_state import PartitionState
from goq.errors import CorruptData, HistoryNotRetained
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment
from goq.storage.log.time_lookup import end_offset_at, read_backward, retry_deleted
from goq.units import format_time_us

_WINDOW = 1 << 20  # offsets scanned at a time


class IncompleteHistory(NamedTuple):
    """A gap in the history: its reason, and the known times around it in µs."""

    reason: str
    from_us: int | None = None
    to_us: int | None = None


class GroupAtTime(NamedTuple):
    """A group's state in one partition at a time.

    ``is_known`` is whether the group existed in the partition; for a group that did not, nothing is
    done. ``held`` is the number of leased messages by consumer. ``oldest_us`` is the append time of
    the first ready message, None without one or if unknown. ``end`` is the end offset of the group,
    None without one.
    """

    is_known: bool
    counts: GroupCounts
    cursor: int
    end: int | None
    held: dict[str, int]
    oldest_us: int | None
    incomplete: list[IncompleteHistory]


def earliest_us(messages: LogReader, events: LogReader) -> int:
    """Return the time in µs from which the history of a partition is retained; 0 for all of it.

    The append times of messages that retention deleted are unknown.
    """
    return retry_deleted([messages, events], lambda: max(_first_us(messages), _first_us(events)))


def group_at(messages: LogReader, events: LogReader, name: str, time_us: int) -> GroupAtTime:
    """Return a group's state at a time; blocks on the disk.

    Raises ``HistoryNotRetained`` for a time before the retained history, and the errors of log
    reads: ``OSError``, ``CorruptData``.
    """
    return retry_deleted([messages, events], lambda: _group_at(messages, events, name, time_us))


def _group_at(messages: LogReader, events: LogReader, name: str, time_us: int) -> GroupAtTime:
    if time_us < earliest_us(messages, events):
        raise not_kept(earliest_us(messages, events))
    state, incomplete = _state_at(messages, events, time_us)
    group = GroupView(state, name)
    start = messages.segments[0].base_offset
    gone = sum(hole.end - hole.start for hole in group.untaken(state.start_offset, start))
    if gone:
        incomplete.append(
            IncompleteHistory(
                f"{gone} messages that were not done then have been deleted since: which of them"
                " waited for their time is not known"
            )
        )
    if _is_compacted(messages, state, group):
        incomplete.append(
            IncompleteHistory(
                "messages that were not done then have been compacted: which of those that have"
                " gone waited for their time is not known"
            )
        )
    waiting = DelayedReader(messages, state)
    now_ms = time_us // 1000
    counts = group.counts(_scheduled(waiting, group), now_ms)
    oldest_us = None
    if counts.ready:
        first = _first_ready(state, group, waiting, max(start, state.start_offset), now_ms)
        oldest_us = _time_of(messages, first, incomplete)
    return GroupAtTime(
        group.is_known,
        counts,
        group.cursor,
        group.end_offset,
        group.leased_by_consumer(),
        oldest_us,
        incomplete,
    )


def _scheduled(waiting: DelayedReader, group: GroupView) -> int:
    """Return the number of scheduled messages, for a group with an end only those before it."""
    if group.end_offset is None:
        return waiting.count()
    runs = waiting.runs(0, group.end_offset)
    return sum(hole.end - hole.start for run in runs for hole in group.untaken(*run))


def _is_compacted(messages: LogReader, state: PartitionState, group: GroupView) -> bool:
    """Whether any segment with messages that the group had not done was ever compacted."""
    return any(
        any(True for _ in group.untaken(segment.base_offset, end))
        for segment in messages.segments
        if segment.generation and (end := min(segment.end_offset, state.end_offset))
    )


def not_kept(earliest: int) -> HistoryNotRetained:
    """Return the error with the earliest time that can be asked for."""
    return HistoryNotRetained(
        f"what was before {format_time_us(earliest)} is not kept any more; ask for that time or a"
        " later one",
        field="as_of",
    )


def _state_at(
    messages: LogReader, events: LogReader, time_us: int
) -> tuple[PartitionState, list[IncompleteHistory]]:
    end = end_offset_at(events, time_us)
    replayed = replayed_to(events, end)
    state = replayed.state
    messages_end = end_offset_at(messages, time_us)
    # Events may concern messages with a later append time, if the clock was set back since, or
    # messages that a power cut lost since.
    state.extend_to(max(messages_end, state.known_end()))
    state.apply(Matured(time_us // 1000, state.end_offset), end, 0)
    incomplete = [
        IncompleteHistory(f"the events {lost.start} to {lost.end - 1} are damaged", *lost[2:])
        for lost in replayed.lost
    ]
    sound = _sound_before(messages, messages_end)
    if sound < messages_end:
        incomplete.append(
            IncompleteHistory(
                f"the messages {sound} to {messages_end - 1} are damaged: whether they were there"
                " by then is not known"
            )
        )
    for log, reader, reached in (("event", events, end), ("message", messages, messages_end)):
        bad = _damaged_after(reader, reached)
        if bad > reached:
            incomplete.append(
                IncompleteHistory(
                    f"the {log}s {reached} to {bad - 1} are damaged: whether they were there by"
                    " then is not known"
                )
            )
    return state, incomplete


def replayed_to(events: LogReader, end: int) -> ReplayResult:
    """Return the state after the events before ``end``, from the last complete snapshot on."""
    for start in _snapshots(events, end):
        replayed = replay(events, start, end, PartitionState(), is_whole=False)
        if replayed is not None:
            return replayed
    start = events.segments[0].base_offset
    replayed = replay(events, start, end, PartitionState(), is_whole=not start)
    if replayed is None:
        raise not_kept(_first_us(events))
    return replayed


def _snapshots(events: LogReader, end: int) -> Iterator[int]:
    """Yield the sequences before ``end`` at which a snapshot may begin, the last first."""
    for place in read_backward(events, end, begins_snapshot):
        yield place.view.header.base_offset


def _first_us(reader: LogReader) -> int:
    """Return the time at which a trimmed log begins; 0 for an untrimmed log."""
    first: Segment = reader.segments[0]
    if not first.base_offset:
        return 0
    first_us = first.read_first_time(reader.disk)
    return reader.max_time_us_at_end(first) if first_us is None else first_us


def _sound_before(reader: LogReader, offset: int) -> int:
    """Return the end offset of the last sound frame before ``offset``."""
    place = next(read_backward(reader, offset), None)
    return reader.segments[0].base_offset if place is None else place.view.header.end_offset


def _damaged_after(reader: LogReader, offset: int) -> int:
    """Return the end of the damage in a log at ``offset``; ``offset`` itself without damage."""
    end = reader.segments[-1].end_offset
    if offset >= end:
        return offset
    reading = reader.read(offset, end, messages_max=1)
    sound = reading.frames[0].header.base_offset if reading.frames else reading.next_offset
    return max(offset, sound)


def _first_ready(
    state: PartitionState, group: GroupView, waiting: DelayedReader, start: int, now_ms: int
) -> int | None:
    """Return the first offset from ``start`` on that is ready."""
    due = group.first_due_retry(now_ms)
    at = max(start, group.cursor)
    while at < state.end_offset and (due is None or due >= at):
        stop = min(at + _WINDOW, state.end_offset)
        fresh = next(group.fresh_runs(waiting.runs(at, stop), at, stop), None)
        if fresh is not None:
            return fresh[0] if due is None else min(fresh[0], due)
        at = stop
    return due


def _time_of(
    messages: LogReader, offset: int | None, incomplete: list[IncompleteHistory]
) -> int | None:
    """Return a message's append time; if it cannot be read, add that to ``incomplete``."""
    if offset is None or offset < messages.segments[0].base_offset:
        return None
    try:
        return messages.append_time_us(offset)
    except CorruptData:
        incomplete.append(
            IncompleteHistory(
                "the message that had waited longest is damaged: since when is not known"
            )
        )
        return None
