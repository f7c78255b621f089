"""Idempotent publishing to one topic: one producer id, with a sequence for each partition.

A batch keeps its sequences however often it is sent, so the node recognises what an earlier
attempt stored. After a batch is given up, the producer id is replaced: whether the node used up the
sequences is not known, and a new producer may begin anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from goq.client._async.http import Http
from goq.client._async.publish.frame_publisher import PublishTerms, post_frames, post_singly
from goq.client._async.runtime import sleep
from goq.client.delivery_options import PLAIN, DeliveryOptions, NodeClock, TopicPublishSettings
from goq.client.errors import PartlyStored
from goq.client.message_batch import MessageBatch, PartitionShare
from goq.client.messages import PublishedBatch, PublishedRun
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.client.protocol.answers import TopicAnswer, read_answer
from goq.client.retry import RetryAttempts, answered
from goq.errors import (
    InvalidInput,
    LanesChanged,
    OutOfOrderSequence,
    PartitionNotFound,
    TimedOut,
    Unavailable,
    outcome_unknown,
)
from goq.frame.encoder import ProducerMark
from goq.frame.one_value import encode_batch
from goq.model import Message
from goq.units import parse_time_us


class _Division(NamedTuple):
    """A batch as frames, with their first sequences: the same on every attempt.

    ``lanes`` are those that the frames number lanes by, None if no message names one.
    """

    shares: Sequence[PartitionShare]
    frames: Sequence[tuple[int, bytes]]
    first_sequences: Mapping[int, int]
    lanes: str | None
    stored: Sequence[PublishedRun] = ()
    """The part that is stored, while the rest is sent to other partitions."""


@dataclass(slots=True)
class PreparedBatch:
    """A batch, divided and encoded; divided again if a part is refused for good.

    ``is_doubtful`` if it is not known of an attempt which part was stored.
    """

    batch: MessageBatch
    division: _Division
    is_doubtful: bool = False


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
        self._producer_id = random.getrandbits(64) or 1
        self._sequences: Mapping[int, int] = {}
        self._is_outcome_known = True
        """Whether ``_sequences`` are the node's: no prepared batch was given up or is under way."""

    @property
    def is_closed(self) -> bool:
        """Whether its client is closed."""
        return self._http.closed

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

        Nothing is refused by what the topic's settings, or the node's clock, were before.
        """
        if options == PLAIN:
            return message
        await self.partitions()
        try:
            return self._target.applied(message, options, self._clock.now_us())
        except InvalidInput:
            await self.partitions(anew=True)
            return self._target.applied(message, options, self._clock.now_us())

    async def prepare(self, batch: MessageBatch, *, compress: bool = False) -> PreparedBatch:
        """Return the batch as frames that carry the next sequences of their partitions.

        The batch before it is stored, or given up: then they carry a new producer id.
        """
        return PreparedBatch(batch, await self._divide(batch, compress=compress))

    async def _divide(self, batch: MessageBatch, *, compress: bool = False) -> _Division:
        if self._partition is None or batch.delivery is not None:
            await self.partitions()
        if self._partition is not None:
            shares = [batch.whole(self._partition, topic=self._target)]
        else:
            count = await self.partitions()
            self._turn = (self._turn + 1) % count
            shares = batch.divide(count, keyless_to=self._turn, topic=self._target)
            self._turn += batch.keyless_parts(count) - 1
        if not self._is_outcome_known:
            self._producer_id = random.getrandbits(64) or 1
        frames = self._encoded(shares, self._sequences, compress=compress)
        self._is_outcome_known = False
        lanes = self._target.lanes if batch.has_lanes else None
        return _Division(shares, frames, self._sequences, lanes)

    def _encoded(
        self,
        shares: Sequence[PartitionShare],
        first_sequences: Mapping[int, int],
        *,
        compress: bool = False,
    ) -> list[tuple[int, bytes]]:
        frames: list[tuple[int, bytes]] = []
        for share in shares:
            sequence = first_sequences.get(share.partition, 0)
            mark = ProducerMark(self._producer_id, 0, sequence)
            frame = encode_batch(share.columns, mark, compress=compress)
            frames.append((share.partition, frame))
        return frames

    async def send(self, job: PreparedBatch) -> PublishedBatch:
        """Send a batch, with retries; return where its messages were stored.

        If the topic was recreated with fewer partitions, or a leader has lost what it had of this
        producer, what is not stored is divided again, and sent as by a new producer. If the topic
        has got other lanes, the batch is sent under the same sequences, with their numbers.
        """
        attempts = self._http.attempts()
        while True:
            try:
                return await self._send(job)
            except LanesChanged:
                pass
            except PartlyStored as error:
                if not isinstance(error.refusal, LanesChanged):
                    raise
                job.is_doubtful = True
            pause_s = await self._number_lanes(job, attempts)
            if pause_s:
                await sleep(pause_s)

    async def _number_lanes(self, job: PreparedBatch, attempts: RetryAttempts) -> float:
        """Number the lanes of a batch anew, by the topic's; return how long to wait then."""
        before = job.division.lanes
        await self.partitions(anew=True)
        if self._target.lanes == before:  # a node has not heard of the change yet
            disagree = Unavailable(f"nodes tell different lanes of {self.topic}")
            pause_s = attempts.pause_s(answered(disagree), repeatable=True)
            if pause_s is None:
                raise outcome_unknown(disagree) if job.is_doubtful else disagree
            return pause_s
        try:
            shares = [
                share._replace(columns=job.batch.columns_of(share.positions, self._target))
                for share in job.division.shares
            ]
        except InvalidInput as error:
            raise outcome_unknown(error) if job.is_doubtful else error from None
        frames = self._encoded(shares, job.division.first_sequences)
        job.division = job.division._replace(shares=shares, frames=frames, lanes=self._target.lanes)
        return 0

    async def _send(self, job: PreparedBatch) -> PublishedBatch:
        try:
            return await self._post(job)
        except InvalidInput:
            self._count = None  # the topic's settings may have changed
            raise
        except (PartitionNotFound, OutOfOrderSequence, PartlyStored) as error:
            stored = error.stored if isinstance(error, PartlyStored) else {}
            refusal = error.refusal if isinstance(error, PartlyStored) else error
            is_chosen = self._partition is not None or job.batch.partitions is not None
            if isinstance(refusal, LanesChanged):
                raise
            if is_chosen and isinstance(refusal, PartitionNotFound):
                raise
        except TimedOut:
            job.is_doubtful = True
            raise
        shares = job.division.shares
        runs = list(job.division.stored)
        for index, result in stored.items():
            time_us = parse_time_us(result.timestamp, now_us=0)
            runs.extend(_runs(shares[index].positions, result, time_us))
        left = [share for index, share in enumerate(shares) if index not in stored]
        positions = sorted(position for share in left for position in share.positions)
        await self.partitions(anew=True)
        divided = await self._divide(job.batch.subset(positions))
        shares = [
            share._replace(positions=[positions[at] for at in share.positions])
            for share in divided.shares
        ]
        job.division = divided._replace(shares=shares, stored=runs)
        return await self._post(job)

    async def _post(self, job: PreparedBatch) -> PublishedBatch:
        division = job.division
        asked_us = self._clock.monotonic_us()
        post = post_singly if job.is_doubtful else post_frames
        terms = PublishTerms(self._acks, lanes=division.lanes)
        stored = await post(self._http, self.topic, division.frames, terms)
        runs = list(division.stored)
        sequences = dict(division.first_sequences)
        for share, result in zip(division.shares, stored, strict=True):
            count = len(share.positions)
            time_us = parse_time_us(result.timestamp, now_us=0)
            if not result.duplicate and len(result.duplicates) < count:
                self._clock.note(time_us, asked_us)
            if len(result.duplicates) < count:  # else none was used up
                sequences[share.partition] = sequences.get(share.partition, 0) + count
            runs.extend(_runs(share.positions, result, time_us))
        self._learn_count(max(result.partitions for result in stored))
        self._sequences = sequences
        self._is_outcome_known = True
        return PublishedBatch(self.topic, runs)

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
