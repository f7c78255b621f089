"""What happens to messages after they are published: the contents of the ``events`` log.

An event is a MessagePack array that begins with its tag; new fields go at the end with a default,
so that old logs stay readable. A range is ``(start, end)`` with the end excluded, a span adds the
attempt. One event covers every message that shares its fate. An event's time is the append time
of its frame, a lease's token is made of its event's epoch and sequence (:func:`token_of`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

Range = tuple[int, int]
Span = tuple[int, int, int]
"""``(start, end, attempt)``"""
TimedSpan = tuple[int, int, int, int]
"""``(start, end, attempt, time_ms)``: the time is a deadline or when a retry is due."""

_SEQUENCE_BITS = 40


def token_of(epoch: int, sequence: int) -> int:
    """Return the token of the lease whose event has this sequence in this leader epoch.

    Never the same twice: within an epoch sequences only rise, and an event log that lost its
    unsynced end goes on in a higher epoch.
    """
    return epoch << _SEQUENCE_BITS | sequence


class Event(msgspec.Struct, array_like=True, frozen=True):
    """Base of all events."""


class Leased(Event, frozen=True, tag=1):
    """Messages were handed to a consumer until a deadline."""

    group: str
    consumer: str
    deadline_ms: int
    spans: list[Span]


class Acked(Event, frozen=True, tag=2):
    """Messages of a lease are done for the group."""

    group: str
    token: int
    ranges: list[Range]


class Nacked(Event, frozen=True, tag=3):
    """Messages of a lease were given back; they are ready again at ``due_ms``."""

    group: str
    token: int
    spans: list[Span]
    due_ms: int
    reason: str = ""


class Expired(Event, frozen=True, tag=4):
    """A lease's deadline passed; the messages are ready again at ``due_ms``."""

    group: str
    token: int
    spans: list[Span]
    due_ms: int


class Extended(Event, frozen=True, tag=5):
    """Messages of a lease have a new deadline."""

    group: str
    token: int
    ranges: list[Range]
    deadline_ms: int


class Reset(Event, frozen=True, tag=6):
    """The group goes on from an offset; all its leases and retries are void."""

    group: str
    offset: int


class GroupDeleted(Event, frozen=True, tag=7):
    """The group and all its progress are gone."""

    group: str


class Corrupted(Event, frozen=True, tag=8):
    """Messages cannot be read: they are held back from every group."""

    start: int
    end: int
    reason: str


class Trimmed(Event, frozen=True, tag=9):
    """Retention deleted every message before an offset."""

    start_offset: int


class SnapshotStarted(Event, frozen=True, tag=10):
    """From here to the matching end the log repeats its whole state, so that earlier may go."""

    start_offset: int
    messages_offset: int
    corrupt: list[Range]


class SnapshotGroup(Event, frozen=True, tag=11):
    """One group's state; a large one comes in several of these, the later adding to the first."""

    group: str
    cursor: int
    leases: list[tuple[int, str, list[TimedSpan]]]
    retries: list[TimedSpan]


class SnapshotProducers(Event, frozen=True, tag=12):
    """The batches of producers, each ``(id, epoch, batches)``.

    A batch is ``(first_sequence, message_count, offset, time_us, left_out)``.
    """

    producers: list[tuple[int, int, list[tuple[int, int, int, int, int]]]]


class SnapshotEnded(Event, frozen=True, tag=13):
    """The snapshot is complete."""


class Truncated(Event, frozen=True, tag=14):
    """The messages from an offset on were lost; their offsets will be given to others."""

    end_offset: int


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
    | SnapshotStarted
    | SnapshotGroup
    | SnapshotProducers
    | SnapshotEnded
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyEvent])


def encode_events(events: Sequence[AnyEvent]) -> bytes:
    """Return events as the body of a frame has them."""
    return _encoder.encode(events)


def decode_events(data: bytes | memoryview) -> list[AnyEvent]:
    """Return the events in ``data``; raises ``msgspec.DecodeError`` for anything else."""
    return _decoder.decode(data)
