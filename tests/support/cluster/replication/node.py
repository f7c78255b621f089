"""One life of a simulated node: replicas and topics on its disk, from start to crash."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

from goq.broker.log.frame_cache import FrameCache
from goq.broker.metadata import MetadataStore
from goq.broker.partition.loader import PartitionLogs
from goq.broker.partition.partition import Partition
from goq.broker.partition_context import PartitionContext, PartitionId
from goq.broker.retention.archiver import Archiver
from goq.broker.retention.retention_manager import RetentionManager
from goq.broker.runtime.metrics import WriteTimes
from goq.broker.runtime.tasks import Tasks
from goq.broker.topic.topic import Leadership, Topic
from goq.clock import ManualClock
from goq.cluster.liveness.disk_health import DiskHealth
from goq.cluster.replication.archive_sync import ArchiveRequest, ArchiveSync
from goq.cluster.replication.protocol import FetchRequest, FetchResponse, PartitionKey
from goq.cluster.replication.push.protocol import Stored, decode_message
from goq.cluster.replication.repair.manager import RepairManager
from goq.cluster.replication.repair.protocol import RepairRequest, RepairResponse
from goq.cluster.replication.replica import ReplicaAssignment
from goq.cluster.replication.replica_manager import ReplicaManager
from goq.cluster.replication.segment_manifest import SegmentManifest
from goq.config.topic import TopicSettings
from goq.errors import GoqError, NotLeader, Unavailable
from goq.storage.catalog.rows import SegmentRow, TopicManifest
from goq.storage.log.segment import Segment
from tests.support.cluster.replication.agreement import Agreement
from tests.support.cluster.replication.loop import HOME, SimExecutor, SimLoop
from tests.support.cluster.replication.manifest import SimManifest
from tests.support.cluster.replication.network import SimNetwork, SimStream
from tests.support.storage.disk import SimulatedDisk

T = TypeVar("T")
_CHECK_S = 0.2
_PATIENCE_S = 3.0


class LoopClock(ManualClock):
    """Wall time that goes with the simulated one, and may be moved."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__()
        self._loop = loop

    def wall_us(self) -> int:
        return self.now_us + int(self._loop.time() * 1_000_000)

    def wall_ms(self) -> int:
        return self.wall_us() // 1000

    def uptime_us(self) -> int:
        return self.wall_us() - self.jumped_us


