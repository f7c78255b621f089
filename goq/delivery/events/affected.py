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
    Corrupted,
    Departed,
    Departing,
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
    SnapshotDeparture,
    SnapshotEnded,
    SnapshotGroup,
    SnapshotMarks,
    SnapshotProducers,
    SnapshotStarted,
    Trimmed,
    Truncated,
    token_of,
)

Stretches = Sequence[tuple[int, ...]]
"""Ranges or spans: whatever begins with a start and an end."""

_spans: Callable[[Any], Stretches] = attrgetter("spans")
_ranges: Callable[[Any], Stretches] = attrgetter("ranges")

PLAIN: Final[dict[type[Event], Callable[[Any], Stretches]]] = {
    Leased: _spans,
    Acked: _ranges,
    Nacked: _spans,
    Expired: _spans,
    Extended: _ranges,
    Cancelled: _ranges,
    Skipped: _ranges,
    Dropped: _spans,
    Departing: _spans,
    Corrupted: lambda event: ((event.start, event.end),),
    Compacted: lambda event: ((event.start, event.end),),
    Repaired: lambda event: ((event.start, event.end),),
    Moved: lambda event: ((event.offset, event.offset + 1),),
    Rescheduled: lambda event: ((event.offset, event.offset + 1),),
}
"""What says itself which messages it is about."""

NONE: Final[frozenset[type[Event]]] = frozenset(
    {
        SnapshotStarted,
        SnapshotMarks,
        SnapshotDeparture,
        SnapshotGroup,
        SnapshotProducers,
        SnapshotEnded,
        Named,
    }
)
"""What repeats a state, or tells of a producer: nothing that happened to a message."""

OTHERWISE: Final[frozenset[type[Event]]] = frozenset({Matured, Trimmed, Departed})
"""What is found by another thing than an offset: a due time, the first offset that is kept, and
the departure that it ends."""

WIDE: Final[frozenset[type[Event]]] = frozenset({Reset, GroupDeleted, Truncated})
"""What may concern any message; all of it is rare."""


def touched(event: Event) -> Stretches | None:
    """Return what an event says of the messages it is about; None where that may be any.

    Of an event that is found otherwise, nothing.
    """
    kind = type(event)
    stretches = PLAIN.get(kind)
    if stretches is not None:
        return stretches(event)
    return () if kind in NONE or kind in OTHERWISE else None


def touches(event: Event, offset: int) -> bool:
    """Whether an event is about a message, or may be."""
    stretches = touched(event)
    return stretches is None or is_within(stretches, offset)


def is_within(stretches: Stretches, offset: int) -> bool:
    """Whether one of the stretches holds an offset."""
    return any(each[0] <= offset < each[1] for each in stretches)


class Leaving:
    """The messages of departures that have not ended, as far as the events seen so far tell."""

    def __init__(self) -> None:
        self._spans: dict[int, Stretches] = {}

    def begin(self, event: Departing, epoch: int, sequence: int) -> None:
        """Note what leaves, by the place of its event."""
        self._spans[token_of(epoch, sequence)] = event.spans

    def restore(self, departure: int, event: Departing) -> None:
        """Note what a snapshot, or a state, has under way."""
        self._spans[departure] = event.spans

    def end(self, event: Departed) -> Stretches | None:
        """Return the messages that have arrived, None where their departure was not seen."""
        return self._spans.pop(event.departure, None)

    def of(self, departure: int) -> Stretches | None:
        """Return the messages of a departure, None where it was not seen or has ended."""
        return self._spans.get(departure)
