"""The fetch protocol between followers and leaders: requests and responses in msgpack.

A follower has one *session* with each node that leads partitions it follows. It reports its
position in a partition when that has changed, and asks for the continuation of all of them at once.
So a request costs what has happened, not what exists. A response holds, for each partition with an
update, the frames of both logs as they lie on the leader's disk.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from goq.broker.partition_context import PartitionId
from goq.cluster.replication.progress import LogOffsets
from goq.errors import InvalidFrame
from goq.model import topic_folder


class PartitionKey(NamedTuple):
    """A partition of a topic; ``topic_id`` tells the topic from earlier ones of the same name."""

    topic: str
    topic_id: int
    number: int

    @property
    def identity(self) -> PartitionId:
        """The partition as the broker identifies it."""
        return PartitionId(self.topic, self.number, self.topic_id)

    @property
    def folder(self) -> str:
        """The name of the topic's folder."""
        return topic_folder(self.topic, self.topic_id)


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The position of a follower: the ends of its logs, and the leader epochs of their last frames.

    ``rewrites`` is what the leader last reported of its messages, -1 before it did.
    """

    key: PartitionKey
    leader_epoch: int
    ends: LogOffsets
    epochs: LogOffsets
    rewrites: int = -1


class FetchRequest(msgspec.Struct, frozen=True, array_like=True):
    """Asks for what follows ``positions``, and those of earlier requests in the session.

    ``session`` is a number from 1 on. With ``is_new`` the session begins, and the positions are all
    there are. ``forgotten`` partitions are not asked for any more. The response comes when there is
    an update, or after ``wait_ms``.
    """

    node: str
    session: int
    is_new: bool
    positions: list[Position]
    forgotten: list[PartitionKey]
    wait_ms: int


class LogUpdate(msgspec.Struct, frozen=True, array_like=True):
    """The continuation of one log: ``frame_bytes`` of frames, all from one segment of the leader's.

    ``start_offset`` is where the leader's log begins. With ``diverges_at`` there are no frames: the
    follower's log differs from that offset on at the latest. There ``epoch`` ends, the last epoch
    that the leader has and that is not later than the follower's last.

    ``rewrites`` is how often the leader has rewritten a segment. With ``must_reset`` the follower
    must drop its log and begin at ``start_offset``: behind the follower's position, compaction has
    removed what voided something that the follower may still have.

    With ``lost`` there are no frames: no replica has the frames between these two offsets, the end
    excluded. A follower that ends at the first continues at the second. An earlier version ignores
    it.
    """

    segment_base: int
    start_offset: int
    frame_bytes: int
    diverges_at: int | None = None
    epoch: int = -1
    rewrites: int = -1
    must_reset: bool = False
    lost: tuple[int, int] | None = None


class PartitionUpdate(msgspec.Struct, frozen=True, array_like=True):
    """The continuation of a partition; ``refusal`` says why the node has none to give.

    ``ends`` are the ends of the leader's logs, None from a version that does not say.
    """

    key: PartitionKey
    leader_epoch: int
    high_watermark: LogOffsets
    messages: LogUpdate | None
    events: LogUpdate | None
    refusal: str = ""
    ends: LogOffsets | None = None


class FetchResponse(msgspec.Struct, frozen=True, array_like=True):
    """Updates of partitions; with ``is_unknown_session`` the follower must begin a new session.

    ``clock_ms`` is the leader's wall time when it responds, 0 from a version that does not say.
    """

    updates: list[PartitionUpdate]
    is_unknown_session: bool = False
    clock_ms: int = 0


def encode(value: FetchRequest | FetchResponse) -> bytes:
    """Return a request or the head of a response as bytes."""
    return msgspec.msgpack.encode(value)


def decode_request(data: bytes | memoryview) -> FetchRequest:
    """Return a request; raise ``InvalidFrame`` if the bytes are not one."""
    try:
        return msgspec.msgpack.decode(data, type=FetchRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidFrame(f"not a fetch request: {error}") from None


def decode_response(data: bytes | memoryview) -> FetchResponse:
    """Return the head of a response; raise ``InvalidFrame`` if the bytes are not one."""
    try:
        return msgspec.msgpack.decode(data, type=FetchResponse)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidFrame(f"not a fetch response: {error}") from None
