"""One producer identity on one topic: batches numbered, sent, and sent again without doubling.

Each partition counts a producer's messages. A batch keeps its numbers however often it is sent,
so the node recognises what an earlier attempt stored. A batch that is given up takes the identity
with it: its numbers may or may not be used up, and a new identity may begin anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from goq.client import routes, wire
from goq.client._async.http import Http
from goq.client.batch import Batch, Share
from goq.client.messages import PublishedBatch, PublishedRun
from goq.client.problems import unreadable
from goq.errors import InvalidFrame, PartitionNotFound
from goq.frame.encode import ProducerMark, encode_frame
from goq.units import parse_time_us


@dataclass(slots=True)
class Job:
    """A batch made ready for the wire: the same bytes on every attempt."""

    batch: Batch
    shares: Sequence[Share]
    body: bytes


class Publisher:
    """Sends batches to one topic, one at a time: its caller sees to that.

    ``partition`` sends every message there. Otherwise keys decide, and what has no key goes to
    one partition a batch, the next one each time, from a random first one.
    """

    def __init__(self, http: Http, topic: str, *, partition: int | None = None) -> None:
        self.topic = topic
        self._http = http
        self._partition = partition
        self._count: int | None = None
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
            found = await self._http.call("PUT", routes.topic(self.topic), repeatable=True)
            self._count = len(found["partitions"])
        return self._count

    async def prepare(self, batch: Batch, *, compress: bool = False) -> Job:
        """Return the batch as frames that carry the next sequences of their partitions."""
        if self._partition is not None:
            shares = [batch.whole(self._partition)]
        else:
            count = await self.partitions()
            self._turn = (self._turn + 1) % count
            shares = batch.divide(count, keyless_to=self._turn)
        pieces: list[bytes] = []
        for share in shares:
            sequence = self._sequences.get(share.partition, 0)
            mark = ProducerMark(self._producer_id, 0, sequence)
            frame = encode_frame(share.columns, producer=mark, compress=compress)
            pieces.extend(wire.place(share.partition, frame))
        for share in shares:
            self._sequences[share.partition] = self._sequences.get(share.partition, 0) + len(
                share.positions
            )
        return Job(batch, shares, b"".join(pieces))

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
        job.shares, job.body = divided.shares, divided.body
        return await self._post(job)

    async def _post(self, job: Job) -> PublishedBatch:
        answer = await self._http.request(
            "POST",
            routes.messages(self.topic),
            job.body,
            content_type=routes.FRAMES,
            repeatable=True,
        )
        try:
            stored = wire.decode_published(answer.body, len(job.shares))
        except (msgspec.DecodeError, InvalidFrame) as error:
            raise unreadable(self.topic, error) from None
        return PublishedBatch(
            self.topic,
            [
                PublishedRun(
                    result.partition,
                    result.offset,
                    parse_time_us(result.timestamp, now_us=0),
                    result.duplicate,
                    share.positions,
                )
                for share, result in zip(job.shares, stored, strict=True)
            ],
        )
