"""What a node does for its replicas when the metadata change, counted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goq.cluster.metadata.commands import CreateTopic, DeleteTopicAtOnce, ElectLeader
from goq.cluster.metadata.state import MetadataState
from goq.cluster.reconciler import Assignments
from goq.cluster.replication import replica_manager
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.replica import ReplicaAssignment
from goq.cluster.replication.replica_manager import ReplicaManager
from tests.support.cluster.metadata.states import after, at, nodes

TOPICS, PARTITIONS = 20, 5


class _Replica:
    """A replica that counts its assignments."""

    assigned: list[tuple[PartitionKey, ReplicaAssignment | None]]

    def __init__(self, key: PartitionKey, _directory: Path, host: ReplicaManager) -> None:
        self.key = key
        self._host = host

    def assign(self, assignment: ReplicaAssignment | None) -> None:
        self.assigned.append((self.key, assignment))

    async def close(self) -> None:
        self.assign(None)


def _manager() -> ReplicaManager:
    async def nothing(*_: object) -> None:
        return

    host: Any = SimpleNamespace(
        directory=lambda key: Path(str(key.number)), tiered_reader=None, remove=nothing
    )
    unused: Any = None
    clock: Any = SimpleNamespace()
    return ReplicaManager(
        "n1",
        host,
        host,
        unused,
        unused,
        clock,
        unused,
        unused,
        unused,
        on_failure=lambda *_: None,
    )


@pytest.fixture
def assigned(
    monkeypatch: pytest.MonkeyPatch,
) -> list[tuple[PartitionKey, ReplicaAssignment | None]]:
    monkeypatch.setattr(replica_manager, "Replica", _Replica)
    _Replica.assigned = []
    return _Replica.assigned


def _state() -> MetadataState:
    names = (f"t{number}" for number in range(TOPICS))
    return after(nodes(3), *(CreateTopic(name, PARTITIONS, {}, 3) for name in names))


def test_a_change_costs_what_its_topic_has_and_not_what_the_node_has(
    assigned: list[tuple[PartitionKey, ReplicaAssignment | None]],
) -> None:
    async def run() -> None:
        kept, manager, state = Assignments("n1"), _manager(), _state()
        manager.apply(kept.of(state))
        assert len(assigned) == TOPICS * PARTITIONS
        for number in range(TOPICS):
            assigned.clear()
            leader = state.topics[f"t{number}"].partitions[0].leader
            other = "n2" if leader == "n3" else "n3"
            state = after(state, ElectLeader(*at(state, f"t{number}"), other))
            manager.apply(kept.of(state))
            assert {key.topic for key, _ in assigned} == {f"t{number}"}
            assert len(assigned) == PARTITIONS
        assigned.clear()
        manager.apply(kept.of(state))
        assert not assigned

    asyncio.run(run())


def test_a_replica_without_an_assignment_is_closed_and_one_that_was_removed_comes_back(
    assigned: list[tuple[PartitionKey, ReplicaAssignment | None]],
) -> None:
    async def run() -> None:
        kept, manager, state = Assignments("n1"), _manager(), _state()
        manager.apply(kept.of(state))
        gone = state.topics["t1"].topic_id
        without = after(state, DeleteTopicAtOnce("t1", gone))
        for is_closed_before in (False, True):
            if is_closed_before:
                await manager.close_replicas()
            assigned.clear()
            manager.apply(kept.of(without))
            closed = {key.number for key, wanted in assigned if wanted is None}
            assert closed == set(range(PARTITIONS))
            assert manager.unassigned == {PartitionKey("t1", gone, n) for n in closed}
            manager.apply(kept.of(state))
            assert not manager.unassigned
        key = PartitionKey("t2", state.topics["t2"].topic_id, 3)
        await manager.remove(key)
        assert manager.get(key) is None
        assigned.clear()
        manager.apply(kept.of(state))
        assert manager.get(key) is not None
        assert {key.topic for key, _ in assigned} == {"t2"}
        await manager.close_replicas()
        assigned.clear()
        manager.apply(kept.of(state))
        assert len(assigned) == TOPICS * PARTITIONS

    asyncio.run(run())
