"""All replicas of a node: what each is to be, and what they have in common."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import nullcontext
from pathlib import Path
from typing import Protocol

from goq import limits
from goq.broker.broker import Broker
from goq.broker.partition.loader import PartitionLogs
from goq.broker.topic.topic import Leadership
from goq.cluster.replication.fetch_server import FetchServer
from goq.cluster.replication.fetcher import Fetcher
from goq.cluster.replication.follower import FollowerReplica, SealedSegment
from goq.cluster.replication.follower_retention import FollowerRetention
from goq.cluster.replication.leader import LeaderReplica
from goq.cluster.replication.protocol import FetchRequest, FetchResponse, PartitionKey
from goq.cluster.replication.replica import Replica, ReplicaAssignment
from goq.cluster.replication.segment_manifest import LOGS, SegmentManifest
from goq.config.topic import Cleanup, TopicSettings
from goq.errors import GoqError
from goq.storage.disk import Disk

_log = logging.getLogger("goq.cluster")

FetchFrom = Callable[[str, FetchRequest], Awaitable[tuple[FetchResponse, memoryview]]]
"""Asks a node, by name."""

ProposeInSync = Callable[
    [PartitionKey, ReplicaAssignment, frozenset[str]], Awaitable[ReplicaAssignment]
]
"""Asks all nodes to agree on another in-sync set of a partition that is led here.

Who is ``returned`` in the part has not been heard of by the leader since. Returns when that is
decided, either way, what they agree on then.
"""


class TopicHost(Protocol):
    """The topics of this node, open to clients as far as it leads their partitions."""

    def directory(self, topic: str) -> Path:
        """Return where a topic's partitions lie."""

    def settings(self, topic: str) -> TopicSettings:
        """Return a topic's settings."""

    async def open(self, key: PartitionKey, logs: PartitionLogs, leadership: Leadership) -> None:
        """Let clients use a partition."""

    async def shut(self, key: PartitionKey, reason: GoqError) -> None:
        """Let clients use it no more, and close its logs."""


