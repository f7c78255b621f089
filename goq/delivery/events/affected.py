"""The messages and the groups that an event is about.

An event type that is not in the tables may be about any message. So a new type costs time where
events of a message are searched, and is never missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from goq.delivery.events.event import (
    Acked,
    AnyEvent,
    Cancelled,
    ClockChanged,
    Compacted,
    CopyQueued,
    CopyStored,
    Corrupted,
    Dropped,
    Event,
    Expired,
    Extended,
    GroupDeleted,
    Leased,
    Matured,
    Moved,
    Nacked,
    Named,
    Repaired,
    Rescheduled,
    Reset,
    Skipped,
    SnapshotEnded,
    SnapshotGroup,
    SnapshotMarks,
    SnapshotOutboxEntry,
    SnapshotProducers,
    SnapshotStarted,
    Trimmed,
    Truncated,
    token_of,
)

_OF_NO_GROUP: Final = (Compacted, CopyStored, Matured, Named, Rescheduled)

OffsetSpans = Sequence[tuple[int, ...]]
"""Ranges or spans: anything that begins with a start and an end."""

_spans: Callable[[Any], OffsetSpans] = attrgetter("spans")
_ranges: Callable[[Any], OffsetSpans] = attrgetter("ranges")

WITH_OFFSETS: Final[dict[type[Event], Callable[[Any], OffsetSpans]]] = {
    Leased: _spans,
    Acked: _ranges,
    Nacked: _spans,
    Expired: _spans,
    Extended: _ranges,
    Cancelled: _ranges,
    Skipped: _ranges,
    Dropped: _spans,
    CopyQueued: _spans,
    Corrupted: lambda event: ((event.start, event.end),),
    Compacted: lambda event: ((event.start, event.end),),
    Repaired: lambda event: ((event.start, event.end),),
    Moved: lambda event: ((event.offset, event.offset + 1),),
    Rescheduled: lambda event: ((event.offset, event.offset + 1),),
}
"""Events that name the messages they are about."""

NO_MESSAGES: Final[frozenset[type[Event]]] = frozenset(
    {
        SnapshotStarted,
        SnapshotMarks,
        SnapshotOutboxEntry,
        SnapshotGroup,
        SnapshotProducers,
        SnapshotEnded,
        Named,
        ClockChanged,
    }
)
"""Events that repeat a state, or name a producer or a node: they are about no message."""

WITHOUT_OFFSETS: Final[frozenset[type[Event]]] = frozenset({Matured, Trimmed, CopyStored})
"""Events that are matched by something other than an offset: a due time, the first offset that is
kept, or the outbox entry that they end.
"""

ANY_OFFSET: Final[frozenset[type[Event]]] = frozenset({Reset, GroupDeleted, Truncated})
"""Events that may be about any message; all of them are rare."""


def group_of(event: AnyEvent) -> str | None:
    """Return the group that an event changes, "" for no group, None for all groups."""
    if isinstance(event, _OF_NO_GROUP):
        return ""
    return getattr(event, "group", "") or None


def affected_spans(event: Event) -> OffsetSpans | None:
    """Return the messages that an event names; None if it may be about any message.

    For an event that is matched otherwise, nothing.
    """
    kind = type(event)
    spans_of = WITH_OFFSETS.get(kind)
    if spans_of is not None:
        return spans_of(event)
    return () if kind in NO_MESSAGES or kind in WITHOUT_OFFSETS else None


def affects(event: Event, offset: int) -> bool:
    """Return whether an event is about a message, or may be."""
    spans = affected_spans(event)
    return spans is None or holds_offset(spans, offset)


def holds_offset(spans: OffsetSpans, offset: int) -> bool:
    """Return whether one of the spans contains an offset."""
    return any(each[0] <= offset < each[1] for each in spans)


class PendingCopies:
    """The messages of outbox entries whose copies are not stored, by the events seen so far."""

    def __init__(self) -> None:
        self._spans: dict[int, OffsetSpans] = {}

    def begin(self, event: CopyQueued, epoch: int, sequence: int) -> None:
        """Add an outbox entry, by the epoch and sequence of its event."""
        self._spans[token_of(epoch, sequence)] = event.spans

    def restore(self, departure: int, event: CopyQueued) -> None:
        """Add an outbox entry of a snapshot or a state."""
        self._spans[departure] = event.spans

    def end(self, event: CopyStored) -> OffsetSpans | None:
        """Return the messages whose copies are stored, None if their outbox entry was not seen."""
        return self._spans.pop(event.entry, None)

    def of(self, departure: int) -> OffsetSpans | None:
        """Return the messages of an outbox entry, None if it was not seen or has ended."""
        return self._spans.get(departure)
