"""Where replicas go: over racks, evenly, and with as little moving as that allows."""

from __future__ import annotations

import random

import pytest

from goq.cluster.controller.rebalance import plan_rebalance
from goq.cluster.metadata.apply import apply
from goq.cluster.metadata.commands import (
    AddPartitions,
    CreateTopic,
    DecommissionNode,
    FenceNode,
    FinishReassignment,
    ReassignPartition,
    RegisterNode,
    SetNodeHealth,
    StartReassignment,
)
from goq.cluster.metadata.handlers.elections import LeaderCounts
from goq.cluster.metadata.handlers.replica_placement import rack_count, racks_of
from goq.cluster.metadata.state import (
    MetadataState,
    PartitionMetadata,
    active_partitions,
    encode_state,
)
from tests.support.cluster.metadata.states import (
    after,
    at,
    counts,
    nodes,
    partition,
    refused,
    uneven,
    with_topic,
)


@pytest.mark.parametrize("count", range(1, 8))
def test_replicas_and_leaders_are_even_on_any_number_of_nodes(count: int) -> None:
    for factor in range(1, count + 1):
        state = nodes(count)
        for number, partitions in enumerate((1, 2, 3, 5, 6, 12, 7)):
            state = with_topic(state, f"t{number}", partitions, factor)
            for whose in (None, f"t{number}"):
                replicas, leaders = counts(state, whose)
                assert uneven(replicas) <= 1
                assert uneven(leaders) <= 1


@pytest.mark.parametrize("racks", ["aabbcc", "abc", "aabb", "aaabbb", "aabbccd", "abbb"])
def test_replicas_are_on_as_many_racks_as_there_are(racks: str) -> None:
    for factor in range(1, min(len(racks), 4) + 1):
        state = with_topic(nodes(list(racks)), partitions=13, factor=factor)
        racks_by_node = racks_of(state.nodes)
        for _, _, found in active_partitions(state):
            assert rack_count(racks_by_node, found.replicas) == min(factor, len(set(racks)))
        sizes = {racks.count(rack) for rack in racks}
        replicas, leaders = counts(state)
        if len(sizes) == 1:
            assert uneven(replicas) <= 1
            assert uneven(leaders) <= 1


def test_added_partitions_make_the_topic_even_with_those_it_has() -> None:
    state = with_topic(nodes(5), partitions=4, factor=3)
    for total in (5, 7, 11, 20):
        topic = state.topics["orders"]
        before = topic.partitions
        state = after(state, AddPartitions("orders", topic.topic_id, topic.version, total))
        assert state.topics["orders"].partitions[: len(before)] == before
        replicas, leaders = counts(state)
        assert uneven(replicas) <= 1
        assert uneven(leaders) <= 1


def test_a_new_topic_is_not_all_on_the_node_that_joined_last() -> None:
    state = with_topic(nodes(3), partitions=60, factor=2)
    state = after(state, RegisterNode("n4", 1, "", "", None))
    state = with_topic(state, "mails", 8, 2)
    replicas, leaders = counts(state, "mails")
    assert set(replicas.values()) == {4}
    assert set(leaders.values()) == {2}


def test_fenced_leaving_and_unfit_nodes_get_nothing() -> None:
    state = nodes(6)
    state = after(
        state, FenceNode("n1", 1), SetNodeHealth("n2", 1, "disk full"), DecommissionNode("n3")
    )
    state = with_topic(state, partitions=9, factor=3)
    replicas, _ = counts(state)
    assert replicas == {"n1": 0, "n2": 0, "n3": 0, "n4": 9, "n5": 9, "n6": 9}
    state = with_topic(state, "more", 1, 4)
    assert set(partition(state, "more").replicas) == {"n4", "n5", "n6"}


def test_there_are_fewer_replicas_than_wanted_while_nodes_are_few() -> None:
    for count, factor in ((1, 1), (2, 2), (3, 3), (5, 3)):
        found = partition(with_topic(nodes(count)))
        assert (len(found.replicas), found.replication_factor) == (factor, 3)
    down = after(nodes(3), FenceNode("n3", 1))
    assert partition(with_topic(down)).replicas == ("n1", "n2")


def test_a_topic_is_not_made_on_fewer_nodes_than_have_to_have_what_is_acknowledged() -> None:
    down = after(nodes(3), FenceNode("n3", 1), SetNodeHealth("n2", 1, "disk full"))
    assert refused(down, CreateTopic("orders", 1, {})) == "not_enough_nodes"
    assert refused(down, CreateTopic("orders", 1, {}, 2)) == "not_enough_nodes"
    assert partition(with_topic(down, factor=1)).replicas == ("n1",)


def test_placement_does_not_depend_on_the_order_in_which_nodes_came() -> None:
    state = nodes(list("aabbc"))
    backwards = MetadataState(state.version, dict(reversed(state.nodes.items())))
    one, other = with_topic(state, partitions=7), with_topic(backwards, partitions=7)
    assert encode_state(one) == encode_state(other)


