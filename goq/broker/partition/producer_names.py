"""Lookup of producer names in the events of a partition.

A name is an event of the partition, written beside the first messages that came under it, and
repeated in each snapshot while the partition remembers the producer.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from goq import limits
from goq.delivery.events.event import Named, SnapshotProducers
from goq.delivery.events.frame_codec import StoredEvent, decode_event_frame
from goq.errors import InvalidFrame
from goq.storage.log.reader import LogReader


def recorded_name(events: LogReader, producer_id: int, time_us: int) -> str | None:
    """Return the name that a producer had at a time, as far as that time's events are kept.

    Looked for in the segment that was being written then, and in what the next one begins with.
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
    """Yield what a producer was called, with the events that say so."""
    written = msgspec.msgpack.encode(producer_id)
    while start < end:
        reading = events.read(start, end, messages_max=2**62, bytes_max=limits.MIB)
        for view in reading.frames:
            if written not in bytes(view.body):  # far quicker than to decode what is not about it
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
