"""All events about one message, found by the index and read where it says; blocks on the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from goq.broker.events.index import Live, SpanIndex
from goq.broker.events.index_blocks import Interval, Lost, events_between
from goq.delivery.events.affected import affects
from goq.delivery.events.event import AnyEvent, CopyStored, Matured, Rescheduled, Trimmed, Truncated
from goq.delivery.events.frame_codec import StoredEvent
from goq.delivery.trace.steps import PublishRecord
from goq.delivery.trace.timeline import DAMAGED, DELETED, Timeline
from goq.storage.log.reader import LogReader
from goq.storage.log.segment import Segment


class Events(NamedTuple):
    """A log of events to look in, and its index; ``live`` is of what is not sealed."""

    reader: LogReader
    spans: SpanIndex
    live: Live


class Gap(NamedTuple):
    """Events that cannot be read, when those around them were recorded, and why."""

    sequence: int
    from_us: int | None
    to_us: int | None
    reason: str = DAMAGED


def timeline_of(
    logs: Sequence[Events],
    offset: int,
    published: PublishRecord | None,
    *,
    is_deleted: bool = False,
) -> Timeline:
    """Return the life of a message, from logs of events of which each continues the one before.

    ``published`` is what the message tells, None where it cannot be read. Where it ``is_deleted``,
    when that was is looked for.
    """
    timeline = Timeline(offset, published)
    for found in find_events(logs, offset, published, is_deleted=is_deleted):
        if isinstance(found, Gap):
            timeline.add_gap(found.from_us, found.to_us, found.reason)
        else:
            timeline.add(found.event, found.sequence, found.epoch, found.time_us)
    return timeline


def find_events(
    logs: Sequence[Events],
    offset: int,
    published: PublishRecord | None,
    *,
    is_deleted: bool = False,
) -> list[StoredEvent | Gap]:
    """Return the events about a message in their order, and where some may be missing."""
    found: dict[int, StoredEvent | Gap] = {}
    for log in logs:
        found |= {each.sequence: each for each in _between_segments(log.reader)}
        for each in _read(log, log.spans.about(offset, log.live)):
            if isinstance(each, Gap) or _is_about(each.event, offset):
                found[each.sequence] = each
    if is_deleted:
        trims = _trims(offset, _lost_before(found, offset))
        _find_first(logs, found, lambda log: log.spans.trimming(offset, log.live), trims)
    elif published is not None:
        dues = _Dues(offset, published.due_ms, found)
        least_ms = dues.least_ms
        if least_ms is not None:
            _find_first(
                logs,
                found,
                lambda log: log.spans.maturing(offset, least_ms, log.live),
                dues.is_matured_by,
            )
    return [found[sequence] for sequence in sorted(found)]


def before_first(log: Events) -> Gap | None:
    """Return what is missing of a log's beginning, None where it has lost nothing there."""
    first = log.reader.segments[0]
    if not first.base_offset:
        return None
    return Gap(0, None, _first_us(log.reader, first), DELETED)


def _between_segments(reader: LogReader) -> Iterator[Gap]:
    """Yield what is missing between segments: what was deleted while there was no archive."""
    for before, after in pairwise(reader.segments):
        if before.end_offset < after.base_offset:
            until_us = _first_us(reader, after)
            yield Gap(before.end_offset, before.time_us or None, until_us, DELETED)


def _first_us(reader: LogReader, segment: Segment) -> int | None:
    with suppress(OSError):
        return segment.read_first_time(reader.disk)
    return None


def _is_about(event: AnyEvent, offset: int) -> bool:
    return isinstance(event, CopyStored) or affects(event, offset)


def _find_first(
    logs: Sequence[Events],
    found: dict[int, StoredEvent | Gap],
    places: Callable[[Events], list[Interval]],
    is_it: Callable[[StoredEvent], bool],
) -> None:
    """Add the first event that is the one, and what cannot be read before it."""
    for log in logs:
        for place in places(log):
            for each in _read(log, [place]):
                if isinstance(each, Gap):
                    found[each.sequence] = each
                elif is_it(each):
                    found[each.sequence] = each
                    return


def _lost_before(found: dict[int, StoredEvent | Gap], offset: int) -> int:
    """Return the event before which the offset was that of another message, -1 where it was not."""
    events = [each for each in found.values() if isinstance(each, StoredEvent)]
    return max(
        (
            each.sequence
            for each in events
            if isinstance(each.event, Truncated) and each.event.end_offset <= offset
        ),
        default=-1,
    )


def _trims(offset: int, after: int) -> Callable[[StoredEvent], bool]:
    def trims(stored: StoredEvent) -> bool:
        event = stored.event
        is_it = isinstance(event, Trimmed) and event.start_offset > offset
        return is_it and stored.sequence > after

    return trims


class _Dues:
    """When a delayed message was due, by the time in force at each event."""

    def __init__(self, offset: int, due_ms: int, found: dict[int, StoredEvent | Gap]) -> None:
        self._offset = offset
        begins = _lost_before(found, offset)
        self._dues = [(begins, due_ms)] if due_ms else []
        for sequence in sorted(found):
            each = found[sequence]
            event = each.event if isinstance(each, StoredEvent) else None
            if sequence > begins and isinstance(event, Rescheduled) and event.offset == offset:
                self._dues.append((sequence, event.due_ms))

    @property
    def least_ms(self) -> int | None:
        """The earliest of them, None where the message was due at once."""
        return min((due_ms for _, due_ms in self._dues), default=None)

    def is_matured_by(self, stored: StoredEvent) -> bool:
        """Whether an event says that the message has matured."""
        event = stored.event
        if not isinstance(event, Matured) or event.end_offset <= self._offset:
            return False
        due_ms = next((d for at, d in reversed(self._dues) if at < stored.sequence), None)
        return due_ms is not None and due_ms <= event.up_to_ms


def _read(log: Events, places: Sequence[Interval]) -> Iterator[StoredEvent | Gap]:
    """Yield what lies in some places, those that touch as one."""
    whole: list[Interval] = []
    for start, end in places:
        if whole and whole[-1][1] == start:
            whole[-1] = (whole[-1][0], end)
        else:
            whole.append((start, end))
    for start, end in whole:
        yield from _with_gaps(events_between(log.reader, start, end))


def _with_gaps(events: Iterator[StoredEvent | Lost]) -> Iterator[StoredEvent | Gap]:
    before_us: int | None = None
    lost: list[Lost] = []
    for each in events:
        if isinstance(each, Lost):
            lost.append(each)
            continue
        if lost:
            yield Gap(lost[0].sequence, before_us, each.time_us)
            lost.clear()
        before_us = each.time_us
        yield each
    if lost:
        yield Gap(lost[0].sequence, before_us, None)
