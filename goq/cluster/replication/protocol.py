"""What followers and leaders tell each other: one request and answer, by msgpack, frames behind.

A follower has one *session* with each node that leads partitions it follows. It says where it is
in a partition when that changed, and asks for what follows in all of them at once; so a request
costs what has happened, not what there is. An answer holds, for each partition with news, the
frames of both logs as they lie on the leader's disk.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from goq.cluster.replication.progress import LogOffsets
from goq.errors import InvalidFrame


class PartitionKey(NamedTuple):
    """Which partition of which topic; ``topic_id`` tells it from one of the same name before."""

    topic: str
    topic_id: int
    number: int


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where a follower is: the ends of its logs, and the leader epochs of their last frames.

    ``rewrites`` is what the leader said last of its messages, -1 before it did.
    """

    key: PartitionKey
    leader_epoch: int
    ends: LogOffsets
    epochs: LogOffsets
    rewrites: int = -1


class FetchRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What follows ``positions``, and those of earlier requests of the session.

    ``session`` is new, from 1 on, when the positions are all there are; ``forgotten`` are not
    asked for any more. The answer comes when there is news, or after ``wait_ms``.
    """

    node: str
    session: int
    is_new: bool
    positions: list[Position]
    forgotten: list[PartitionKey]
    wait_ms: int


class LogUpdate(msgspec.Struct, frozen=True, array_like=True):
    """What follows in one log: ``frame_bytes`` of frames, all of one segment of the leader's.

    ``start_offset`` is where the leader's log begins. With ``diverges_at`` there are no frames:
    the follower's log is another from that offset on at the latest, which ends the last epoch,
    ``epoch``, that the leader has and is not later than the follower's last.

    ``rewrites`` is how often the leader has written a segment anew. With ``must_reset`` the
    follower is to drop its log and begin at ``start_offset``: compaction has taken away, behind
    where it is, what made void something that it may still have.
    """

    segment_base: int
    start_offset: int
    frame_bytes: int
    diverges_at: int | None = None
    epoch: int = -1
    rewrites: int = -1
    must_reset: bool = False


class PartitionUpdate(msgspec.Struct, frozen=True, array_like=True):
    """What follows in a partition; ``refusal`` says why there is nothing to be had here."""

    key: PartitionKey
    leader_epoch: int
    high_watermark: LogOffsets
    messages: LogUpdate | None
    events: LogUpdate | None
    refusal: str = ""


class FetchResponse(msgspec.Struct, frozen=True, array_like=True):
    """News of partitions; ``is_unknown_session`` asks the follower to begin a new one."""

    updates: list[PartitionUpdate]
    is_unknown_session: bool = False


def encode(value: FetchRequest | FetchResponse) -> bytes:
    """Return a request or the head of an answer as bytes."""
    return msgspec.msgpack.encode(value)


def decode_request(data: bytes | memoryview) -> FetchRequest:
    """Return a request; raise ``InvalidFrame`` if the bytes are none."""
    try:
        return msgspec.msgpack.decode(data, type=FetchRequest)
    except msgspec.MsgspecError as error:
        raise InvalidFrame(f"this is no request of a follower: {error}") from None


def decode_response(data: bytes | memoryview) -> FetchResponse:
    """Return the head of an answer; raise ``InvalidFrame`` if the bytes are none."""
    try:
        return msgspec.msgpack.decode(data, type=FetchResponse)
    except msgspec.MsgspecError as error:
        raise InvalidFrame(f"this is no answer to a follower: {error}") from None
