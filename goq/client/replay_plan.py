"""The replay: which messages of a topic, and where and how their copies are published.

This module is pure. Equal replays have equal producer ids, so a replay into a topic can be run
again after a crash at any point, and stores nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from goq.client.delivery_options import lanes_of
from goq.client.message_batch import producer_id_of
from goq.client.messages import LogMessage
from goq.errors import InvalidInput
from goq.frame.hashes import partition_of
from goq.model import Header, Message, MessageId

REPLAYED_FROM: Final = "goq-replayed-from"


@dataclass(frozen=True, slots=True)
class Replay:
    """Which messages of a topic: every bound is absolute, and the upper ones are excluded.

    Times are microseconds since 1970. ``as_of_us`` is the moment whose archive is read too.
    ``topic_id`` tells the topic from others of its name, "" if the node does not say.
    """

    topic: str
    from_time_us: int | None = None
    to_time_us: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    partition: int | None = None
    key: bytes | None = None
    include_deleted: bool = False
    as_of_us: int | None = None
    topic_id: str = ""

    def producer_id(self, target: str, partition: int) -> int:
        """Return the producer id of the copies from a partition, in the topic ``target``.

        A topic that was created again has another id, so its replay is another one.
        """
        identity = msgspec.structs.asdict(_Identity.of(self))
        if not self.topic_id:
            return producer_id_of((target, partition, identity))
        return producer_id_of((target, partition, identity, self.topic_id))

    def wants(self, message: LogMessage) -> bool:
        """Whether a message between the times is part of the replay."""
        return (self.key is None or message.key == self.key) and (
            self.to_offset is None or message.offset < self.to_offset
        )


class _Identity(msgspec.Struct, frozen=True):
    """The identity of a replay: names and order of its fields are hashed, and never change."""

    topic: str
    times: tuple[int | None, int | None]
    offsets: tuple[int | None, int | None]
    partition: int | None
    key: bytes | None
    include_deleted: bool
    snapshot_us: int | None

    @classmethod
    def of(cls, replay: Replay) -> _Identity:
        return cls(
            replay.topic,
            (replay.from_time_us, replay.to_time_us),
            (replay.from_offset, replay.to_offset),
            replay.partition,
            replay.key,
            replay.include_deleted,
            replay.as_of_us,
        )


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Where copies go, from the partitions and the lanes of both topics."""

    source_partitions: int
    target_partitions: int
    source_lanes: str
    target_lanes: str

    def partition(self, partition: int, key: bytes | None) -> int:
        """Return the partition of a copy.

        The same one where both topics have as many. Else that of the key; without a key, the
        number modulo the partitions that there are.
        """
        if self.source_partitions == self.target_partitions:
            return partition
        if key is None:
            return partition % self.target_partitions
        return partition_of(key, self.target_partitions)

    def lane(self, name: str) -> int | None:
        """Return the lane of that name, else of the same number; None for the default one."""
        target = lanes_of(self.target_lanes)
        try:
            lane = target.lane(name, field="priority")
        except InvalidInput:
            lane = lanes_of(self.source_lanes).lane(name, field="priority")
        return None if lane == target.default_lane else lane

    def copy(self, message: LogMessage) -> Message:
        """Return the copy of a message: as it was, but ready at once and without expiry."""
        return Message(
            message.value,
            message.key,
            with_origin(message.headers, message.id),
            lane=self.lane(message.priority),
            tenant=message.tenant,
        )


def with_origin(headers: Sequence[Header], origin: MessageId) -> Sequence[Header]:
    """Return headers with the id of the message that a copy is made of as the last one.

    A message that was replayed before keeps its first id, in front of it.
    """
    first = [header for header in headers if header[0] == REPLAYED_FROM][:1]
    others = [header for header in headers if header[0] != REPLAYED_FROM]
    return (*others, *first, (REPLAYED_FROM, str(origin).encode()))


def origin_of(headers: Sequence[Header]) -> MessageId | None:
    """Return the id of the message that a copy was made of, None for no copy."""
    found = [value for name, value in headers if name == REPLAYED_FROM]
    try:
        return MessageId.parse(found[-1].decode()) if found else None
    except (InvalidInput, UnicodeDecodeError):
        return None
