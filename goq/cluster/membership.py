"""Becoming a member: what is opened before the broker, and what begins after it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgspec

from goq.broker.broker import Broker
from goq.broker.metadata import LocalMetadata
from goq.cluster.administering import Administering
from goq.cluster.calls.answering import Answering
from goq.cluster.calls.calling import Calling
from goq.cluster.disk_id import FILE_NAME, DiskId, disk_id
from goq.cluster.elsewhere import (
    PRODUCERS,
    PUBLISH,
    PublishingForOthers,
    RemotePartition,
)
from goq.cluster.giving_back import GIVE_BACK, GivingBack
from goq.cluster.member import FETCH, HEARTBEAT, MEND, Member
from goq.cluster.metadata.state import State
from goq.cluster.metadata.store import MetadataMachine
from goq.cluster.proposing import Proposing
from goq.cluster.raft.driver import RaftSettings, View
from goq.cluster.raft.journal import FILE_NAME as JOURNAL
from goq.cluster.raft.link import Credentials
from goq.cluster.raft.member import Member as RaftMember
from goq.cluster.raft.node import RaftNode
from goq.cluster.raft.tls import tls_credentials
from goq.cluster.raft.watched import Applied
from goq.cluster.relaying import Relay
from goq.cluster.reporting import REPORTS
from goq.cluster.seat import MemberSeat
from goq.cluster.shared_metadata import SharedMetadata
from goq.config import Config
from goq.errors import Conflict, GoqError, InvalidInput, NotLeader, UsageError
from goq.storage.files import Disk

_log = logging.getLogger("goq.cluster")
_FOLDER = "cluster"
_MEMBERS, _JOIN = "/cluster/members", "/cluster/join"
_ANY_HOST = ("0.0.0.0", "::", "")
_JOIN_TIMEOUT_S = 10.0
_AGAIN_S = 0.5


class Membership:
    """A node's place in its cluster: :meth:`open` it, then :meth:`start`; :meth:`stop` it."""

    def __init__(self, config: Config, disk: Disk) -> None:
        self._config = config
        self._disk = disk
        self._name = config.broker.node_id
        self._secret = _secret(config.cluster.secret_file)
        self._disk_id: DiskId | None = None
        self._calling: Calling | None = None
        self.relay = Relay()
        self._raft: RaftNode | None = None
        self._machine: MetadataMachine | None = None
        self._joining: asyncio.Task[None] | None = None
        self.member: Member | None = None
        self.answering: Answering
        self.seat: MemberSeat | None = None
        self.giving_back: GivingBack

    async def open(self, local: LocalMetadata) -> SharedMetadata:
        """Take part in what is agreed on, though nothing may be known yet.

        Raises ``UsageError`` for what cannot be, ``DamagedData``, and what opening files may raise.
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
        own = self._disk_id = disk_id(self._disk, data_dir, folder, data_dir / "topics")
        self._calling = Calling(self._name, self._secret, own.id)
        machine = self._machine = MetadataMachine(folder)
        settings = RaftSettings(
            self._spec(joins=self._joins is not None),
            config.cluster.address,
            folder,
            self._credentials(),
            others=await self._others(folder),
            disk=own.id,
            known_disk=lambda node: _registered_disk(machine.state, node),
        )
        self._raft = RaftNode(
            settings,
            self._machine,
            on_view=self._viewed,
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
        return SharedMetadata(local, Proposing(self._raft, self._machine))

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
        peers, join = self._config.cluster.peers, self._joins
        if join is None or (folder / JOURNAL).exists():
            return tuple(f"{n}={a}" for n, a in peers.items() if n != self._name)
        try:
            members = await self._members_at(join)
        except GoqError as error:
            raise UsageError(f"cannot join {join}: {error}", field="cluster.join") from None
        return tuple(spec for name, spec in members.items() if name != self._name)

    def elsewhere(self, topic: str, number: int) -> RemotePartition:
        """Return a partition that another node leads."""
        assert self.member is not None
        return RemotePartition(topic, number, self.member.call_leader)

    def prepare(self, broker: Broker) -> None:
        """Make the part that works with the broker, which has been started."""
        assert self._raft is not None
        assert self._machine is not None
        assert self._disk_id is not None
        assert self._calling is not None
        proposing = Proposing(self._raft, self._machine)
        self.member = Member(
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
        self.seat = MemberSeat(
            self._name,
            lambda: proposing.state,
            lambda: raft.view,
            self.member.reporting,
            Administering(proposing, self.member.reporting, raft.add_member),
        )
        for_others = PublishingForOthers(broker)
        self.giving_back = GivingBack(broker, self.member.call_leader)
        self.answering = Answering(
            self._secret,
            {
                PUBLISH: for_others.answer_publish,
                PRODUCERS: for_others.answer_producers,
                GIVE_BACK: self.giving_back.answer,
                FETCH: self.member.answer_fetch,
                HEARTBEAT: self.member.answer_heartbeat,
                REPORTS: self.member.reporting.answer,
                MEND: self.member.answer_mend,
                _MEMBERS: self._answer_members,
                _JOIN: self._answer_join,
            },
            anyone=frozenset((_MEMBERS, _JOIN)),
            is_known=self._is_known,
        )
        self._viewed(self._raft.view)

    def start(self, http_url: str) -> None:
        """Begin to work; the node listens on ``http_url``."""
        assert self.member is not None
        cluster = self._config.cluster
        url = cluster.advertise or _reachable(http_url, self._address)
        self.member.start(url, self._address, cluster.rack, cluster.min_insync)
        if cluster.join is not None:
            self._joining = asyncio.ensure_future(self._join(cluster.join))

    async def _take_out(self, node: str) -> None:
        """Take a node that leaves out of the Raft group; one that leads it hands that over first.

        Then this node decides nothing any more: the next one goes on.
        """
        assert self._raft is not None
        if node == self._name:
            await self._raft.transfer_leadership()
            raise NotLeader("another node runs the controller now")
        await self._raft.remove_member(node)

    async def _join(self, url: str) -> None:
        """Ask to be let in until something is heard from the cluster, which tells members alone.

        So a node that has heard anything once never asks again, least of all one that has left. One
        of the first nodes is a member from the beginning; it asks if it is none any more, as it has
        left and begins anew with an empty folder.
        """
        assert self._calling is not None
        spec = self._spec(joins=True).encode()
        while not self._state_nodes():
            try:
                if self._joins is not None or self._name not in await self._members_at(url):
                    await self._calling.call(url, _JOIN, spec, _JOIN_TIMEOUT_S)
                    return
            except GoqError as error:
                _log.warning("not a member of the cluster at %s yet: %s", url, error)
            await asyncio.sleep(_AGAIN_S)

    async def _members_at(self, url: str) -> dict[str, str]:
        """Return the members that a node knows, by id, as they are written in the log."""
        assert self._calling is not None
        answer = await self._calling.call(url, _MEMBERS, b"", _JOIN_TIMEOUT_S)
        specs = msgspec.json.decode(answer, type=list[str])
        return {spec.partition("=")[0]: spec for spec in specs}

    def _state_nodes(self) -> list[str]:
        assert self._machine is not None
        return list(self._machine.state.nodes)

    async def hand_over(self) -> None:
        """Have others lead what this node leads: it is going to stop."""
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

    def _is_known(self, node: str, disk: str) -> bool:
        """Whether a node comes with the disk that it is known with, by the log before the state."""
        assert self._raft is not None
        assert self._machine is not None
        members = {member.id: member.disk for member in map(RaftMember, self._raft.view.members)}
        known = members.get(node) or _registered_disk(self._machine.state, node)
        return not known or known == disk

    def _viewed(self, view: View) -> None:
        if self.member is not None:
            self.member.viewed(view)

    def _applied(self, _applied: list[Applied]) -> None:
        if self.member is not None:
            self.member.agreed()
        if self.seat is not None:
            self.seat.agreed()

    async def _answer_members(self, _node: str, _body: bytes) -> list[bytes | memoryview]:
        assert self._raft is not None
        return [msgspec.json.encode(list(self._raft.view.members))]

    async def _answer_join(self, node: str, body: bytes) -> list[bytes | memoryview]:
        assert self._raft is not None
        spec = body.decode(errors="replace")
        if spec.partition("=")[0] != node:
            raise InvalidInput(f"{node} asks to be let in as {spec[:100]!r}")
        if node in self._state_nodes():
            raise Conflict(
                f"there is a node {node} already, which has another disk: if that is lost, take"
                f" the node out first (goq cluster leave {node}), or take another id"
            )
        await self._raft.add_member(spec)
        return []


def _secret(path: Path | None) -> bytes:
    assert path is not None
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", field="cluster.secret_file"
        ) from None


def _registered_disk(state: State, node: str) -> str:
    known = state.nodes.get(node)
    return "" if known is None else known.disk


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
