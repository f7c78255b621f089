"""Admission of a node into the cluster: it asks any member by URL, and that member adds it.

A member is recorded with the disk id that it asks with. So a node that had the same id before, on
another disk, is not taken for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from goq.cluster.metadata.command_codec import decode_command
from goq.cluster.metadata.commands import RegisterNode
from goq.cluster.metadata.results import CommandRejected
from goq.cluster.metadata.state import MetadataState
from goq.cluster.raft.member import RaftMember
from goq.cluster.raft.node import RaftNode
from goq.cluster.rpc.client import RpcClient
from goq.cluster.rpc.server import CALL_PREFIX, RpcHandler
from goq.errors import Conflict, GoqError, InvalidInput
from goq.log_throttle import LogThrottle

MEMBERS, JOIN = CALL_PREFIX + "members", CALL_PREFIX + "join"
OPEN_CALLS = frozenset((MEMBERS, JOIN))
"""The calls that a node may make whatever disk it presents."""

_log = logging.getLogger("goq.cluster")
_TIMEOUT_S = 10.0
_RETRY_S = 0.5
_LOG_PERIOD_S = 10.0
_REPLAY_S = 2.0
_WITH_INDEX = b"index"


def registered_disk(state: MetadataState, node: str) -> str:
    """Return the disk id that a node has registered with, empty if it has not."""
    known = state.nodes.get(node)
    return "" if known is None else known.disk


def registered_disk_in(command: object) -> tuple[str, str] | None:
    """Return the node and the disk that a command in the log registers, None for other commands."""
    try:
        decoded = decode_command(command) if isinstance(command, bytes) else None
    except CommandRejected:
        return None
    return (decoded.node, decoded.disk) if isinstance(decoded, RegisterNode) else None


def known_addresses(state: MetadataState, peers: Mapping[str, str], node: str) -> tuple[str, ...]:
    """Return where a node may be: as it registered at its latest start, then as configured here."""
    known = state.nodes.get(node)
    return ("" if known is None else known.cluster_address, peers.get(node, ""))


class KnownMembers(msgspec.Struct, frozen=True):
    """The members that a node knows, as the Raft log spells them, with all disks that it knows.

    ``index`` is the entry of the Raft log that they include. An earlier version does not tell it.
    """

    index: int
    specs: list[str]

    def by_name(self) -> dict[str, str]:
        """Return the specs by the ids of the members."""
        return {str(RaftMember(spec).id): spec for spec in self.specs}


async def fetch_members(rpc: RpcClient, url: str) -> KnownMembers:
    """Return the members that a node knows; raise ``GoqError``."""
    answer = await rpc.call(url, MEMBERS, _WITH_INDEX, _TIMEOUT_S)
    known = msgspec.json.decode(answer, type=KnownMembers | list[str])
    return KnownMembers(0, known) if isinstance(known, list) else known


async def join_cluster(
    rpc: RpcClient,
    url: str,
    spec: str,
    raft: RaftNode,
    state: Callable[[], MetadataState],
    *,
    is_initial: bool,
) -> None:
    """Ask to be admitted until this disk is a member's, then wait until the node is registered.

    A node that has left never asks: its metadata still names it with this disk. An initial node is
    a member from the beginning. It asks only if it is a member no more: its earlier disk has left.
    It may have metadata then, if members let this disk in before they knew of the earlier one.

    Until it is registered, the node replays a log that names earlier disks of members. So it goes
    by the members that it is told, up to where its log is as new.
    """
    throttle = LogThrottle(_LOG_PERIOD_S)
    own = RaftMember(spec)
    name = str(own.id)
    while registered_disk(state(), name) != own.disk:
        has_metadata = bool(state().nodes)
        try:
            known = await fetch_members(rpc, url)
            raft.learn_members(known.index, known.specs)
            member = known.by_name().get(name)
            if member is None or not (is_initial or RaftMember(member).disk == own.disk):
                await rpc.call(url, JOIN, spec.encode(), _TIMEOUT_S)
        except GoqError as error:
            now_s = asyncio.get_running_loop().time()
            if not has_metadata and throttle.admit(url, now_s) is not None:
                _log.warning("not a member of the cluster at %s yet: %s", url, error)
        await asyncio.sleep(_REPLAY_S if has_metadata else _RETRY_S)


class AdmissionServer:
    """Admits nodes into the Raft group, and checks their disk ids."""

    def __init__(self, raft: RaftNode, state: Callable[[], MetadataState]) -> None:
        self._raft = raft
        self._state = state

    def is_known_disk(self, node: str, disk: str) -> bool:
        """Whether a node presents the disk id that it is known by.

        The members in the Raft log count before the registrations in the metadata.
        """
        disks = {str(m.id): m.disk for m in map(RaftMember, self._raft.status.members)}
        known = disks.get(node) or registered_disk(self._state(), node)
        return not known or known == disk

    async def add_member(self, spec: str) -> None:
        """Add a node to the Raft group; raise ``Conflict`` while another node is down.

        Raft would refuse it anyway; this names the node that is down, also one that never came.
        """
        nodes = self._state().nodes
        down = {node.id for node in nodes.values() if not node.is_up}
        down |= self._raft.status.unconnected - nodes.keys() - {str(RaftMember(spec).id)}
        if down:
            names = sorted(down)
            raise Conflict(
                f"no node is added while {', '.join(names)} is down: bring it back, or, if it is"
                f" lost: goq cluster leave {names[0]}"
            )
        await self._raft.add_member(spec)

    async def remove_absent_member(self, node: str) -> bool:
        """Remove a member that has never registered; return whether there was such a member.

        It counts for majorities, and while it is away no other node is admitted.
        """
        await self._raft.barrier()
        members = {str(RaftMember(spec).id) for spec in self._raft.status.members}
        is_absent = node in members and node not in self._state().nodes
        if is_absent:
            await self._raft.remove_member(node)
        return is_absent

    def handlers(self) -> dict[str, RpcHandler]:
        """Return the handlers by path."""
        return {MEMBERS: self.handle_members, JOIN: self.handle_join}

    async def handle_members(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Return the members of the Raft group, in the form that the caller's version knows."""
        status = self._raft.status
        if body != _WITH_INDEX:
            return [msgspec.json.encode(list(status.members))]
        specs = list(map(self._with_disk, status.members))
        return [msgspec.json.encode(KnownMembers(status.applied_index, specs))]

    def _with_disk(self, spec: str) -> str:
        """Return a member with its disk; the log does not name those of the first nodes."""
        member = RaftMember(spec)
        disk = registered_disk(self._state(), str(member.id))
        return spec if member.disk or not (member.address and disk) else f"{spec}/{disk}"

    async def handle_join(self, node: str, body: bytes) -> list[bytes | memoryview]:
        """Admit a node; raise ``Conflict`` while a node with its id is registered."""
        spec = body.decode(errors="replace")
        if spec.partition("=")[0] != node:
            raise InvalidInput(f"{node} asks to be admitted as {spec[:100]!r}")
        if node in self._state().nodes:
            raise Conflict(
                f"there is a node {node} already, which has another disk: if that is lost, take"
                f" the node out first (goq cluster leave {node}), or take another id"
            )
        await self.add_member(spec)
        return []
