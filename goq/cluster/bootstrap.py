"""Construction of a cluster node: the one place where its parts are wired together.

It takes three steps. :meth:`ClusterBootstrap.open` starts the Raft member, which the broker's
metadata store needs. :meth:`ClusterBootstrap.build` builds all parts that need the started broker.
:meth:`ClusterNode.start` begins to work, once the HTTP server listens.

Longer than other modules: it names every part once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from goq import limits
from goq.broker.broker import Broker
from goq.broker.metadata import LocalMetadata
from goq.broker.partition.leases import LeasedBatch
from goq.clock import Clock
from goq.cluster.admin.backup_files import BackupFileServer, LeaderFiles
from goq.cluster.admin.cluster_view import ClusterView
from goq.cluster.admin.operations import ClusterOperations
from goq.cluster.admin.replica_status import REPORTS, ReplicaStatus
from goq.cluster.cluster_node import ClusterNode
from goq.cluster.controller.runner import ControllerRunner
from goq.cluster.forwarding.lease_return import RETURN_LEASES, LeaseReturn
from goq.cluster.forwarding.metadata_freshness import RECONCILED, MetadataFreshness
from goq.cluster.forwarding.node_routes import NodeRoutes
from goq.cluster.forwarding.partition_leaders import PartitionLeaders
from goq.cluster.forwarding.quota_exchange import SPENT, QuotaExchange
from goq.cluster.forwarding.remote_partition import (
    PRODUCERS,
    PUBLISH,
    ForwardedPublishServer,
    RemotePartition,
)
from goq.cluster.forwarding.stored_bytes import STORED, StoredBytes
from goq.cluster.liveness.disk_health import DiskHealth
from goq.cluster.liveness.heartbeat import (
    HEARTBEAT,
    HeartbeatSender,
    decode_heartbeat,
    encode_heartbeat_answer,
)
from goq.cluster.liveness.leadership_handoff import LeadershipHandoff
from goq.cluster.liveness.readiness import Readiness
from goq.cluster.membership.data_loss import DataLoss
from goq.cluster.membership.disk_identity import FILE_NAME
from goq.cluster.membership.divergence_recovery import DivergenceRecovery
from goq.cluster.membership.durable_topics import DurableTopics
from goq.cluster.membership.join import (
    OPEN_CALLS,
    AdmissionServer,
    registered_disk,
)
from goq.cluster.membership.local_member import FOLDER, LocalMember, open_member
from goq.cluster.membership.registration import NodeRegistration
from goq.cluster.membership.restored_topics import RestoredTopics, founds_alone
from goq.cluster.metadata.broker_store import ReplicatedMetadataStore
from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.commands import RegisterNode
from goq.cluster.metadata.features import (
    has_clock_events,
    has_head_proofs,
    has_relative_times,
    has_renewals,
)
from goq.cluster.raft.driver import RaftStatus
from goq.cluster.raft.node import RaftNode
from goq.cluster.raft.state_machine.state_machine import AppliedEntry
from goq.cluster.raft.transport.peer_identity import PeerIdentity
from goq.cluster.reconciler import InSyncProposer, Reconciler, RenewalProposer
from goq.cluster.replication.archive_sync import ArchiveSync
from goq.cluster.replication.repair.manager import RepairManager
from goq.cluster.replication.replica import Replica
from goq.cluster.replication.replica_manager import BrokerTopics, ReplicaManager
from goq.cluster.replication.segment_manifest import SegmentManifest
from goq.cluster.rpc.client import NodeConnections, PeerTls, RpcClient
from goq.cluster.rpc.peer_streams import Dial, PeerStreams, StreamDialer
from goq.cluster.rpc.replica_client import ReplicaClient
from goq.cluster.rpc.replica_server import ReplicaServer
from goq.cluster.rpc.server import ResponseBody, RpcServer
from goq.config.node import Config
from goq.errors import InvalidInput, NotLeader, UsageError
from goq.http.client.trust import ClientTls
from goq.storage.disk import Disk

_RELAYED_CALLS = frozenset({PUBLISH, PRODUCERS, RETURN_LEASES, RECONCILED, REPORTS})
_STREAMED_CALLS = frozenset({HEARTBEAT, PUBLISH, RETURN_LEASES, RECONCILED, SPENT, STORED})
_CONTROLLER_HANDOVER_S = 3.0


class _Opened(NamedTuple):
    """The parts that :meth:`ClusterBootstrap.open` makes, before there is a broker."""

    member: LocalMember
    routes: NodeRoutes
    leaders: PartitionLeaders
    store: ReplicatedMetadataStore
    restored: RestoredTopics


class ClusterBootstrap:
    """Builds the :class:`ClusterNode` of a configuration; :meth:`close` it after the node.

    The Raft log is on ``raft_disk``, which may use the reserve of a full disk, and the database of
    the metadata calls ``give_up_reserve``.
    ``create_raft``, ``create_connections`` and ``dial_stream`` are replaced in simulations.
    """

    def __init__(
        self,
        config: Config,
        disk: Disk,
        clock: Clock,
        *,
        raft_disk: Disk | None = None,
        give_up_reserve: Callable[[], bool] = lambda: False,
        create_raft: Callable[..., RaftNode] = RaftNode,
        create_connections: Callable[[int], NodeConnections] | None = None,
        dial_stream: Dial | None = None,
    ) -> None:
        self._config = config
        self._disk = disk
        self._raft_disk = raft_disk or disk
        self._give_up_reserve = give_up_reserve
        self._clock = clock
        self._create_raft = create_raft
        self._tls = _peer_tls(config)
        self._create_connections = create_connections or partial(NodeConnections, tls=self._tls)
        self._dial_stream = dial_stream or StreamDialer(self._tls).dial
        self._name = config.broker.node_id
        _check_names_cluster(config, disk)
        self._closing = AsyncExitStack()
        self._opened: _Opened | None = None
        self._node: ClusterNode | None = None

    async def open(self, local: LocalMetadata) -> ReplicatedMetadataStore:
        """Start the Raft member; return the broker's metadata store, which may be empty yet.

        Raises ``UsageError`` for an invalid configuration, ``CorruptData`` and ``OSError``.
        """
        name, data_dir = self._name, self._config.broker.data_dir
        was_member = _was_member(data_dir, self._disk)
        cluster = self._config.cluster
        restored = await RestoredTopics.load(
            self._disk,
            data_dir,
            local,
            is_alone=founds_alone(cluster.peers, name, cluster.join_url(name)),
        )
        if not was_member and not restored.names and await local.topics():
            raise UsageError(
                f"the topics in {data_dir} belong to a node without a cluster, or to a member that"
                " lost what it knew of one, and a cluster would not know them; start with an empty"
                " folder, and copy what only this one has with goq consume and goq produce",
                field="broker.data_dir",
            )
        member = await open_member(
            self._config,
            self._disk,
            self._create_connections(limits.RPC_CONNECTIONS_MAX),
            partial(
                self._create_raft,
                on_status_change=self._on_raft_status,
                on_applied=self._on_applied,
                disk=self._raft_disk,
            ),
            _STREAMED_CALLS,
            self._give_up_reserve,
            self._closing,
        )
        routes = NodeRoutes(
            name,
            member.state,
            member.nodes.call,
            member.streams.call,
            RpcClient(name, member.secret, self._create_connections(2), member.disk_id.id),
            member.streams.is_alive,
            _RELAYED_CALLS,
            self._tls,
        )
        leaders = PartitionLeaders(name, member.state, routes.calls.call)
        store = ReplicatedMetadataStore(local, member.metadata, name, lambda: restored.names)
        self._opened = _Opened(member, routes, leaders, store, restored)
        return store

    @property
    def raft(self) -> RaftNode | None:
        """The member of the Raft group, None before it has started."""
        return None if self._opened is None else self._opened.member.raft

    def remote_partition(self, topic: str, number: int) -> RemotePartition:
        """Return a partition that another node leads."""
        assert self._opened is not None
        state = self._opened.member.state
        return RemotePartition(
            topic,
            number,
            self._opened.leaders.call_leader,
            self._clock,
            lambda: has_relative_times(state()),
        )

    def return_lease(self, topic: str, group: str, batch: LeasedBatch) -> None:
        """Have the node that leads a partition by now release a lease that reached nobody."""
        assert self._node is not None  # which alone opens partitions
        self._node.lease_return.return_lease(topic, group, batch)

    def end_leases(self, topic: str, group: str, partition: int, tokens: list[int]) -> None:
        """Have the node that leads a partition by now end leases whose connection closed."""
        assert self._node is not None
        self._node.lease_return.end_leases(topic, group, partition, tokens)

    def build(self, broker: Broker) -> ClusterNode:
        """Build the parts that work with the broker, which has been started."""
        opened, name = self._opened, self._name
        assert opened is not None
        member, routes = opened.member, opened.routes
        metadata, raft, state = member.metadata, member.raft, member.state
        controller = ControllerRunner(
            metadata,
            self._remove_member,
            broker.clock,
            reachable_members=lambda: raft.status.reachable,
            hand_over=partial(raft.transfer_leadership, timeout_s=_CONTROLLER_HANDOVER_S),
            lease_age_s=raft.lease_age_s,
        )
        heartbeats = HeartbeatSender(
            name,
            lambda: node.heartbeat(),
            controller.receive_heartbeat,
            member.nodes.call,
            broker.clock,
            lambda: registered_disk(state(), name) == member.disk_id.id,
            lambda: freshness.catch_up(),
            lambda: divergence.is_pending,
            raft.silent_s,
        )
        opened.leaders.has_session = heartbeats.has_session
        opened.leaders.is_cut_off = raft.is_cut_off
        replicas, repairs, archives, disk_health = self._replication(broker, member, heartbeats)
        durable_topics = DurableTopics(self._disk, broker.topics_dir)
        reconciler = Reconciler(broker, replicas, durable_topics, state)
        freshness = MetadataFreshness(
            name,
            broker.epoch,
            state,
            raft.barrier,
            routes.calls.call,
            heartbeats.has_session,
            raft.silent_s,
        )
        data_loss = DataLoss(member.disk_id, replicas, broker.topics_dir)
        divergence = DivergenceRecovery(
            member.machine,
            metadata,
            replicas,
            broker.epoch,
            self._config.broker.data_dir / "diverged",
            lambda: raft.status.has_diverged,
        )
        replica_status = ReplicaStatus(replicas, state, routes.calls.call)
        admission = AdmissionServer(raft, state)
        operations = ClusterOperations(
            metadata, replica_status, admission.add_member, admission.remove_absent_member
        )
        lease_return = LeaseReturn(broker, opened.leaders.call_leader)
        replica_server = ReplicaServer(replicas.fetch_server, repairs, archives, state)
        quotas = QuotaExchange(name, state, member.nodes.call)
        stored_bytes = StoredBytes(name, state, member.nodes.call)
        rpc_server = RpcServer(
            member.secret,
            {
                **ForwardedPublishServer(broker, freshness.catch_up).handlers(),
                **freshness.handlers(),
                **routes.handlers(),
                **replica_server.handlers(),
                **admission.handlers(),
                RETURN_LEASES: lease_return.handle_return,
                HEARTBEAT: partial(_handle_heartbeat, controller),
                REPORTS: replica_status.handle_reports,
                **BackupFileServer(broker, replicas).handlers(),
                **quotas.handlers(),
                **stored_bytes.handlers(),
            },
            open_calls=OPEN_CALLS,
            is_known_disk=admission.is_known_disk,
            has_head_proofs=lambda: has_head_proofs(state()),
        )
        member.streams.answer = rpc_server.answer
        node = self._node = ClusterNode(
            name=name,
            incarnation=broker.epoch,
            disk_id=member.disk_id.id,
            metadata=metadata,
            raft=raft,
            controller=controller,
            rpc_server=rpc_server,
            streams=PeerStreams(
                name,
                member.disk_id.id,
                member.secret,
                PeerIdentity(member.disk_id.id, lambda node: registered_disk(state(), node)),
                state,
                replicas.fetchers,
                member.streams,
                self._dial_stream,
            ),
            leaders=opened.leaders,
            routes=routes,
            quotas=quotas,
            stored_bytes=stored_bytes,
            lease_return=lease_return,
            replicas=replicas,
            repairs=repairs,
            archives=archives,
            heartbeats=heartbeats,
            disk_health=disk_health,
            readiness=Readiness(
                name,
                broker.epoch,
                state,
                lambda: heartbeats.has_left,
                raft.silent_s,
            ),
            handoff=LeadershipHandoff(broker, replicas, heartbeats, lambda: node.is_up),
            data_loss=data_loss,
            divergence=divergence,
            registration=self._registration(broker, member, data_loss, reconciler, heartbeats),
            adopt_restored=lambda: opened.restored.adopt(broker, opened.store, state()),
            reconciler=reconciler,
            freshness=freshness,
            view=ClusterView(
                name,
                state,
                lambda: raft.status,
                raft.silent_s,
                replica_status,
                operations,
                repairs,
                lambda: heartbeats.clock_skews_ms,
                routes.links.unreachable_by_node,
            ),
            backup_files=LeaderFiles(
                state,
                member.nodes.call,
                ReplicaClient(member.nodes).archive,
                freshness.catch_up,
                broker.epoch,
            ),
            join=member.join(),
        )
        self._on_raft_status(raft.status)
        return node

    def _replication(
        self, broker: Broker, member: LocalMember, heartbeats: HeartbeatSender
    ) -> tuple[ReplicaManager, RepairManager, ArchiveSync, DiskHealth]:
        topics = BrokerTopics(broker)
        client = ReplicaClient(member.nodes)
        replicas = ReplicaManager(
            self._name,
            topics,
            SegmentManifest(broker.metadata, broker.archive, broker.clock, topics.settings),
            self._disk,
            broker.executor,
            broker.clock,
            client.fetch,
            InSyncProposer(self._name, member.metadata).propose,
            RenewalProposer(self._name, member.metadata).propose,
            journal=broker.journal,
            turn=broker.commit_turn,
            on_failure=lambda _key, error: disk_health.on_error(error),
            has_session=heartbeats.has_session,
            may_record_clocks=lambda: has_clock_events(member.state()),
            may_renew_leaderships=lambda: has_renewals(member.state()),
        )
        disk_health = DiskHealth(self._disk, broker.topics_dir.parent, replicas.in_thread)
        archives = ArchiveSync(
            broker.archive,
            replicas,
            topics.settings,
            partial(_archive_sources, self._name, member.metadata),
            client.archive,
        )
        return replicas, RepairManager(replicas, client.repair), archives, disk_health

    def _registration(
        self,
        broker: Broker,
        member: LocalMember,
        data_loss: DataLoss,
        reconciler: Reconciler,
        heartbeats: HeartbeatSender,
    ) -> NodeRegistration:
        cluster, disk, durable = self._config.cluster, member.disk_id.id, reconciler.durable_topics
        entry = RegisterNode(self._name, broker.epoch, "", member.address, cluster.rack, disk)
        return NodeRegistration(
            cluster,
            entry,
            member.metadata,
            data_loss,
            durable,
            heartbeats.announce,
        )

    def reload_authorities(self) -> None:
        """Trust the authorities that are in the file now, and no others, in new connections.

        Raises ``UsageError`` and changes nothing if the file cannot be used.
        """
        try:
            self._tls.context = _peer_tls(self._config).context
        except InvalidInput as error:
            raise UsageError(error.detail) from None

    async def close(self) -> None:
        """Stop the Raft member, and close all connections to other nodes."""
        await self._closing.aclose()

    async def _remove_member(self, node: str) -> None:
        """Remove a node from the Raft group.

        A leader that removes itself transfers its leadership first, and raises ``NotLeader``: the
        next leader goes on. A controller that has just begun may decide on older metadata: the node
        may have been removed since, and have joined again. So the metadata is asked once more.
        """
        raft = self.raft
        assert raft is not None
        assert self._node is not None
        if node == self._name:
            await raft.transfer_leadership()
            raise NotLeader("another node runs the controller now")
        await raft.barrier()
        known = self._node.state.nodes.get(node)
        if known is not None and known.leaving:
            await raft.remove_member(node)

    def _on_raft_status(self, status: RaftStatus) -> None:
        if self._node is not None:
            self._node.on_raft_status(status)

    def _on_applied(self, _applied: list[AppliedEntry]) -> None:
        if self._node is not None:
            self._node.on_metadata_change()


async def _handle_heartbeat(controller: ControllerRunner, node: str, body: bytes) -> ResponseBody:
    return [encode_heartbeat_answer(controller.receive_heartbeat(node, decode_heartbeat(body)))]


def _archive_sources(name: str, metadata: MetadataClient, replica: Replica) -> list[str]:
    """Return all other nodes, those with replicas of the partition first."""
    holders = replica.other_nodes
    return [*holders, *sorted(metadata.state.nodes.keys() - {*holders, name})]


def _was_member(data_dir: Path, disk: Disk) -> bool:
    return (data_dir / FOLDER).exists() or FILE_NAME in disk.names(data_dir)


def _check_names_cluster(config: Config, disk: Disk) -> None:
    """Raise ``UsageError`` for a new member without a cluster: it would begin one of its own."""
    name, cluster = config.broker.node_id, config.cluster
    if cluster.peers or cluster.join is not None or _was_member(config.broker.data_dir, disk):
        return
    raise UsageError(
        f"{name} has no cluster yet, and its settings name none: say --join URL of a node of one,"
        f" or the first nodes of a new one: --peers {name}=HOST:PORT,… (only {name}, if it begins"
        " alone)",
        field="cluster.peers",
    )


def _peer_tls(config: Config) -> PeerTls:
    """Return how this node calls others; raise ``InvalidInput`` for authorities that cannot be
    read."""
    if config.security.tls is None:
        return PeerTls()
    path = config.ca_file
    context = ClientTls(None if path is None else str(path)).context()
    return PeerTls(context, takes_plain=config.cluster.tls_rollover != "off")
