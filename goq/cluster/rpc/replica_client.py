"""What a node asks of others for its replicas: frames, fresh or for damaged ones, and archives."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from goq import limits
from goq.cluster.metadata.state import MetadataState
from goq.cluster.replication.archive_sync import ArchiveRequest
from goq.cluster.replication.protocol import FetchRequest, FetchResponse, decode_response, encode
from goq.cluster.replication.repair.protocol import (
    RepairRequest,
    RepairResponse,
    decode_repair_response,
)
from goq.cluster.replication.repair.protocol import encode_repair as encode_mend
from goq.cluster.rpc.client import RpcClient
from goq.cluster.rpc.framing import split_head
from goq.errors import Unavailable

FETCH, REPAIR, ARCHIVE = "/cluster/fetch", "/cluster/mend", "/cluster/archive"


class ReplicaClient:
    """Calls nodes by their ids: where they are is in the state."""

    def __init__(self, state: Callable[[], MetadataState], calling: RpcClient) -> None:
        self._state = state
        self._calling = calling

    async def call(self, node: str, path: str, body: bytes, wait_ms: int = 0) -> bytes:
        """Call a node that may take ``wait_ms`` to answer; raise ``GoqError``."""
        known = self._state().nodes.get(node)
        if known is None:
            raise Unavailable(f"node {node} is not known here yet")
        timeout_s = (limits.CALL_TIMEOUT_MS + wait_ms) / 1000
        return await self._calling.call(known.http_url, path, body, timeout_s)

    async def fetch(self, leader: str, request: FetchRequest) -> tuple[FetchResponse, memoryview]:
        """Ask a leader for what is new."""
        answer = await self.call(leader, FETCH, encode(request), request.wait_ms)
        head, frames = split_head(answer)
        return decode_response(head), frames

    async def mend(self, node: str, request: RepairRequest) -> tuple[RepairResponse, memoryview]:
        """Ask another replica for what is damaged here."""
        head, frames = split_head(await self.call(node, REPAIR, encode_mend(request)))
        return decode_repair_response(head), frames

    async def archive(self, node: str, request: ArchiveRequest) -> bytes:
        """Ask another node for what is lacking in the archive here."""
        return await self.call(node, ARCHIVE, msgspec.msgpack.encode(request))
