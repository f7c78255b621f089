"""The cluster's metadata without Raft: what is proposed is applied at once."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from goq.cluster.metadata.apply import apply_bytes
from goq.cluster.metadata.client import MetadataClient
from goq.cluster.metadata.state import MetadataState
from goq.cluster.metadata.state_machine import MetadataStateMachine
from goq.cluster.raft.node import RaftNode


class LocalRaft:
    """Applies what is proposed at once, and answers as the real machine does."""

    def __init__(self) -> None:
        self.state = MetadataState()

    async def propose(self, command: bytes, _timeout_s: float) -> Any:
        return await self.propose_until_decided(command)

    async def propose_until_decided(self, command: bytes) -> Any:
        self.state, result = apply_bytes(self.state, command, self.state.version + 1)
        return msgspec.to_builtins(result)


def proposing() -> MetadataClient:
    raft = LocalRaft()
    return MetadataClient(cast(RaftNode, raft), cast(MetadataStateMachine, raft))
