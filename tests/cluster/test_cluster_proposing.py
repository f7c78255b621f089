"""What was proposed is applied, or refused with an error of goq that says why."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.local_raft import proposing

from goq.cluster.metadata.commands import AlterInSync, LeaveNode, RegisterNode, RemoveNode
from goq.errors import Conflict, GoqError, NodeNotFound, TopicNotFound


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
