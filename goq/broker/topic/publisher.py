"""The producer side of a topic: chooses a partition for each message and returns its offset.

The hash of the key selects the partition. A message without a key goes to the partition of its
dedup id's hash. All others use a sticky partition, see :meth:`TopicPublisher._keyless`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from goq import limits
from goq.broker.log.pending_appends import Appended, Waiter, wait_for_all
from goq.broker.log.shared_frame import frame_of, positions, shared_by
from goq.broker.partition.publish_target import PublishTarget, TargetLookup
from goq.broker.topic.partition_table import PartitionTable
from goq.clock import TimeSlice
from goq.config.topic import TopicSettings
from goq.errors import GoqError, InvalidInput
from goq.frame.encoder import (
    NO_PRODUCER,
    DuplicateRow,
    ProducerMark,
    named_producer,
)
from goq.frame.hashes import dedup_partition_of, partition_of
from goq.frame.header import Attribute, FrameHeader
from goq.frame.one_value import value_of
from goq.frame.view import FrameView
from goq.model import Acks, Message

_ENCODED_AT_ONCE = 500  # messages; more are encoded in a thread
ANY_PARTITION = 0xFFFF_FFFF


class RoutedMessage(NamedTuple):
    """A message and its requested partition; with None the topic chooses one."""

    partition: int | None
    content: Message


class PublishedMessage(NamedTuple):
    """The position of a published message; ``is_repetition`` if its dedup id was stored before."""

    partition: int
    offset: int
    time_us: int
    is_repetition: bool


class PublishedFrame(msgspec.Struct, frozen=True):
    """The positions of the messages of one published frame.

    The offsets are consecutive from ``offset`` on. ``left_out`` holds the messages that were stored
    before. ``message_count`` is the number of messages in the frame as published. ``duplicate``
    means that an earlier attempt stored the whole frame.
    """

    partition: int
    offset: int
    message_count: int
    time_us: int
    duplicate: bool
    left_out: Sequence[DuplicateRow]


class TopicPublisher:
    """Publishes messages and frames to the partitions of one topic."""

    def __init__(
        self,
        topic: str,
        settings: TopicSettings,
        partitions: PartitionTable,
        remote_target: TargetLookup | None,
        random: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.refusal: GoqError | None = None
        """Why the topic takes no messages; None if it does."""
        self._topic = topic
        self._partitions = partitions
        self._remote_target = remote_target
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._sticky: int | None = None
        self._sticky_bytes = 0
        self._sticky_until_s = 0.0

    def target(self, number: int) -> PublishTarget:
        """Return a partition to publish to, on this node or on the node that leads it.

        Raises ``PartitionNotFound`` if the topic has no such partition, ``PartitionOffline`` if it
        could not be opened, and ``TopicReadOnly``.
        """
        if self.refusal is not None:
            raise self.refusal
        return self.own_target(number)

    def own_target(self, number: int) -> PublishTarget:
        """Return a partition to publish to also if the topic takes no messages of clients."""
        partition = self._partitions.get(number)
        if partition is not None:
            return partition.appender
        self._partitions.check(number)
        if self._remote_target is None:
            raise self._partitions.not_here(number)
        return self._remote_target(self._topic, number)

    def publish_at_once(
        self,
        placed: RoutedMessage,
        producer: ProducerMark,
        client_id: str | None,
        acks: Acks,
        done: Waiter[Appended],
    ) -> int | None:
        """Queue one message on this node; return its partition. ``done`` gets its position.

        Return None, and queue nothing, where that takes more: then use :meth:`publish_messages`.
        Raises as it does.
        """
        number = self._place(*placed)
        partition = self._partitions.get(number)
        if partition is None:
            return None
        if self.refusal is not None:
            raise self.refusal
        by = shared_by(producer, acks, self.settings.default_lane)
        is_queued = partition.appender.append_message_for(done, placed.content, by, client_id)
        return number if is_queued else None

    def publish_frame_at_once(
        self,
        placed: tuple[int, FrameView],
        client_id: str | None,
        acks: Acks,
        done: Waiter[Appended],
    ) -> int | None:
        """Do as :meth:`publish_at_once` for a checked frame; see :meth:`publish_frames`."""
        number, view = self._place_frame(*placed), placed[1]
        partition = self._partitions.get(number)
        if partition is None:
            return None
        if self.refusal is not None:
            raise self.refusal
        if client_id is not None:
            view = _named(view, client_id)
        value = _lone_value(view)
        if value is None:
            is_queued = partition.appender.append_frame_for(done, view, client_id, acks)
        else:
            by = shared_by(_producer_of(view.header), acks, self.settings.default_lane)
            message = Message(value)
            is_queued = partition.appender.append_message_for(done, message, by, client_id)
        return number if is_queued else None

    async def publish_messages(
        self,
        placed: Sequence[RoutedMessage],
        client_id: str | None = None,
        *,
        acks: Acks = Acks.QUORUM,
    ) -> list[PublishedMessage]:
        """Store messages, one frame for each partition; return the position of each message.

        ``client_id`` is the name of their producer. ``acks`` is the number of nodes that must have
        stored them.
        """
        producer = mark_of(client_id)
        if len(placed) == 1:  # the fast path for the most frequent request
            number = self._place(*placed[0])
            by = shared_by(producer, acks, self.settings.default_lane)
            appended = await self.target(number).publish_message(placed[0].content, by, client_id)
            return [_published(number, appended)]
        chosen: dict[int, list[int]] = {}
        time_slice = TimeSlice()
        for row, (partition, message) in enumerate(placed):
            chosen.setdefault(self._place(partition, message), []).append(row)
            if time_slice.is_over:
                await time_slice.next()
        encode = partial(self._frames, placed, chosen, producer)
        is_long = len(placed) > _ENCODED_AT_ONCE
        frames = await asyncio.to_thread(encode) if is_long else encode()
        pending = self._publish(frames, client_id, acks)
        results: dict[int, PublishedMessage] = {}
        appends = await wait_for_all(pending)
        time_slice = TimeSlice()
        for (partition, rows), appended in zip(chosen.items(), appends, strict=True):
            stored = positions(appended, len(rows))
            for row, one in zip(rows, stored, strict=True):
                results[row] = _published(partition, one)
                if time_slice.is_over:
                    await time_slice.next()
        return [results[row] for row in range(len(placed))]

    def _frames(
        self,
        placed: Sequence[RoutedMessage],
        chosen: Mapping[int, Sequence[int]],
        producer: ProducerMark,
    ) -> list[tuple[int, FrameView]]:
        """Return a frame for each partition, of the messages chosen for it by their rows."""
        lane = self.settings.default_lane
        return [
            (partition, frame_of([placed[row].content for row in rows], producer, lane))
            for partition, rows in chosen.items()
        ]

    async def publish_frames(
        self,
        frames: Sequence[tuple[int, FrameView]],
        client_id: str | None = None,
        *,
        acks: Acks = Acks.QUORUM,
    ) -> list[PublishedFrame]:
        """Store checked frames; return their positions. ``client_id`` names their producer."""
        if client_id is not None:
            frames = [(partition, _named(view, client_id)) for partition, view in frames]
        numbers = [self._place_frame(partition, view) for partition, view in frames]
        value = _lone_value(frames[0][1]) if len(frames) == 1 else None
        if value is not None:
            producer = _producer_of(frames[0][1].header)
            appends = [await self._publish_value(numbers[0], value, producer, client_id, acks)]
        else:
            placed = [(n, view) for n, (_, view) in zip(numbers, frames, strict=True)]
            pending = self._publish(placed, client_id, acks)
            appends = await wait_for_all(pending)
        return [
            PublishedFrame(
                number,
                appended.offset,
                view.header.message_count,
                appended.time_us,
                appended.duplicate,
                appended.left_out,
            )
            for number, (_, view), appended in zip(numbers, frames, appends, strict=True)
        ]

    def _publish_value(
        self,
        number: int,
        value: bytes,
        producer: ProducerMark,
        client_id: str | None,
        acks: Acks,
    ) -> asyncio.Future[Appended]:
        """Queue the value of a frame, to share a frame with others."""
        by = shared_by(producer, acks, self.settings.default_lane)
        return self.target(number).publish_message(Message(value), by, client_id)

    def _publish(
        self, frames: Sequence[tuple[int, FrameView]], client_id: str | None, acks: Acks
    ) -> list[asyncio.Future[Appended]]:
        """Queue all frames, or raise before queueing any."""
        targets = [self.target(number) for number, _ in frames]
        for target, (_, view) in zip(targets, frames, strict=True):
            target.check_publish(len(view.buffer))
        pending = []
        for target, (_, view) in zip(targets, frames, strict=True):
            pending.append(target.publish(view, client_id, acks=acks))
        return pending

    def _place(self, partition: int | None, message: Message) -> int:
        if partition is not None:
            self.target(partition)
            return partition
        if message.key is not None:
            return partition_of(message.key, self._partitions.count)
        if message.dedup_id is not None:  # a retry must reach the same partition
            return dedup_partition_of(message.dedup_id, self._partitions.count)
        return self._keyless(len(message.value or b""))

    def _keyless(self, size_bytes: int) -> int:
        """Return the current sticky partition, for so many bytes without a key.

        The first one is random. As in Kafka, concurrent messages share it, so that they share a
        write, and their leases and acks do too. The next one follows after ``limits.STICKY_BYTES``
        or ``limits.STICKY_S``, so that few small messages use all partitions too.
        """
        count, now_s = self._partitions.count, self._loop.time()
        sticky = self._sticky
        if sticky is None:
            sticky = int(self._random() * count)
        elif self._sticky_bytes >= limits.STICKY_BYTES or now_s >= self._sticky_until_s:
            sticky = (sticky + 1) % count
        if sticky != self._sticky:
            self._sticky_bytes, self._sticky_until_s = 0, now_s + limits.STICKY_S
        partition = self._partitions.get(sticky)
        if partition is None or partition.availability.error is not None:
            online = (p for p in self._partitions.in_turn(sticky) if p.availability.error is None)
            sticky = next((p.identity.number for p in online), sticky)
        self._sticky = sticky
        self._sticky_bytes += size_bytes
        return sticky

    def _place_frame(self, partition: int, view: FrameView) -> int:
        if partition != ANY_PARTITION:
            self.target(partition)
            return partition
        if view.header.attributes & (Attribute.KEYS | Attribute.DEDUP_ID):
            raise InvalidInput(
                "a frame with keys or dedup ids must name its partition: the hash of the key, or"
                f" of the dedup id where there is no key, modulo {self._partitions.count}",
                field="partition",
            )
        return self._keyless(len(view.buffer))


def _lone_value(view: FrameView) -> bytes | None:
    """Return the only value of a frame, if nothing refers to it as a frame."""
    return None if view.header.sequenced_producer_id else value_of(view)


@lru_cache(maxsize=1024)
def mark_of(client_id: str | None) -> ProducerMark:
    """Return the mark of a producer with a name, or with none."""
    return NO_PRODUCER if client_id is None else named_producer(client_id)


def _producer_of(header: FrameHeader) -> ProducerMark:
    return ProducerMark(header.producer_id, header.producer_epoch, 0)


def _named(view: FrameView, client_id: str) -> FrameView:
    """Return a frame with the producer ``client_id``, unless it has a producer already."""
    if view.header.producer_id:
        return view
    mark = mark_of(client_id)
    header = view.header._replace(producer_id=mark.producer_id, producer_epoch=mark.epoch)
    return FrameView(header, view.buffer)


def _published(partition: int, appended: Appended) -> PublishedMessage:
    """Return the position of a message that was appended as if in a frame of its own."""
    return PublishedMessage(partition, appended.offset, appended.time_us, bool(appended.left_out))
