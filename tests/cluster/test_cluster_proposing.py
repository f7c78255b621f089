"""What was proposed is applied, or refused with an error of goq that says why."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from goq.cluster.metadata.apply import apply_bytes
from goq.cluster.metadata.commands import AlterInSync, LeaveNode, RegisterNode, RemoveNode
from goq.cluster.metadata.state import State
from goq.cluster.metadata.store import MetadataMachine
from goq.cluster.proposing import Proposing
from goq.cluster.raft.node import RaftNode
from goq.errors import Conflict, GoqError, NodeNotFound, TopicNotFound


class LocalRaft:
    """Applies what is proposed at once, and answers as the real machine does."""

    def __init__(self) -> None:
        self.state = State()

    def new_request(self) -> tuple[int, int]:
        return 1, self.state.version

    async def propose(self, command: bytes, _timeout_s: float, _request: tuple[int, int]) -> Any:
        self.state, result = apply_bytes(self.state, command, self.state.version + 1)
        return msgspec.to_builtins(result)


def proposing() -> Proposing:
    raft = LocalRaft()
    return Proposing(cast(RaftNode, raft), cast(MetadataMachine, raft))


def test_what_is_accepted_is_known_on_return() -> None:
    cluster = proposing()
    accepted = asyncio.run(cluster.propose(RegisterNode("n1", 1, "http://n1", "n1:1")))
    assert accepted.done == "node n1 joined"
    assert list(cluster.state.nodes) == ["n1"]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (LeaveNode("n9"), NodeNotFound),
        (RemoveNode("n1"), Conflict),
        (AlterInSync("t", 1, 0, 1, "n1", 1, {"n1": 1}), TopicNotFound),
    ],
)
def test_what_is_refused_raises_why(command: Any, error: type[GoqError]) -> None:
    cluster = proposing()
    asyncio.run(cluster.propose(RegisterNode("n1", 1, "http://n1", "n1:1")))
    with pytest.raises(error):
        asyncio.run(cluster.propose(command))
    assert asyncio.run(cluster.propose_surely(command)) is None
