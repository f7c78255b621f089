"""Becoming a member: what is opened before the broker, and what begins after it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

from goq.broker.broker import Broker
from goq.broker.metadata import LocalMetadata
from goq.cluster.admin.cluster_view import ClusterView
from goq.cluster.admin.operations import ClusterOperations
from goq.cluster.admin.replica_status import REPORTS
from goq.cluster.cluster_node import ClusterNode
from goq.cluster.forwarding.http_proxy import HttpProxy
from goq.cluster.forwarding.lease_return import RETURN_LEASES, LeaseReturn
from goq.cluster.forwarding.remote_partition import (
    PRODUCERS,
    PUBLISH,
    ForwardedPublishServer,
    RemotePartition,
)
from goq.cluster.liveness.heartbeat import HEARTBEAT
from goq.cluster.membership.disk_identity import FILE_NAME, DiskId, load_disk_id
from goq.cluster.membership.join import (
    JOIN,
    MEMBERS,
    OPEN_CALLS,
    AdmissionServer,
    fetch_members,
    join_cluster,
    registered_disk,
)
from goq.cluster.metadata.broker_store import ReplicatedMetadataStore
from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.state_machine import MetadataStateMachine
from goq.cluster.raft.driver import RaftSettings, RaftStatus
from goq.cluster.raft.log.journal import FILE_NAME as JOURNAL
from goq.cluster.raft.node import RaftNode
from goq.cluster.raft.state_machine.state_machine import AppliedEntry
from goq.cluster.raft.transport.link import Credentials
from goq.cluster.raft.transport.tls import tls_credentials
from goq.cluster.rpc.client import RpcClient
from goq.cluster.rpc.replica_client import ARCHIVE, FETCH, REPAIR
from goq.cluster.rpc.server import RpcServer
from goq.config.node import Config
from goq.errors import GoqError, NotLeader, UsageError
from goq.storage.disk import Disk

_log = logging.getLogger("goq.cluster")
_FOLDER = "cluster"
_ANY_HOST = ("0.0.0.0", "::", "")
_HAND_OVER_S = 1.0


class ClusterBootstrap:
    """A node's place in its cluster: :meth:`open` it, then :meth:`start`; :meth:`stop` it."""

    def __init__(self, config: Config, disk: Disk) -> None:
        self._config = config
        self._disk = disk
        self._name = config.broker.node_id
        self._secret = _secret(config.cluster.secret_file)
        self._disk_id: DiskId | None = None
        self._calling: RpcClient | None = None
        self.relay = HttpProxy()
        self._raft: RaftNode | None = None
        self._machine: MetadataStateMachine | None = None
        self._joining: asyncio.Task[None] | None = None
        self.member: ClusterNode | None = None
        self.answering: RpcServer
        self.seat: ClusterView | None = None
        self.giving_back: LeaseReturn

    async def open(self, local: LocalMetadata) -> ReplicatedMetadataStore:
        """Take part in what is agreed on, though nothing may be known yet.

        Raises ``UsageError`` for what cannot be, ``CorruptData``, and what opening files may raise.
        """
        config = self._config
        data_dir = config.broker.data_dir
        folder = data_dir / _FOLDER
        was_member = folder.exists() or FILE_NAME in self._disk.names(data_dir)
        if not was_member and await local.topics():
            raise UsageError(
                f"the topics in {config.broker.data_dir} are of a node on its own, and a cluster"
                " would not know them; begin a cluster with an empty folder, and take over what is"
                " to be kept by goq consume and goq produce",
                field="broker.data_dir",
            )
        own = self._disk_id = load_disk_id(self._disk, data_dir, folder, data_dir / "topics")
        self._calling = RpcClient(self._name, self._secret, own.id)
        machine = self._machine = MetadataStateMachine(folder)
        settings = RaftSettings(
            self._spec(joins=self._joins is not None),
            config.cluster.address,
            folder,
            self._credentials(),
            others=await self._others(folder),
            disk=own.id,
            registered_disk_of=lambda node: registered_disk(machine.state, node),
        )
        self._raft = RaftNode(
            settings,
            self._machine,
            on_status_change=self._viewed,
            on_applied=self._applied,
            disk=self._disk,
        )
        try:
            await self._raft.start()
        except OSError as error:
            raise UsageError(
                f"cannot listen on {config.cluster.listen}: {error.strerror or error}",
                field="cluster.listen",
            ) from None
        return ReplicatedMetadataStore(local, MetadataClient(self._raft, self._machine))

    @property
    def _address(self) -> str:
        address = self._config.cluster.address_of(self._name)
        assert address is not None  # the configuration has been checked
        return address

    def _credentials(self) -> Credentials:
        tls = self._config.cluster.tls
        if tls is None:
            return Credentials(self._secret)
        return tls_credentials(self._secret, tls.ca_file, tls.cert_file, tls.key_file)

    def _spec(self, *, joins: bool) -> str:
        """Return this node as a member; one that joins names its disk: nobody else is let in."""
        assert self._disk_id is not None
        return f"{self._name}={self._address}" + (f"/{self._disk_id.id}" if joins else "")

    @property
    def _joins(self) -> str | None:
        return self._config.cluster.joins(self._name)

    async def _others(self, folder: Path) -> tuple[str, ...]:
        """Return the members to begin with; they count in a new folder only."""
        peers, url = self._config.cluster.peers, self._joins
        if url is None or (folder / JOURNAL).exists():
            return tuple(f"{n}={a}" for n, a in peers.items() if n != self._name)
        assert self._calling is not None
        try:
            members = await fetch_members(self._calling, url)
        except GoqError as error:
            raise UsageError(f"cannot join {url}: {error}", field="cluster.join") from None
        return tuple(spec for name, spec in members.items() if name != self._name)

    def elsewhere(self, topic: str, number: int) -> RemotePartition:
        """Return a partition that another node leads."""
        assert self.member is not None
        return RemotePartition(topic, number, self.member.map.call_leader)

    def prepare(self, broker: Broker) -> None:
        """Make the part that works with the broker, which has been started."""
        assert self._raft is not None
        assert self._machine is not None
        assert self._disk_id is not None
        assert self._calling is not None
        proposing = MetadataClient(self._raft, self._machine)
        self.member = ClusterNode(
            self._name,
            broker.epoch,
            broker,
            self._disk,
            self._disk_id,
            proposing,
            self._calling,
            self._take_out,
        )
        raft = self._raft
        self.seat = ClusterView(
            self._name,
            lambda: proposing.state,
            lambda: raft.status,
            self.member.reporting,
            ClusterOperations(proposing, self.member.reporting, raft.add_member),
            self.member.repairs,
        )
        admitting = AdmissionServer(raft, lambda: proposing.state)
        for_others = ForwardedPublishServer(broker)
        self.giving_back = LeaseReturn(broker, self.member.map.call_leader)
        self.answering = RpcServer(
            self._secret,
            {
                PUBLISH: for_others.answer_publish,
                PRODUCERS: for_others.answer_producers,
                RETURN_LEASES: self.giving_back.answer,
                FETCH: self.member.answer_fetch,
                HEARTBEAT: self.member.answer_heartbeat,
                REPORTS: self.member.reporting.answer,
                REPAIR: self.member.answer_mend,
                ARCHIVE: self.member.answer_archive,
                MEMBERS: admitting.answer_members,
                JOIN: admitting.answer_join,
            },
            anyone=OPEN_CALLS,
            is_known=admitting.is_known,
        )
        self._viewed(self._raft.status)

    def start(self, http_url: str) -> None:
        """Begin to work; the node listens on ``http_url``."""
        assert self.member is not None
        cluster = self._config.cluster
        url = cluster.advertise or _reachable(http_url, self._address)
        self.member.start(url, self._address, cluster.rack, cluster.min_insync)
        if cluster.join is not None:
            assert self._calling is not None
            assert self._machine is not None
            machine = self._machine
            self._joining = asyncio.ensure_future(
                join_cluster(
                    self._calling,
                    cluster.join,
                    self._spec(joins=True),
                    is_first=self._joins is None,
                    has_heard=lambda: bool(machine.state.nodes),
                )
            )

    async def _take_out(self, node: str) -> None:
        """Take a node that leaves out of the Raft group; one that leads it hands that over first.

        Then this node decides nothing any more: the next one goes on.
        """
        assert self._raft is not None
        if node == self._name:
            await self._raft.transfer_leadership()
            raise NotLeader("another node runs the controller now")
        await self._raft.remove_member(node)

    async def hand_over(self) -> None:
        """Have others lead what this node leads: it is going to stop."""
        if self._raft is not None and self._raft.is_leader and len(self._raft.status.members) > 1:
            with suppress(GoqError):  # others elect one by themselves, later
                await self._raft.transfer_leadership(timeout_s=_HAND_OVER_S)
        if self.member is not None:
            await self.member.hand_over()

    async def stop(self) -> None:
        """Take part no more: what this node led is led by others from now on."""
        if self._joining is not None:
            self._joining.cancel()
        if self.member is not None:
            await self.member.stop()
        if self._raft is not None:
            await self._raft.stop()
        if self._machine is not None:
            self._machine.close()
        if self._calling is not None:
            await self._calling.close()
        await self.relay.close()

    def _viewed(self, view: RaftStatus) -> None:
        if self.member is not None:
            self.member.viewed(view)

    def _applied(self, _applied: list[AppliedEntry]) -> None:
        if self.member is not None:
            self.member.agreed()
        if self.seat is not None:
            self.seat.agreed()


def _secret(path: Path | None) -> bytes:
    assert path is not None
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", field="cluster.secret_file"
        ) from None


def _reachable(http_url: str, cluster_address: str) -> str:
    """Return a URL that others can use: where a node listens on all addresses, its host's."""
    scheme, _, rest = http_url.partition("://")
    host, _, port = rest.rpartition(":")
    if host.strip("[]") not in _ANY_HOST:
        return http_url
    other = cluster_address.rpartition(":")[0]
    if other.strip("[]") in _ANY_HOST:
        raise UsageError(
            "other nodes cannot reach this one at an address of all; say where they can:"
            " cluster.advertise: http://HOST:PORT",
            field="cluster.advertise",
        )
    return f"{scheme}://{other}:{port}"
