"""The events of a partition: what happens to messages after they are published.

An event is a MessagePack array that begins with its tag. New fields go at the end with a default,
so that old logs stay readable. A range is ``(start, end)`` with the end excluded; a span adds the
attempt. One event covers all messages that share its effect. An event's time is the append time of
its frame. A lease's token is made of the epoch and sequence of its event (:func:`token_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import repeat
from typing import NamedTuple

import msgspec

Range = tuple[int, int]
Span = tuple[int, int, int]
"""``(start, end, attempt)``"""
HeldSpan = tuple[int, int, int, int, int]
"""``(start, end, attempt, time_ms, failures)``: the time is a deadline or the due time of a retry;
``failures`` counts from 1 into the table of the snapshot, 0 for none.
"""
Bitmap = tuple[int, bytes]


class Cause(StrEnum):
    """The reason why an attempt, or all further ones, ended without an ack."""

    NACKED = "nacked"
    EXPIRED = "expired"
    REJECTED = "rejected"
    TTL = "ttl"
    OTHER_GROUP = "other_group"
    """The message is a redriven dead letter, meant for the group that it came from."""
    REDRIVEN = "redriven"
    COMPACTED = "compacted"
    """A newer message of its key is kept, or it was a tombstone past its retention."""


class Failure(NamedTuple):
    """An attempt that ended without an ack."""

    time_ms: int
    consumer: str
    cause: str
    reason: str


SEQUENCE_BITS = 40


def token_of(epoch: int, sequence: int) -> int:
    """Return the token of the lease whose event has this sequence in this leader epoch.

    No token is made twice: within an epoch sequences only rise, and an event log that lost its
    unsynced end continues in a higher epoch.
    """
    return epoch << SEQUENCE_BITS | sequence


def epoch_of(token: int) -> int:
    """Return the leader epoch in which a token was made."""
    return token >> SEQUENCE_BITS


class Event(msgspec.Struct, array_like=True, frozen=True):
    """Base of all events."""


class Leased(Event, frozen=True, tag=1):
    """Messages were leased to a consumer until a deadline.

    ``session_id`` tells members of one name apart. In a group without members it is the id of what
    holds the lease: a client's stream or receive through another node. "" for any other consumer.
    """

    group: str
    consumer: str
    deadline_ms: int
    spans: list[Span]
    session_id: str = ""


class Acked(Event, frozen=True, tag=2):
    """Messages of a lease are done for the group."""

    group: str
    token: int
    ranges: list[Range]


class Nacked(Event, frozen=True, tag=3):
    """A consumer gave messages of a lease back; they are ready again at :func:`dues`."""

    group: str
    token: int
    spans: list[Span]
    due_ms: int
    reason: str = ""
    time_ms: int = 0
    due_shifts_ms: list[int] = []
    """How much later than ``due_ms`` each span is ready, by its jitter; none if all are then."""


class Expired(Event, frozen=True, tag=4):
    """A lease ended by itself; the messages are ready again at :func:`dues`."""

    group: str
    token: int
    spans: list[Span]
    due_ms: int
    reason: str = ""
    time_ms: int = 0
    due_shifts_ms: list[int] = []
    """How much later than ``due_ms`` each span is ready, by its jitter; none if all are then."""


def dues(event: Nacked | Expired) -> list[tuple[Span, int]]:
    """Return the spans of an event, each with the time at which its messages are ready again."""
    shifts_ms = event.due_shifts_ms or repeat(0)
    return [
        (span, event.due_ms + shift) for span, shift in zip(event.spans, shifts_ms, strict=False)
    ]


class Extended(Event, frozen=True, tag=5):
    """Messages of a lease have a new deadline."""

    group: str
    token: int
    ranges: list[Range]
    deadline_ms: int


class Reset(Event, frozen=True, tag=6):
    """The group continues from an offset; all its leases and retries are void.

    It gets nothing at or after ``end_offset`` until it is reset again; -1 for no end.
    ``end_offset_before`` is its end up to then.
    """

    group: str
    offset: int
    end_offset: int = -1
    end_offset_before: int = -1


class GroupDeleted(Event, frozen=True, tag=7):
    """The group and all its progress are gone."""

    group: str


class Corrupted(Event, frozen=True, tag=8):
    """Messages cannot be read: no group gets them."""

    start: int
    end: int
    reason: str


class Trimmed(Event, frozen=True, tag=9):
    """Retention deleted every message before an offset."""

    start_offset: int


class SnapshotStarted(Event, frozen=True, tag=10):
    """From here to the matching end the log repeats its whole state: older events may go."""

    start_offset: int
    messages_offset: int
    corrupt: list[Range]
    maturity: list[tuple[int, int]] = []
    exempt: list[tuple[int, int]] = []
    outbox_id: int = 0
    outbox_sequences: list[tuple[str, int, int]] = []
    clock_node: str = ""


class SnapshotGroup(Event, frozen=True, tag=11):
    """One group's state; a large one comes in several events, the later adding to the first."""

    group: str
    floor: int
    full: list[Range] = []
    partial: list[Bitmap] = []
    leases: list[tuple[int, str, list[HeldSpan]]] = []
    retries: list[HeldSpan] = []
    failures: list[tuple[Failure, ...]] = []
    end_offset: int = -1
    dead: int = 0
    sessions: list[tuple[int, str]] = []
    """The session ids of leases that have one, by token."""


