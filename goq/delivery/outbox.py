"""The outbox of a partition: messages on their way to another topic (dead letters, redriven ones).

Two logs cannot be written atomically. So the entry is written first, with the producer id and the
sequences that the copies will have. Each attempt to copy, also after a crash, writes the same
copies under the same sequences, and the target keeps each of them once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from goq.delivery.events.event import CopyQueued, Failure, SnapshotOutboxEntry, Span

FailureHistory = tuple[int, int, tuple[Failure, ...]]
"""``(start, end, failures)``"""
LOST = 2**62
"""Subtracted from the offsets of messages that were lost before they were copied."""


class OutboxEntry(NamedTuple):
    """Messages to be copied; ``number`` is made like a lease's token.

    ``first_sequence`` is the sequence of the first copy in the target. ``histories`` are in order
    of offset.
    """

    number: int
    first_sequence: int
    event: CopyQueued
    histories: list[FailureHistory]


class Outbox:
    """The entries of a partition whose copies are not stored yet, oldest first."""

    def __init__(self) -> None:
        self.producer_id = 0
        self.entries: dict[int, OutboxEntry] = {}
        self._sequences: dict[tuple[str, int], int] = {}

    def add(self, number: int, event: CopyQueued, histories: list[FailureHistory]) -> None:
        """Add an entry, with sequences after those of earlier entries for the same target."""
        self.producer_id = self.producer_id or event.producer_id
        target = (event.topic, event.partition)
        first_sequence = self._sequences.get(target, 0)
        self._sequences[target] = first_sequence + sum(end - start for start, end, _ in event.spans)
        self.entries[number] = OutboxEntry(number, first_sequence, event, histories)

    def remove(self, number: int) -> None:
        """Remove an entry whose copies are stored."""
        self.entries.pop(number, None)

    def truncate(self, end_offset: int) -> None:
        """Mark the messages from an offset on as lost: other messages will get their offsets.

        They keep their sequences, so that those of later messages stay as they are.
        """
        for number, entry in self.entries.items():
            event = entry.event
            if any(end > end_offset for _, end, _ in event.spans):
                spans = [piece for span in event.spans for piece in _without_lost(span, end_offset)]
                event = msgspec.structs.replace(event, spans=spans)
                self.entries[number] = entry._replace(event=event)

    def sequences(self) -> list[tuple[str, int, int]]:
        """Return the next sequence of each target."""
        return [(topic, partition, n) for (topic, partition), n in self._sequences.items()]

    def restore(self, producer_id: int, sequences: Iterable[tuple[str, int, int]]) -> None:
        """Set the sequences of a snapshot, without any entries yet."""
        self.producer_id = producer_id
        self._sequences = {(topic, partition): n for topic, partition, n in sequences}
        self.entries.clear()

    def snapshot(self) -> list[SnapshotOutboxEntry]:
        """Return the entries as events."""
        return [
            SnapshotOutboxEntry(d.number, d.first_sequence, d.event, d.histories)
            for d in self.entries.values()
        ]

    def restore_entry(self, snapshot: SnapshotOutboxEntry) -> None:
        """Add an entry of a snapshot; its sequences are known already."""
        self.entries[snapshot.entry] = OutboxEntry(
            snapshot.entry, snapshot.first_sequence, snapshot.event, snapshot.failures
        )


def _without_lost(span: Span, end_offset: int) -> list[Span]:
    start, end, attempt = span
    kept = (start, min(end, end_offset), attempt)
    lost = (max(start, end_offset) - LOST, end - LOST, attempt)
    return [piece for piece in (kept, lost) if piece[0] < piece[1]]
