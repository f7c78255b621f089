"""The way into a topic: where each message goes, and what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from goq import limits
from goq.broker.log.group_commit import Appended
from goq.broker.partition.partition import Partition
from goq.broker.partition.publish_target import PublishTarget
from goq.broker.topic.partition_table import PartitionTable
from goq.config.topic import TopicSettings
from goq.errors import InvalidInput
from goq.frame.encoder import (
    NO_PRODUCER,
    DuplicateRow,
    ProducerMark,
    columns_from_messages,
    encode_frame,
    encode_value,
    named_producer,
)
from goq.frame.hashes import dedup_partition_of, partition_of
from goq.frame.header import Attribute
from goq.frame.view import FrameView
from goq.model import Message

ANY_PARTITION = 0xFFFF_FFFF


class RoutedMessage(NamedTuple):
    """A message and the partition asked for, None to leave that to the topic."""

    partition: int | None
    content: Message


@dataclass(frozen=True, slots=True)
class PublishedMessage:
    """Where one published message lies; ``is_repetition`` if its dedup id was there before."""

    partition: int
    offset: int
    time_us: int
    is_repetition: bool


@dataclass(frozen=True, slots=True)
class PublishedFrame:
    """Where the messages of one published frame lie.

    From ``offset`` on, one after the other, but for those ``left_out``, which were there before.
    ``message_count`` is how many the frame brought. ``duplicate`` says that the whole frame had
    been stored by an earlier attempt.
    """

    partition: int
    offset: int
    message_count: int
    time_us: int
    duplicate: bool
    left_out: Sequence[DuplicateRow]


class TopicPublisher:
    """Takes messages and frames for the partitions of one topic."""

    def __init__(
        self,
        settings: TopicSettings,
        partitions: PartitionTable,
        target: Callable[[int], PublishTarget],
    ) -> None:
        self.settings = settings
        self._target = target
        self._partitions = partitions
        self._sticky = 0
        self._sticky_bytes = 0

    def partition(self, number: int) -> Partition:
        """Return a partition; raise ``PartitionNotFound`` if the topic has no such one."""
        return self._partitions[number]

    async def publish_messages(
        self,
        placed: Sequence[RoutedMessage],
        client_id: str | None = None,
        *,
        on_leader: bool = False,
    ) -> list[PublishedMessage]:
        """Store messages, those of a partition in one frame; return where each lies.

        ``client_id`` is what their producer calls itself. With ``on_leader`` nobody waits for
        other nodes to have them.
        """
        producer = NO_PRODUCER if client_id is None else named_producer(client_id)
        if len(placed) == 1:  # the common request of a service deserves the short way
            view = self._frame([placed[0].content], producer)
            number = self._place(*placed[0])
            (appended,) = await wait_for_all(self._publish([(number, view)], client_id, on_leader))
            return [_each(number, appended, 1)[0]]
        chosen: dict[int, list[int]] = {}
        for number, (partition, message) in enumerate(placed):
            chosen.setdefault(self._place(partition, message), []).append(number)
        frames = [
            (partition, self._frame([placed[number].content for number in some], producer))
            for partition, some in chosen.items()
        ]
        pending = self._publish(frames, client_id, on_leader)
        results: dict[int, PublishedMessage] = {}
        appends = await wait_for_all(pending)
        for (partition, numbers), appended in zip(chosen.items(), appends, strict=True):
            results.update(zip(numbers, _each(partition, appended, len(numbers)), strict=True))
        return [results[number] for number in range(len(placed))]

    def _frame(self, messages: Sequence[Message], producer: ProducerMark) -> FrameView:
        """Return messages as a frame; one that is only a value sooner."""
        first = messages[0]
        if len(messages) == 1 and first.value is not None and first == Message(first.value):
            return FrameView.parse(encode_value(first.value, producer))
        columns = columns_from_messages(messages, default_lane=self.settings.default_lane)
        return FrameView.parse(encode_frame(columns, producer=producer))

    async def publish_frames(
        self,
        frames: Sequence[tuple[int, FrameView]],
        client_id: str | None = None,
        *,
        on_leader: bool = False,
    ) -> list[PublishedFrame]:
        """Store checked frames; return where each lies. ``client_id`` names their producer."""
        if client_id is not None:
            frames = [(partition, _named(view, client_id)) for partition, view in frames]
        targets = [self._place_frame(partition, view) for partition, view in frames]
        placed = [(n, view) for n, (_, view) in zip(targets, frames, strict=True)]
        pending = self._publish(placed, client_id, on_leader)
        appends = await wait_for_all(pending)
        return [
            PublishedFrame(
                target,
                appended.offset,
                view.header.message_count,
                appended.time_us,
                appended.duplicate,
                appended.left_out,
            )
            for target, (_, view), appended in zip(targets, frames, appends, strict=True)
        ]

    def _publish(
        self, frames: Sequence[tuple[int, FrameView]], client_id: str | None, on_leader: bool
    ) -> list[asyncio.Future[Appended]]:
        """Queue all frames, or raise before any of them is."""
        for number, view in frames:
            self._target(number).check_publish(len(view.buffer))
        pending = []
        for number, view in frames:
            if number == self._sticky:
                self._sticky_bytes += len(view.buffer)
            pending.append(self._target(number).publish(view, client_id, on_leader=on_leader))
        return pending

    def _place(self, partition: int | None, message: Message) -> int:
        if partition is not None:
            self._target(partition)
            return partition
        if message.key is not None:
            return partition_of(message.key, self._partitions.count)
        if message.dedup_id is not None:  # sent again it must meet the first one
            return dedup_partition_of(message.dedup_id, self._partitions.count)
        return self._keyless()

    def _keyless(self) -> int:
        """Return the partition that keyless messages go to now.

        They stay with one until it got its share and then move on, as in Kafka: so that those of
        one moment share a write, and so do their leases and acks.
        """
        if self._sticky_bytes >= limits.STICKY_BYTES:
            self._sticky, self._sticky_bytes = (self._sticky + 1) % self._partitions.count, 0
        for partition in self._partitions.in_turn(self._sticky):
            if partition.is_online:
                self._sticky = partition.identity.number
                break
        return self._sticky

    def _place_frame(self, partition: int, view: FrameView) -> int:
        if partition != ANY_PARTITION:
            self._target(partition)
            return partition
        if view.header.attributes & (Attribute.KEYS | Attribute.DEDUP_ID):
            raise InvalidInput(
                "a frame with keys or dedup ids must name its partition: the hash of the key, or"
                f" of the dedup id where there is no key, modulo {self._partitions.count}",
                field="partition",
            )
        return self._keyless()


def _named(view: FrameView, client_id: str) -> FrameView:
    """Return a frame with its producer named, if it does not say itself who that is."""
    if view.header.producer_id:
        return view
    mark = named_producer(client_id)
    header = view.header._replace(producer_id=mark.producer_id, producer_epoch=mark.epoch)
    return FrameView(header, view.buffer)


def _each(partition: int, appended: Appended, count: int) -> list[PublishedMessage]:
    """Return where each of ``count`` messages of a frame lies."""
    repetitions = {row: (offset, time_us) for row, offset, time_us in appended.left_out}
    stored: list[PublishedMessage] = []
    offset = appended.offset
    for row in range(count):
        if row in repetitions:
            stored.append(PublishedMessage(partition, *repetitions[row], True))
        else:
            stored.append(PublishedMessage(partition, offset, appended.time_us, False))
            offset += 1
    return stored


async def wait_for_all(pending: Sequence[asyncio.Future[Appended]]) -> list[Appended]:
    """Wait for all appends, then return them or raise the first error."""
    if len(pending) == 1:
        return [await pending[0]]
    results = await asyncio.gather(*pending, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, Appended)]