class SnapshotProducers(Event, frozen=True, tag=12):
    """The batches of producers, each ``(id, epoch, batches)``, and names, each ``(id, name)``.

    A batch is ``(first_sequence, message_count, offset, time_us, left_out)``. Many names follow in
    further events, with names alone.
    """

    producers: list[tuple[int, int, list[tuple[int, int, int, int, int]]]]
    names: list[tuple[int, str]] = []


class SnapshotEnded(Event, frozen=True, tag=13):
    """The snapshot is complete."""


class Truncated(Event, frozen=True, tag=14):
    """The messages from an offset on were lost; other messages will get their offsets."""

    end_offset: int


class Matured(Event, frozen=True, tag=15):
    """Every delayed message before ``end_offset`` that was due by ``up_to_ms`` is ready."""

    up_to_ms: int
    end_offset: int


class Cancelled(Event, frozen=True, tag=16):
    """Messages are not to be delivered to any group that has not received them yet."""

    ranges: list[Range]
    reason: str = ""


class Moved(Event, frozen=True, tag=17):
    """A message was moved to another lane."""

    offset: int
    lane: int


class Rescheduled(Event, frozen=True, tag=18):
    """A delayed message is due at another time."""

    offset: int
    due_ms: int


class Skipped(Event, frozen=True, tag=19):
    """Messages are done for the group without a delivery."""

    group: str
    ranges: list[Range]
    cause: Cause


class Dropped(Event, frozen=True, tag=20):
    """The group gave messages up without dead letters: it keeps none, or they were cancelled."""

    group: str
    token: int
    spans: list[Span]
    cause: Cause
    reason: str = ""
    time_ms: int = 0


class CopyQueued(Event, frozen=True, tag=21):
    """Messages are in the outbox, to be copied to another topic under a producer id and sequences.

    The producer id counts only if the partition has none yet. The messages come from a group that
    gave them up (token 0 if they were never leased). With group "" they are dead letters that are
    redriven, and are done for every group here.
    """

    group: str
    token: int
    spans: list[Span]
    cause: Cause
    reason: str
    time_ms: int
    topic: str
    partition: int
    producer_id: int


class CopyStored(Event, frozen=True, tag=22):
    """The copies of an outbox entry are durable in the other topic, the first at ``offset``."""

    entry: int
    offset: int


class SnapshotMarks(Event, frozen=True, tag=23):
    """The partition's marks on single messages; several events where there are many."""

    cancelled_floor: int = 0
    cancelled_full: list[Range] = []
    cancelled_partial: list[Bitmap] = []
    moved: list[tuple[int, int]] = []
    rescheduled: list[tuple[int, int]] = []


class SnapshotOutboxEntry(Event, frozen=True, tag=24):
    """An outbox entry, with the failures of earlier attempts by run."""

    entry: int
    first_sequence: int
    event: CopyQueued
    failures: list[tuple[int, int, tuple[Failure, ...]]]


class Named(Event, frozen=True, tag=25):
    """A producer id belongs to a client of this name."""

    producer_id: int
    client_id: str


class Compacted(Event, frozen=True, tag=26):
    """From an offset up to another, only the newest message of each key is kept."""

    start: int
    end: int


class Repaired(Event, frozen=True, tag=27):
    """Messages that could not be read are readable again: groups get them."""

    start: int
    end: int


class ClockChanged(Event, frozen=True, tag=28):
    """Deadlines and due times of retries are by the clock of another node from here on.

    Those that are known so far move by so many milliseconds.
    """

    node: str
    lease_shift_ms: int = 0
    retry_shift_ms: int = 0


AnyEvent = (
    Leased
    | Acked
    | Nacked
    | Expired
    | Extended
    | Reset
    | GroupDeleted
    | Corrupted
    | Trimmed
    | Truncated
    | Matured
    | Cancelled
    | Moved
    | Rescheduled
    | Skipped
    | Dropped
    | CopyQueued
    | CopyStored
    | Named
    | Compacted
    | Repaired
    | ClockChanged
    | SnapshotStarted
    | SnapshotGroup
    | SnapshotProducers
    | SnapshotMarks
    | SnapshotOutboxEntry
    | SnapshotEnded
)

SNAPSHOT_PARTS = (SnapshotMarks, SnapshotOutboxEntry, SnapshotGroup, SnapshotProducers)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyEvent])


def encode_events(events: Sequence[AnyEvent]) -> bytes:
    """Return events as the body of a frame holds them."""
    return _encoder.encode(events)


def encode_event(event: AnyEvent) -> bytes:
    """Return an event as it stands in the body of a frame, behind the head of the list."""
    return _encoder.encode(event)


def decode_events(data: bytes | memoryview) -> list[AnyEvent]:
    """Return the events in ``data``. Raises ``msgspec.DecodeError`` for anything else."""
    return _decoder.decode(data)
