"""A partition's events as its log has them: reading them, and rebuilding a state from them.

From time to time the whole state is written as a snapshot at the head of a new segment, so that
every segment but the first says all there is to know, and older ones may go when the messages that
they speak of have gone.
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
    """Yield the events from ``start`` up to ``end``; None stands for those that are damaged."""
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
    """Events that are damaged: their numbers, the end excluded, and the times of those around.

    A time is in microseconds, None where no event of a whole snapshot or after it is on that side.
    """

    start: int
    end: int
    from_us: int | None
    to_us: int | None


class Replayed(NamedTuple):
    """A state that events led to.

    ``messages_offset`` is how far into the messages its producers reach, ``lost`` what is missing
    of the events since the snapshot that it began with.
    """

    state: PartitionState
    messages_offset: int
    lost: list[LostEvents]


class Rebuilt(NamedTuple):
    """A state rebuilt from its events.

    ``sequence`` is the first event that it took, ``messages_offset`` how far into the messages
    its producers reach. ``repairs`` are the events that the log lacks for the state to agree with
    the messages there are; they have been applied.
    """

    state: PartitionState
    sequence: int
    messages_offset: int
    repairs: list[AnyEvent]


def rebuild(
    log: Log,
    *,
    start_offset: int,
    end_offset: int,
    is_sound: Callable[[int, int], bool] = lambda _start, _end: False,
) -> Rebuilt:
    """Return the state that the events in ``log`` lead to.

    ``start_offset`` and ``end_offset`` bound the messages there are; ``is_sound`` says whether
    those between two offsets, which could not be read once, can be. Begins at the newest segment
    that holds a whole snapshot; where none does, at the beginning.
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
    return Rebuilt(state, segment.base_offset, messages_offset, repairs)


def replay(
    reader: LogReader, start: int, end: int, state: PartitionState, *, is_whole: bool
) -> Replayed | None:
    """Apply the events from ``start`` up to ``end`` to a state.

    With ``is_whole`` the state is what there was before ``start``. Without, ``start`` has to begin
    a whole snapshot: if it does not, the answer is None, and the state is not to be used.
    """
    messages_offset = 0
    snapshot: list[StoredEvent] = []
    losses = _Losses(start)
    for stored in read_events(reader, start, end):
        losses.follow(stored)
        if stored is None:
            snapshot = []
        elif isinstance(stored.event, SnapshotStarted):
            snapshot = [stored]
        elif isinstance(stored.event, SNAPSHOT_PARTS):
            if snapshot:  # else left over from one that is damaged
                snapshot.append(stored)
        elif isinstance(stored.event, SnapshotEnded):
            for each in snapshot:
                state.apply(each.event, each.sequence, each.epoch)
                is_whole = True
                if isinstance(each.event, SnapshotStarted):
                    messages_offset = each.event.messages_offset
                    losses.found.clear()  # it says all there is to know
            snapshot = []
        elif is_whole:
            snapshot = []  # a crash cut it short: what follows happened to the state before it
            state.apply(stored.event, stored.sequence, stored.epoch)
        else:
            return None
    return Replayed(state, messages_offset, losses.up_to(end)) if is_whole else None


class _Losses:
    """Which events are missing among those that are read."""

    def __init__(self, start: int) -> None:
        self.found: list[LostEvents] = []
        self._next = start
        self._time_us: int | None = None
        self._is_missing = False

    def follow(self, stored: StoredEvent | None) -> None:
        """Take the next event, or note that there is damage."""
        if stored is None:
            self._is_missing = True
            return
        if self._is_missing:
            self._note(stored.sequence, stored.time_us)
        self._next, self._time_us = stored.sequence + 1, stored.time_us

    def up_to(self, end: int) -> list[LostEvents]:
        """Return what is missing once all up to ``end`` was read."""
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
