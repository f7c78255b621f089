"""Whatever nodes and people did: once faults stop, everything is led, whole and even again."""

from __future__ import annotations

import pytest

from goq.cluster.controller.rebalance import plan_rebalance
from goq.cluster.metadata.handlers.replica_placement import rack_count, racks_of
from goq.cluster.metadata.state import active_partitions
from tests.support.cluster.metadata.states import counts, uneven
from tests.support.cluster.metadata.world import World


def check_at_rest(world: World) -> None:
    """Check that nothing is left to do."""
    assert not any(node.leaving for node in world.state.nodes.values()), "a leaving node is stuck"
    assert not any(topic.deleting for topic in world.state.topics.values())
    assert all(node.is_up and node.can_lead for node in world.state.nodes.values())
    for place, _, partition in active_partitions(world.state):
        assert partition.leader == partition.replicas[0], place
        assert set(partition.in_sync) == set(partition.replicas), place
        assert not partition.target, place
        assert len(partition.replicas) == min(
            partition.replication_factor, len(world.state.nodes)
        ), place
        assert not partition.damaged, place
        assert not partition.restarted, place


@pytest.mark.parametrize("racks", ["", "ab", "abc"])
@pytest.mark.parametrize("seed", range(14))
def test_a_cluster_comes_to_rest_once_faults_stop(seed: int, racks: str) -> None:
    world = World(f"{seed} {racks}", 1 + seed % 7, racks)
    for _ in range(120):
        if world.random.random() < 0.4:
            world.disturb()
        world.step(faults=True)
    world.heal()
    world.settle()
    check_at_rest(world)
    for _ in range(5):
        for move in plan_rebalance(world.state):
            world.propose(move)
        world.settle()
    check_at_rest(world)
    assert plan_rebalance(world.state) == []
    replicas, leaders = counts(world.state)
    if not racks:
        assert uneven(replicas) <= 1
        alone = any(
            len(partition.replicas) == 1 for _, _, partition in active_partitions(world.state)
        )
        assert alone or uneven(leaders) <= 1  # who has the only replica cannot give up leading
    by_node = racks_of(world.state.nodes)
    for _, _, partition in active_partitions(world.state):
        best = min(len(partition.replicas), len(set(by_node.values())))
        assert rack_count(by_node, partition.replicas) == best
