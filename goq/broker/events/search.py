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
from goq.delivery.events.frame_codec import StoredEvent
from goq.delivery.trace.steps import PublishRecord
from goq.delivery.trace.timeline import DAMAGED, DELETED, Timeline
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment


class IndexedEventLog(NamedTuple):
    """An event log and its index. ``live_blocks`` covers the unsealed segments."""

    reader: LogReader
    event_index: EventIndex
    live_blocks: LiveBlocksBySegment


class EventGap(NamedTuple):
    """Events that cannot be read, the times of their neighbours, and the reason."""

    sequence: int
    from_us: int | None
    to_us: int | None
    reason: str = DAMAGED


def timeline_of(
    logs: Sequence[IndexedEventLog],
    offset: int,
    published: PublishRecord | None,
    *,
    is_deleted: bool = False,
) -> Timeline:
    """Return the timeline of a message from event logs, each of which continues the previous one.

    ``published`` is the publish record from the stored message, or None if it cannot be read. With
    ``is_deleted`` the time of the deletion is looked up.
    """
    timeline = Timeline(offset, published)
    for found in find_events(logs, offset, published, is_deleted=is_deleted):
        if isinstance(found, EventGap):
            timeline.add_gap(found.from_us, found.to_us, found.reason)
        else:
            timeline.add(found.event, found.sequence, found.epoch, found.time_us)
    return timeline


def find_events(
    logs: Sequence[IndexedEventLog],
    offset: int,
    published: PublishRecord | None,
    *,
    is_deleted: bool = False,
) -> list[StoredEvent | EventGap]:
    """Return the events about a message, in order, and the gaps where events may be missing."""
    found: dict[int, StoredEvent | EventGap] = {}
    for log in logs:
        found |= {each.sequence: each for each in _gaps_between_segments(log.reader)}
        for each in _read(log, log.event_index.message_ranges(offset, log.live_blocks)):
            if isinstance(each, EventGap) or _may_be_about(each.event, offset):
                found[each.sequence] = each
    if is_deleted:
        trims = _is_trim_of(offset, _reused_offset_sequence(found, offset))
        _find_first(
            logs, found, lambda log: log.event_index.trim_ranges(offset, log.live_blocks), trims
        )
    elif published is not None:
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


def gap_before_first(log: IndexedEventLog) -> EventGap | None:
    """Return the gap at the start of a log, or None if the log is complete there."""
    first = log.reader.segments[0]
    if not first.base_offset:
        return None
    return EventGap(0, None, _first_time_us(log.reader, first), DELETED)


def _gaps_between_segments(reader: LogReader) -> Iterator[EventGap]:
    """Yield the gaps between segments: what was deleted while the topic had no archive."""
    for before, after in pairwise(reader.segments):
        if before.end_offset < after.base_offset:
            until_us = _first_time_us(reader, after)
            yield EventGap(before.end_offset, before.time_us or None, until_us, DELETED)


def _first_time_us(reader: LogReader, segment: Segment) -> int | None:
    with suppress(OSError):
        return segment.read_first_time(reader.disk)
    return None


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
            yield EventGap(lost[0].sequence, before_us, each.time_us)
            lost.clear()
        before_us = each.time_us
        yield each
    if lost:
        yield EventGap(lost[0].sequence, before_us, None)