class ReplicaManager:
    """The replicas of the node ``name``."""

    def __init__(
        self,
        name: str,
        topics: TopicHost,
        custody: SegmentManifest,
        disk: Disk,
        executor: Executor,
        fetch_from: FetchFrom,
        propose_in_sync: ProposeInSync,
        *,
        on_failure: Callable[[PartitionKey, Exception], None],
        is_heard: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = name
        self.is_heard = is_heard
        self.disk = disk
        self.server = FetchServer(executor)
        self._topics = topics
        self._custody = custody
        self.whole_log = custody.whole_log
        self.executor = executor
        self._fetch_from = fetch_from
        self._propose_in_sync = propose_in_sync
        self._on_failure = on_failure
        self._replicas: dict[PartitionKey, Replica] = {}
        self._fetchers: dict[str, Fetcher] = {}
        self._trimmings: dict[PartitionKey, FollowerRetention] = {}
        self._proposing: dict[PartitionKey, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas.values())

    def get(self, key: PartitionKey) -> Replica | None:
        """Return a replica if the node has one."""
        return self._replicas.get(key)

    def directory(self, topic: str) -> Path:
        """Return where the replicas of a topic lie."""
        return self._topics.directory(topic)

    def agree(self, parts: Mapping[PartitionKey, ReplicaAssignment]) -> None:
        """Let every replica become what all nodes have agreed on; those not named are let go."""
        for key in self._replicas.keys() - parts.keys():
            self._replicas[key].become(None)
        for key, part in parts.items():
            replica = self._replicas.get(key)
            if replica is None:
                directory = self.directory(key.topic) / str(key.number)
                replica = self._replicas[key] = Replica(key, directory, self)
            replica.become(part)

    def needed_from(self, topic: str, number: int) -> int | None:
        """Return the first message of a partition led here that a replica in sync has not got.

        None where it is not led here.
        """
        for key, replica in self._replicas.items():
            if (key.topic, key.number) == (topic, number) and replica.leading is not None:
                return replica.leading.progress.in_sync_to.messages
        return None

    async def drop(self, key: PartitionKey) -> None:
        """Let go of a replica for good; its logs are closed on return."""
        replica = self._replicas.pop(key, None)
        if replica is not None:
            await replica.close()
        for log in LOGS:
            await self._custody.forget(key, log)

    async def close(self) -> None:
        """Let go of all replicas; all logs are closed on return."""
        for task in self._proposing.values():
            task.cancel()
        await asyncio.gather(*(replica.close() for replica in self._replicas.values()))
        await asyncio.gather(*(fetcher.stop() for fetcher in self._fetchers.values()))

    def check_in_sync(self) -> None:
        """Ask for the in-sync sets as they should be; to be called from time to time."""
        for replica in self._replicas.values():
            if replica.leading is not None:
                self._check(replica)

    def _check(self, replica: Replica) -> None:
        leading, part = replica.leading, replica.part
        if leading is None or part is None or replica.key in self._proposing:
            return
        wanted = leading.progress.wanted_in_sync(self.now_ms(), limits.REPLICA_LAG_MS_MAX)
        if wanted is not None:
            leading.progress.propose(wanted)
            seen = part._replace(returned=tuple(sorted(leading.progress.unseen)))
            task = asyncio.ensure_future(self._propose(replica.key, seen, wanted))
            self._proposing[replica.key] = task

    async def _propose(
        self, key: PartitionKey, part: ReplicaAssignment, wanted: frozenset[str]
    ) -> None:
        try:
            decided = await self._propose_in_sync(key, part, wanted)
        finally:
            self._proposing.pop(key, None)
        replica = self._replicas.get(key)
        if replica is not None:
            replica.decided(decided)

    # What a replica asks of its node

    async def in_thread(self, work: Callable[[], object]) -> object:
        """Run what blocks on the disk."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    def settings(self, topic: str) -> TopicSettings:
        """Return a topic's settings."""
        return self._topics.settings(topic)

    def is_compacted(self, key: PartitionKey) -> bool:
        """Whether messages of a partition go when others of their keys come."""
        return self.settings(key.topic).cleanup is Cleanup.COMPACT

    def now_ms(self) -> int:
        """Return monotonic time."""
        return int(asyncio.get_running_loop().time() * 1000)

    def follow(self, leader: str, following: FollowerReplica) -> None:
        """Have a partition fetched from its leader."""
        fetcher = self._fetchers.get(leader)
        if fetcher is None:

            async def fetch(request: FetchRequest) -> tuple[FetchResponse, memoryview]:
                return await self._fetch_from(leader, request)

            fetcher = self._fetchers[leader] = Fetcher(
                self.name,
                leader,
                fetch,
                self.executor,
                self._custody,
                on_failure=self._storing_failed,
                on_surplus=self._trim,
            )
        fetcher.follow(following)

    def _storing_failed(self, key: PartitionKey, error: Exception) -> None:
        self.failed(key, error)
        replica = self._replicas.get(key)
        if replica is not None:
            replica.begin_again(error)

    async def forget(self, key: PartitionKey) -> None:
        """Have it fetched no more; nothing more is stored on return."""
        for fetcher in list(self._fetchers.values()):
            await fetcher.forget(key)
        trimming = self._trimmings.pop(key, None)
        if trimming is not None:
            await trimming.stop()

    def _trim(self, following: FollowerReplica) -> None:
        under_way = self._trimmings.get(following.key)
        if under_way is None or under_way.is_done:
            self._trimmings[following.key] = FollowerRetention(
                following, self._custody, self.in_thread, self._may_be_repaired
            )

    def _may_be_repaired(self, key: PartitionKey, sealed: SealedSegment) -> bool:
        """Whether a segment of a follower is to be mended before it may go."""
        replica = self._replicas.get(key)
        if replica is None or replica.following is None:
            return False
        which, segment = sealed
        return any(
            segment.base_offset < damage.end_offset
            and damage.start_offset < segment.end_offset
            and replica.may_be_repaired(which, damage)
            for damage in replica.following.logs[which].damage
        )

    async def listed(self, key: PartitionKey, logs: PartitionLogs) -> None:
        """Have all sealed segments of a replica in the manifest, if that can be written."""
        replica = self._replicas.get(key)
        following = None if replica is None else replica.following
        try:
            async with nullcontext() if following is None else following.listing:
                for name, log in zip(LOGS, logs, strict=True):
                    await self._custody.listed(key, name, log.segments[:-1])
        except (GoqError, OSError) as error:
            _log.warning("the manifest lacks segments of %s: %s", key, error)

    def serve(self, leading: LeaderReplica) -> None:
        """Let followers fetch from a partition that is led here."""
        leading.on_appended = self.server.appended
        self.server.lead(leading)

    def refuse(self, key: PartitionKey) -> None:
        """Let followers fetch from it no more."""
        self.server.resign(key)

    async def open(self, key: PartitionKey, logs: PartitionLogs, leadership: Leadership) -> None:
        """Let clients use a partition that is led here; everything in its logs is safe."""
        await self._topics.open(key, logs, leadership)

    async def shut(self, key: PartitionKey, reason: GoqError) -> None:
        """Let clients use it no more, and close its logs."""
        await self._topics.shut(key, reason)

    def failed(self, key: PartitionKey, error: Exception) -> None:
        """Hear that the disk cannot hold the replica now."""
        self._on_failure(key, error)


class BrokerTopics:
    """See ``replication.replicas.Topics``."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def directory(self, topic: str) -> Path:
        """Return where a topic's partitions lie."""
        return self._broker.topics_dir / topic

    def settings(self, topic: str) -> TopicSettings:
        """Return a topic's settings."""
        return self._broker.topic(topic).settings

    async def open(self, key: PartitionKey, logs: PartitionLogs, leadership: Leadership) -> None:
        """Let clients use a partition."""
        topic = self._broker.topic(key.topic)
        await topic.lead(key.number, logs, leadership)
        self._broker.keeper.wake_topic(topic)

    async def shut(self, key: PartitionKey, reason: GoqError) -> None:
        """Let clients use it no more, and close its logs."""
        await self._broker.topic(key.topic).resign(key.number, reason)
