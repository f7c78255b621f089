"""A partition's events: writing them in the order they were decided, and rebuilding from them.

An events frame's body is the length of what follows (``u64``), the events as MessagePack, and
zeros up to a multiple of 8. From time to time the whole state is written as a snapshot at the
head of a new segment, so that every segment but the first says all there is to know, and older
ones may go when the messages that they speak of have gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from goq import limits
from goq.delivery.events import (
    SNAPSHOT_PARTS,
    AnyEvent,
    SnapshotEnded,
    SnapshotStarted,
    Trimmed,
    Truncated,
    decode_events,
    encode_events,
)
from goq.delivery.partition import PartitionState
from goq.delivery.snapshot import weight_of
from goq.errors import InvalidFrame, LogFailed
from goq.frame.encode import seal
from goq.frame.header import Attribute, padding_bytes
from goq.frame.view import FrameView
from goq.storage.log import Log

_LENGTH_BYTES = 8
_SNAPSHOT_FRAME_WEIGHT = 5_000


class StoredEvent(NamedTuple):
    """An event with what its frame says about it."""

    sequence: int
    epoch: int
    time_us: int
    event: AnyEvent


def encode_event_frame(events: Sequence[AnyEvent]) -> FrameView:
    """Return a frame of events, ready to be appended."""
    data = encode_events(events)
    parts = [len(data).to_bytes(_LENGTH_BYTES, "little"), data, bytes(padding_bytes(len(data)))]
    return FrameView.parse(seal(parts, count=len(events), attributes=Attribute.EVENTS))


def snapshot_frames(events: Sequence[AnyEvent]) -> Iterator[FrameView]:
    """Return the frames of a snapshot, each well within the limits of one."""
    some: list[AnyEvent] = []
    weight = 0
    for event in events:
        some.append(event)
        weight += weight_of(event)
        if weight >= _SNAPSHOT_FRAME_WEIGHT:
            yield encode_event_frame(some)
            some, weight = [], 0
    if some:
        yield encode_event_frame(some)


def decode_event_frame(view: FrameView) -> list[StoredEvent]:
    """Return the events of a frame; raises ``InvalidFrame`` for any other frame."""
    header = view.header
    size = int.from_bytes(view.body[:_LENGTH_BYTES], "little")
    try:
        events = decode_events(view.body[_LENGTH_BYTES : _LENGTH_BYTES + size])
    except msgspec.DecodeError as error:
        raise InvalidFrame(f"the frame does not hold events: {error}") from None
    if len(events) != header.message_count or not header.attributes & Attribute.EVENTS:
        raise InvalidFrame("the frame does not hold the events that it counts")
    return [
        StoredEvent(sequence, header.leader_epoch, header.append_time_us, event)
        for sequence, event in enumerate(events, header.base_offset)
    ]


def read_events(log: Log, sequence: int) -> Iterator[StoredEvent | None]:
    """Yield the events from ``sequence`` on; None stands for those that are damaged."""
    while sequence < log.end_offset:
        reading = log.reader.read(sequence, log.end_offset, bytes_max=limits.MIB)
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
            raise LogFailed(f"{log.directory} cannot be read from event {sequence} on")
        sequence = reading.next_offset


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


def rebuild(log: Log, *, start_offset: int, end_offset: int) -> Rebuilt:
    """Return the state that the events in ``log`` lead to.

    ``start_offset`` and ``end_offset`` bound the messages there are. Begins at the newest segment
    that holds a whole snapshot; where none does, at the beginning.
    """
    for segment in reversed(log.segments):
        state = PartitionState(start_offset)
        state.extend_to(end_offset)
        messages_offset = _replay(log, segment.base_offset, state)
        if messages_offset is not None:
            break
    else:
        raise AssertionError("a log has at least one segment, and the first always rebuilds")
    repairs = _repairs(state, start_offset, end_offset)
    for event in repairs:
        state.apply(event, 0, 0)
    messages_offset = min(max(messages_offset, start_offset), end_offset)
    return Rebuilt(state, segment.base_offset, messages_offset, repairs)


def _replay(log: Log, sequence: int, state: PartitionState) -> int | None:
    """Apply the events from ``sequence`` on; return how far into the messages producers reach.

    None if ``sequence`` is neither the head of a whole snapshot nor the first of the log: the
    state is then not to be used.
    """
    messages_offset = 0
    complete = sequence == log.start_offset
    snapshot: list[StoredEvent] = []
    for stored in read_events(log, sequence):
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
                complete = True
                if isinstance(each.event, SnapshotStarted):
                    messages_offset = each.event.messages_offset
            snapshot = []
        elif complete:
            snapshot = []  # a crash cut it short: what follows happened to the state before it
            state.apply(stored.event, stored.sequence, stored.epoch)
        else:
            return None
    return messages_offset if complete else None


def _repairs(state: PartitionState, start_offset: int, end_offset: int) -> list[AnyEvent]:
    repairs: list[AnyEvent] = []
    if state.reach() > end_offset:
        repairs.append(Truncated(end_offset))
    if state.start_offset < start_offset:
        repairs.append(Trimmed(start_offset))
    return repairs
