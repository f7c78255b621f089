"""Idempotent publishing to one topic: one producer id, with a sequence for each partition.

A batch keeps its sequences however often it is sent, so the node recognises what an earlier
attempt stored. After a batch is given up, the producer id is replaced: whether the node used up the
sequences is not known, and a new producer may begin anywhere.

Single messages share requests by flat combining (Hendler, Incze, Shavit, Tzafrir, SPAA 2010). Each
caller queues its message, then waits for the lock. The caller that gets it sends all queued
messages; the others find their result when they get the lock. One request is under way at a time,
and it grows with the load.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from goq.client._async.frame_publisher import post_frames
from goq.client._async.http import Http
from goq.client._async.runtime import Lock
from goq.client.arguments import message_bytes
from goq.client.delivery_options import PLAIN, DeliveryOptions, NodeClock, TopicPublishSettings
from goq.client.errors import PartlyStored
from goq.client.message_batch import MessageBatch, PartitionShare, batches_of
from goq.client.messages import Published, PublishedBatch, PublishedRun, joined
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.client.protocol.answers import TopicAnswer, read_answer
from goq.errors import InvalidInput, PartitionNotFound
from goq.frame.encoder import ProducerMark
from goq.frame.one_value import encode_batch
from goq.model import Message
from goq.units import parse_time_us


@dataclass(slots=True)
class PreparedBatch:
    """A batch encoded as frames: the same bytes on every attempt."""

    batch: MessageBatch
    shares: Sequence[PartitionShare]
    frames: Sequence[tuple[int, bytes]]
    stored: list[PublishedRun] = field(default_factory=list)
    """The part that is stored, while the rest is sent to other partitions."""


class Publisher:
    """Sends batches to one topic. Its caller sends one at a time.

    With ``partition`` every message goes there. Otherwise keys choose the partition. The messages
    of a batch without keys go to one partition, or to as many as it has 64 KiB; the next batch goes
    to the next one, from a random first one. Each answer tells the number of partitions: a batch is
    divided by the number that the answer before it told. With ``acks`` of ``leader`` the node does
    not wait for its followers.
    """

    def __init__(
        self, http: Http, topic: str, *, partition: int | None = None, acks: str | None = None
    ) -> None:
        self.topic = topic
        self._acks = acks
        self._http = http
        self._partition = partition
        self._count: int | None = None
        self._target = TopicPublishSettings()
        self._clock = NodeClock()
        self._turn = random.getrandbits(16)
        self.renew()

    def renew(self) -> None:
        """Take a new producer id."""
        self._producer_id = random.getrandbits(64) or 1
        self._sequences: dict[int, int] = {}

    async def partitions(self, *, anew: bool = False) -> int:
        """Return the number of partitions of the topic: asked once, or ``anew``.

        A node that creates topics on publish creates it.
        """
        if self._count is None or anew:
            asked_us = self._clock.monotonic_us()
            answer = await self._http.call("PUT", routes.topic(self.topic), repeatable=True)
            found = read_answer(TopicAnswer, answer)
            self._target = TopicPublishSettings.of(found.settings)
            if found.time is not None:
                self._clock.note(parse_time_us(found.time, now_us=0), asked_us)
            self._count = len(found.partitions)
        return self._count

    async def applied(self, message: Message, options: DeliveryOptions) -> Message:
        """Return a message with options applied; raise ``InvalidInput`` naming a bad one.

        A lane that is not known is refused only after the topic was asked again.
        """
        if options == PLAIN:
            return message
        await self.partitions()
        if options.priority is not None:
            try:
                self._target.lane(options.priority)
            except InvalidInput:
                await self.partitions(anew=True)
        return self._target.applied(message, options, self._clock.now_us())

    async def prepare(self, batch: MessageBatch, *, compress: bool = False) -> PreparedBatch:
        """Return the batch as frames that carry the next sequences of their partitions."""
        if self._partition is None or batch.delivery is not None:
            await self.partitions()
        lane = self._target.default_lane
        if self._partition is not None:
            shares = [batch.whole(self._partition, default_lane=lane)]
        else:
            count = await self.partitions()
            self._turn = (self._turn + 1) % count
            shares = batch.divide(count, keyless_to=self._turn, default_lane=lane)
            self._turn += batch.keyless_parts(count) - 1
        frames: list[tuple[int, bytes]] = []
        for share in shares:
            sequence = self._sequences.get(share.partition, 0)
            mark = ProducerMark(self._producer_id, 0, sequence)
            frame = encode_batch(share.columns, mark, compress=compress)
            frames.append((share.partition, frame))
        for share in shares:
            self._sequences[share.partition] = self._sequences.get(share.partition, 0) + len(
                share.positions
            )
        return PreparedBatch(batch, shares, frames)

    async def send(self, job: PreparedBatch) -> PublishedBatch:
        """Send a batch, with retries; return where its messages were stored.

        If the topic was recreated with fewer partitions, what is not stored is divided again.
        """
        try:
            return await self._post(job)
        except (PartitionNotFound, PartlyStored) as error:
            if self._partition is not None or job.batch.partitions is not None:
                raise
            stored = error.stored if isinstance(error, PartlyStored) else {}
        for index, result in stored.items():
            time_us = parse_time_us(result.timestamp, now_us=0)
            job.stored.extend(self._runs_of(job.shares[index], result, time_us))
        left = [share for index, share in enumerate(job.shares) if index not in stored]
        positions = sorted(position for share in left for position in share.positions)
        await self.partitions(anew=True)
        self.renew()
        divided = await self.prepare(job.batch.subset(positions))
        job.shares = [
            share._replace(positions=[positions[at] for at in share.positions])
            for share in divided.shares
        ]
        job.frames = divided.frames
        return await self._post(job)

    async def _post(self, job: PreparedBatch) -> PublishedBatch:
        asked_us = self._clock.monotonic_us()
        stored = await post_frames(self._http, self.topic, job.frames, self._acks)
        runs = list(job.stored)
        for share, result in zip(job.shares, stored, strict=True):
            time_us = parse_time_us(result.timestamp, now_us=0)
            if not result.duplicate and len(result.duplicates) < len(share.positions):
                self._clock.note(time_us, asked_us)
            runs.extend(self._runs_of(share, result, time_us))
        self._learn_count(max(result.partitions for result in stored))
        return PublishedBatch(self.topic, runs)

    def _runs_of(
        self, share: PartitionShare, result: wire.StoredFrame, time_us: int
    ) -> Iterator[PublishedRun]:
        if len(result.duplicates) == len(share.positions):
            self._sequences[share.partition] -= len(share.positions)  # none was used up
        return _runs(share.positions, result, time_us)

    def _learn_count(self, count: int) -> None:
        """Divide the next batch by a larger number of partitions; it never gets smaller."""
        if self._count is not None and count > self._count:
            self._count = count


def _runs(
    positions: Sequence[int], result: wire.StoredFrame, time_us: int
) -> Iterator[PublishedRun]:
    """Yield the runs of one frame: adjacent offsets, apart from duplicates."""
    partition = result.partition
    if result.duplicates:
        gone = {row for row, _, _ in result.duplicates}
        for row, offset, original_us in result.duplicates:
            yield PublishedRun(partition, offset, original_us, True, [positions[row]])
        positions = [at for row, at in enumerate(positions) if row not in gone]
    if positions:
        yield PublishedRun(partition, result.offset, time_us, result.duplicate, positions)


ROUND_MESSAGES_MAX: Final = 1000
MANY_MESSAGES_MAX: Final = 10_000
ROUND_BYTES_MAX: Final = 1024 * 1024


class _Entry:
    """One caller's message, with its result or its error."""

    __slots__ = ("error", "message", "partition", "published")

    def __init__(self, message: Message, partition: int | None) -> None:
        self.message = message
        self.partition = partition
        self.published: Published | None = None
        self.error: Exception | None = None


