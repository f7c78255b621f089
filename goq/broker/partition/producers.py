"""The producers of a partition: their positions, and their names from its events.

A name is an event of the partition. It is written with the producer's first messages, and repeated
in each snapshot while the partition remembers the producer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec

from goq.delivery.events.event import AnyEvent, Named, SnapshotProducers
from goq.delivery.events.frame_codec import StoredEvent, decode_event_frame, messages_end_of
from goq.delivery.partition_state import PartitionState
from goq.errors import InvalidFrame
from goq.frame.header import FrameHeader
from goq.storage.log.log import Log
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment
from goq.storage.log.time_lookup import find_frames, retry_deleted


class ProducerProgress(NamedTuple):
    """A producer's position; ``offset`` is that of its last message, None if unknown."""

    epoch: int
    next_sequence: int
    offset: int | None


class Producers:
    """The producers of one partition."""

    def __init__(self, state: PartitionState, events: Log) -> None:
        self._state = state
        self._events = events

    def progress(self, producer_id: int) -> ProducerProgress | None:
        """Return a producer's position by its committed messages; None if it is unknown."""
        producers = self._state.producers
        reached = producers.progress(producer_id)
        if reached is None:
            return None
        epoch, next_sequence = reached
        offset = producers.offset_of(producer_id, next_sequence - 1)
        return ProducerProgress(epoch, next_sequence, offset)

    def name(self, header: FrameHeader, events: LogReader | None = None) -> str | None:
        """Return the name of a frame's producer, else its id in hex; None without a producer.

        Searches ``events``, by default the partition's own. May block on the disk; from any thread.
        """
        producer_id = header.producer_id
        if not producer_id:
            return None
        return (
            self._state.producer_names.get(producer_id)
            or recorded_name(events or self._events.reader, header)
            or f"{producer_id:016x}"
        )


def recorded_name(events: LogReader, header: FrameHeader) -> str | None:
    """Return the name of a frame's producer then, None if the events of that time are not retained.

    Searches the segment that was active then, and the snapshot at the start of the next one.
    """
    return retry_deleted([events], lambda: _recorded_name(events, header))


def _recorded_name(events: LogReader, header: FrameHeader) -> str | None:
    segments = events.segments
    number = _segment_number_at(events, header)
    before: str | None = None
    for segment in segments[number : number + 2]:
        for stored, name in _names(events, segment, header.producer_id):
            if stored.messages_end is not None and stored.messages_end > header.end_offset:
                return before or name
            before = name
        if before is not None:
            return before
    return None


def _segment_number_at(events: LogReader, header: FrameHeader) -> int:
    """Return the number of the segment of events that was active when a frame was appended.

    Times are only a hint, because a clock may have been set back: where the messages ended decides.
    """
    segments = events.segments
    sequence = events.offset_for_time(header.append_time_us, segments[-1].end_offset)
    number = sum(segment.base_offset <= sequence for segment in segments[1:])

    def is_before(segment: Segment) -> bool:
        first = segment.read_first_header(events.disk)
        messages_end = None if first is None else messages_end_of(first)
        return messages_end is None or messages_end <= header.base_offset

    while number and not is_before(segments[number]):
        number -= 1
    while number + 1 < len(segments) and is_before(segments[number + 1]):
        number += 1
    return number


def _names(
    events: LogReader, segment: Segment, producer_id: int
) -> Iterator[tuple[StoredEvent, str]]:
    """Yield the names of a producer, each with its event."""
    for frame in find_frames(events, segment, msgspec.msgpack.encode(producer_id)):
        with suppress(InvalidFrame):
            for stored in decode_event_frame(frame.view):
                for name in _names_in(stored.event, producer_id):
                    yield stored, name


def _names_in(event: AnyEvent, producer_id: int) -> Iterator[str]:
    if isinstance(event, Named):
        if event.producer_id == producer_id:
            yield event.client_id
    elif isinstance(event, SnapshotProducers):
        yield from (name for known, name in event.names if known == producer_id)
