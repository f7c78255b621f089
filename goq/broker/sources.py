"""Where the messages of a partition, and what happened to them, are read for a trace.

The functions block on the disk, but for :func:`sources_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from goq.broker.eventlog import StoredEvent
from goq.broker.eventsearch import Events
from goq.broker.eventspans import events_between
from goq.broker.partition import Partition
from goq.errors import InvalidFrame, TooLarge
from goq.frame.view import FrameView
from goq.storage.reader import LogReader

LIVE = "live"
"""The state of a message that lies in the partition's own log."""


class Source(NamedTuple):
    """Where messages of a partition, and what happened to them, may be read.

    ``state`` is what a message is called that lies there.
    """

    state: str
    messages: LogReader
    events: Events


def sources_of(partition: Partition) -> list[Source]:
    """Return where to look for a partition's messages, the oldest first; on the event loop."""
    spans = partition.spans
    events = Events(partition.events.reader, spans.index, spans.live())
    return [Source(LIVE, partition.messages.reader, events)]


def frame_of(sources: Sequence[Source], offset: int) -> tuple[FrameView | None, Source | None]:
    """Return the frame with a message, and where it lies; no frame where it is damaged."""
    for source in sources:
        segments = source.messages.segments
        if not segments or not segments[0].base_offset <= offset < segments[-1].end_offset:
            continue
        reading = source.messages.read(offset, offset + 1, messages_max=1)
        for view in reading.frames:
            if view.header.base_offset <= offset < view.header.end_offset:
                try:
                    _ = view.payload
                except (InvalidFrame, TooLarge):
                    return None, source
                return view, source
        return None, source
    return None, None


def last_time_us(messages: LogReader, offset: int, append_us: int) -> int:
    """Return the time by which retention judges a message: the latest of its segment."""
    return max(append_us, messages.sealed_time_us(offset) or 0)


def first_event(logs: Sequence[Events]) -> StoredEvent | None:
    """Return the earliest event that is left, None where there is none or it is damaged."""
    for log in logs:
        segments = log.reader.segments
        if segments and segments[-1].end_offset > segments[0].base_offset:
            start = segments[0].base_offset
            found = next(events_between(log.reader, start, start + 1), None)
            return found if isinstance(found, StoredEvent) else None
    return None
