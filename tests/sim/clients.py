"""Who publishes and consumes: each again and again, at any node, with the retries of a client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from goq.broker.log.pending_appends import Appended
from goq.broker.partition.leases import LeasedBatch
from goq.broker.topic.settler import UnsettledReceipt
from goq.broker.topic.topic_leases import ReceiveRequest
from goq.config.topic import TopicSettings
from goq.errors import GoqError, OutOfOrderSequence, TopicExists, Unavailable
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.hashes import partition_of
from goq.frame.view import FrameView
from goq.model import Receipt, fenced_id_of
from tests.sim.books import Books, name_of
from tests.sim.checks import Checks
from tests.sim.cluster import (
    DEAD_LETTERS,
    GROUP,
    MORTAL_SETTINGS,
    PARTITIONS,
    SETTINGS,
    TOPIC,
    Cluster,
)
from tests.sim.process import Process
from tests.support.broker.harness import leased_messages

T = TypeVar("T")
_PATIENCE_S = 1.5
_WAIT_MS_MAX = 1000
_LOST_ANSWERS = 0.02
_DROPPED, _DROPPED_OF_MORTAL = 0.1, 0.5
"""The share of leases that a consumer lets expire."""
_REJECTED = 0.15
_KEYS: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
for _number in range(12):
    _KEYS[partition_of(b"k%d" % _number, PARTITIONS)].append(b"k%d" % _number)

QUIET_TOPICS = ("z", "q", "a")
"""Topics that nobody uses, not made in the order of their names."""


class Clients:
    """Producers and consumers; producers end with what they are at once ``is_calm``."""

    def __init__(self, cluster: Cluster, books: Books, checks: Checks) -> None:
        self.is_calm = False
        self.has_dead_letters = False
        """Whether consumers reject some messages, and others die of their last lease."""
        self._cluster = cluster
        self._books = books
        self._checks = checks
        self._world = cluster.world
        self._random = cluster.world.stream("clients")

    async def make_topics(self) -> None:
        """Make the topic; in some lives others too, so that elections count leaderships."""
        if self.has_dead_letters:
            await self._make_topic(TOPIC, PARTITIONS, MORTAL_SETTINGS)
            await self._make_topic(DEAD_LETTERS, PARTITIONS)
        else:
            await self._make_topic(TOPIC, PARTITIONS)
        if self._world.stream("topics").random() < 0.3:
            for name in QUIET_TOPICS:
                await self._make_topic(name, 1)

    async def _make_topic(
        self, name: str, partitions: int, settings: TopicSettings = SETTINGS
    ) -> None:
        """Make a topic, however often it takes."""
        while True:
            try:
                await self.ask(
                    lambda p: p.broker.topic_admin.create(name, partitions, settings.written())
                )
            except TopicExists:
                return
            except GoqError:
                await self.pause(0.1)
            else:
                return

    async def produce(self, number: int) -> None:
        """Publish batches one after the other, each again until it is acknowledged."""
        sequences = [0] * PARTITIONS
        while not self.is_calm:
            partition, count = self._random.randrange(PARTITIONS), self._random.randint(1, 4)
            first = sequences[partition]
            sequences[partition] += count
            await self.publish(number, partition, first, count, self._any)
            await self.pause(0.06 * self._world.pace)

    async def publish(
        self, number: int, partition: int, first: int, count: int, choose: Callable[[], Process]
    ) -> None:
        """Publish a numbered batch, at one chosen node after the other, until one acknowledges."""
        random, world = self._random, self._world
        values = [b"<%d/%d/%d>" % (number, partition, first + n) for n in range(count)]
        keys = [random.choice(_KEYS[partition]) for _ in values]
        delays_ms = [random.choice([0, 0, 0, 0, 0, random.randint(1, 1500)]) for _ in values]
        now_ms = self._checks.true_ms()
        times_ms = [now_ms + delay_ms if delay_ms else 0 for delay_ms in delays_ms]
        for value, key, time_ms in zip(values, keys, times_ms, strict=True):
            self._books.send(value, key, time_ms)
        mark = ProducerMark(10 * number + partition + 1, 1, first)
        columns = Columns(values, keys, deliver_at_ms=times_ms if any(times_ms) else None)
        view = FrameView.parse(encode_frame(columns, producer=mark))
        promised = self._checks.promised_copies()
        offset = await self._until_stored(partition, view, choose)
        world.note(f"{values[0]!r} and {count - 1} more are stored at {partition}:{offset}")
        for index, value in enumerate(values):
            self._books.stored(value, partition, offset + index)
        self._checks.acknowledged(values, promised)

    async def _until_stored(
        self, number: int, view: FrameView, choose: Callable[[], Process]
    ) -> int:
        async def publish(process: Process) -> Appended:
            target = process.broker.topic(TOPIC).publisher.target(number)
            target.check_publish(view.header.frame_bytes)
            return await target.publish(view)

        while True:
            try:
                return (await self.ask(publish, choose())).offset
            except OutOfOrderSequence as error:  # all before it was acknowledged
                self._world.fail(f"a producer was refused for good: {error}")
                await self.pause(1.0)
            except GoqError:
                self._world.counts["publishes sent again"] += 1
                await self.pause(0.05)

    async def consume(self, number: int) -> None:
        """Receive and ack, or reject; some of it is left to expire."""
        wait_ms = int(min(200 * self._world.pace, _WAIT_MS_MAX))
        options = ReceiveRequest(f"c{number}", 10, 2**20, wait_ms, None)

        async def receive(process: Process) -> list[LeasedBatch]:
            topic = process.broker.topic(TOPIC)
            await process.broker.group_admin.remember(topic, GROUP)
            return await topic.receiver.receive(GROUP, options)

        while True:
            process = self._probably_a_leader()
            asked_s = self._world.loop.time()
            try:
                deliveries = await self.ask(receive, process)
            except GoqError:
                await self.pause(0.05)
                continue
            for delivery in deliveries:
                await self._handle(process, delivery, asked_s)

    async def _handle(self, process: Process, delivery: LeasedBatch, asked_s: float) -> None:
        values = []
        for offset, attempt, message in leased_messages([delivery]):
            value = name_of(message)
            values.append(value)
            self._world.counts["redeliveries"] += attempt > 1
            self._books.deliver(
                value,
                delivery.partition,
                offset,
                asked_s=asked_s,
                latest_ms=self._checks.latest_ms(),
                lease_s=SETTINGS.visibility_timeout_ms / 1000,
                is_exclusive=self._checks.are_deadlines_right,
            )
        self._world.note(f"{process.name} hands over {values} of {delivery.partition}")
        dropped = _DROPPED_OF_MORTAL if self.has_dead_letters else _DROPPED
        if self._random.random() < dropped and not self.is_calm:
            return
        await self.pause(0.05)
        fenced_id = fenced_id_of(process.broker.topic(TOPIC).id)
        receipts = [
            Receipt(delivery.partition, delivery.token, start, end, fenced_id)
            for start, end, _ in delivery.spans
        ]

        is_rejected = self.has_dead_letters and self._random.random() < _REJECTED

        async def settle(at: Process) -> tuple[int, list[UnsettledReceipt]]:
            settler = at.broker.topic(TOPIC).settler
            if is_rejected:
                return await settler.reject(GROUP, receipts, "bad")
            return await settler.acknowledge(GROUP, receipts)

        try:
            _, lost = await self.ask(settle, process)
        except GoqError:
            return
        if lost:
            return
        self._world.note(f"{values} are {'rejected' if is_rejected else 'acked'}")
        if is_rejected:
            self._books.rejected(values)
        else:
            self._books.acked(values)

    # How a client asks

    def _any(self) -> Process:
        return self._cluster.processes[self._random.choice(list(self._cluster.processes))]

    def _probably_a_leader(self) -> Process:
        if self._random.random() < 0.8:
            leader = self._cluster.leader_of(self._random.randrange(PARTITIONS))
            if leader is not None:
                return leader
        return self._any()

    async def ask(
        self, work: Callable[[Process], Awaitable[T]], process: Process | None = None
    ) -> T:
        process = process or self._any()
        await self.pause(0.001)
        if process.is_dead:
            raise Unavailable("nobody listens")
        answer = await process.ask(lambda: work(process), _PATIENCE_S)
        if self._random.random() < _LOST_ANSWERS and not self.is_calm:
            self._world.counts["answers lost"] += 1
            raise Unavailable("the answer was lost")
        return answer

    async def pause(self, mean_s: float) -> None:
        await asyncio.sleep(self._random.expovariate(1 / mean_s))