class _Request(NamedTuple):
    """The request under way, with the callers of its messages."""

    entries: Sequence[_Entry]
    job: PreparedBatch


class DirectPublisher:
    """Publishes single messages to one topic, many callers in one request."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._lock = Lock()
        self._left: deque[_Entry] = deque()
        self._round: _Request | None = None

    async def publish(
        self, message: Message, partition: int | None, options: DeliveryOptions
    ) -> Published:
        """Return where the node stored a message."""
        message = await self._publisher.applied(message, options)
        if partition is not None:
            await self._check_partition(partition)
        entry = _Entry(message, partition)
        self._left.append(entry)
        try:
            async with self._lock:
                while entry.published is None and entry.error is None:
                    await self._send_round()
        except BaseException:
            self._withdraw(entry)
            raise
        if entry.published is None:
            assert entry.error is not None
            raise entry.error
        return entry.published

    async def publish_many(self, messages: Sequence[Message], *, compress: bool) -> PublishedBatch:
        """Return where the node stored messages; they are sent in requests of bounded size."""
        batches = batches_of(messages, count_max=MANY_MESSAGES_MAX, bytes_max=ROUND_BYTES_MAX)
        done: list[PublishedBatch] = []
        async with self._lock:
            if self._round is not None:
                await self._send_round()
            try:
                for batch in batches:
                    job = await self._publisher.prepare(batch, compress=compress)
                    done.append(await self._publisher.send(job))
            except BaseException as error:
                self._publisher.renew()
                stored = sum(map(len, done))
                error.add_note(f"{stored} of {len(messages)} messages were published before this")
                raise
        return joined(self._publisher.topic, done)

    async def _send_round(self) -> None:
        """Send the queued messages, or first the request that a cancelled caller left."""
        entries: Sequence[_Entry] = ()
        try:
            if self._round is None:
                await self._publisher.partitions()
                entries = self._take()
                self._round = _Request(entries, await self._publisher.prepare(_batch_of(entries)))
            entries, job = self._round
            published = await self._publisher.send(job)
        except Exception as error:
            self._round = None
            self._publisher.renew()
            for entry in entries or self._take():
                entry.error = error
        else:
            self._round = None
            for entry, result in zip(entries, published, strict=True):
                entry.published = result

    def _take(self) -> list[_Entry]:
        entries: list[_Entry] = []
        size_bytes = 0
        while self._left and len(entries) < ROUND_MESSAGES_MAX and size_bytes < ROUND_BYTES_MAX:
            entries.append(self._left.popleft())
            size_bytes += message_bytes(entries[-1].message)
        return entries

    def _withdraw(self, entry: _Entry) -> None:
        try:
            self._left.remove(entry)
        except ValueError:
            pass  # a request already has it, and its outcome is not awaited

    async def _check_partition(self, partition: int) -> None:
        count = await self._publisher.partitions()
        if not 0 <= partition < count:
            count = await self._publisher.partitions(anew=True)
        if not 0 <= partition < count:
            raise PartitionNotFound(
                f"{self._publisher.topic} has the partitions 0 to {count - 1}, not {partition}",
                field="partition",
            )


def _batch_of(entries: Sequence[_Entry]) -> MessageBatch:
    batch = MessageBatch()
    for entry in entries:
        batch.add(entry.message, message_bytes(entry.message), entry.partition)
    return batch
