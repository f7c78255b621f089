"""Simulated nodes under clients that keep books and faults that a seed chooses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import TypeVar

from msgspec.structs import replace

from goq.broker.partition.leases import LeasedBatch
from goq.broker.topic.topic_leases import ReceiveRequest
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.replica import ReplicaAssignment
from goq.config.topic import TopicSettings
from goq.errors import GoqError, OutOfOrderSequence
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from goq.frame.view import FrameView
from goq.model import Receipt
from goq.storage.disk import Disk
from goq.storage.log.log import Log
from tests.support.broker.harness import leased
from tests.support.broker.partition_internals import state_of
from tests.support.cluster.replication.agreement import Agreement
from tests.support.cluster.replication.loop import SimLoop
from tests.support.cluster.replication.manifest import SimManifest
from tests.support.cluster.replication.network import SimNetwork
from tests.support.cluster.replication.node import SimNode
from tests.support.storage.disk import SimulatedDisk

T = TypeVar("T")
NAMES = ("a", "b", "c")
KEY = PartitionKey("t", 1, 0)
GROUP = "g"
_BORDER_FAULTS = {"rot", "full", "crash", "power"}


class Books:
    """What clients did, and what they were told."""

    def __init__(self) -> None:
        self.sent: set[bytes] = set()
        self.acknowledged: dict[bytes, int] = {}
        self.delivered: Counter[bytes] = Counter()
        self.shown: dict[int, bytes] = {}
        self.acked: dict[bytes, float] = {}
        self.problems: list[str] = []


class World:
    """Three nodes with one partition on each, and a seed for everything."""

    def __init__(self, seed: int, settings: TopicSettings | None = None) -> None:
        self.random = Random(seed)
        self.loop = SimLoop()
        self.books = Books()
        self.faults: Counter[str] = Counter()
        self.settings = settings or replace(
            TopicSettings(), segment_bytes=4096, visibility_timeout_ms=2000, attempts_max=None
        )
        part = ReplicaAssignment(None, 1, NAMES, NAMES, 2, 1)
        self.agreement = Agreement(self.random, {KEY: part})
        self.network = SimNetwork(self.random)
        self.disks = {name: SimulatedDisk(self.random) for name in NAMES}
        self.manifests = {name: SimManifest() for name in NAMES}
        self.nodes: dict[str, SimNode] = {}
        self.lives: list[SimNode] = []
        self.is_calm = False
        self.rots_on: str | None = None
        """Whose disk loses bits."""

    def run(self, work: Awaitable[T]) -> T:
        """Run something to its end in simulated time."""
        asyncio.set_event_loop(self.loop)
        try:
            return self.loop.run_until_complete(work)
        finally:
            self.loop.run_until_complete(self._end())
            asyncio.set_event_loop(None)
            self.loop.close()

    async def _end(self) -> None:
        """Stop everything, so that nothing is left half run."""
        for node in self.nodes.values():
            node.is_dead = True
        others = asyncio.all_tasks() - {asyncio.current_task()}
        while others:
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=1)
            others = {task for task in others if not task.done()}

    def start(self, name: str) -> None:
        """Start a node on its disk."""
        self.nodes[name] = SimNode(
            name,
            self.disks[name],
            self.loop,
            self.random,
            self.network,
            self.agreement,
            self.nodes,
            self.settings,
            self.manifests[name],
        )
        self.lives.append(self.nodes[name])
        self.nodes[name].start()

    def leader(self) -> SimNode | None:
        """Return the node that leads the partition, as all agree."""
        name = self.agreement.parts[KEY].leader
        return self.nodes.get(name) if name else None

    # Clients

    async def produce(self, number: int) -> None:
        """Publish batches one after the other, each again until it is acknowledged."""
        sequence = 0
        while not self.is_calm:
            values = [b"%d/%d" % (number, sequence + n) for n in range(self.random.randint(1, 4))]
            mark = ProducerMark(number + 1, 1, sequence)
            view = FrameView.parse(encode_frame(Columns(values), producer=mark))
            self.books.sent.update(values)
            offset = await self._until_stored(view)
            for index, value in enumerate(values):
                self.books.acknowledged[value] = offset + index
            sequence += len(values)
            await asyncio.sleep(self.random.expovariate(1 / 0.02))

    async def _until_stored(self, view: FrameView) -> int:
        while True:
            node = self.nodes[self.random.choice(NAMES)]
            try:
                partition = node.partition(KEY)
                partition.appender.check_publish(view.header.frame_bytes)
                done = partition.appender.publish(view)
                return (await asyncio.wait_for(asyncio.shield(done), 1.0)).offset
            except OutOfOrderSequence as error:  # all before it was acknowledged
                self.books.problems.append(f"a producer was refused for good: {error}")
                await asyncio.sleep(1)
            except (GoqError, TimeoutError):
                await asyncio.sleep(self.random.expovariate(1 / 0.05))

    async def consume(self, number: int) -> None:
        """Receive and ack; some of it is left to expire."""
        options = ReceiveRequest(f"c{number}", 5, 2**20, 500, None)
        while True:
            node = self.nodes[self.random.choice(NAMES)]
            try:
                node.partition(KEY)
                topic = node.topics[KEY.topic]
                deliveries = await node.ask(topic.receiver.receive(GROUP, options))
            except GoqError:
                await asyncio.sleep(self.random.expovariate(1 / 0.05))
                continue
            for delivery in deliveries:
                await self._handle(node, delivery)

    async def _handle(self, node: SimNode, delivery: LeasedBatch) -> None:
        books = self.books
        messages = leased([delivery])
        values = [value for _, _, value in messages]
        for offset, _, value in messages:
            if books.shown.setdefault(offset, value) != value:
                books.problems.append(f"{offset} was {books.shown[offset]!r}, and is {value!r}")
        for value in values:
            books.delivered[value] += 1
            if value not in books.sent:
                books.problems.append(f"{value!r} was never sent")
            if value in books.acked:
                books.problems.append(f"{value!r} came again after its ack was acknowledged")
        if self.random.random() < 0.15:
            return
        await asyncio.sleep(self.random.expovariate(1 / 0.1))
        receipts = [Receipt(delivery.partition, delivery.token, s, e) for s, e, _ in delivery.spans]
        try:
            node.partition(KEY)
            topic = node.topics[KEY.topic]
            _, lost = await node.ask(topic.settler.acknowledge(GROUP, receipts))
        except GoqError:
            return
        if not lost:
            books.acked.update(dict.fromkeys(values, self.loop.time()))

    # Faults

    async def torment(self, seconds: float) -> None:
        """Do to the nodes what the seed says, for so long."""
        until = self.loop.time() + seconds
        choices: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("crash", self._crash_one),
            ("power", self._power_cut),
            ("cut", self._cut_link),
            ("slow", self._slow_link),
            ("depose", self._depose),
            ("isolate", self._isolate),
            ("full", self._fill_disk),
        ]
        while self.loop.time() < until:
            await asyncio.sleep(self.random.expovariate(1 / 0.6))
            name, work = self.random.choice(choices)
            self.faults[name] += 1
            await work()

    async def _crash_one(self) -> None:
        await self._restart([self.random.choice(NAMES)], power=False)

    async def _power_cut(self) -> None:
        some = self.random.sample(NAMES, self.random.choice([1, 1, 2, 3]))
        await self._restart(some, power=True)

    async def _restart(self, names: list[str], *, power: bool) -> None:
        for name in names:
            self.nodes[name].crash(power=power)
            self.loop.call_later(
                self.random.uniform(0.05, 0.5), self._notice_death, self.nodes[name]
            )
        for name in names:
            await asyncio.sleep(self.random.expovariate(1 / 0.5))
            self.start(name)

    def _notice_death(self, node: SimNode) -> None:
        if self.nodes[node.name] is node:
            self.agreement.leave(node.name)

    async def _cut_link(self) -> None:
        link = tuple(self.random.sample(NAMES, 2))
        self.network.cut.add(link)
        await asyncio.sleep(self.random.uniform(0.1, 4))
        self.network.cut.discard(link)

    async def _slow_link(self) -> None:
        link = tuple(self.random.sample(NAMES, 2))
        self.network.slow.add(link)
        self.loop.call_later(self.random.uniform(0.1, 4), self.network.slow.discard, link)

    async def _isolate(self) -> None:
        """Cut a node off; the others come to think that it is dead, but it runs on."""
        node = self.nodes[self.random.choice(NAMES)]
        links = {(node.name, n) for n in NAMES} | {(n, node.name) for n in NAMES}
        self.network.cut |= links
        await asyncio.sleep(self.random.uniform(0.1, 1))
        self._notice_death(node)
        await asyncio.sleep(self.random.uniform(0.1, 2))
        self.network.cut -= links
        if not node.is_dead:
            self.agreement.join(node.name, node._agree)

    async def _depose(self) -> None:
        self.agreement.depose(KEY)

    async def _fill_disk(self) -> None:
        disk = self.disks[self.random.choice(NAMES)]
        disk.capacity_bytes = disk.used_bytes + self.random.randint(0, 2000)
        await asyncio.sleep(self.random.uniform(0.1, 1))
        disk.capacity_bytes = None

    async def rot(self) -> None:
        """Flip bits of what is durable in one node's logs, now and then."""
        assert self.rots_on is not None
        disk = self.disks[self.rots_on]
        while True:
            await asyncio.sleep(self.random.expovariate(1 / 0.7))
            sealed = [
                path
                for log in LOGS
                for path in sorted(
                    p for p in disk.paths() if p.parent == _FOLDER / log and p.suffix == ".log"
                )[:-1]
            ]
            if sealed:
                self.faults["rot"] += 1
                path = self.random.choice(sealed)
                position = self.random.randrange(disk.size(path))
                disk.flip(path, position, 1 << self.random.randrange(8))

    @property
    def repaired_frames(self) -> int:
        """How many frames replicas have got back from others."""
        return sum(life.repairs.repaired_frames for life in self.lives)

    # The end

    async def live(self, seconds: float) -> None:
        """Run clients under faults, then heal everything and let it become quiet."""
        for name in NAMES:
            self.start(name)
        producers = [asyncio.ensure_future(self.produce(n)) for n in range(3)]
        consumers = [asyncio.ensure_future(self.consume(n)) for n in range(3)]
        rotting = asyncio.ensure_future(self.rot()) if self.rots_on is not None else None
        await self.torment(seconds)
        if rotting is not None:
            rotting.cancel()
        self.is_calm = True
        self.network.cut.clear()
        self.network.slow.clear()
        await asyncio.wait_for(asyncio.gather(*producers), 60)
        await self.until(self._is_done)
        for consumer in consumers:  # whoever ends while it waits has events written, too
            consumer.cancel()
        await asyncio.wait(consumers)
        await self.until(self.is_in_sync)
        await self.until(self._are_equal)
        assert not self.books.problems, self.books.problems[:5]
        assert self.books.acknowledged.keys() <= self.books.delivered.keys()
        for node in list(self.nodes.values()):
            await asyncio.wait_for(node.stop(), 60)
        self.check_logs()

    def _is_done(self) -> bool:
        """Whether the group has done all there is."""
        leader = self.leader()
        if leader is None or KEY.topic not in leader.topics:
            return False
        partition = leader.topics[KEY.topic].partitions.get(KEY.number)
        if partition is None:
            return False
        group = state_of(partition).group(GROUP)
        is_idle = not group.leases and not len(group.retries)
        return is_idle and group.taken.floor == partition.end_offset

    def is_in_sync(self) -> bool:
        """Whether all replicas are in sync and as long as each other."""
        if len(self.agreement.parts[KEY].in_sync) < len(NAMES):
            return False
        positions = [replica.key for node in self.nodes.values() for replica in node.replicas]
        ends = {self._ends(node) for node in self.nodes.values()}
        return len(positions) == len(NAMES) and len(ends) == 1 and None not in ends

    def _ends(self, node: SimNode) -> object:
        replica = node.replicas.get(KEY)
        if replica is None:
            return None
        if replica.as_leader is not None:
            return replica.as_leader.progress.ends
        return None if replica.as_follower is None else replica.as_follower.position.ends

    async def until(self, condition: Callable[[], object]) -> None:
        """Return once something is so; it has some minutes of simulated time."""
        for _ in range(3000):
            if condition():
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{condition} never came true")

    def _are_equal(self) -> bool:
        return all(len({self._bytes_of(name, log) for name in NAMES}) == 1 for log in LOGS)

    def _bytes_of(self, name: str, log: str) -> bytes:
        return b"".join(_log_files(self.disks[name], log).values())

    def check_logs(self) -> None:
        """All nodes have the same bytes, and in them what was acknowledged, each once.

        Whoever led as it ended may have just written an event; not all others were there to get it.
        """
        events = [self._bytes_of(name, "events") for name in NAMES]
        least = min(map(len, events))
        assert len({each[:least] for each in events}) == 1
        assert len({self._bytes_of(name, "messages") for name in NAMES}) == 1
        # A mended file has another name, and a node that ended, or had no room, when it had just
        # begun a segment has one that others do not have.
        for log in LOGS if not self.faults.keys() & _BORDER_FAULTS else ():
            borders = [list(_log_files(self.disks[name], log)) for name in NAMES]
            assert all(each == borders[0] for each in borders[1:]), log
        values = list(_values(self.disks[NAMES[0]]))
        assert len(values) == len(set(values)), "something is stored twice"
        for value, offset in self.books.acknowledged.items():
            assert values[offset] == value, (value, offset)
        for offset, value in self.books.shown.items():
            assert values[offset : offset + 1] == [value], (value, offset)


LOGS = ("messages", "events")
_FOLDER = Path("/data/topics/t/0")


def _log_files(disk: SimulatedDisk, log: str) -> dict[str, bytes]:
    return {
        path.name: disk.read_all(path)
        for path in disk.paths()
        if path.parent == _FOLDER / log and path.suffix == ".log"
    }


def _values(disk: Disk) -> list[bytes]:
    log = Log.open(_FOLDER / "messages", disk)
    reading = log.reader.read(0, log.end_offset, messages_max=2**40, bytes_max=2**40)
    assert not reading.damage
    return [v or b"" for f in reading.frames for v in f.values(0, f.header.message_count)]
