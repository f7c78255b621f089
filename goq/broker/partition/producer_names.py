"""What producers call themselves: recorded when it is new to a partition, and found again later.

A name is an event of the partition, written beside the first messages that came under it. Nobody
waits for it: a crash in between loses the name, and it is recorded again with what comes next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from goq import limits
from goq.broker.log.group_commit import Appended
from goq.delivery.events.event import Named, SnapshotProducers
from goq.delivery.events.frame_codec import StoredEvent, decode_event_frame
from goq.errors import GoqError, InvalidFrame
from goq.frame.header import FrameHeader
from goq.storage.log.reader import LogReader

if TYPE_CHECKING:
    from goq.broker.partition.partition import Partition


def name_when_stored(
    partition: Partition, done: asyncio.Future[Appended], producer_id: int, client_id: str
) -> None:
    """Record a producer's name once its messages are stored, unless it is known already."""
    if producer_id and partition.state.names.get(producer_id) != client_id:
        done.add_done_callback(partial(_name, partition, producer_id, client_id))


def _name(
    partition: Partition, producer_id: int, client_id: str, done: asyncio.Future[Appended]
) -> None:
    if done.cancelled() or done.exception() is not None:
        return  # nothing was stored under the name
    if partition.state.names.get(producer_id) == client_id:
        return  # others that were stored at the same time told it
    try:
        partition.record([Named(producer_id, client_id)])
    except GoqError:
        pass  # no event can be taken now: whatever is published next tells it again


def producer_name(
    partition: Partition, header: FrameHeader, events: LogReader | None = None
) -> str | None:
    """Return who published a frame: a name, else the producer's id in hex; None for nobody.

    Looks in ``events``, the partition's own if not given. May read from the disk; from any thread.
    """
    if not header.producer_id:
        return None
    return (
        partition.state.names.get(header.producer_id)
        or recorded_name(
            events or partition.events.reader, header.producer_id, header.append_time_us
        )
        or f"{header.producer_id:016x}"
    )


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
