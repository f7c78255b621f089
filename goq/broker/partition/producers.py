"""The producers of a partition: their positions, and their names from its events.

A name is an event of the partition. It is written with the producer's first messages, and repeated
in each snapshot while the partition remembers the producer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from goq import limits
from goq.delivery.events.event import Named, SnapshotProducers
from goq.delivery.events.frame_codec import StoredEvent, decode_event_frame
from goq.delivery.partition_state import PartitionState
from goq.errors import InvalidFrame
from goq.frame.header import FrameHeader
from goq.storage.log.log import Log
from goq.storage.log.reader import LogReader


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
            or recorded_name(events or self._events.reader, producer_id, header.append_time_us)
            or f"{producer_id:016x}"
        )


def recorded_name(events: LogReader, producer_id: int, time_us: int) -> str | None:
    """Return a producer's name at a time, None if the events of that time are not retained.

    Searches the segment that was active then, and the snapshot at the start of the next one.
    """
    segments = events.segments
    sequence = events.offset_for_time(time_us, segments[-1].end_offset)
    number = sum(segment.base_offset <= sequence for segment in segments[1:])
    before: str | None = None
    for segment in segments[number : number + 2]:
        for stored, name in _names(events, segment.base_offset, segment.end_offset, producer_id):
            if stored.time_us > time_us:
                return before or name
            before = name
        if before is not None:
            return before
    return None


def _names(
    events: LogReader, start: int, end: int, producer_id: int
) -> Iterator[tuple[StoredEvent, str]]:
    """Yield the names of a producer, each with its event."""
    written = msgspec.msgpack.encode(producer_id)
    while start < end:
        reading = events.read(start, end, messages_max=2**62, bytes_max=limits.MIB)
        for view in reading.frames:
            if written not in bytes(view.body):  # far faster than to decode all events
                continue
            try:
                found = decode_event_frame(view)
            except InvalidFrame:
                continue
            for stored in found:
                if isinstance(stored.event, Named):
                    if stored.event.producer_id == producer_id:
                        yield stored, stored.event.client_id
                elif isinstance(stored.event, SnapshotProducers):
                    for known, name in stored.event.names:
                        if known == producer_id:
                            yield stored, name
        if reading.next_offset <= start:
            return
        start = reading.next_offset
