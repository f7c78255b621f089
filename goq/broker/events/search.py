"""Search for all events about one message, by the index. Functions block on the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from goq.broker.events.index import EventIndex, LiveBlocksBySegment
from goq.broker.events.index_blocks import Interval, UnreadableEvents, events_between
from goq.delivery.events.affected import affects
from goq.delivery.events.event import AnyEvent, CopyStored, Matured, Rescheduled, Trimmed, Truncated
from goq.delivery.events.frame_codec import StoredEvent, messages_end_of
from goq.delivery.trace.steps import PublishRecord, TraceGap
from goq.delivery.trace.timeline import DAMAGED, DELETED, Timeline
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment


class IndexedEventLog(NamedTuple):
    """An event log and its index. ``live_blocks`` covers the unsealed segments."""

    reader: LogReader
    event_index: EventIndex
    live_blocks: LiveBlocksBySegment


class EventGap(NamedTuple):
    """Events that cannot be read, the times of their neighbours, and the reason.

    ``messages_end`` is the end offset of the messages at the event after them, None if unknown.
    """

    sequence: int
    from_us: int | None
    to_us: int | None
    messages_end: int | None = None
    reason: str = DAMAGED


def timeline_of(
    logs: Sequence[IndexedEventLog],
    offset: int,
    published: PublishRecord | None,
    *,
    is_trimmed: bool = False,
    archived_us: int | None = None,
) -> Timeline:
    """Return the timeline of a message from event logs, each of which continues the previous one.

    ``published`` is the publish record from the stored message, or None if it cannot be read. With
    ``is_trimmed`` the message is not in the live log, and the time of its deletion is looked up.
    ``archived_us`` is when it was archived.
    """
    timeline = Timeline(offset, published, archived_us)
    for found in find_events(logs, offset, published, is_trimmed=is_trimmed):
        if isinstance(found, EventGap):
            gap = TraceGap(found.from_us, found.to_us, found.reason)
            timeline.add_gap(gap, found.messages_end)
        else:
            timeline.add(found)
    timeline.finish()
    return timeline


def find_events(
    logs: Sequence[IndexedEventLog],
    offset: int,
    published: PublishRecord | None,
    *,
    is_trimmed: bool = False,
) -> list[StoredEvent | EventGap]:
    """Return the events about a message, in order, and the gaps where events may be missing."""
    found: dict[int, StoredEvent | EventGap] = {}
    for log in logs:
        found |= {each.sequence: each for each in _gaps_between_segments(log.reader)}
        for each in _read(log, log.event_index.message_ranges(offset, log.live_blocks)):
            if isinstance(each, EventGap) or _may_be_about(each.event, offset):
                found[each.sequence] = each
    if is_trimmed:
        trims = _is_trim_of(offset, _reused_offset_sequence(found, offset))
        _find_first(
            logs, found, lambda log: log.event_index.trim_ranges(offset, log.live_blocks), trims
        )
    if published is not None:
        dues = _DueTimes(offset, published.due_ms, found)
        least_ms = dues.least_ms
        if least_ms is not None:
            _find_first(
                logs,
                found,
                lambda log: log.event_index.maturity_ranges(offset, least_ms, log.live_blocks),
                dues.is_matured_by,
            )
    return [found[sequence] for sequence in sorted(found)]


def _gaps_between_segments(reader: LogReader) -> Iterator[EventGap]:
    """Yield the gaps before the first segment and between segments: their events were deleted."""
    segments = reader.segments
    if segments[0].base_offset:
        yield _gap_before(reader, segments[0], 0, None)
    for before, after in pairwise(segments):
        if before.end_offset < after.base_offset:
            yield _gap_before(reader, after, before.end_offset, before.time_us or None)


def _gap_before(
    reader: LogReader, segment: Segment, sequence: int, from_us: int | None
) -> EventGap:
    with suppress(OSError):
        header = segment.read_first_header(reader.disk)
        if header is not None:
            messages_end = messages_end_of(header)
            return EventGap(sequence, from_us, header.append_time_us, messages_end, DELETED)
    return EventGap(sequence, from_us, None, None, DELETED)


def _may_be_about(event: AnyEvent, offset: int) -> bool:
    return isinstance(event, CopyStored) or affects(event, offset)


def _find_first(
    logs: Sequence[IndexedEventLog],
    found: dict[int, StoredEvent | EventGap],
    ranges: Callable[[IndexedEventLog], list[Interval]],
    matches: Callable[[StoredEvent], bool],
) -> None:
    """Add the first event that matches, and the gaps before it."""
    for log in logs:
        for sequences in ranges(log):
            for each in _read(log, [sequences]):
                if isinstance(each, EventGap):
                    found[each.sequence] = each
                elif matches(each):
                    found[each.sequence] = each
                    return


def _reused_offset_sequence(found: dict[int, StoredEvent | EventGap], offset: int) -> int:
    """Return the last event before which the offset belonged to another message, or -1."""
    events = [each for each in found.values() if isinstance(each, StoredEvent)]
    return max(
        (
            each.sequence
            for each in events
            if isinstance(each.event, Truncated) and each.event.end_offset <= offset
        ),
        default=-1,
    )


def _is_trim_of(offset: int, after: int) -> Callable[[StoredEvent], bool]:
    def trims(stored: StoredEvent) -> bool:
        event = stored.event
        is_past_offset = isinstance(event, Trimmed) and event.start_offset > offset
        return is_past_offset and stored.sequence > after

    return trims


class _DueTimes:
    """The due times of a delayed message: which one was in force at each event."""

    def __init__(self, offset: int, due_ms: int, found: dict[int, StoredEvent | EventGap]) -> None:
        self._offset = offset
        begins = _reused_offset_sequence(found, offset)
        self._dues = [(begins, due_ms)] if due_ms else []
        for sequence in sorted(found):
            each = found[sequence]
            event = each.event if isinstance(each, StoredEvent) else None
            if sequence > begins and isinstance(event, Rescheduled) and event.offset == offset:
                self._dues.append((sequence, event.due_ms))

    @property
    def least_ms(self) -> int | None:
        """The earliest due time, or None if the message was never delayed."""
        return min((due_ms for _, due_ms in self._dues), default=None)

    def is_matured_by(self, stored: StoredEvent) -> bool:
        """Return whether the message matured with this event."""
        event = stored.event
        if not isinstance(event, Matured) or event.end_offset <= self._offset:
            return False
        due_ms = next((d for at, d in reversed(self._dues) if at < stored.sequence), None)
        return due_ms is not None and due_ms <= event.up_to_ms


def _read(log: IndexedEventLog, ranges: Sequence[Interval]) -> Iterator[StoredEvent | EventGap]:
    """Yield the events of some ranges. Adjacent ranges are read as one."""
    whole: list[Interval] = []
    for start, end in ranges:
        if whole and whole[-1][1] == start:
            whole[-1] = (whole[-1][0], end)
        else:
            whole.append((start, end))
    for start, end in whole:
        yield from _mark_gaps(events_between(log.reader, start, end))


def _mark_gaps(
    events: Iterator[StoredEvent | UnreadableEvents],
) -> Iterator[StoredEvent | EventGap]:
    before_us: int | None = None
    lost: list[UnreadableEvents] = []
    for each in events:
        if isinstance(each, UnreadableEvents):
            lost.append(each)
            continue
        if lost:
            yield EventGap(lost[0].sequence, before_us, each.time_us, each.messages_end)
            lost.clear()
        before_us = each.time_us
        yield each
    if lost:
        yield EventGap(lost[0].sequence, before_us, None)
