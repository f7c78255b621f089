"""Construction of a cluster node: the one place where its parts are wired together.

It takes three steps. :meth:`ClusterBootstrap.open` starts the Raft member, which the broker's
metadata store needs. :meth:`ClusterBootstrap.build` builds all parts that need the started broker.
:meth:`ClusterNode.start` begins to work, once the HTTP server listens.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import NamedTuple

from goq import limits
from goq.broker.broker import Broker
from goq.broker.metadata import LocalMetadata
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
    encode_clock_skews,
)
from goq.cluster.liveness.leadership_handoff import LeadershipHandoff
from goq.cluster.liveness.readiness import Readiness
from goq.cluster.membership.data_loss import DataLoss
from goq.cluster.membership.disk_identity import FILE_NAME, DiskId, load_disk_id
from goq.cluster.membership.divergence_recovery import DivergenceRecovery
from goq.cluster.membership.durable_topics import DurableTopics
from goq.cluster.membership.join import (
    OPEN_CALLS,
    AdmissionServer,
    fetch_members,
    join_cluster,
    known_addresses,
    registered_disk,
    registered_disk_in,
)
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
from goq.cluster.metadata.state import MetadataState
from goq.cluster.metadata.state_machine import MetadataStateMachine
from goq.cluster.raft.driver import RaftSettings, RaftStatus
from goq.cluster.raft.log.journal import FILE_NAME as JOURNAL
from goq.cluster.raft.node import RaftNode
from goq.cluster.raft.state_machine.state_machine import AppliedEntry
from goq.cluster.raft.transport.link import Credentials
from goq.cluster.raft.transport.peer_identity import PeerIdentity
from goq.cluster.raft.transport.tls import tls_credentials
from goq.cluster.reconciler import InSyncProposer, Reconciler, RenewalProposer
from goq.cluster.replication.archive_sync import ArchiveSync
from goq.cluster.replication.repair.manager import RepairManager
from goq.cluster.replication.replica import Replica
from goq.cluster.replication.replica_manager import BrokerTopics, ReplicaManager
from goq.cluster.replication.segment_manifest import SegmentManifest
from goq.cluster.rpc.client import NodeClient, NodeConnections, PeerTls, RpcClient
from goq.cluster.rpc.peer_streams import Dial, PeerStreams, StreamDialer
from goq.cluster.rpc.replica_client import ReplicaClient
from goq.cluster.rpc.replica_server import ReplicaServer
from goq.cluster.rpc.server import ResponseBody, RpcServer
from goq.cluster.rpc.stream_calls import StreamCalls
from goq.config.node import Config
from goq.errors import GoqError, InvalidInput, NotLeader, UsageError
from goq.http.client.trust import ClientTls
from goq.storage.disk import Disk

_FOLDER = "cluster"
_RELAYED_CALLS = frozenset({PUBLISH, PRODUCERS, RETURN_LEASES, RECONCILED, REPORTS})
_STREAMED_CALLS = frozenset({HEARTBEAT, PUBLISH, RETURN_LEASES, RECONCILED, SPENT, STORED})
_CONTROLLER_HANDOVER_S = 3.0


class _Membership(NamedTuple):
    """The parts that :meth:`ClusterBootstrap.open` opens, before there is a broker."""

    disk_id: DiskId
    machine: MetadataStateMachine
    raft: RaftNode
    metadata: MetadataClient
    rpc: RpcClient
    streams: StreamCalls
    nodes: NodeClient
    routes: NodeRoutes
    leaders: PartitionLeaders
    store: ReplicatedMetadataStore
    restored: RestoredTopics

    def state(self) -> MetadataState:
        """Return the cluster metadata, as far as it is known here."""
        return self.machine.state


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
        self._secret = _read_secret(config.cluster.secret_file)
        self._machine: MetadataStateMachine | None = None
        self._rpc: RpcClient | None = None
        self.raft: RaftNode | None = None
        self._membership: _Membership | None = None
        self._node: ClusterNode | None = None

    async def open(self, local: LocalMetadata) -> ReplicatedMetadataStore:
        """Start the Raft member; return the broker's metadata store, which may be empty yet.

        Raises ``UsageError`` for an invalid configuration, ``CorruptData`` and ``OSError``.
        """
        config, name = self._config, self._name
        data_dir = config.broker.data_dir
        folder = data_dir / _FOLDER
        was_member = folder.exists() or FILE_NAME in self._disk.names(data_dir)
        restored = await RestoredTopics.load(
            self._disk,
            data_dir,
            local,
            is_alone=founds_alone(config.cluster.peers, name, self._join_url),
        )
        if not was_member and not restored.names and await local.topics():
            raise UsageError(
                f"the topics in {data_dir} belong to a node without a cluster, or to a member that"
                " lost what it knew of one, and a cluster would not know them; start with an empty"
                " folder, and copy what only this one has with goq consume and goq produce",
                field="broker.data_dir",
            )
        disk_id = load_disk_id(self._disk, data_dir, folder, data_dir / "topics")
        connections = self._create_connections(limits.RPC_CONNECTIONS_MAX)
        rpc = self._rpc = RpcClient(name, self._secret, connections, disk_id.id)
        machine = self._machine = MetadataStateMachine(folder, self._give_up_reserve)
        settings = RaftSettings(
            self._spec(disk_id.id if self._join_url is not None else None),
            config.cluster.address,
            folder,
            self._credentials(),
            others=await self._initial_members(rpc, folder),
            disk=disk_id.id,
            registered_disk_of=lambda node: registered_disk(machine.state, node),
            registered_disk_in=registered_disk_in,
            addresses_of=lambda node: known_addresses(machine.state, config.cluster.peers, node),
        )
        raft = self.raft = self._create_raft(
            settings,
            machine,
            on_status_change=self._on_raft_status,
            on_applied=self._on_applied,
            disk=self._raft_disk,
        )
        try:
            await raft.start()
        except OSError as error:
            raise UsageError(
                f"cannot listen on {config.cluster.listen}: {error.strerror or error}",
                field="cluster.listen",
            ) from None
        metadata = MetadataClient(raft, machine)
        streams = StreamCalls(lambda: machine.state)
        nodes = NodeClient(lambda: machine.state, rpc, streams, _STREAMED_CALLS)
        probes = RpcClient(name, self._secret, self._create_connections(2), disk_id.id)
        routes = NodeRoutes(
            name,
            lambda: machine.state,
            nodes.call,
            streams.call,
            probes,
            streams.is_alive,
            _RELAYED_CALLS,
            self._tls,
        )
        leaders = PartitionLeaders(name, lambda: machine.state, routes.calls.call)
        store = ReplicatedMetadataStore(local, metadata, name, lambda: restored.names)
        self._membership = _Membership(
            disk_id, machine, raft, metadata, rpc, streams, nodes, routes, leaders, store, restored
        )
        return store

    def remote_partition(self, topic: str, number: int) -> RemotePartition:
        """Return a partition that another node leads."""
        assert self._membership is not None
        base = self._membership
        return RemotePartition(
            topic,
            number,
            base.leaders.call_leader,
            self._clock,
            lambda: has_relative_times(base.state()),
        )

    def build(self, broker: Broker) -> ClusterNode:
        """Build the parts that work with the broker, which has been started."""
        base, name = self._membership, self._name
        assert base is not None
        metadata, raft, state = base.metadata, base.raft, base.state
        controller = ControllerRunner(
            metadata,
            self._remove_member,
            broker.clock,
            reachable_members=lambda: raft.status.reachable,
            hand_over=partial(raft.transfer_leadership, timeout_s=_CONTROLLER_HANDOVER_S),
        )
        heartbeats = HeartbeatSender(
            name,
            lambda: node.heartbeat(),
            controller.receive_heartbeat,
            base.nodes.call,
            broker.clock,
            lambda: name in state().nodes,
            lambda: divergence.is_pending,
        )
        replicas, repairs, archives, disk_health = self._replication(broker, base, heartbeats)
        durable_topics = DurableTopics(self._disk, broker.topics_dir)
        reconciler = Reconciler(broker, replicas, durable_topics, state)
        freshness = MetadataFreshness(
            name, broker.epoch, state, raft.barrier, base.routes.calls.call
        )
        data_loss = DataLoss(base.disk_id, replicas, broker.topics_dir)
        divergence = DivergenceRecovery(
            base.machine,
            metadata,
            replicas,
            broker.epoch,
            self._config.broker.data_dir / "diverged",
            lambda: raft.status.has_diverged,
        )
        replica_status = ReplicaStatus(replicas, state, base.routes.calls.call)
        admission = AdmissionServer(raft, state)
        operations = ClusterOperations(metadata, replica_status, admission.add_member)
        lease_return = LeaseReturn(broker, base.leaders.call_leader)
        replica_server = ReplicaServer(replicas.fetch_server, repairs, archives, state)
        quotas = QuotaExchange(name, state, base.nodes.call)
        stored_bytes = StoredBytes(name, state, base.nodes.call)
        rpc_server = RpcServer(
            self._secret,
            {
                **ForwardedPublishServer(broker, freshness.catch_up).handlers(),
                **freshness.handlers(),
                **base.routes.handlers(),
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
        base.streams.answer = rpc_server.answer
        node = self._node = ClusterNode(
            name=name,
            incarnation=broker.epoch,
            disk_id=base.disk_id.id,
            metadata=metadata,
            raft=raft,
            controller=controller,
            rpc_server=rpc_server,
            streams=PeerStreams(
                name,
                base.disk_id.id,
                self._secret,
                PeerIdentity(base.disk_id.id, lambda node: registered_disk(state(), node)),
                state,
                replicas.fetchers,
                base.streams,
                self._dial_stream,
            ),
            leaders=base.leaders,
            routes=base.routes,
            quotas=quotas,
            stored_bytes=stored_bytes,
            lease_return=lease_return,
            replicas=replicas,
            repairs=repairs,
            archives=archives,
            heartbeats=heartbeats,
            disk_health=disk_health,
            readiness=Readiness(name, broker.epoch, state),
            handoff=LeadershipHandoff(broker, replicas, heartbeats, lambda: node.is_up),
            data_loss=data_loss,
            divergence=divergence,
            registration=self._registration(broker, base, data_loss, reconciler, heartbeats),
            adopt_restored=lambda: base.restored.adopt(broker, base.store, state()),
            reconciler=reconciler,
            freshness=freshness,
            view=ClusterView(
                name,
                state,
                lambda: raft.status,
                replica_status,
                operations,
                repairs,
                lambda: heartbeats.clock_skews_ms,
                base.routes.links.unreachable_by_node,
            ),
            backup_files=LeaderFiles(
                state,
                base.nodes.call,
                ReplicaClient(base.nodes).archive,
                freshness.catch_up,
                broker.epoch,
            ),
            join=self._join(base),
        )
        self._on_raft_status(raft.status)
        return node

    def _replication(
        self, broker: Broker, base: _Membership, heartbeats: HeartbeatSender
    ) -> tuple[ReplicaManager, RepairManager, ArchiveSync, DiskHealth]:
        topics = BrokerTopics(broker)
        client = ReplicaClient(base.nodes)
        replicas = ReplicaManager(
            self._name,
            topics,
            SegmentManifest(broker.metadata, broker.archive, broker.clock, topics.settings),
            self._disk,
            broker.executor,
            broker.clock,
            client.fetch,
            InSyncProposer(self._name, base.metadata).propose,
            RenewalProposer(self._name, base.metadata).propose,
            journal=broker.journal,
            turn=broker.commit_turn,
            on_failure=lambda _key, error: disk_health.on_error(error),
            has_session=heartbeats.has_session,
            may_record_clocks=lambda: has_clock_events(base.state()),
            may_renew_leaderships=lambda: has_renewals(base.state()),
        )
        disk_health = DiskHealth(self._disk, broker.topics_dir.parent, replicas.in_thread)
        archives = ArchiveSync(
            broker.archive,
            replicas,
            topics.settings,
            partial(_archive_sources, self._name, base.metadata),
            client.archive,
        )
        return replicas, RepairManager(replicas, client.repair), archives, disk_health

    def _registration(
        self,
        broker: Broker,
        base: _Membership,
        data_loss: DataLoss,
        reconciler: Reconciler,
        heartbeats: HeartbeatSender,
    ) -> NodeRegistration:
        cluster, disk = self._config.cluster, base.disk_id.id
        entry = RegisterNode(self._name, broker.epoch, "", self._address, cluster.rack, disk)
        return NodeRegistration(
            cluster, entry, base.metadata, data_loss, reconciler.durable_topics, heartbeats.announce
        )

    def _join(self, base: _Membership) -> Callable[[], Coroutine[None, None, None]] | None:
        url = self._config.cluster.join
        if url is None:
            return None
        return partial(
            join_cluster,
            base.rpc,
            url,
            self._spec(base.disk_id.id),
            base.raft,
            base.state,
            is_initial=self._join_url is None,
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
        """Close all connections to other nodes and stop the Raft member."""
        if self._rpc is not None:
            await self._rpc.close()
        if self.raft is not None:
            await self.raft.stop()
        if self._machine is not None:
            self._machine.close()

    @property
    def _address(self) -> str:
        address = self._config.cluster.address_of(self._name)
        assert address is not None  # the configuration has been checked
        return address

    @property
    def _join_url(self) -> str | None:
        """The URL of a member to ask for admission, None for an initial node."""
        return self._config.cluster.join_url(self._name)

    def _spec(self, disk: str | None) -> str:
        """Return this node as a Raft member; one that joins names its disk, and it alone is it."""
        return f"{self._name}={self._address}" + (f"/{disk}" if disk is not None else "")

    def _credentials(self) -> Credentials:
        tls = self._config.cluster.tls
        if tls is None:
            return Credentials(self._secret)
        return tls_credentials(self._secret, tls.ca_file, tls.cert_file, tls.key_file)

    async def _initial_members(self, rpc: RpcClient, folder: Path) -> tuple[str, ...]:
        """Return the other members to start with; they count in a new folder only."""
        peers, url = self._config.cluster.peers, self._join_url
        if url is None or JOURNAL in self._disk.names(folder):
            return tuple(f"{n}={a}" for n, a in peers.items() if n != self._name)
        try:
            known = await fetch_members(rpc, url)
        except GoqError as error:
            raise UsageError(f"cannot join {url}: {error}", field="cluster.join") from None
        return tuple(spec for name, spec in known.by_name().items() if name != self._name)

    async def _remove_member(self, node: str) -> None:
        """Remove a node from the Raft group.

        A leader that removes itself transfers its leadership first, and raises ``NotLeader``: the
        next leader goes on. A controller that has just begun may decide on older metadata: the node
        may have been removed since, and have joined again. So the metadata is asked once more.
        """
        assert self.raft is not None
        assert self._node is not None
        if node == self._name:
            await self.raft.transfer_leadership()
            raise NotLeader("another node runs the controller now")
        await self.raft.barrier()
        known = self._node.state.nodes.get(node)
        if known is not None and known.leaving:
            await self.raft.remove_member(node)

    def _on_raft_status(self, status: RaftStatus) -> None:
        if self._node is not None:
            self._node.on_raft_status(status)

    def _on_applied(self, _applied: list[AppliedEntry]) -> None:
        if self._node is not None:
            self._node.on_metadata_change()


async def _handle_heartbeat(controller: ControllerRunner, node: str, body: bytes) -> ResponseBody:
    return [encode_clock_skews(controller.receive_heartbeat(node, decode_heartbeat(body)))]


def _archive_sources(name: str, metadata: MetadataClient, replica: Replica) -> list[str]:
    """Return all other nodes, those with replicas of the partition first."""
    holders = replica.other_nodes
    return [*holders, *sorted(metadata.state.nodes.keys() - {*holders, name})]


def _peer_tls(config: Config) -> PeerTls:
    """Return how this node calls others; raise ``InvalidInput`` for authorities that cannot be
    read."""
    if config.security.tls is None:
        return PeerTls()
    path = config.ca_file
    context = ClientTls(None if path is None else str(path)).context()
    return PeerTls(context, takes_plain=config.cluster.tls_rollover != "off")


def _read_secret(path: Path | None) -> bytes:
    assert path is not None
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", field="cluster.secret_file"
        ) from None
