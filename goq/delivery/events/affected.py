"""Which messages an event speaks of.

What is not in the table may speak of any message: so an event that is new costs time where it is
looked for, and is never passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

from goq.delivery.events.event import (
    Acked,
    Cancelled,
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

OffsetSpans = Sequence[tuple[int, ...]]
"""Ranges or spans: whatever begins with a start and an end."""

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
"""What says itself which messages it is about."""

NO_MESSAGES: Final[frozenset[type[Event]]] = frozenset(
    {
        SnapshotStarted,
        SnapshotMarks,
        SnapshotOutboxEntry,
        SnapshotGroup,
        SnapshotProducers,
        SnapshotEnded,
        Named,
    }
)
"""What repeats a state, or tells of a producer: nothing that happened to a message."""

WITHOUT_OFFSETS: Final[frozenset[type[Event]]] = frozenset({Matured, Trimmed, CopyStored})
"""What is found by another thing than an offset: a due time, the first offset that is kept, and
the departure that it ends."""

ANY_OFFSET: Final[frozenset[type[Event]]] = frozenset({Reset, GroupDeleted, Truncated})
"""What may concern any message; all of it is rare."""


def affected_spans(event: Event) -> OffsetSpans | None:
    """Return what an event says of the messages it is about; None where that may be any.

    Of an event that is found otherwise, nothing.
    """
    kind = type(event)
    stretches = WITH_OFFSETS.get(kind)
    if stretches is not None:
        return stretches(event)
    return () if kind in NO_MESSAGES or kind in WITHOUT_OFFSETS else None


def affects(event: Event, offset: int) -> bool:
    """Whether an event is about a message, or may be."""
    stretches = affected_spans(event)
    return stretches is None or holds_offset(stretches, offset)


def holds_offset(stretches: OffsetSpans, offset: int) -> bool:
    """Whether one of the stretches holds an offset."""
    return any(each[0] <= offset < each[1] for each in stretches)


class PendingCopies:
    """The messages of departures that have not ended, as far as the events seen so far tell."""

    def __init__(self) -> None:
        self._spans: dict[int, OffsetSpans] = {}

    def begin(self, event: CopyQueued, epoch: int, sequence: int) -> None:
        """Note what leaves, by the place of its event."""
        self._spans[token_of(epoch, sequence)] = event.spans

    def restore(self, departure: int, event: CopyQueued) -> None:
        """Note what a snapshot, or a state, has under way."""
        self._spans[departure] = event.spans

    def end(self, event: CopyStored) -> OffsetSpans | None:
        """Return the messages that have arrived, None where their departure was not seen."""
        return self._spans.pop(event.departure, None)

    def of(self, departure: int) -> OffsetSpans | None:
        """Return the messages of a departure, None where it was not seen or has ended."""
        return self._spans.get(departure)
