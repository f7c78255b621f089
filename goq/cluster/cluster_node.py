"""A running node of a cluster: starts its parts, feeds them changes, and stops them in order.

Everything here runs on the node's event loop. The metadata comes from Raft, whole and newest,
whenever it changes. A loop then registers this node and reconciles it with the metadata, again and
again until that succeeds (*level-triggered*). ``bootstrap`` builds the parts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field

from goq import limits
from goq.broker.runtime.tasks import Tasks
from goq.clock import next_beat
from goq.cluster.admin.backup_files import LeaderFiles
from goq.cluster.admin.cluster_view import ClusterView
from goq.cluster.controller.node_liveness import Heartbeat
from goq.cluster.controller.runner import ControllerRunner
from goq.cluster.forwarding.lease_return import LeaseReturn
from goq.cluster.forwarding.metadata_freshness import MetadataFreshness
from goq.cluster.forwarding.node_routes import NodeRoutes
from goq.cluster.forwarding.partition_leaders import PartitionLeaders
from goq.cluster.forwarding.quota_exchange import QuotaExchange
from goq.cluster.forwarding.stored_bytes import StoredBytes
from goq.cluster.liveness.disk_health import DiskHealth
from goq.cluster.liveness.heartbeat import HeartbeatSender
from goq.cluster.liveness.leadership_handoff import LeadershipHandoff
from goq.cluster.liveness.readiness import Readiness
from goq.cluster.membership.data_loss import DataLoss
from goq.cluster.membership.divergence_recovery import DivergenceRecovery
from goq.cluster.membership.registration import NodeRegistration
from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.features import OWN_LEVEL
from goq.cluster.metadata.state import MetadataState
from goq.cluster.raft.driver import RaftStatus
from goq.cluster.raft.node import RaftNode
from goq.cluster.reconciler import Reconciler
from goq.cluster.replication.archive_sync import ArchiveSync
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.repair.manager import RepairManager
from goq.cluster.replication.replica_manager import ReplicaManager
from goq.cluster.rpc.peer_streams import PeerStreams
from goq.cluster.rpc.server import RpcServer
from goq.errors import GoqError, NotLeader, Unavailable

_log = logging.getLogger("goq.cluster")
_RETRY_S = 0.2
_RAFT_HANDOFF_TIMEOUT_S = 1.0


@dataclass(eq=False, kw_only=True)
class ClusterNode:
    """The parts of this node's membership, from :meth:`start` to :meth:`stop`."""

    name: str
    incarnation: int
    disk_id: str
    metadata: MetadataClient
    raft: RaftNode
    controller: ControllerRunner
    rpc_server: RpcServer
    streams: PeerStreams
    leaders: PartitionLeaders
    routes: NodeRoutes
    quotas: QuotaExchange
    stored_bytes: StoredBytes
    lease_return: LeaseReturn
    replicas: ReplicaManager
    repairs: RepairManager
    archives: ArchiveSync
    heartbeats: HeartbeatSender
    disk_health: DiskHealth
    readiness: Readiness
    handoff: LeadershipHandoff
    data_loss: DataLoss
    divergence: DivergenceRecovery
    registration: NodeRegistration
    adopt_restored: Callable[[], Coroutine[None, None, None]]
    """Gives a new cluster the topics of a restored folder."""
    reconciler: Reconciler
    freshness: MetadataFreshness
    view: ClusterView
    backup_files: LeaderFiles
    join: Callable[[], Coroutine[None, None, None]] | None = None
    """Asks to be admitted to the cluster, if this node is configured to join one."""
    on_change: Callable[[], None] = field(default_factory=lambda: _nothing, init=False)
    """Called when the metadata or the node that runs the controller has changed."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _tasks: Tasks = field(default_factory=Tasks, init=False)
    _running: list[asyncio.Task[None]] = field(default_factory=list, init=False)

    @property
    def state(self) -> MetadataState:
        """The cluster metadata, as far as it is known here."""
        return self.metadata.state

    @property
    def is_up(self) -> bool:
        """Whether the cluster counts this start of the node as up."""
        known = self.state.nodes.get(self.name)
        return known is not None and known.incarnation == self.incarnation and known.is_up

    def start(self, http_url: str) -> None:
        """Start to take part in the cluster; the node listens on ``http_url``.

        Raises ``UsageError`` if other nodes cannot reach that URL.
        """
        self.registration.set_url(http_url)
        works = [
            self._follow_metadata(),
            self.heartbeats.run(),
            self.routes.links.run(),
            self.quotas.run(),
            self.streams.run(),
            self._check_replicas(),
            self._repair_replicas(),
            self.repairs.scrub(),
            self.archives.run(),
            self.disk_health.run(),
            self.controller.run(),
        ]
        if self.join is not None:
            works.append(self.join())
        self._running = [self._tasks.start(work) for work in works]
        self._changed.set()

    async def confirm_leader(self, topic: str, number: int) -> None:
        """Return if this node leads a partition by all that was decided before the call.

        A node that reaches no other goes by what it knows. Raises ``NotLeader``, or ``Unavailable``
        if this node cannot know now.
        """
        try:
            await self.freshness.catch_up()
        except Unavailable:
            if not (self.freshness.is_cut_off and self.routes.links.reaches_none):
                raise
        known = self.state.topics.get(topic)
        if known is None or number >= len(known.partitions):
            return  # which the answer tells
        replica = self.replicas.get(PartitionKey(topic, known.topic_id, number))
        leader = None if replica is None else replica.as_leader
        led = None if leader is None else (self.name, leader.leader_epoch)
        if led != (known.partitions[number].leader, known.partitions[number].leader_epoch):
            raise NotLeader("another node leads this partition", retry_after_ms=500)

    async def hand_over(self) -> None:
        """Give away the Raft leadership and all partitions led here; return when others lead.

        Once the Raft member has stopped, nobody can be asked: others take over without it.
        """
        if self.raft.status.failure is None:
            await self.hand_over_controller()
            await self.handoff.run()

    async def hand_over_controller(self) -> None:
        """Give away the Raft leadership, if another member takes it."""
        if self.raft.is_leader and len(self.raft.status.members) > 1:
            with suppress(GoqError):  # the others elect a leader by themselves, later
                await self.raft.transfer_leadership(timeout_s=_RAFT_HANDOFF_TIMEOUT_S)

    async def stop(self) -> None:
        """Stop taking part; on return all replicas are closed."""
        await self.lease_return.close()  # while other nodes can be asked
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        await self.repairs.close()
        await self.replicas.close()
        await self.routes.close()

    def on_raft_status(self, status: RaftStatus) -> None:
        """Pass on a change of the Raft leader or members; the Raft leader runs the controller."""
        self.readiness.on_raft_status(status)
        self.heartbeats.set_controller(status.leader)
        self.controller.on_leadership_change(
            status.is_leader and not status.has_diverged, status.silent_before_s
        )
        self._changed.set()
        self.on_change()

    def on_metadata_change(self) -> None:
        """Pass on a change of the metadata."""
        self._changed.set()
        self.controller.on_state_change()
        self.leaders.on_metadata_change()
        self.routes.links.on_metadata_change()
        self.view.on_metadata_change()
        self.on_change()

    def heartbeat(self) -> Heartbeat:
        """Return this node's current heartbeat."""
        known_topics = {topic.topic_id for topic in self.state.topics.values()}
        known_topics |= {topic.topic_id for topic in self.state.deleted_topics.values()}
        return Heartbeat(
            self.incarnation,
            self.disk_health.reason,
            frozenset(self.reconciler.deleted & known_topics),
            self.repairs.damaged,
            self.data_loss.actually_repaired(self.repairs.repaired, self.state),
            self.handoff.is_stopping,
            self.disk_id,
            OWN_LEVEL,
            unreachable=self.routes.links.lost_nodes(),
        )

    async def _follow_metadata(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                if not self.divergence.is_waiting:
                    await self.registration.ensure()
                    await self.adopt_restored()
                if await self.divergence.recover():
                    self.reconciler.forget()
                if not self.divergence.is_pending:
                    state = self.state
                    await self.reconciler.reconcile(state)
                    self.freshness.on_reconciled(state)
                await self.data_loss.clear_when_covered(self.state)
            except (GoqError, OSError) as error:
                _log.warning("this node does not follow the cluster yet: %s", error)
                await asyncio.sleep(_RETRY_S)
                self._changed.set()

    async def _check_replicas(self) -> None:
        while True:
            await next_beat(limits.IN_SYNC_CHECK_MS / 1000)
            self.replicas.check_in_sync()

    async def _repair_replicas(self) -> None:
        while True:
            await next_beat(limits.REPAIR_CHECK_MS / 1000)
            self.repairs.start_due_repairs()


def _nothing() -> None:
    """Nothing is called before the node runs schedules."""
