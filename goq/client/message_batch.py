"""The message batch: messages gathered for one request, and their division among partitions.

A batch holds columns, not messages: whole lists go in, and whole lists go to the codec. It is
divided when it is sent. The hash of a key chooses the partition. Messages without a key go to one
partition together, so that a small batch without keys is one frame; a larger one is divided into
runs of at least 64 KiB. A message without a key but with a
dedup id goes to the partition of the id, so that sending it again finds the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from goq import limits
from goq.client.arguments import message_bytes
from goq.client.delivery_options import TopicPublishSettings
from goq.frame.encoder import Columns, add_delivery_columns
from goq.frame.hashes import dedup_partition_of, partition_of
from goq.model import Header, Message, has_delivery_options

_PLAIN = Message(None)


class PartitionShare(NamedTuple):
    """The part of a batch for one partition; ``positions`` are those of its messages."""

    partition: int
    positions: Sequence[int]
    columns: Columns


class MessageBatch:
    """Messages in the order in which they were added, by column.

    ``keys`` and ``headers`` are None as long as no message has any. ``partitions`` is None unless
    a message names its own partition, ``delivery`` unless one has delivery fields.
    """

    __slots__ = ("delivery", "headers", "keys", "partitions", "size_bytes", "values")

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Sequence[Header]] | None = None
        self.partitions: list[int | None] | None = None
        self.delivery: list[Message] | None = None
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.values)

    def add(self, message: Message, size_bytes: int, partition: int | None = None) -> None:
        """Add a message that takes ``size_bytes``.

        The value is added last. If a signal handler raises before, the other columns may have more
        than ``values``; their ends are replaced by the next message.
        """
        before = len(self.values)
        if message.key is not None and self.keys is None:
            self.keys = [None] * before
        if message.headers and self.headers is None:
            self.headers = [()] * before
        if partition is not None and self.partitions is None:
            self.partitions = [None] * before
        if self.delivery is None and has_delivery_options(message):
            self.delivery = [_PLAIN] * before
        if self.keys is not None:
            self.keys[before:] = (message.key,)
        if self.headers is not None:
            self.headers[before:] = (message.headers,)
        if self.partitions is not None:
            self.partitions[before:] = (partition,)
        if self.delivery is not None:
            self.delivery[before:] = (message,)
        self.size_bytes += size_bytes
        self.values.append(message.value)

    def add_messages(self, messages: Sequence[Message], size_bytes: int) -> None:
        """Add messages that together take ``size_bytes``."""
        before = len(self.values)
        keys = [message.key for message in messages]
        headers = [message.headers for message in messages]
        if self.keys is None and keys.count(None) < len(keys):
            self.keys = [None] * before
        if self.headers is None and any(headers):
            self.headers = [()] * before
        if self.delivery is None and any(map(has_delivery_options, messages)):
            self.delivery = [_PLAIN] * before
        if self.keys is not None:
            self.keys[before:] = keys
        if self.headers is not None:
            self.headers[before:] = headers
        if self.partitions is not None:
            self.partitions[before:] = [None] * len(messages)
        if self.delivery is not None:
            self.delivery[before:] = messages
        self.size_bytes += size_bytes
        self.values.extend([message.value for message in messages])

    def add_values(self, values: Sequence[bytes], size_bytes: int) -> None:
        """Add messages that have only a value."""
        before = len(self.values)
        if self.keys is not None:
            self.keys[before:] = [None] * len(values)
        if self.headers is not None:
            self.headers[before:] = [()] * len(values)
        if self.partitions is not None:
            self.partitions[before:] = [None] * len(values)
        if self.delivery is not None:
            self.delivery[before:] = [_PLAIN] * len(values)
        self.size_bytes += size_bytes
        self.values.extend(values)

    def _drop_valueless(self) -> None:
        """Drop what an interrupted ``add`` left in the other columns."""
        columns: tuple[list[Any] | None, ...]
        columns = (self.keys, self.headers, self.partitions, self.delivery)
        for column in columns:
            if column is not None:
                del column[len(self.values) :]

    @property
    def has_lanes(self) -> bool:
        """Whether a message names its lane."""
        return self.delivery is not None and any(m.lane is not None for m in self.delivery)

    def divide(
        self, partitions: int, *, keyless_to: int, topic: TopicPublishSettings
    ) -> list[PartitionShare]:
        """Return the shares of a topic's partitions, in the order of their first messages.

        Messages without a key go to ``keyless_parts`` partitions, the first being ``keyless_to``.
        The ``topic`` numbers the lanes. Raises ``InvalidInput`` for one that it does not have.
        """
        self._drop_valueless()
        if self.keys is None and self.partitions is None and self.delivery is None:
            return self._runs(partitions, keyless_to)
        places: dict[int, list[int]] = {}
        for position, partition in enumerate(self._destinations(partitions, keyless_to)):
            places.setdefault(partition, []).append(position)
        if len(places) == 1:
            return [self.whole(next(iter(places)), topic=topic)]
        return [
            PartitionShare(partition, positions, self.columns_of(positions, topic))
            for partition, positions in places.items()
        ]

    def subset(self, positions: Sequence[int]) -> MessageBatch:
        """Return a batch of the messages at some positions, which are ascending."""
        found = MessageBatch()
        for at in positions:
            message = Message(
                self.values[at],
                None if self.keys is None else self.keys[at],
                () if self.headers is None else tuple(self.headers[at]),
            )
            if self.delivery is not None and has_delivery_options(self.delivery[at]):
                message = self.delivery[at]
            named = None if self.partitions is None else self.partitions[at]
            found.add(message, message_bytes(message), named)
        return found

    def keyless_parts(self, partitions: int) -> int:
        """Return among how many partitions messages without a key are shared: 64 KiB each."""
        return max(1, min(partitions, self.size_bytes // limits.STICKY_BYTES))

    def _runs(self, partitions: int, first: int) -> list[PartitionShare]:
        """Return shares with as many consecutive messages each."""
        parts = self.keyless_parts(partitions)
        if parts == 1:
            return [self.whole(first, topic=TopicPublishSettings())]
        bounds = [part * len(self) // parts for part in range(parts + 1)]
        return [
            PartitionShare(
                (first + part) % partitions,
                range(start, end),
                Columns(
                    self.values[start:end],
                    None,
                    None if self.headers is None else self.headers[start:end],
                ),
            )
            for part, (start, end) in enumerate(pairwise(bounds))
            if start < end
        ]

    def whole(self, partition: int, *, topic: TopicPublishSettings) -> PartitionShare:
        """Return all messages as the share of one partition, as :meth:`divide`."""
        self._drop_valueless()
        columns = Columns(self.values, self.keys, self.headers)
        if self.delivery is not None:
            columns = _add_delivery(columns, self.delivery, topic)
        return PartitionShare(partition, range(len(self.values)), columns)

    def _destinations(self, partitions: int, keyless_to: int) -> list[int]:
        keys = self.keys or [None] * len(self.values)
        parts, count = self.keyless_parts(partitions), len(self.values)
        by_key = [
            (keyless_to + position * parts // count) % partitions
            if key is None
            else partition_of(key, partitions)
            for position, key in enumerate(keys)
        ]
        for position, message in enumerate(self.delivery or ()):
            if message.dedup_id is not None and keys[position] is None:
                by_key[position] = dedup_partition_of(message.dedup_id, partitions)
        if self.partitions is None:
            return by_key
        return [
            hashed if named is None else named
            for named, hashed in zip(self.partitions, by_key, strict=True)
        ]

    def columns_of(self, positions: Sequence[int], topic: TopicPublishSettings) -> Columns:
        """Return the messages at some positions, as :meth:`divide`."""
        keys = None if self.keys is None else _pick(self.keys, positions)
        headers = None if self.headers is None else _pick(self.headers, positions)
        if keys is not None and keys.count(None) == len(keys):
            keys = None
        columns = Columns(_pick(self.values, positions), keys, headers)
        if self.delivery is None:
            return columns
        return _add_delivery(columns, _pick(self.delivery, positions), topic)


def batches_of(
    messages: Sequence[Message], *, count_max: int, bytes_max: int
) -> list[MessageBatch]:
    """Return ``messages`` in as few batches as the two bounds allow."""
    batches: list[MessageBatch] = []
    for message in messages:
        size_bytes = message_bytes(message)
        if (
            not batches
            or len(batches[-1]) >= count_max
            or batches[-1].size_bytes + size_bytes > bytes_max
        ):
            batches.append(MessageBatch())
        batches[-1].add(message, size_bytes)
    return batches


def _add_delivery(
    columns: Columns, messages: Sequence[Message], topic: TopicPublishSettings
) -> Columns:
    return add_delivery_columns(columns, topic.numbered(messages), topic.default_lane)


def _pick(column: list[Any], positions: Sequence[int]) -> list[Any]:
    if len(positions) == 1:
        return [column[positions[0]]]
    return list(itemgetter(*positions)(column))


_ID_BITS: Final = 63


def producer_id_of(identity: object) -> int:
    """Return the id of the producer that ``identity`` describes; never 0.

    The same description gives the same id, so work that runs again has the same producer. It is
    made of JSON values, whose fields never change their order.
    """
    from hashlib import blake2b  # loads OpenSSL, for replays alone

    digest = blake2b(msgspec.msgpack.encode(identity), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _ID_BITS) or 1
