"""The parts of a cluster node that work with the broker: built, and wired to each other."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from goq.broker.broker import Broker
from goq.cluster.admin.backup_files import BackupFileServer, LeaderFiles
from goq.cluster.admin.cluster_view import ClusterView
from goq.cluster.admin.operations import ClusterOperations
from goq.cluster.admin.replica_status import REPORTS, ReplicaStatus
from goq.cluster.cluster_node import ClusterNode
from goq.cluster.controller.runner import ControllerRunner
from goq.cluster.forwarding.lease_return import RETURN_HELD, RETURN_LEASES, LeaseReturn
from goq.cluster.forwarding.metadata_freshness import MetadataFreshness
from goq.cluster.forwarding.node_routes import NodeRoutes
from goq.cluster.forwarding.partition_leaders import PartitionLeaders
from goq.cluster.forwarding.quota_exchange import QuotaExchange
from goq.cluster.forwarding.remote_partition import ForwardedPublishServer
from goq.cluster.forwarding.stored_bytes import StoredBytes
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
from goq.cluster.membership.divergence_recovery import DivergenceRecovery
from goq.cluster.membership.durable_topics import DurableTopics
from goq.cluster.membership.join import OPEN_CALLS, AdmissionServer, registered_disk
from goq.cluster.membership.local_member import LocalMember
from goq.cluster.membership.registration import NodeRegistration
from goq.cluster.membership.restored_topics import RestoredTopics
from goq.cluster.metadata.broker_store import ReplicatedMetadataStore
from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.commands import RegisterNode
from goq.cluster.metadata.features import has_clock_events, has_head_proofs, has_renewals
from goq.cluster.raft.transport.peer_identity import PeerIdentity
from goq.cluster.reconciler import InSyncProposer, Reconciler, RenewalProposer
from goq.cluster.replication.archive_sync import ArchiveSync
from goq.cluster.replication.repair.manager import RepairManager
from goq.cluster.replication.replica import Replica
from goq.cluster.replication.replica_manager import BrokerTopics, ReplicaManager
from goq.cluster.replication.segment_manifest import SegmentManifest
from goq.cluster.rpc.peer_streams import Dial, PeerStreams
from goq.cluster.rpc.replica_client import ReplicaClient
from goq.cluster.rpc.replica_server import ReplicaServer
from goq.cluster.rpc.server import ResponseBody, RpcServer
from goq.config.node import Config
from goq.errors import NotLeader
from goq.storage.disk import Disk

_CONTROLLER_HANDOVER_S = 3.0


class OpenedMember(NamedTuple):
    """The parts that :meth:`ClusterBootstrap.open` makes, before there is a broker."""

    member: LocalMember
    routes: NodeRoutes
    leaders: PartitionLeaders
    store: ReplicatedMetadataStore
    restored: RestoredTopics


class _Replication(NamedTuple):
    replicas: ReplicaManager
    repairs: RepairManager
    archives: ArchiveSync
    disk_health: DiskHealth


class NodeBuilder:
    """Builds the :class:`ClusterNode` of a member of the Raft group, and of a started broker."""

    def __init__(
        self, config: Config, disk: Disk, broker: Broker, opened: OpenedMember, dial_stream: Dial
    ) -> None:
        self._config = config
        self._disk = disk
        self._broker = broker
        self._opened = opened
        self._dial_stream = dial_stream
        self._name = config.broker.node_id

    def build(self) -> ClusterNode:
        """Build the node."""
        broker, opened, name = self._broker, self._opened, self._name
        member, routes = opened.member, opened.routes
        metadata, raft, state = member.metadata, member.raft, member.state
        controller = ControllerRunner(
            metadata,
            partial(remove_member, name, member),
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
        replicas, repairs, archives, disk_health = self._replication(heartbeats)
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
        lease_return = LeaseReturn(broker, opened.leaders.call_leader, opened.leaders.leaders)
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
                RETURN_HELD: lease_return.handle_held,
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
        node = ClusterNode(
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
            registration=self._registration(data_loss, reconciler, heartbeats),
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
        return node

    def _replication(self, heartbeats: HeartbeatSender) -> _Replication:
        broker, member = self._broker, self._opened.member
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
        repairs = RepairManager(replicas, client.repair)
        return _Replication(replicas, repairs, archives, disk_health)

    def _registration(
        self, data_loss: DataLoss, reconciler: Reconciler, heartbeats: HeartbeatSender
    ) -> NodeRegistration:
        cluster, member = self._config.cluster, self._opened.member
        epoch, disk = self._broker.epoch, member.disk_id.id
        return NodeRegistration(
            cluster,
            RegisterNode(self._name, epoch, "", member.address, cluster.rack, disk),
            member.metadata,
            data_loss,
            reconciler.durable_topics,
            heartbeats.announce,
        )


async def remove_member(name: str, member: LocalMember, node: str) -> None:
    """Remove a node from the Raft group of the node ``name``.

    A leader that removes itself transfers its leadership first, and raises ``NotLeader``: the next
    leader goes on. A controller that has just begun may decide on older metadata: the node may have
    been removed since, and have joined again. So the metadata is asked once more.
    """
    if node == name:
        await member.raft.transfer_leadership()
        raise NotLeader("another node runs the controller now")
    await member.raft.barrier()
    known = member.state().nodes.get(node)
    if known is not None and known.leaving:
        await member.raft.remove_member(node)


async def _handle_heartbeat(controller: ControllerRunner, node: str, body: bytes) -> ResponseBody:
    return [encode_heartbeat_answer(controller.receive_heartbeat(node, decode_heartbeat(body)))]


def _archive_sources(name: str, metadata: MetadataClient, replica: Replica) -> list[str]:
    """Return all other nodes, those with replicas of the partition first."""
    holders = replica.other_nodes
    return [*holders, *sorted(metadata.state.nodes.keys() - {*holders, name})]
