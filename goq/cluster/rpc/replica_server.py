"""Handlers of the calls that the replicas of other nodes make: the other side of ReplicaClient."""

from __future__ import annotations

from collections.abc import Callable

from goq.cluster.metadata.state import MetadataState
from goq.cluster.replication.archive_sync import ArchiveSync, decode_archive_request
from goq.cluster.replication.fetch.server import FetchServer
from goq.cluster.replication.protocol import decode_request, encode
from goq.cluster.replication.repair.manager import RepairManager
from goq.cluster.replication.repair.protocol import decode_repair_request, encode_repair
from goq.cluster.rpc.frame_body import join_head
from goq.cluster.rpc.replica_client import ARCHIVE, FETCH, REPAIR
from goq.cluster.rpc.server import RpcHandler
from goq.errors import InvalidFrame, TopicNotFound


class ReplicaServer:
    """Serves the frames and archives of this node's replicas to other nodes."""

    def __init__(
        self,
        fetch_server: FetchServer,
        repairs: RepairManager,
        archives: ArchiveSync,
        state: Callable[[], MetadataState],
    ) -> None:
        self._fetch_server = fetch_server
        self._repairs = repairs
        self._archives = archives
        self._state = state

    def handlers(self) -> dict[str, RpcHandler]:
        """Return the handlers by path."""
        return {
            FETCH: self.handle_fetch,
            REPAIR: self.handle_repair,
            ARCHIVE: self.handle_archive,
        }

    async def handle_fetch(self, node: str, body: bytes) -> list[bytes | memoryview]:
        """Return what is new for a follower."""
        request = decode_request(body)
        if request.node != node:
            raise InvalidFrame(f"{node} asks as {request.node}")
        answer, buffers = await self._fetch_server.fetch(request)
        return join_head(encode(answer), buffers)

    async def handle_repair(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Return the frames that a damaged replica lacks."""
        answer, buffers = await self._repairs.answer(decode_repair_request(body))
        return join_head(encode_repair(answer), buffers)

    async def handle_archive(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Return a piece of this node's archive."""
        request = decode_archive_request(body)
        topic = self._state().topics.get(request.key.topic)
        if topic is None or topic.topic_id != request.key.topic_id:
            raise TopicNotFound(f"there is no such topic {request.key.topic} here", field="topic")
        return [await self._archives.answer(request)]