def carried_out(state: MetadataState, plan: list[ReassignPartition]) -> MetadataState:
    """Return the state after moves that all nodes followed at once."""
    for move in plan:
        where = (move.topic, move.partition)
        state = after(state, move)
        if not partition(state, *where).target:
            continue
        state = after(state, StartReassignment(*at(state, *where)))
        topic = state.topics[move.topic]
        found = topic.partitions[move.partition]
        copied = PartitionMetadata(
            **{name: getattr(found, name) for name in found.__struct_fields__}
            | {"in_sync": found.holders}
        )
        partitions = list(topic.partitions)
        partitions[move.partition] = copied
        fields = {name: getattr(topic, name) for name in topic.__struct_fields__}
        fresh = type(topic)(**fields | {"partitions": tuple(partitions)})
        state = MetadataState(
            state.version, state.nodes, {**state.topics, move.topic: fresh}, {}, state.settings
        )
        state = after(state, FinishReassignment(*at(state, *where)))
    return state


def scattered(seed: int, count: int, racks: list[str | None]) -> MetadataState:
    """Return a state of topics that were placed at random."""
    chance = random.Random(seed)
    state = nodes(racks)
    for number in range(5):
        state = with_topic(state, f"t{number}", chance.randrange(1, 12), chance.randrange(1, 4))
    plan = []
    for place, topic, found in active_partitions(state):
        target = tuple(chance.sample(sorted(state.nodes)[:count], len(found.replicas)))
        move = ReassignPartition(
            place.topic, topic.topic_id, place.partition, found.version, target
        )
        if not hasattr(apply(state, move, 1).result, "code"):
            plan.append(move)
    return carried_out(state, plan)


@pytest.mark.parametrize("seed", range(20))
def test_a_rebalance_makes_all_even_by_as_few_moves_as_there_can_be(seed: int) -> None:
    count = 3 + seed % 5
    state = scattered(seed, max(3, count - seed % 3), [None] * count)
    before, _ = counts(state)
    total = sum(before.values())
    share, more = divmod(total, count)
    richest = sorted(before.values(), reverse=True)
    fewest = sum(max(0, has - share - (rank < more)) for rank, has in enumerate(richest))
    plan = plan_rebalance(state)
    moved = sum(
        len(set(move.target) - set(partition(state, move.topic, move.partition).replicas))
        for move in plan
    )
    assert moved == fewest
    state = carried_out(state, plan)
    replicas, leaders = counts(state)
    assert uneven(replicas) <= 1
    assert uneven(leaders) <= 1
    assert plan_rebalance(state) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_rebalance_puts_replicas_on_as_many_racks_as_can_be(seed: int) -> None:
    racks = [list("aabbcc"), list("abc"), list("aabbb"), list("abcdd")][seed % 4]
    state = scattered(seed, len(racks), [*racks])
    plan = plan_rebalance(state)
    state = carried_out(state, plan)
    by_node = racks_of(state.nodes)
    for _, _, found in active_partitions(state):
        assert rack_count(by_node, found.replicas) == min(len(found.replicas), len(set(racks)))
    assert plan_rebalance(state) == []


def test_a_rebalance_leaves_partitions_alone_that_move_and_nodes_that_are_away() -> None:
    state = with_topic(nodes(3), partitions=12, factor=2)
    state = after(state, RegisterNode("n4", 1, "", ""), RegisterNode("n5", 1, "", ""))
    moving = next(n for n in range(12) if "n1" in partition(state, number=n).replicas)
    old = partition(state, number=moving).replicas
    target = tuple("n4" if node == "n1" else node for node in old)
    state = after(state, ReassignPartition(*at(state, number=moving), target))
    state = after(state, FenceNode("n5", 1))
    plan = plan_rebalance(state)
    assert plan
    assert all(move.partition != moving for move in plan)
    assert all("n5" not in move.target for move in plan)


def test_a_plan_has_no_more_moves_than_allowed() -> None:
    state = with_topic(nodes(2), partitions=40, factor=2)
    state = after(state, RegisterNode("n3", 1, "", ""), RegisterNode("n4", 1, "", ""))
    assert len(plan_rebalance(state)) > 7
    rounds = 0
    while plan := plan_rebalance(state, 7):
        assert len(plan) <= 7
        state = carried_out(state, plan)
        rounds += 1
    assert rounds > 5
    replicas, leaders = counts(state)
    assert uneven(replicas) <= 1
    assert uneven(leaders) <= 1


def test_leaderships_of_a_dead_node_are_spread_over_the_others() -> None:
    state = with_topic(nodes(5), partitions=40, factor=3)
    state = after(state, FenceNode("n1", 1))
    loads = LeaderCounts(state)
    led = {node: loads.count(node) for node in state.nodes if node != "n1"}
    assert sum(led.values()) == 40
    assert sum(count > 8 for count in led.values()) >= 3
    assert uneven(led) <= 3