class SimNode:
    """A node that runs from :meth:`start` to :meth:`crash`."""

    def __init__(
        self,
        name: str,
        disk: SimulatedDisk,
        loop: SimLoop,
        random: Random,
        network: SimNetwork,
        agreement: Agreement,
        peers: dict[str, SimNode],
        settings: TopicSettings,
        manifest: SimManifest,
    ) -> None:
        self.name = name
        self.disk = disk
        self.is_dead = False
        self._is_stopping = False
        self.topics: dict[str, Topic] = {}
        self.clock = LoopClock(loop)
        self._loop = loop
        self._random = random
        self._network = network
        self._agreement = agreement
        self._peers = peers
        self._settings = settings
        self._latest: dict[PartitionKey, ReplicaAssignment] = {}
        self.failures: list[str] = []
        executor = SimExecutor(loop, random, lambda: self.is_dead)
        self.manifest = manifest
        store = cast(MetadataStore, manifest)  # as far as segments go
        self.archive = Archiver(Path("/data/archive"), disk, store, self.clock, executor=executor)
        ids = iter(range(random.getrandbits(40), 2**62))
        self._partition_context = PartitionContext(
            disk,
            executor,
            self.clock,
            0,
            self._sealed,
            WriteTimes(),
            FrameCache(),
            Tasks(),
            random.random,
            lambda: next(ids),
        )
        self.retention_manager = RetentionManager(
            self.topics,
            self._partition_context,
            store,
            self.archive,
            replica_start_offset=lambda partition: self.replicas.needed_from(partition.identity),
        )
        self.replicas = ReplicaManager(
            name,
            self,
            SegmentManifest(store, self.archive, self.clock, self.settings),
            disk,
            executor,
            self.clock,
            self._fetch_from,
            self._propose_in_sync,
            self._propose_renewal,
            on_failure=self._failed,
        )
        self.streams: dict[str, SimStream] = {}
        self.pushes_stored = 0
        self.fitness = DiskHealth(disk, Path("/data"), self.replicas.in_thread)
        self.repairs = RepairManager(self.replicas, self._ask_for_frames)
        self.archives = ArchiveSync(
            self.archive,
            self.replicas,
            self.settings,
            lambda replica: replica.other_nodes,
            self._ask_for_archive,
        )
        self._home = contextvars.copy_context()
        self._home.run(HOME.set, self)

    def start(self) -> None:
        """Come to life."""
        self._agreement.join(self.name, self._agree)
        self.spawn(self.archive.open(["t"]))
        self.spawn(self.retention_manager.run())
        self.spawn(self.archives.run())
        self.spawn(self._check())
        self.spawn(self.repairs.scrub())
        self.spawn(self.fitness.run())
        self.spawn(self._keep_streams())

    def spawn(self, work: Awaitable[T]) -> asyncio.Task[T]:
        """Run something that ends with this life of the node."""
        return self._loop.create_task(work, context=self._home)

    async def ask(self, work: Awaitable[T]) -> T:
        """Run something for a client of this node; no answer is ``Unavailable``."""
        task = self.spawn(work)
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
        done, _ = await asyncio.wait([task], timeout=_PATIENCE_S)
        if not done or task.cancelled():
            task.cancel()
            raise Unavailable("no answer")
        return task.result()

    def crash(self, *, power: bool) -> None:
        """End: what was not synced may be lost with the power."""
        self.is_dead = True
        self._loop.end_home(self)
        self.disk.crash(power=power)

    async def stop(self) -> None:
        """End in good order: what is agreed on meanwhile is not followed any more."""
        self._is_stopping = True
        await self.repairs.close()
        await self.replicas.close()
        self.is_dead = True
        self._loop.end_home(self)

    def partition(self, key: PartitionKey) -> Partition:
        """Return a partition that the node leads, or raise ``GoqError``."""
        if self.is_dead:
            raise Unavailable("the node is dead")
        topic = self.topics.get(key.topic)
        if topic is None or topic.partitions.get(key.number) is None:
            raise NotLeader("not here")
        return topic.partitions[key.number]

    def _failed(self, key: PartitionKey, error: Exception) -> None:
        self.failures.append(f"{key}: {error!r}")
        self.fitness.on_error(error)

    def _agree(self, parts: dict[PartitionKey, ReplicaAssignment]) -> None:
        """Take over what all agreed on; what is older than what is known is passed over."""
        if self.is_dead or self._is_stopping:
            return
        for key, part in parts.items():
            known = self._latest.get(key)
            if known is None or known.version < part.version:
                self._latest[key] = part
        mine: dict[int, dict[PartitionKey, ReplicaAssignment]] = {}
        for key, part in self._latest.items():
            if self.name in part.replicas:
                mine.setdefault(key.topic_id, {})[key] = part
        self._home.copy().run(self.replicas.apply, mine)

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            self.replicas.check_in_sync()
            self.repairs.start_due_repairs()
            self._agreement.hear_of_fitness(self.name, self.fitness.reason)
            self._agreement.hear_of_damage(self.name, self.repairs.damaged, self.repairs.repaired)

    # Streams

    async def _keep_streams(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0.05, 0.5))
            for name, peer in self._peers.items():
                if name > self.name and name not in self.streams:
                    self._network.connect(self, peer)

    def on_stream_open(self, peer: str, stream: SimStream) -> None:
        before = self.streams.get(peer)
        if before is not None:
            before.abort("another one")
        self.streams[peer] = stream
        self._home.copy().run(self.replicas.fetchers.on_stream_open, peer, stream)

    def on_stream_close(self, peer: str, stream: SimStream) -> None:
        if self.streams.get(peer) is stream:
            del self.streams[peer]
            self._home.copy().run(self.replicas.fetchers.on_stream_close, peer)

    def on_stream_message(self, peer: str, stream: SimStream, data: bytes) -> None:
        if self.streams.get(peer) is not stream:
            return
        self.pushes_stored += isinstance(decode_message(data), Stored)
        try:
            self._home.copy().run(self.replicas.fetchers.on_stream_message, peer, data)
        except GoqError as error:
            stream.abort(error.detail)

    async def _fetch_from(
        self, leader: str, request: FetchRequest
    ) -> tuple[FetchResponse, memoryview]:
        async def fetch() -> tuple[FetchResponse, memoryview]:
            peer = self._peers[leader]
            if peer.is_dead:
                await asyncio.sleep(10)
            answer, buffers = await peer.spawn(peer.replicas.fetch_server.fetch(request))
            return answer, memoryview(b"".join(buffers))

        return await self._network.call(self.name, leader, fetch)

    async def _ask_for_frames(
        self, node: str, request: RepairRequest
    ) -> tuple[RepairResponse, memoryview]:
        async def ask() -> tuple[RepairResponse, memoryview]:
            peer = self._peers[node]
            if peer.is_dead:
                await asyncio.sleep(10)
            answer, buffers = await peer.spawn(peer.repairs.answer(request))
            return answer, memoryview(b"".join(buffers))

        return await self._network.call(self.name, node, ask)

    async def _ask_for_archive(self, node: str, request: ArchiveRequest) -> bytes:
        async def ask() -> bytes:
            peer = self._peers[node]
            if peer.is_dead:
                await asyncio.sleep(10)
            return await peer.spawn(peer.archives.answer(request))

        return await self._network.call(self.name, node, ask)

    async def _propose_in_sync(
        self, key: PartitionKey, part: ReplicaAssignment, wanted: frozenset[str]
    ) -> ReplicaAssignment:
        await asyncio.sleep(0.01)
        self._agreement.alter_in_sync(self.name, key, part, wanted)
        await asyncio.sleep(self._random.choice([0.01, 0.01, 0.3, 1.0]))
        return self._agreement.parts[key]

    async def _propose_renewal(self, key: PartitionKey, leader_epoch: int) -> None:
        await asyncio.sleep(0.01)
        self._agreement.renew(self.name, key, leader_epoch)

    # The topics, as replicas see them

    def directory(self, key: PartitionKey) -> Path:
        return Path("/data/topics") / key.folder / str(key.number)

    def _sealed(self, identity: PartitionId, log: str, segment: Segment) -> None:
        self.spawn(
            self.manifest.put_segment(
                SegmentRow(
                    identity.folder,
                    identity.number,
                    log,
                    segment.base_offset,
                    segment.end_offset,
                    segment.size_bytes,
                    self.clock.wall_us(),
                )
            )
        )
        if identity.topic in self.topics:
            self.retention_manager.wake(identity)

    def settings(self, _topic: str) -> TopicSettings:
        return self._settings

    async def open_partition(
        self, key: PartitionKey, logs: PartitionLogs, leadership: Leadership
    ) -> None:
        topic = self.topics.get(key.topic)
        if topic is None:
            directory = self.directory(key).parent
            topic = self.topics[key.topic] = Topic(
                key.topic,
                key.topic_id,
                self._settings,
                directory,
                self._partition_context,
                Tasks(),
                _nowhere,
                remember_group=_forgetful,
                manifest=_no_manifest,
            )
        await topic.lead(key.number, logs, leadership)
        self.retention_manager.wake_topic(topic)

    async def close_partition(self, key: PartitionKey, reason: GoqError) -> None:
        await self.topics[key.topic].resign(key.number, reason)


async def _forgetful(_topic: Topic, _group: str) -> None:
    """Store no group: the topic has none in the metadata."""


async def _no_manifest() -> TopicManifest:
    return TopicManifest()


async def _nowhere(_topic: Any, name: str, number: int) -> Partition:
    raise NotLeader(f"{name} {number} is not simulated")
