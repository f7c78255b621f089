"""A node as a member of its cluster: what all agree on becomes what it does.

Everything here runs on the node's event loop. The state of the cluster comes from Raft, whole and
newest, whenever it changes; this node's topics and replicas are made to follow it, step by step
and again and again (*level-triggered*): a change that is missed is made up for by the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec.structs import replace

from goq import limits
from goq.broker.broker import Broker
from goq.broker.runtime.tasks import Tasks
from goq.cluster.admin.replica_status import ReplicaStatus
from goq.cluster.controller.node_liveness import Heartbeat
from goq.cluster.controller.runner import ControllerRunner
from goq.cluster.forwarding.partition_leaders import PartitionLeaders
from goq.cluster.liveness.disk_health import DiskHealth
from goq.cluster.liveness.heartbeat import HeartbeatSender, decode_heartbeat
from goq.cluster.liveness.leadership_handoff import LeadershipHandoff
from goq.cluster.liveness.readiness import pending_conditions
from goq.cluster.membership.data_loss import DataLoss
from goq.cluster.membership.disk_identity import DiskId
from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.commands import (
    AlterClusterSettings,
    AlterInSync,
    RegisterNode,
    ReportDataLoss,
)
from goq.cluster.metadata.state import MetadataState
from goq.cluster.raft.driver import RaftStatus
from goq.cluster.reconciler import Reconciler, assignment_of
from goq.cluster.replication.archive_sync import ArchiveSync, decode_archive_request
from goq.cluster.replication.protocol import (
    PartitionKey,
    decode_request,
    encode,
)
from goq.cluster.replication.repair.manager import RepairManager
from goq.cluster.replication.repair.protocol import (
    decode_repair_request,
)
from goq.cluster.replication.repair.protocol import encode_repair as encode_mend
from goq.cluster.replication.replica import Replica, ReplicaAssignment
from goq.cluster.replication.replica_manager import BrokerTopics, ReplicaManager
from goq.cluster.replication.segment_manifest import SegmentManifest
from goq.cluster.rpc.client import RpcClient
from goq.cluster.rpc.framing import join_head
from goq.cluster.rpc.replica_client import ReplicaClient
from goq.errors import Conflict, GoqError, InvalidFrame, NotLeader, TopicNotFound
from goq.storage.disk import Disk

_log = logging.getLogger("goq.cluster")
_AGAIN_S = 0.2
_NOT_THE_ONE = (
    "the cluster knows {0} with another disk; what that had, and what it has promised, is not here."
    " Bring the old data folder back; or stop this node, take it out on another one"
    " (goq cluster leave {0}), and start it again with an empty folder and --join"
)


class ClusterNode:
    """This node's part in the cluster, from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        broker: Broker,
        disk: Disk,
        own_disk: DiskId,
        proposing: MetadataClient,
        calling: RpcClient,
        take_out: Callable[[str], Awaitable[None]],
    ) -> None:
        self.name = name
        self._disk = own_disk
        self.incarnation = incarnation
        topics = BrokerTopics(broker)
        self.controlling = ControllerRunner(proposing, take_out)
        self.asking = ReplicaClient(lambda: self.state, calling)
        self.map = PartitionLeaders(name, lambda: self.state, self.asking.call)
        self.speaking = HeartbeatSender(
            name,
            self._heartbeat,
            self.controlling.receive_heartbeat,
            self.asking.call,
            self._is_listed,
        )
        self.replicas = ReplicaManager(
            name,
            topics,
            SegmentManifest(broker.metadata, broker.archive, broker.clock, topics.settings),
            disk,
            broker.executor,
            self.asking.fetch,
            self._propose_in_sync,
            on_failure=self._failed,
            is_heard=self.speaking.is_heard,
        )
        self.reporting = ReplicaStatus(self.replicas, lambda: self.state, self.asking.call)
        self.fitness = DiskHealth(disk, broker.topics_dir.parent, self.replicas.in_thread)
        self.repairs = RepairManager(self.replicas, self.asking.mend)
        self.archives = ArchiveSync(
            broker.archive, self.replicas, topics.settings, self._others, self.asking.archive
        )
        self._handing_over = LeadershipHandoff(broker, self.replicas, self.speaking, self._is_up)
        self._becoming = Reconciler(broker, self.replicas)
        self._lost = DataLoss(own_disk, self.replicas, broker.topics_dir)
        self._proposing = proposing
        self._calling = calling
        self._registration: RegisterNode | None = None
        self._refused_by: tuple[str, ...] = ()
        self._min_insync = 0
        self._has_started = False
        self._changed = asyncio.Event()
        self._tasks = Tasks()
        self._running: list[asyncio.Task[None]] = []

    @property
    def state(self) -> MetadataState:
        """What all nodes agree on, as far as it is known here."""
        return self._proposing.state

    def start(self, http_url: str, cluster_address: str, rack: str | None, min_insync: int) -> None:
        """Take part; other nodes and clients reach this node at ``http_url``.

        ``min_insync`` counts if the cluster has just begun.
        """
        self._min_insync = min_insync
        self._registration = RegisterNode(
            self.name, self.incarnation, http_url, cluster_address, rack, self._disk.id
        )
        works = (
            self._follow(),
            self.speaking.beat(),
            self._look_at_replicas(),
            self.repairs.scrub(),
            self.archives.run(),
            self.fitness.watch(),
            self.controlling.run(),
        )
        self._running = [self._tasks.start(work) for work in works]
        self._changed.set()

    async def hand_over(self) -> None:
        """Have other nodes lead what this one leads, before it stops; return when they do."""
        await self._handing_over.run()

    def _is_up(self) -> bool:
        known = self.state.nodes.get(self.name)
        return known is not None and known.incarnation == self.incarnation and known.is_up

    async def stop(self) -> None:
        """Take part no more: all replicas are closed on return."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        await self.repairs.close()
        await self.replicas.close()
        await self._calling.close()

    def viewed(self, view: RaftStatus) -> None:
        """Hear how things stand in the Raft group."""
        if view.rejected_by and not self._refused_by and view.leader is None:
            _log.critical("this node takes no part: %s", _NOT_THE_ONE.format(self.name))
        self.speaking.leader, self._refused_by = view.leader, view.rejected_by
        self.controlling.on_leadership_change(view.is_leader)

    def agreed(self) -> None:
        """Hear that the state of the cluster has changed."""
        self._changed.set()
        self.controlling.on_state_change()
        self.map.changed()

    def waits_for(self) -> list[str]:
        """Return what has yet to come until this node has started; nothing ever after.

        A node that falls behind later is of use all the same, as a way to the others.
        """
        if self._refused_by and self.speaking.leader is None:
            return [f"its disk: {_NOT_THE_ONE.format(self.name)}"]
        if self._has_started:
            return []
        found = pending_conditions(self.state, self.name, self.incarnation)
        self._has_started = not found
        return found

    # What other nodes ask

    async def answer_fetch(self, node: str, body: bytes) -> list[bytes | memoryview]:
        """Answer a follower: a head behind its length, then frames."""
        request = decode_request(body)
        if request.node != node:
            raise InvalidFrame(f"{node} asks as {request.node}")
        answer, buffers = await self.replicas.server.fetch(request)
        return join_head(encode(answer), buffers)

    async def answer_heartbeat(self, node: str, body: bytes) -> list[bytes | memoryview]:
        """Hear that a node is alive."""
        self.controlling.receive_heartbeat(node, decode_heartbeat(body))
        return []

    async def answer_mend(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Answer a node whose replica is damaged: a head behind its length, then frames."""
        answer, buffers = await self.repairs.answer(decode_repair_request(body))
        return join_head(encode_mend(answer), buffers)

    async def answer_archive(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Answer a node that lacks something in its archive."""
        request = decode_archive_request(body)
        topic = self.state.topics.get(request.key.topic)
        if topic is None or topic.topic_id != request.key.topic_id:
            raise TopicNotFound(f"there is no such topic {request.key.topic} here", field="topic")
        return [await self.archives.answer(request)]

    # Following what is agreed on

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._register()
                await self._becoming.become(self.state)
                await self._lost.make_up(self.state)
            except (GoqError, OSError) as error:
                _log.warning("this node does not follow the cluster yet: %s", error)
                await asyncio.sleep(_AGAIN_S)
                self._changed.set()

    async def _register(self) -> None:
        known = self.state.nodes.get(self.name)
        if self._registration is not None and (
            known is None or known.incarnation != self.incarnation
        ):
            with suppress(GoqError):  # who registers without having been heard of counts as silent
                await self.speaking.speak()
            if self._lost.are_lost and known is not None:
                _log.critical("the messages on this node are gone; it copies them from the others")
                await self._proposing.propose(ReportDataLoss(self.name, self._disk.id))
            await self._proposing.propose(replace(self._registration, durable_topics=self._keeps()))
        settings = self.state.settings
        if settings.version == 1 and settings.min_insync != self._min_insync:
            with suppress(Conflict):  # another node was first
                await self._proposing.propose(AlterClusterSettings(1, min_insync=self._min_insync))

    def _keeps(self) -> tuple[int, ...]:
        """Return of which topics this node has whatever it said it has."""
        if self._lost.are_lost:
            return ()
        always = self._becoming.synced_at_once(self.state)
        return tuple(sorted(t for t in self._becoming.kept.ids if always.get(t)))

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            self.incarnation,
            self.fitness.reason,
            frozenset(self._becoming.deleted & {t.topic_id for t in self.state.topics.values()}),
            self.repairs.damaged,
            self._lost.whole(self.repairs.repaired, self.state),
            self._handing_over.is_stopping,
            self._disk.id,
        )

    def _is_listed(self) -> bool:
        return self.name in self.state.nodes

    # What replicas need

    def _others(self, replica: Replica) -> list[str]:
        """Return all other nodes, those with replicas of the partition first."""
        holders = replica.others
        return [*holders, *sorted(self.state.nodes.keys() - {*holders, self.name})]

    async def _look_at_replicas(self) -> None:
        while True:
            await asyncio.sleep(limits.IN_SYNC_LOOK_MS / 1000)
            self.replicas.check_in_sync()
            self.repairs.look()

    async def _propose_in_sync(
        self, key: PartitionKey, part: ReplicaAssignment, wanted: frozenset[str]
    ) -> ReplicaAssignment:
        seen = dict(zip(part.replicas, part.incarnations, strict=True))
        command = AlterInSync(
            key.topic,
            key.topic_id,
            key.number,
            part.version,
            self.name,
            part.leader_epoch,
            {node: seen.get(node, 0) for node in wanted},
            part.returned,
        )
        await self._proposing.propose_until_decided(command)
        state = self.state
        topic = state.topics.get(key.topic)
        if topic is None or topic.topic_id != key.topic_id:
            raise NotLeader(f"topic {key.topic} is gone")
        return assignment_of(state, topic.partitions[key.number])

    def _failed(self, key: PartitionKey, error: Exception) -> None:
        _log.error("partition %d of %s: %s", key.number, key.topic, error)
        self.fitness.failed(error)

    def kept_for_replicas(self, topic: str, number: int) -> int | None:
        """Return the first message of a partition led here that a replica in sync has not got."""
        return self.replicas.needed_from(topic, number)
