"""Construction of a cluster node, in three steps.

:meth:`ClusterBootstrap.open` starts the Raft member, which the broker's metadata store needs.
:meth:`ClusterBootstrap.build` builds all parts that need the started broker, with ``node_builder``.
:meth:`ClusterNode.start` begins to work, once the HTTP server listens.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from goq import limits
from goq.broker.broker import Broker
from goq.broker.metadata import LocalMetadata
from goq.broker.partition.leases import LeasedBatch
from goq.clock import Clock
from goq.cluster.admin.replica_status import REPORTS
from goq.cluster.cluster_node import ClusterNode
from goq.cluster.forwarding.lease_return import RETURN_HELD, RETURN_LEASES
from goq.cluster.forwarding.metadata_freshness import RECONCILED
from goq.cluster.forwarding.node_routes import NodeRoutes
from goq.cluster.forwarding.partition_leaders import PartitionLeaders
from goq.cluster.forwarding.quota_exchange import SPENT
from goq.cluster.forwarding.remote_partition import PRODUCERS, PUBLISH, RemotePartition
from goq.cluster.forwarding.stored_bytes import STORED
from goq.cluster.liveness.heartbeat import HEARTBEAT
from goq.cluster.membership.disk_identity import FILE_NAME
from goq.cluster.membership.local_member import FOLDER, open_member
from goq.cluster.membership.restored_topics import RestoredTopics, founds_alone
from goq.cluster.metadata.broker_store import ReplicatedMetadataStore
from goq.cluster.metadata.features import has_relative_times
from goq.cluster.node_builder import NodeBuilder, OpenedMember
from goq.cluster.raft.driver import RaftStatus
from goq.cluster.raft.node import RaftNode
from goq.cluster.raft.state_machine.state_machine import AppliedEntry
from goq.cluster.rpc.client import NodeConnections, PeerTls, RpcClient
from goq.cluster.rpc.peer_streams import Dial, StreamDialer
from goq.config.node import Config
from goq.errors import InvalidInput, UsageError
from goq.http.client.trust import ClientTls
from goq.storage.disk import Disk

_RETURNS = frozenset({RETURN_LEASES, RETURN_HELD})
_RELAYED_CALLS = _RETURNS | {PUBLISH, PRODUCERS, RECONCILED, REPORTS}
_STREAMED_CALLS = _RETURNS | {HEARTBEAT, PUBLISH, RECONCILED, SPENT, STORED}


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
        self._opened: OpenedMember | None = None
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
        self._opened = OpenedMember(member, routes, leaders, store, restored)
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
        assert self._opened is not None
        builder = NodeBuilder(self._config, self._disk, broker, self._opened, self._dial_stream)
        self._node = builder.build()
        self._on_raft_status(self._opened.member.raft.status)
        return self._node

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

    def _on_raft_status(self, status: RaftStatus) -> None:
        if self._node is not None:
            self._node.on_raft_status(status)

    def _on_applied(self, _applied: list[AppliedEntry]) -> None:
        if self._node is not None:
            self._node.on_metadata_change()


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
