"""Changes of in-sync sets wait for the one under way, and then go together. New epochs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from goq import limits
from goq.cluster.metadata.commands import (
    AlterClusterSettings,
    AlterInSync,
    ChangePartitions,
    CreateTopic,
    DeleteTopic,
    ElectLeader,
    FenceNode,
    RegisterNode,
    UnfenceNode,
)
from goq.cluster.metadata.state import Features, MetadataState
from goq.cluster.reconciler import Assignments, InSyncProposer, RenewalProposer
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.replica import ReplicaAssignment
from tests.support.cluster.metadata.states import after, at, nodes
from tests.support.eventually import until

PARTITIONS = 450


class _Metadata:
    """Metadata that decide when told."""

    def __init__(self, state: MetadataState) -> None:
        self.state = state
        self.proposed: list[Any] = []
        self.may_decide = asyncio.Event()

    async def propose_until_decided(self, command: Any) -> None:
        self.proposed.append(command)
        await self.may_decide.wait()
        self.state = after(self.state, command)


def _assignments(state: MetadataState) -> dict[PartitionKey, ReplicaAssignment]:
    of_topics = Assignments("n1").of(state).values()
    return {key: assignment for of_topic in of_topics for key, assignment in of_topic.items()}


@pytest.mark.parametrize("level", [3, 4])
def test_changes_that_wait_go_together_once_all_nodes_know_how(level: int) -> None:
    async def run() -> None:
        state = after(nodes(1), CreateTopic("t", PARTITIONS, {}, 1))
        metadata = _Metadata(replace(state, features=Features(level)))
        proposer = InSyncProposer("n1", metadata)
        alone = frozenset({"n1"})
        asking = [
            asyncio.ensure_future(proposer.propose(key, assignment, alone))
            for key, assignment in _assignments(state).items()
        ]
        await until(lambda: bool(metadata.proposed))
        metadata.may_decide.set()
        decided = await asyncio.gather(*asking)
        assert [each.version for each in decided] == [1] * PARTITIONS  # nothing differs
        kinds = {type(command) for command in metadata.proposed}
        assert kinds == {AlterInSync if level < 4 else ChangePartitions}
        sizes = [len(getattr(command, "changes", "1")) for command in metadata.proposed]
        assert sum(sizes) == PARTITIONS
        assert max(sizes) == (1 if level < 4 else limits.PARTITION_CHANGES_MAX)

    asyncio.run(run())


@pytest.mark.parametrize("present", [("n1",), ("n1", "n2")])
def test_a_fenced_node_that_fetches_keeps_no_other_from_entering(present: tuple[str, ...]) -> None:
    async def run() -> None:
        state = after(nodes(3), CreateTopic("t", 1, {}, 3), FenceNode("n3", 1))
        key, assignment = next(iter(_assignments(state).items()))
        metadata = _Metadata(state)
        metadata.may_decide.set()
        seen = assignment._replace(in_sync=present)
        proposer = InSyncProposer("n1", metadata)
        await proposer.propose(key, seen, frozenset({"n1", "n2", "n3"}))
        proposed = [sorted(command.in_sync) for command in metadata.proposed]
        assert proposed == ([["n1", "n2"]] if present == ("n1",) else [])

    asyncio.run(run())


def test_another_epoch_is_asked_for_only_while_the_node_leads_in_the_spent_one() -> None:
    async def run() -> None:
        state = after(nodes(3), CreateTopic("t", 1, {}, 3))
        key, assignment = next(iter(_assignments(state).items()))
        leader, epoch = assignment.leader, assignment.leader_epoch
        assert leader is not None
        metadata = _Metadata(state)
        metadata.may_decide.set()
        for _ in range(2):
            await RenewalProposer(leader, metadata).propose(key, epoch)
            assert len(metadata.proposed) == 1
        found = _assignments(metadata.state)[key]
        assert (found.leader, found.leader_epoch) == (leader, epoch + 1)
        for other in (key._replace(topic="gone"), key._replace(topic_id=99)):
            await RenewalProposer(leader, metadata).propose(other, epoch + 1)
        await RenewalProposer("n9", metadata).propose(key, epoch + 1)
        assert len(metadata.proposed) == 1

    asyncio.run(run())


def test_kept_assignments_are_those_of_the_newest_metadata() -> None:
    state = after(nodes(3), *(CreateTopic(name, 3, {}, 3) for name in ("a", "b", "c")))
    kept = Assignments("n1")
    for command in (
        ElectLeader(*at(state, "a"), "n2"),
        FenceNode("n2", 1),
        UnfenceNode("n2", 1),
        AlterClusterSettings(1, min_insync=3),
        DeleteTopic("b", state.topics["b"].topic_id),
        CreateTopic("d", 2, {}, 1),
        RegisterNode("n3", 2, "http://n3", "n3:9"),
        FenceNode("n1", 1),
    ):
        before = kept.of(state)
        state = after(state, command)
        found = kept.of(state)
        assert found == Assignments("n1").of(state)
        assert found != before or isinstance(command, UnfenceNode | CreateTopic)
    assert kept.of(state) == kept.of(state)
