"""One partition on this node: opening its logs, following or leading, and changing between them.

What it is to be comes from the cluster's metadata and may change at any time; what it is follows,
one step after the other. A change of the leader epoch is a change of part, even if the leader is
the same: a leader's state is built anew from the logs, as after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from goq.broker.partition.loader import PartitionLogs, open_logs
from goq.broker.topic.topic import Leadership
from goq.cluster.replication.follower import FollowerReplica
from goq.cluster.replication.leader import LeaderReplica
from goq.cluster.replication.progress import LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.repair.protocol import ReplicaLogs
from goq.config.topic import TopicSettings
from goq.errors import GoqError, NotLeader, PartitionOffline, StorageFailed
from goq.storage.disk import Disk
from goq.storage.log.log import Log
from goq.storage.repair import Gap
from goq.storage.scanner import Damage

_log = logging.getLogger("goq.cluster")
_TRY_AGAIN_S = 1.0


class ReplicaAssignment(NamedTuple):
    """What all nodes agree on about a partition.

    ``leader`` is None where nobody can lead. ``version`` rises with every change of any of this.
    ``damaged`` replicas are known to have bad frames. ``incarnations`` are those of the replicas'
    nodes, in their order. ``returned`` are in sync, but have not been heard of since their start.
    """

    leader: str | None
    leader_epoch: int
    in_sync: tuple[str, ...]
    replicas: tuple[str, ...]
    min_insync: int
    version: int
    damaged: tuple[str, ...] = ()
    incarnations: tuple[int, ...] = ()
    returned: tuple[str, ...] = ()


class ReplicaHost(Protocol):
    """The node, as its replicas see it."""

    name: str
    disk: Disk
    is_heard: Callable[[], bool]
    """Whether the cluster cannot have given this node's leaderships to others by now."""

    async def in_thread(self, work: Callable[[], object]) -> object:
        """Run what blocks on the disk."""

    def settings(self, topic: str) -> TopicSettings:
        """Return a topic's settings."""

    async def listed(self, key: PartitionKey, logs: PartitionLogs) -> None:
        """Have all sealed segments of a replica in the node's manifest, if that can be written."""

    def now_ms(self) -> int:
        """Return monotonic time."""

    def follow(self, leader: str, following: FollowerReplica) -> None:
        """Have a partition fetched from its leader."""

    async def forget(self, key: PartitionKey) -> None:
        """Have it fetched no more; nothing more is stored on return."""

    def serve(self, leading: LeaderReplica) -> None:
        """Let followers fetch from a partition that is led here."""

    def refuse(self, key: PartitionKey) -> None:
        """Let followers fetch from it no more."""

    async def open(self, key: PartitionKey, logs: PartitionLogs, leadership: Leadership) -> None:
        """Let clients use a partition that is led here; everything in its logs is safe."""

    async def shut(self, key: PartitionKey, reason: GoqError) -> None:
        """Let clients use it no more, and close its logs."""

    def failed(self, key: PartitionKey, error: Exception) -> None:
        """Hear that the disk cannot hold the replica now."""


