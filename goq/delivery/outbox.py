"""Messages on their way to another topic: dead letters, and dead letters put back.

Two logs cannot be written at once, so the leaving is written first, with the producer and the
sequence that the copies will have. Whoever carries it out, or carries it out again after a crash,
writes the same copies under the same numbers, and the target keeps each once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from goq.delivery.events.event import CopyQueued, Failure, SnapshotOutboxEntry, Span

FailureHistory = tuple[int, int, tuple[Failure, ...]]
"""``(start, end, failures)``"""
LOST = 2**62
"""What is taken off the offsets of messages that were lost while they were leaving."""


class OutboxEntry(NamedTuple):
    """Messages that leave; ``number`` is made as a lease's token is.

    ``first_sequence`` is the number of the first, under which the target knows it. ``histories``
    are in order of offset.
    """

    number: int
    first_sequence: int
    event: CopyQueued
    histories: list[FailureHistory]


class Outbox:
    """What leaves a partition and has not arrived, first to leave first."""

    def __init__(self) -> None:
        self.producer_id = 0
        self.departures: dict[int, OutboxEntry] = {}
        self._sequences: dict[tuple[str, int], int] = {}

    def add(self, number: int, event: CopyQueued, histories: list[FailureHistory]) -> None:
        """Note what leaves, and number it behind what left for the same partition before."""
        self.producer_id = self.producer_id or event.producer_id
        target = (event.topic, event.partition)
        first_sequence = self._sequences.get(target, 0)
        self._sequences[target] = first_sequence + sum(end - start for start, end, _ in event.spans)
        self.departures[number] = OutboxEntry(number, first_sequence, event, histories)

    def remove(self, number: int) -> None:
        """Note what has arrived."""
        self.departures.pop(number, None)

    def truncate(self, end_offset: int) -> None:
        """Mark what was lost from an offset on: that will be given to other messages.

        It keeps its numbers, so that those of what follows stay as they are.
        """
        for number, departure in self.departures.items():
            event = departure.event
            if any(end > end_offset for _, end, _ in event.spans):
                spans = [piece for span in event.spans for piece in _without_lost(span, end_offset)]
                event = msgspec.structs.replace(event, spans=spans)
                self.departures[number] = departure._replace(event=event)

    def sequences(self) -> list[tuple[str, int, int]]:
        """Return the next sequence of each target."""
        return [(topic, partition, n) for (topic, partition), n in self._sequences.items()]

    def restore(self, producer_id: int, sequences: Iterable[tuple[str, int, int]]) -> None:
        """Be as a snapshot says, with nothing under way yet."""
        self.producer_id = producer_id
        self._sequences = {(topic, partition): n for topic, partition, n in sequences}
        self.departures.clear()

    def snapshot(self) -> list[SnapshotOutboxEntry]:
        """Return what is under way."""
        return [
            SnapshotOutboxEntry(d.number, d.first_sequence, d.event, d.histories)
            for d in self.departures.values()
        ]

    def restore_departure(self, snapshot: SnapshotOutboxEntry) -> None:
        """Take up what a snapshot has under way; its sequences are known already."""
        self.departures[snapshot.departure] = OutboxEntry(
            snapshot.departure, snapshot.first_sequence, snapshot.event, snapshot.failures
        )


def _without_lost(span: Span, end_offset: int) -> list[Span]:
    start, end, attempt = span
    kept = (start, min(end, end_offset), attempt)
    lost = (max(start, end_offset) - LOST, end - LOST, attempt)
    return [piece for piece in (kept, lost) if piece[0] < piece[1]]
