"""Producers and consumers that work on a cluster at once, whatever happens to its nodes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

from goq.client import Client, LogMessage, Published, ReadBatch
from goq.client.protocol.frames import decode_published, place
from goq.errors import GoqError
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.hashes import partition_of
from goq.model import MessageId
from goq.units import parse_time_us
from tests.process.chaos.cluster import SETTLE_S_MAX, ChaosCluster
from tests.support.eventually import eventually
from tests.support.ledger.ledger import GroupConsumer, Ledger, ProducerRecord, Sent
from tests.support.node.node_process import NodeProcess

TOPIC, GROUP = "work", "workers"
PARTITIONS = 6
_SETTINGS = {"delivery.max_attempts": "none", "segment.bytes": "256KiB"}
_PATH = f"/v1/topics/{TOPIC}/messages"
_FRAMES = {"Content-Type": "application/vnd.goq.frames"}
_ATTEMPT_S_MAX = 3.0
_CONSUMERS = 2


class Acknowledged:
    """When publishes of each partition were acknowledged, by the monotonic clock."""

    def __init__(self) -> None:
        self.at_s: list[list[float]] = [[] for _ in range(PARTITIONS)]

    def longest_gap_s(self, since_s: float, until_s: float) -> float:
        """Return the longest time in a span of which some partition acknowledged nothing."""
        longest_s = 0.0
        for at_s in self.at_s:
            within = [each for each in at_s if since_s < each < until_s]
            marks = [since_s, *within] if within else [since_s, until_s]
            longest_s = max(longest_s, *(b - a for a, b in pairwise(marks)))
        return longest_s


class Load:
    """A producer for each partition, and consumers; what they are told is in ``ledger``."""

    def __init__(self, cluster: ChaosCluster, seed: int, pause_s: float = 0.04) -> None:
        self.ledger = Ledger()
        self.acknowledged = Acknowledged()
        self.retries = 0
        self._cluster = cluster
        self._seed = seed
        self._pause_s = pause_s
        self._publishing_over = threading.Event()
        self._consuming_over = threading.Event()
        self._resources = ExitStack()
        self._errors: list[BaseException] = []
        self._producers: list[threading.Thread] = []
        self._consumers: list[threading.Thread] = []

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Make the topic, run all threads; end them when the ``with`` is left."""
        self._cluster.create_with_group(TOPIC, GROUP, _SETTINGS)
        with self._resources:
            try:
                for number in range(PARTITIONS):
                    self._start(self._producers, self._produce, number)
                for number in range(_CONSUMERS):
                    self._start(self._consumers, self._consume, number)
                yield self
            finally:
                self._publishing_over.set()
                self._consuming_over.set()
                for thread in (*self._producers, *self._consumers):
                    thread.join()
        self._raise_errors()

    def _raise_errors(self) -> None:
        for error in self._errors:
            raise error

    def _start(
        self, threads: list[threading.Thread], work: Callable[[int], None], number: int
    ) -> None:
        def run() -> None:
            try:
                work(number)
            except BaseException as error:
                self._errors.append(error)

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    def wait_for_progress(self, count: int) -> None:
        """Return when every partition has acknowledged so many more, and more acks are done."""
        wanted = [len(at_s) + count for at_s in self.acknowledged.at_s]
        acked = self.ledger.acked_count + count

        def is_there() -> bool:
            counts = map(len, self.acknowledged.at_s)
            goes = all(c >= w for c, w in zip(counts, wanted, strict=True))
            self._raise_errors()
            return goes and self.ledger.acked_count >= acked

        eventually(is_there, f"progress of all partitions; {self.counts()}", seconds=SETTLE_S_MAX)

    def counts(self) -> str:
        """Return how far everything is."""
        return f"{[len(a) for a in self.acknowledged.at_s]} published; {self.ledger.summary()}"

    # Producers

    def _produce(self, partition: int) -> None:
        """Publish to one partition, one batch after the other, each until it is acknowledged."""
        record = self.ledger.producer(f"producer-{partition}")
        chance = random.Random(f"{self._seed} producer {partition}")
        producer_id, sequence = chance.getrandbits(63) | 1, 0
        keys = [k for n in range(100) if partition_of(k := b"key-%d" % n, PARTITIONS) == partition]
        while not self._publishing_over.wait(self._pause_s * chance.random() * 2):
            rows = [
                record.sending(
                    f"{partition}-{sequence + row}-".encode() + chance.randbytes(100),
                    chance.choice(keys),
                )
                for row in range(chance.choice((1, 1, 5, 30)))
            ]
            columns = Columns([row.value for row in rows], [row.key for row in rows])
            frame = encode_frame(columns, producer=ProducerMark(producer_id, 0, sequence))
            self._send(record, rows, b"".join(place(partition, frame)), chance)
            sequence += len(rows)

    def _send(
        self, record: ProducerRecord, rows: list[Sent], body: bytes, chance: random.Random
    ) -> None:
        """Send the same bytes to one node after the other until one has them acknowledged."""
        nodes = list(self._cluster.nodes.values())
        until_s = time.monotonic() + SETTLE_S_MAX
        while True:
            try:
                answer = chance.choice(nodes).request(
                    "POST", _PATH, body, _FRAMES, timeout_s=_ATTEMPT_S_MAX
                )
                if answer.status < 300:
                    break
                assert answer.status in (421, 429) or answer.status >= 500, answer
            except OSError:
                pass
            assert time.monotonic() < until_s, "a batch was not acknowledged by any node"
            self.retries += 1
            time.sleep(0.05)
        [stored] = decode_published(answer.body, 1)
        time_us = parse_time_us(stored.timestamp, now_us=0)
        for number, row in enumerate(rows):
            place_ = MessageId(TOPIC, stored.partition, stored.offset + number)
            record.stored(row, Published(place_, time_us, stored.duplicate))
        self.acknowledged.at_s[stored.partition].append(time.monotonic())

    # Consumers

    def _consume(self, number: int) -> None:
        """Receive from one node after the other, and settle there."""
        chance = random.Random(f"{self._seed} consumer {number}")
        consumers = [
            self.ledger.consumer(self._client(node), f"{name}-{number}", TOPIC, GROUP, repeats=True)
            for name, node in self._cluster.nodes.items()
        ]
        while not self._consuming_over.is_set():
            try:
                self._work_off(chance.choice(consumers), chance)
            except GoqError:
                self._consuming_over.wait(0.02)

    def _work_off(self, consumer: GroupConsumer, chance: random.Random) -> None:
        is_draining = self._publishing_over.is_set()
        messages = consumer.receive(
            max=500 if is_draining else chance.randint(1, 200), wait_s=0.0, visibility_s=3.0
        )
        if not messages:
            self._consuming_over.wait(0.05)
            return
        if is_draining or chance.random() < 0.85:
            consumer.ack(messages)
        elif chance.random() < 0.5:
            consumer.nack(messages, delay_s=chance.choice((0, 0.2)))

    def _client(self, node: NodeProcess) -> Client:
        client = Client(node.url, timeout=_ATTEMPT_S_MAX, retries=0)
        return self._resources.enter_context(client)

    # The end

    def finish_and_check(self) -> None:
        """Publish no more, let consumers finish, then check ledger, replicas and metadata."""
        self._publishing_over.set()
        for thread in self._producers:
            thread.join()
        self._raise_errors()
        eventually(lambda: self._left() == 0, "all is acked", seconds=SETTLE_S_MAX, pause_s=0.2)
        self._consuming_over.set()
        for thread in self._consumers:
            thread.join()
        eventually(
            lambda: not self._cluster.differing_logs(TOPIC),
            "the same bytes on all nodes",
            seconds=SETTLE_S_MAX,
            pause_s=0.5,
        )
        eventually(self._cluster.agree, "the same metadata on all nodes", seconds=SETTLE_S_MAX)
        eventually(self._is_group_whole, "each partition is led by a node", seconds=SETTLE_S_MAX)
        self.ledger.check(self._read_log(), PARTITIONS, self._group())

    def _group(self) -> dict[str, Any]:
        """Return the group as the leaders of its partitions have it, each for its own."""
        answers = self._cluster.ask_each(f"/v1/topics/{TOPIC}/groups/{GROUP}")
        found = {each["partition"]: each for answer in answers for each in answer["partitions"]}
        sums = {
            name: sum(answer[name] for answer in answers)
            for name in ("lag", "ready", "leased", "retry", "scheduled", "blocked")
        }
        return {**sums, "partitions": [found[number] for number in sorted(found)]}

    def _is_group_whole(self) -> bool:
        return len(self._group()["partitions"]) == PARTITIONS

    def _left(self) -> int:
        """Return how much the group has to do, at least one while it is not known."""
        try:
            group = self._group()
        except OSError:
            return 1
        is_whole = len(group["partitions"]) == PARTITIONS
        return int(group["lag"] + group["scheduled"]) if is_whole else 1

    def _read_log(self) -> list[LogMessage]:
        """Read the whole log back."""
        found: list[LogMessage] = []
        for partition in range(PARTITIONS):
            offset = 0
            while True:
                piece = self._read_piece(partition, offset)
                assert not piece.damaged, f"damaged: {piece.damaged}"
                found.extend(piece.messages)
                if piece.next >= piece.end:
                    break
                offset = piece.next
        return found

    def _read_piece(self, partition: int, offset: int) -> ReadBatch:
        """Read from the leader, whichever node that is by then: a busy one may still lose it."""
        until_s = time.monotonic() + SETTLE_S_MAX
        while True:
            leader = self._cluster.leaders(TOPIC)[partition]
            try:
                if leader is not None:
                    with Client(self._cluster.nodes[leader].url) as client:
                        return client.read(TOPIC, partition=partition, offset=offset)
            except GoqError:
                if time.monotonic() > until_s:
                    raise
            assert time.monotonic() < until_s, f"nobody leads partition {partition}"
            time.sleep(0.1)