class Replica:
    """A replica of one partition, in ``directory``."""

    def __init__(self, key: PartitionKey, directory: Path, host: ReplicaHost) -> None:
        self.key = key
        self.part: ReplicaAssignment | None = None
        self.following: FollowerReplica | None = None
        self.leading: LeaderReplica | None = None
        self.idle: PartitionLogs | None = None
        """The logs while nobody leads."""
        self.changing = asyncio.Lock()
        """Held while the logs are closed, and by whoever needs them open."""
        self.given_up: set[tuple[int, Gap]] = set()
        """What nobody else has of what is damaged here, by log: 0 messages, 1 events."""
        self.failure: Exception | None = None
        self._directory = directory
        self._host = host
        self._wanted: ReplicaAssignment | None = None
        self._is_open = False
        self._begins_again = False
        self._decided_version = 0
        self._work: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def standing(self) -> ReplicaLogs | None:
        """The logs, where they are open, and what of them is known to be safe."""
        if self.leading is not None:
            return ReplicaLogs(self.leading.logs, self.leading.progress.high_watermark)
        if self.following is not None:
            return ReplicaLogs(self.following.logs, self.following.high_watermark)
        return None if self.idle is None else ReplicaLogs(self.idle, LogOffsets(0, 0))

    @property
    def others(self) -> list[str]:
        """Who else has a replica, the leader first."""
        part = self.part
        if part is None:
            return []
        others = sorted(node for node in part.replicas if node != self._host.name)
        return sorted(others, key=lambda node: node != part.leader)

    def may_be_repaired(self, which: int, damage: Damage) -> bool:
        """Whether another replica may have what is damaged in one of the logs."""
        return bool(self.others) and not any(
            of_log == which
            and gap.start_offset <= damage.start_offset
            and damage.end_offset <= gap.end_offset
            for of_log, gap in self.given_up
        )

    def become(self, part: ReplicaAssignment | None) -> None:
        """Say what the replica is to be; None to let go of it."""
        self._wanted = part
        self._changed.set()
        if self._work is None or self._work.done():
            self._work = asyncio.ensure_future(self._settle())

    async def settled(self) -> None:
        """Return when it is what it is to be, or has to wait for other nodes to be."""
        while self._work is not None and not self._work.done() and self.part != self._wanted:
            await asyncio.wait([self._work], timeout=0.01)

    async def close(self) -> None:
        """Let go of it and return when its logs are closed."""
        self.become(None)
        while self._work is not None and not self._work.done():
            await asyncio.wait([self._work])

    async def _settle(self) -> None:
        while self._begins_again or self.part != self._wanted or self._must_open():
            self._changed.clear()
            wanted = self._wanted
            if self._begins_again:
                self._begins_again, self.part = False, None
                if self.failure is not None:
                    await self._let_go(_offline(self.failure))
                    await self._pause()
                    wanted = self._wanted
            try:
                await self._change(wanted)
            except (GoqError, OSError) as error:
                self.failure = error
                self._host.failed(self.key, error)
                await self._let_go(_offline(error))
                await self._pause()
                continue
            self.part, self.failure = wanted, None
            if self._must_open():
                await self._open_when_safe()

    async def _pause(self) -> None:
        """Wait before the next try, unless something else is wanted meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_TRY_AGAIN_S):
                await self._changed.wait()

    def _must_open(self) -> bool:
        return self.leading is not None and not self._is_open

    async def _change(self, wanted: ReplicaAssignment | None) -> None:
        before = self.part
        if wanted is not None and before is not None and _is_same_part(before, wanted):
            self.decided(wanted)
            return
        await self._let_go(NotLeader("the partition has another leader now; ask for the map"))
        self.part = None
        if wanted is None:
            return
        opened = await self._host.in_thread(self._open_logs)
        assert isinstance(opened, PartitionLogs)
        await self._host.listed(self.key, opened)
        if wanted.leader is None:
            self.idle = opened  # another replica may need what this one has
        elif wanted.leader == self._host.name:
            self._lead(wanted, opened)
        else:
            self.following = FollowerReplica(self.key, wanted.leader_epoch, opened, self._reopen)
            self._host.follow(wanted.leader, self.following)

    def _open_logs(self) -> PartitionLogs:
        return open_logs(self._directory, self._host.disk, self._host.settings(self.key.topic))

    def _reopen(self, log: Log, offset: int) -> Log:
        """Make a log anew that begins at ``offset``."""
        self._host.disk.remove_dir(log.directory)
        return Log.open(log.directory, self._host.disk, log.config, base_offset=offset)

    def _lead(self, part: ReplicaAssignment, logs: PartitionLogs) -> None:
        ends = LogOffsets(logs.messages.end_offset, logs.events.end_offset)
        name = self._host.name
        progress = ReplicaProgress(name, ends, in_sync=part.in_sync, min_insync=part.min_insync)
        progress.begin(part.replicas, self._host.now_ms(), part.incarnations)
        progress.returned = frozenset(part.returned)
        self._decided_version = part.version
        self.leading = LeaderReplica(self.key, part.leader_epoch, logs, progress)
        self.leading.is_sure = self._host.is_heard
        self._host.serve(self.leading)

    async def _open_when_safe(self) -> None:
        """Let clients in as soon as all that the logs held at first is safe."""
        leading, part = self.leading, self.part
        assert leading is not None
        assert part is not None
        leading.on_advance = self._changed.set
        while not leading.is_caught_up:
            if self._wanted != part or self._begins_again:
                return  # perhaps already since before: that the event told of it is forgotten here
            self._changed.clear()
            await self._changed.wait()
        leadership = Leadership(
            part.leader_epoch,
            leading.quorums,
            self.begin_again,
            lambda error: self._host.failed(self.key, error),
            lambda damage: self.may_be_repaired(0, damage),
        )
        await self._host.open(self.key, leading.logs, leadership)
        self._is_open = True

    def decided(self, part: ReplicaAssignment) -> None:
        """Take over the in-sync set that all nodes agree on, if the leadership is this one.

        It may be known before the rest of what they agree on, and an older one come after it.
        """
        leading = self.leading
        if leading is None or part.version < self._decided_version:
            return
        if (part.leader, part.leader_epoch) == (self._host.name, leading.leader_epoch):
            self._decided_version = part.version
            leading.progress.begin(part.replicas, self._host.now_ms(), part.incarnations)
            leading.progress.returned = frozenset(part.returned)
            leading.decided(part.in_sync, part.min_insync)

    def begin_again(self, failure: Exception | None = None) -> None:
        """Open everything anew: what was written last was lost to the disk.

        With a failure that is likely to be there still, a while later.
        """
        self._begins_again, self.failure = True, failure
        self.become(self._wanted)

    async def _let_go(self, reason: GoqError) -> None:
        """Close whatever is open."""
        async with self.changing:
            await self._close_logs(reason)

    async def _close_logs(self, reason: GoqError) -> None:
        following, leading, logs = self.following, self.leading, self.idle
        self.following = self.leading = self.idle = None
        if following is not None:
            await self._host.forget(self.key)
            logs = following.logs
        elif leading is not None:
            self._host.refuse(self.key)
            if self._is_open:
                self._is_open = False
                await self._host.shut(self.key, reason)
            else:
                logs = leading.logs
        if logs is not None:
            await self._host.in_thread(lambda: _close(logs))


def _is_same_part(before: ReplicaAssignment, wanted: ReplicaAssignment) -> bool:
    return (before.leader, before.leader_epoch) == (wanted.leader, wanted.leader_epoch)


def _offline(error: Exception) -> GoqError:
    return error if isinstance(error, GoqError) else PartitionOffline(str(error))


def _close(logs: PartitionLogs) -> None:
    for log in logs:
        try:
            log.close()
        except (StorageFailed, OSError) as error:
            _log.warning("%s was not closed cleanly: %s", log.directory, error)
