"""Calls that a node's replicas make to other nodes: fetch frames, repair frames, read archives."""

from __future__ import annotations

import msgspec

from goq.cluster.replication.archive_sync import ArchiveRequest
from goq.cluster.replication.protocol import FetchRequest, FetchResponse, decode_response, encode
from goq.cluster.replication.repair.protocol import (
    RepairRequest,
    RepairResponse,
    decode_repair_response,
    encode_repair,
)
from goq.cluster.rpc.client import NodeClient
from goq.cluster.rpc.frame_body import split_head
from goq.cluster.rpc.server import CALL_PREFIX

FETCH = CALL_PREFIX + "fetch"
REPAIR = CALL_PREFIX + "repair"
ARCHIVE = CALL_PREFIX + "archive"


class ReplicaClient:
    """Typed calls to other nodes; each raises ``GoqError`` if it fails."""

    def __init__(self, nodes: NodeClient) -> None:
        self._nodes = nodes

    async def fetch(self, leader: str, request: FetchRequest) -> tuple[FetchResponse, memoryview]:
        """Fetch what is new from a leader; return the response and the frames behind it."""
        answer = await self._nodes.call(leader, FETCH, encode(request), request.wait_ms)
        head, frames = split_head(answer)
        return decode_response(head), frames

    async def repair(self, node: str, request: RepairRequest) -> tuple[RepairResponse, memoryview]:
        """Read the frames of a damaged range from another replica."""
        head, frames = split_head(await self._nodes.call(node, REPAIR, encode_repair(request)))
        return decode_repair_response(head), frames

    async def archive(self, node: str, request: ArchiveRequest) -> bytes:
        """Read a piece of the archive of another node."""
        return await self._nodes.call(node, ARCHIVE, msgspec.msgpack.encode(request))
