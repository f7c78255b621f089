"""How a node comes to be a member: it asks by the URL of any, and that one has it added.

A member is known with the disk that it asks with, so that whoever had its id before, on another
disk, is not taken for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from goq.cluster.admin.operations import check_all_nodes_up
from goq.cluster.metadata.state import MetadataState
from goq.cluster.raft.member import RaftMember
from goq.cluster.raft.node import RaftNode
from goq.cluster.rpc.client import RpcClient
from goq.errors import Conflict, GoqError, InvalidInput

MEMBERS, JOIN = "/cluster/members", "/cluster/join"
OPEN_CALLS = frozenset((MEMBERS, JOIN))
"""The calls that are answered to a node whatever disk it comes with."""

_log = logging.getLogger("goq.cluster")
_TIMEOUT_S = 10.0
_AGAIN_S = 0.5


def registered_disk(state: MetadataState, node: str) -> str:
    """Return the disk that a node has registered with, empty if it has not."""
    known = state.nodes.get(node)
    return "" if known is None else known.disk


async def fetch_members(calling: RpcClient, url: str) -> dict[str, str]:
    """Return the members that a node knows, by id, as they are written in the log."""
    specs = msgspec.json.decode(await calling.call(url, MEMBERS, b"", _TIMEOUT_S), type=list[str])
    return {str(RaftMember(spec).id): spec for spec in specs}


async def join_cluster(
    calling: RpcClient, url: str, spec: str, *, is_first: bool, has_heard: Callable[[], bool]
) -> None:
    """Ask to be let in until something was heard from the cluster, which tells members alone.

    So a node that has heard anything once never asks again, least of all one that has left. One of
    the first nodes is a member from the beginning; it asks if it is none any more, as it has left
    and begins anew with an empty folder.
    """
    name = str(RaftMember(spec).id)
    while not has_heard():
        try:
            if not is_first or name not in await fetch_members(calling, url):
                await calling.call(url, JOIN, spec.encode(), _TIMEOUT_S)
                return
        except GoqError as error:
            _log.warning("not a member of the cluster at %s yet: %s", url, error)
        await asyncio.sleep(_AGAIN_S)


class AdmissionServer:
    """The side that is asked."""

    def __init__(self, raft: RaftNode, state: Callable[[], MetadataState]) -> None:
        self._raft = raft
        self._state = state

    def is_known(self, node: str, disk: str) -> bool:
        """Whether a node comes with the disk that it is known with, by the log before the state."""
        disks = {str(m.id): m.disk for m in map(RaftMember, self._raft.status.members)}
        known = disks.get(node) or registered_disk(self._state(), node)
        return not known or known == disk

    async def answer_members(self, _node: str, _body: bytes) -> list[bytes | memoryview]:
        """Answer who is a member."""
        return [msgspec.json.encode(list(self._raft.status.members))]

    async def answer_join(self, node: str, body: bytes) -> list[bytes | memoryview]:
        """Let a node in; ``Conflict`` while there is one with its id."""
        spec = body.decode(errors="replace")
        if spec.partition("=")[0] != node:
            raise InvalidInput(f"{node} asks to be let in as {spec[:100]!r}")
        if node in self._state().nodes:
            raise Conflict(
                f"there is a node {node} already, which has another disk: if that is lost, take"
                f" the node out first (goq cluster leave {node}), or take another id"
            )
        check_all_nodes_up(self._state())
        await self._raft.add_member(spec)
        return []
