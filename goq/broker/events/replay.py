"""Reads the events of a partition and rebuilds its state from them.

The event writer writes the whole state as a snapshot at the start of new segments. Every segment
but the first is therefore sufficient for a rebuild. Older segments may be deleted once the messages
that their events concern are deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from goq import limits
from goq.delivery.events.event import (
    SNAPSHOT_PARTS,
    AnyEvent,
    Repaired,
    SnapshotEnded,
    SnapshotStarted,
    Trimmed,
    Truncated,
)
from goq.delivery.events.frame_codec import StoredEvent, decode_event_frame
from goq.delivery.partition_state import PartitionState
from goq.errors import InvalidFrame, StorageFailed
from goq.storage.log.log import Log
from goq.storage.log.reader import LogReader


def read_events(reader: LogReader, start: int, end: int) -> Iterator[StoredEvent | None]:
    """Yield the events from ``start`` up to ``end``. None stands for damaged events.

    Raises ``StorageFailed`` if the log cannot be read any further.
    """
    sequence = start
    while sequence < end:
        reading = reader.read(sequence, end, bytes_max=limits.MIB)
        expected = sequence
        for view in reading.frames:
            if view.header.base_offset != expected:
                yield None
            try:
                yield from decode_event_frame(view)
            except InvalidFrame:
                yield None
            expected = view.header.end_offset
        if reading.next_offset != expected:
            yield None
        if reading.next_offset <= sequence:
            directory = reader.segments[0].path.parent
            raise StorageFailed(f"{directory} cannot be read from event {sequence} on")
        sequence = reading.next_offset


class LostEvents(NamedTuple):
    """Damaged events: their sequences (``end`` is exclusive) and the times of their neighbours.

    A time is in microseconds, or None if no event of a complete snapshot or after it is on that
    side.
    """

    start: int
    end: int
    from_us: int | None
    to_us: int | None


class ReplayResult(NamedTuple):
    """The state that a replay produced.

    ``messages_offset`` is the offset up to which the producer table is complete. ``lost`` lists the
    damaged events since the snapshot that the replay started with. ``last_event_us`` is the time of
    the last event, None without any.
    """

    state: PartitionState
    messages_offset: int
    lost: list[LostEvents]
    last_event_us: int | None


class RebuildResult(NamedTuple):
    """The state that a rebuild produced.

    ``sequence`` is the first event that was read. ``messages_offset`` is the offset up to which the
    producer table is complete. ``repairs`` are events that the log lacks for the state to match the
    stored messages. They have been applied to the state. ``last_event_us`` is the time of the last
    event in the log, None without any.
    """

    state: PartitionState
    sequence: int
    messages_offset: int
    repairs: list[AnyEvent]
    last_event_us: int | None


def rebuild(
    log: Log,
    *,
    start_offset: int,
    end_offset: int,
    is_sound: Callable[[int, int], bool] = lambda _start, _end: False,
) -> RebuildResult:
    """Return the state that results from the events in ``log``.

    ``start_offset`` and ``end_offset`` bound the stored messages. ``is_sound`` tells whether
    messages between two offsets, once unreadable, are readable now. The rebuild starts at the
    newest segment with a complete snapshot, otherwise at the start of the log.
    """
    for segment in reversed(log.segments):
        state = PartitionState(start_offset)
        state.extend_to(end_offset)
        is_first = segment.base_offset == log.start_offset
        replayed = replay(log.reader, segment.base_offset, log.end_offset, state, is_whole=is_first)
        if replayed is not None:
            break
    else:
        raise AssertionError("a log has at least one segment, and the first always rebuilds")
    repairs = _repairs(state, start_offset, end_offset)
    repairs += [Repaired(*r) for r in state.corrupt if r.start >= start_offset and is_sound(*r)]
    for event in repairs:
        state.apply(event, 0, 0)
    messages_offset = min(max(replayed.messages_offset, start_offset), end_offset)
    return RebuildResult(
        state, segment.base_offset, messages_offset, repairs, replayed.last_event_us
    )


def replay(
    reader: LogReader, start: int, end: int, state: PartitionState, *, is_whole: bool
) -> ReplayResult | None:
    """Apply the events from ``start`` up to ``end`` to a state.

    With ``is_whole`` the state is complete up to ``start``. Without it, a complete snapshot has to
    start at ``start``; otherwise the result is None and the state must not be used.
    """
    messages_offset = 0
    snapshot: list[StoredEvent] = []
    losses = _LossTracker(start)
    last_event_us: int | None = None
    for stored in read_events(reader, start, end):
        losses.follow(stored)
        if stored is not None:
            last_event_us = stored.time_us
        if stored is None:
            snapshot = []
        elif isinstance(stored.event, SnapshotStarted):
            snapshot = [stored]
        elif isinstance(stored.event, SNAPSHOT_PARTS):
            if snapshot:  # otherwise its start is damaged
                snapshot.append(stored)
        elif isinstance(stored.event, SnapshotEnded):
            for each in snapshot:
                state.apply(each.event, each.sequence, each.epoch)
                is_whole = True
                if isinstance(each.event, SnapshotStarted):
                    messages_offset = each.event.messages_offset
                    losses.found.clear()  # the snapshot is complete
            snapshot = []
        elif is_whole:
            snapshot = []  # a crash cut it short: later events apply to the state before it
            state.apply(stored.event, stored.sequence, stored.epoch)
        else:
            return None
    if not is_whole:
        return None
    return ReplayResult(state, messages_offset, losses.up_to(end), last_event_us)


class _LossTracker:
    """Collects the damaged events of a replay."""

    def __init__(self, start: int) -> None:
        self.found: list[LostEvents] = []
        self._next = start
        self._time_us: int | None = None
        self._is_missing = False

    def follow(self, stored: StoredEvent | None) -> None:
        """Take the next event, or None for damage."""
        if stored is None:
            self._is_missing = True
            return
        if self._is_missing:
            self._note(stored.sequence, stored.time_us)
        self._next, self._time_us = stored.sequence + 1, stored.time_us

    def up_to(self, end: int) -> list[LostEvents]:
        """Return the damaged events after all events up to ``end`` were read."""
        if self._is_missing:
            self._note(end, None)
        return self.found

    def _note(self, end: int, time_us: int | None) -> None:
        self.found.append(LostEvents(self._next, end, self._time_us, time_us))
        self._is_missing = False


def _repairs(state: PartitionState, start_offset: int, end_offset: int) -> list[AnyEvent]:
    repairs: list[AnyEvent] = []
    if state.known_end() > end_offset:
        repairs.append(Truncated(end_offset))
    if state.start_offset < start_offset:
        repairs.append(Trimmed(start_offset))
    return repairs
