"""One producer identity on one topic: batches numbered, sent, and sent again without doubling.

Each partition counts a producer's messages. A batch keeps its numbers however often it is sent,
so the node recognises what an earlier attempt stored. A batch that is given up takes the identity
with it: its numbers may or may not be used up, and a new identity may begin anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from goq.client._async.http import Http
from goq.client._async.posting import post_frames
from goq.client.batch import Batch, Share
from goq.client.delivery_options import PLAIN, DeliveryOptions, NodeClock, Target
from goq.client.messages import PublishedBatch, PublishedRun
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.errors import InvalidInput, PartitionNotFound
from goq.frame.encoder import ProducerMark, encode_frame
from goq.model import Message
from goq.units import parse_duration_ms, parse_time_us


@dataclass(slots=True)
class Job:
    """A batch made ready for the wire: the same bytes on every attempt."""

    batch: Batch
    shares: Sequence[Share]
    frames: Sequence[tuple[int, bytes]]


class Publisher:
    """Sends batches to one topic, one at a time: its caller sees to that.

    ``partition`` sends every message there. Otherwise keys decide, and what has no key goes to
    one partition a batch, the next one each time, from a random first one. With ``acks`` of
    ``leader`` a message counts as stored before other nodes of a cluster have it.
    """

    def __init__(
        self, http: Http, topic: str, *, partition: int | None = None, acks: str | None = None
    ) -> None:
        self.topic = topic
        self._acks = acks
        self._http = http
        self._partition = partition
        self._count: int | None = None
        self._target = Target()
        self._clock = NodeClock()
        self._turn = random.getrandbits(16)
        self.renew()

    def renew(self) -> None:
        """Take a new identity."""
        self._producer_id = random.getrandbits(64) or 1
        self._sequences: dict[int, int] = {}

    async def partitions(self, *, anew: bool = False) -> int:
        """Return how many partitions the topic has; asked once, or ``anew``.

        The node makes the topic if it makes those that are published to.
        """
        if self._count is None or anew:
            asked_us = self._clock.monotonic_us()
            found = await self._http.call("PUT", routes.topic(self.topic), repeatable=True)
            settings = found["settings"]
            self._target = Target(
                settings["priority.lanes"], parse_duration_ms(settings["delay.max"])
            )
            self._clock.note(parse_time_us(found["time"], now_us=0), asked_us)
            self._count = len(found["partitions"])
        return self._count

    async def applied(self, message: Message, options: DeliveryOptions) -> Message:
        """Return a message with options put in; raise ``InvalidInput`` naming a bad one.

        The topic is asked once more before a lane is said not to be there.
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

    async def prepare(self, batch: Batch, *, compress: bool = False) -> Job:
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
        frames: list[tuple[int, bytes]] = []
        for share in shares:
            sequence = self._sequences.get(share.partition, 0)
            mark = ProducerMark(self._producer_id, 0, sequence)
            frame = encode_frame(share.columns, producer=mark, compress=compress)
            frames.append((share.partition, frame))
        for share in shares:
            self._sequences[share.partition] = self._sequences.get(share.partition, 0) + len(
                share.positions
            )
        return Job(batch, shares, frames)

    async def send(self, job: Job) -> PublishedBatch:
        """Send a job, again if need be, and return where its messages are.

        When the topic has been made anew with fewer partitions, the batch is divided anew.
        """
        try:
            return await self._post(job)
        except PartitionNotFound:
            if self._partition is not None or job.batch.partitions is not None:
                raise
        await self.partitions(anew=True)
        self.renew()
        divided = await self.prepare(job.batch)
        job.shares, job.frames = divided.shares, divided.frames
        return await self._post(job)

    async def _post(self, job: Job) -> PublishedBatch:
        asked_us = self._clock.monotonic_us()
        stored = await post_frames(self._http, self.topic, job.frames, self._acks)
        runs: list[PublishedRun] = []
        for share, result in zip(job.shares, stored, strict=True):
            time_us = parse_time_us(result.timestamp, now_us=0)
            if len(result.duplicates) == len(share.positions):
                self._sequences[share.partition] -= len(share.positions)  # none was used up
            elif not result.duplicate:
                self._clock.note(time_us, asked_us)
            runs.extend(_runs(share.positions, result, time_us))
        return PublishedBatch(self.topic, runs)


def _runs(
    positions: Sequence[int], result: wire.StoredFrame, time_us: int
) -> Iterator[PublishedRun]:
    """Yield where the messages of one frame are: side by side, but for the repetitions."""
    partition = result.partition
    if result.duplicates:
        gone = {row for row, _, _ in result.duplicates}
        for row, offset, original_us in result.duplicates:
            yield PublishedRun(partition, offset, original_us, True, [positions[row]])
        positions = [at for row, at in enumerate(positions) if row not in gone]
    if positions:
        yield PublishedRun(partition, result.offset, time_us, result.duplicate, positions)
