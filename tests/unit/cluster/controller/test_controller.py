"""What the controller decides from the state and from what it heard."""

from __future__ import annotations

from typing import Any

import pytest

from goq import limits
from goq.cluster.controller import unsettled_partitions
from goq.cluster.controller.controller import (
    IS_RAFT_SILENT,
    IS_UNCALLABLE,
    decide,
    is_deaf,
)
from goq.cluster.controller.node_liveness import Heartbeat, NodeLiveness
from goq.cluster.controller.unsettled_partitions import UnsettledPartitions
from goq.cluster.metadata.apply import apply
from goq.cluster.metadata.commands import (
    AlterClusterSettings,
    AlterInSync,
    AnyCommand,
    CancelReassignment,
    CreateTopic,
    CreateTopicWithMinInsync,
    DecommissionNode,
    DeleteTopic,
    ElectLeader,
    FenceNode,
    FinishReassignment,
    MarkReplicaDamaged,
    MarkReplicaRepaired,
    ReassignPartition,
    RegisterNode,
    RemoveNode,
    RemoveTopic,
    SetNodeHealth,
    StartReassignment,
    UnfenceNode,
)
from goq.cluster.metadata.results import Accepted
from goq.cluster.metadata.state import MetadataState, TopicMetadata
from tests.support.cluster.metadata.states import after, at, nodes, partition, with_topic
from tests.support.cluster.metadata.world import World

TIMEOUT_MS = 1000
DELAY_MS = 5000


def watching(
    state: MetadataState, until_ms: int, silent: tuple[str, ...] = (), **said: Heartbeat
) -> NodeLiveness:
    """Return the liveness where all nodes but some sent a heartbeat every 100 ms from 0 on."""
    liveness = NodeLiveness.start(0)
    for now_ms in range(0, until_ms + 1, 100):
        for name, node in state.nodes.items():
            if name not in silent:
                heartbeat = said.get(name, Heartbeat(node.incarnation))
                liveness = liveness.with_heartbeat(name, heartbeat, now_ms, TIMEOUT_MS)
        liveness = liveness.tick(now_ms, TIMEOUT_MS)
    return liveness


def decided(state: MetadataState, liveness: NodeLiveness) -> list[AnyCommand]:
    """Return what is decided; each of it is accepted, in order."""
    commands = decide(state, liveness, timeout_ms=TIMEOUT_MS, preferred_delay_ms=DELAY_MS)
    for command in commands:
        state, result = apply(state, command, state.version + 1)
        assert isinstance(result, Accepted), result
    return commands


def test_nothing_is_decided_when_all_is_well() -> None:
    state = with_topic(nodes(3), partitions=6, factor=3)
    assert decided(state, watching(state, 60_000)) == []


def test_a_silent_node_is_fenced_after_the_timeout_and_not_before() -> None:
    state = nodes(2)
    assert decided(state, watching(state, TIMEOUT_MS, silent=("n2",))) == []
    assert decided(state, watching(state, TIMEOUT_MS + 100, silent=("n2",))) == [FenceNode("n2", 1)]


def test_a_controller_that_takes_over_waits_a_timeout_for_everybody() -> None:
    state = nodes(3)
    liveness = NodeLiveness.start(900_000).tick(900_000 + TIMEOUT_MS // 2, TIMEOUT_MS)
    assert decided(state, liveness) == []


def test_the_former_controller_is_fenced_sooner_if_it_is_silent_in_the_raft_group_too() -> None:
    """The silence before another one was elected is a part of the timeout, but not all of it."""
    state = nodes(3)
    least_ms = limits.NODE_TAKEOVER_MS_MIN
    for until_ms, silent_before_ms, reachable, fences in (
        (least_ms, 500, ("n1", "n3"), False),
        (least_ms + 100, 500, ("n1", "n3"), True),
        (least_ms, 60_000, ("n1", "n3"), False),
        (least_ms + 100, 60_000, ("n1", "n3"), True),
        (least_ms + 100, 500, ("n1", "n2", "n3"), False),
        (TIMEOUT_MS - 300, 300, ("n1", "n3"), False),
        (TIMEOUT_MS - 200, 300, ("n1", "n3"), True),
        (TIMEOUT_MS, 0, ("n1", "n3"), False),  # it handed over: nobody was silent
        (TIMEOUT_MS + 100, 0, ("n1", "n3"), True),
    ):
        liveness = watching(state, until_ms, silent=("n2",))
        liveness = liveness._replace(silent_before_ms=silent_before_ms)
        commands = decide(state, liveness, timeout_ms=TIMEOUT_MS, reachable=reachable)
        assert commands == ([FenceNode("n2", 1)] if fences else [])
    heard = watching(state, 0)._replace(silent_before_ms=500)
    heard = heard.tick(least_ms + 100, TIMEOUT_MS)
    assert decide(state, heard, timeout_ms=TIMEOUT_MS, reachable=("n1", "n3")) == []


def test_a_controller_that_stood_still_fences_nobody_for_it() -> None:
    state = nodes(3)
    liveness = watching(state, 2000).tick(60_000, TIMEOUT_MS)
    assert decided(state, liveness) == []
    liveness = liveness.tick(60_400, TIMEOUT_MS).tick(60_800, TIMEOUT_MS).tick(61_100, TIMEOUT_MS)
    assert len(decided(state, liveness)) == 3


def test_a_node_that_is_heard_again_is_taken_back() -> None:
    state = after(nodes(2), FenceNode("n2", 1))
    assert decided(state, watching(state, 300)) == [UnfenceNode("n2", 1)]
    assert decided(state, watching(state, 300, silent=("n2",))) == []


def test_heartbeats_of_another_start_say_nothing_of_this_one() -> None:
    state = nodes(2)
    liveness = watching(state, TIMEOUT_MS + 100, n2=Heartbeat(2))
    assert decided(state, liveness) == [FenceNode("n2", 1)]
    newer = liveness.with_heartbeat("n2", Heartbeat(1), 1200, TIMEOUT_MS)
    assert newer.latest("n2", 1) is None
    assert newer.latest("n2", 2) is not None


def test_a_node_that_came_back_with_another_disk_counts_its_starts_anew_and_is_heard() -> None:
    liveness = NodeLiveness.start(0).with_heartbeat(
        "n2", Heartbeat(7, disk="lost"), 100, TIMEOUT_MS
    )
    liveness = liveness.with_heartbeat("n2", Heartbeat(1, disk="new"), 200, TIMEOUT_MS)
    assert liveness.latest("n2", 1) is not None
    assert liveness.latest("n2", 7) is None
    assert liveness.received["n2"].since_ms == 200


def test_a_node_that_says_it_cannot_lead_is_believed_both_ways() -> None:
    state = nodes(2)
    liveness = watching(state, 300, n1=Heartbeat(1, "disk full"))
    assert decided(state, liveness) == [SetNodeHealth("n1", 1, "disk full")]
    state = after(state, SetNodeHealth("n1", 1, "disk full"))
    assert decided(state, liveness) == []
    assert decided(state, watching(state, 300)) == [SetNodeHealth("n1", 1, "")]


def test_damage_is_marked_when_told_and_unmarked_only_when_told() -> None:
    state = with_topic(nodes(2), factor=2)
    topic_id = state.topics["orders"].topic_id
    this = frozenset({(topic_id, 0)})
    marked = MarkReplicaDamaged("orders", topic_id, 0, "n2", 1)
    assert decided(state, watching(state, 300, n2=Heartbeat(1, damaged=this))) == [marked]
    state = after(state, marked)
    assert decided(state, watching(state, 300, n2=Heartbeat(1, damaged=this))) == []
    assert decided(state, watching(state, 300)) == []
    repaired = watching(state, 300, n2=Heartbeat(1, repaired=this))
    assert decided(state, repaired) == [MarkReplicaRepaired("orders", topic_id, 0, "n2", 1)]


def test_leaderships_come_back_when_a_node_has_been_up_for_a_while() -> None:
    state = with_topic(nodes(2), factor=2)
    first, second = partition(state).replicas
    state = after(state, FenceNode(first, 1), UnfenceNode(first, 1))
    found = partition(state)
    assert found.leader == second
    both = {first: 1, second: 1}
    state = after(state, AlterInSync(*at(state), second, found.leader_epoch, both))
    assert decided(state, watching(state, DELAY_MS - 100)) == []
    back = ElectLeader(*at(state), first)
    assert decided(state, watching(state, DELAY_MS)) == [back]


def test_only_so_many_moves_are_begun_at_once() -> None:
    state = with_topic(nodes(3), partitions=9, factor=1)
    state = after(state, AlterClusterSettings(1, moves_at_once=2))
    for number in range(9):
        old = partition(state, number=number).replicas[0]
        target = "n1" if old != "n1" else "n2"
        state = after(state, ReassignPartition(*at(state, number=number), (target,)))
    liveness = watching(state, 300)
    begun = decided(state, liveness)
    assert [type(command) for command in begun] == [StartReassignment, StartReassignment]
    state = after(state, *begun)
    assert decided(state, liveness) == []
    found = partition(state)
    members = dict.fromkeys(found.holders, 1)
    state = after(state, AlterInSync(*at(state), str(found.leader), found.leader_epoch, members))
    more = decided(state, liveness)
    assert [type(command) for command in more] == [FinishReassignment]
    assert [type(c) for c in decided(after(state, *more), liveness)] == [StartReassignment]


def test_a_leaving_node_hands_over_first_then_moves_then_is_removed() -> None:
    state = with_topic(nodes(3), factor=2)
    leaver = partition(state).replicas[0]
    state = after(state, DecommissionNode(leaver))
    seen = []
    for _ in range(6):
        commands = decided(state, watching(state, 300))
        seen += [type(command) for command in commands]
        state = after(state, *commands)
        found = partition(state)
        if found.adding_replicas:
            members = dict.fromkeys(found.holders, 1)
            state = after(
                state, AlterInSync(*at(state), str(found.leader), found.leader_epoch, members)
            )
    assert seen == [
        ElectLeader,
        ReassignPartition,
        StartReassignment,
        FinishReassignment,
        RemoveNode,
    ]
    assert leaver not in state.nodes
    assert leaver not in partition(state).replicas


def test_a_move_onto_a_node_that_leaves_now_is_given_up() -> None:
    state = with_topic(nodes(3), factor=1)
    old = partition(state).replicas[0]
    new = next(name for name in state.nodes if name != old)
    state = after(state, ReassignPartition(*at(state), (new,)), DecommissionNode(new))
    given_up = [CancelReassignment(*at(state)), RemoveNode(new)]
    assert decided(state, watching(state, 300)) == given_up


def test_a_leaving_node_stays_when_nobody_can_take_what_it_has() -> None:
    state = with_topic(nodes(3), factor=2)
    first, second = partition(state).replicas
    third = next(name for name in state.nodes if name not in (first, second))
    state = after(state, DecommissionNode(second), FenceNode(third, 1))
    assert decided(state, watching(state, 300, silent=(third,))) == []


def test_a_topic_is_forgotten_when_every_node_has_deleted_its_files() -> None:
    state = with_topic(nodes(3), partitions=3, factor=2)
    topic_id = state.topics["orders"].topic_id
    state = after(state, DeleteTopic("orders", topic_id))
    gone = Heartbeat(1, deleted=frozenset({topic_id}))
    assert decided(state, watching(state, 300, n1=gone, n2=gone)) == []
    assert decided(state, watching(state, 300, n1=gone, n2=gone, n3=gone)) == [
        RemoveTopic("orders", topic_id)
    ]


def test_a_node_that_is_gone_for_good_keeps_no_topic_from_being_forgotten() -> None:
    state = with_topic(nodes(3), partitions=3, factor=2)
    topic_id = state.topics["orders"].topic_id
    state = after(state, DeleteTopic("orders", topic_id), DecommissionNode("n3"))
    gone = Heartbeat(1, deleted=frozenset({topic_id}))
    liveness = watching(state, 300, n1=gone, n2=gone, silent=("n3",))
    assert decided(state, liveness) == [RemoveNode("n3")]
    assert decided(after(state, RemoveNode("n3")), liveness) == [RemoveTopic("orders", topic_id)]


def test_a_node_that_joins_gets_nothing_by_itself() -> None:
    state = after(with_topic(nodes(2), partitions=4, factor=2), RegisterNode("n3", 1, "", ""))
    assert decided(state, watching(state, 60_000)) == []


@pytest.mark.parametrize("seed", range(1, 11))
def test_all_that_is_decided_is_accepted_when_nothing_comes_in_between(seed: int) -> None:
    world = World(f"accepted {seed}", 5, "ab")
    count = 0
    for _ in range(100):
        if world.random.random() < 0.5:
            world.disturb()
        liveness = world.liveness.tick(world.now_ms)
        count += len(decided(world.state, liveness))
        world.step(faults=True)
    assert count > 10


def test_a_node_whose_machine_refuses_connections_is_fenced_before_it_is_late() -> None:
    state = with_topic(nodes(3))
    liveness = watching(state, 300).with_refused_connection(
        "n2", state.nodes["n2"].incarnation, 350
    )
    liveness = liveness.tick(360, TIMEOUT_MS)
    assert FenceNode("n2", state.nodes["n2"].incarnation) in decided(state, liveness)


def test_a_refused_connection_says_nothing_of_who_speaks_after_it_or_was_started_anew() -> None:
    state = with_topic(nodes(3))
    incarnation = state.nodes["n2"].incarnation
    liveness = watching(state, 300).with_refused_connection("n2", incarnation, 350)
    spoken = liveness.with_heartbeat("n2", Heartbeat(incarnation), 360, TIMEOUT_MS).tick(
        370, TIMEOUT_MS
    )
    assert decided(state, spoken) == []
    earlier = (
        watching(state, 300)
        .with_refused_connection("n2", incarnation - 1, 350)
        .tick(360, TIMEOUT_MS)
    )
    assert decided(state, earlier) == []


def test_a_node_is_late_when_a_heartbeat_and_half_of_the_next_did_not_come() -> None:
    state = with_topic(nodes(3))
    incarnation = state.nodes["n2"].incarnation
    liveness = watching(state, 300)
    late_ms = 300 + 3 * limits.NODE_HEARTBEAT_MS // 2
    assert not liveness.is_overdue("n2", incarnation, late_ms)
    assert liveness.is_overdue("n2", incarnation, late_ms + 1)
    assert NodeLiveness.start(0).is_overdue("n2", incarnation, 0)


def test_a_node_that_stops_counts_as_away_at_once_and_until_it_is_started_anew() -> None:
    state = with_topic(nodes(3))
    liveness = watching(state, 300, n2=Heartbeat(1, stopping=True))
    assert decided(state, liveness) == [FenceNode("n2", 1)]
    state = after(state, FenceNode("n2", 1))
    assert "n2" not in partition(state).in_sync
    assert (
        decided(state, liveness.with_heartbeat("n2", Heartbeat(1, stopping=True), 310).tick(310))
        == []
    )
    state = after(state, RegisterNode("n2", 2, "", ""))
    assert decided(state, liveness.with_heartbeat("n2", Heartbeat(2), 320).tick(320)) == []


# A controller that hears too little


def test_silence_of_nodes_that_raft_reaches_is_the_controllers_own_fault() -> None:
    state = with_topic(nodes(3), partitions=6, factor=3)
    liveness = watching(state, 3000, silent=("n2", "n3"))
    reachable = ("n2", "n3")
    assert is_deaf(state, liveness, reachable, TIMEOUT_MS)
    assert decide(state, liveness, timeout_ms=TIMEOUT_MS, reachable=reachable) == []


@pytest.mark.parametrize(
    ("silent", "reachable", "deaf", "fenced"),
    [
        ((), (), False, []),
        (("n2",), ("n2",), False, ["n2"]),  # two of three are heard: it is n2 that is cut off
        (("n2",), (), False, ["n2"]),
        (("n2", "n3"), ("n2", "n3"), True, []),
        (("n2", "n3"), ("n2",), True, ["n3"]),  # n3 is silent everywhere
        (("n2", "n3"), (), False, ["n2", "n3"]),  # Raft elects another leader, if there is one
    ],
)
def test_a_silent_node_that_raft_reaches_is_fenced_only_by_who_hears_a_majority(
    silent: tuple[str, ...], reachable: tuple[str, ...], deaf: bool, fenced: list[str]
) -> None:
    state = after(nodes(3), AlterClusterSettings(1, min_insync=1))
    liveness = watching(state, 3000, silent=silent)
    assert is_deaf(state, liveness, reachable, TIMEOUT_MS) is deaf
    found = decide(state, liveness, timeout_ms=TIMEOUT_MS, reachable=reachable)
    assert found == [FenceNode(name, 1) for name in fenced]


def test_a_node_that_is_heard_and_hears_nothing_is_fenced() -> None:
    state = nodes(3)
    said = {"n3": Heartbeat(1, unanswered_ms=TIMEOUT_MS + 1)}
    assert decided(state, watching(state, 3000, **said)) == [FenceNode("n3", 1)]
    said = {"n3": Heartbeat(1, unanswered_ms=TIMEOUT_MS)}
    assert decided(state, watching(state, 3000, **said)) == []


def test_a_controller_whose_answers_are_lost_hands_over_and_fences_nobody() -> None:
    state = nodes(3)
    said = {name: Heartbeat(1, unanswered_ms=TIMEOUT_MS + 1) for name in ("n2", "n3")}
    liveness = watching(state, 3000, **said)
    assert is_deaf(state, liveness, ("n2", "n3"), TIMEOUT_MS)
    assert decide(state, liveness, timeout_ms=TIMEOUT_MS, reachable=("n2", "n3")) == []


def complaining(*names: str) -> dict[str, Heartbeat]:
    """Return heartbeats of nodes that cannot call n2."""
    return {name: Heartbeat(1, unreachable=frozenset({"n2"})) for name in names}


def test_a_node_that_most_others_cannot_call_leads_nothing_and_is_not_fenced() -> None:
    state = with_topic(nodes(3), partitions=3, factor=3)
    assert "n2" in {each.leader for each in state.topics["orders"].partitions}
    assert decided(state, watching(state, 3000, **complaining("n1"))) == []
    unfit = SetNodeHealth("n2", 1, IS_UNCALLABLE)
    assert decided(state, watching(state, 3000, **complaining("n1", "n3"))) == [unfit]
    state = after(state, unfit)
    assert "n2" not in {each.leader for each in state.topics["orders"].partitions}
    assert all("n2" in each.in_sync for each in state.topics["orders"].partitions)
    assert state.nodes["n2"].is_up
    assert decided(state, watching(state, 3000, **complaining("n3"))) == []
    assert SetNodeHealth("n2", 1, "") in decided(state, watching(state, 3000))


def test_the_word_of_a_silent_node_does_not_count_against_another() -> None:
    state = with_topic(nodes(3), partitions=3, factor=3)
    liveness = watching(state, 3000, **complaining("n1", "n3"))
    for now_ms in range(3000, 5000, 100):
        for name in ("n1", "n2"):
            liveness = liveness.with_heartbeat(name, Heartbeat(1), now_ms, TIMEOUT_MS)
        liveness = liveness.tick(now_ms, TIMEOUT_MS)
    assert decided(state, liveness) == [FenceNode("n3", 1)]


def test_a_node_that_came_back_counts_as_callable_until_the_others_have_probed_it() -> None:
    state = with_topic(nodes(3), partitions=3, factor=3)
    found_out_ms = limits.LINK_PROBE_MS + limits.LINK_TIMEOUT_MS
    for until_ms, is_unfit in ((found_out_ms - 100, False), (found_out_ms, True)):
        commands = decided(state, watching(state, until_ms, **complaining("n1", "n3")))
        assert commands == ([SetNodeHealth("n2", 1, IS_UNCALLABLE)] if is_unfit else [])


def test_leaderships_return_some_time_after_the_last_report() -> None:
    state = with_topic(nodes(3), partitions=3, factor=3)
    state = after(state, SetNodeHealth("n2", 1, IS_UNCALLABLE), SetNodeHealth("n2", 1, ""))
    liveness = watching(state, 10_000, **complaining("n3"))
    for now_ms in range(10_100, 20_000, 100):
        for name in state.nodes:
            liveness = liveness.with_heartbeat(name, Heartbeat(1), now_ms, TIMEOUT_MS)
        liveness = liveness.tick(now_ms, TIMEOUT_MS)
        commands = decided(state, liveness)
        if commands:
            assert [type(command) for command in commands] == [ElectLeader]
            assert now_ms == 10_000 + DELAY_MS
            return
    raise AssertionError("no leadership returns")


def test_hearsay_is_waited_for_until_a_deaf_controller_has_found_out() -> None:
    state = nodes(3)
    patience_ms = TIMEOUT_MS + limits.NODE_HEARSAY_GRACE_MS
    for until_ms, fences in ((patience_ms, False), (patience_ms + 100, True)):
        liveness = watching(state, until_ms, silent=("n3",))
        found = decide(state, liveness, timeout_ms=TIMEOUT_MS, reachable=("n1", "n2", "n3"))
        assert found == ([FenceNode("n3", 1)] if fences else [])


def without_raft(state: MetadataState, until_ms: int, *silent: str) -> NodeLiveness:
    """Return the liveness where all nodes are heard, and some are silent in the Raft group."""
    liveness = NodeLiveness.start(0)
    for now_ms in range(0, until_ms + 1, 100):
        for name, node in state.nodes.items():
            heartbeat = Heartbeat(node.incarnation)
            liveness = liveness.with_heartbeat(name, heartbeat, now_ms, TIMEOUT_MS)
        liveness = liveness.tick(now_ms, TIMEOUT_MS).with_raft_silence(silent)
    return liveness


def test_a_node_that_does_not_answer_in_the_raft_group_leads_nothing_until_it_does() -> None:
    state = with_topic(nodes(3), partitions=3, factor=3)
    assert "n3" in {each.leader for each in state.topics["orders"].partitions}
    after_ms, heard = limits.RAFT_SILENT_UNFIT_MS, ("n1", "n2")
    assert decide(state, without_raft(state, after_ms, "n3"), reachable=heard) == []
    found = decide(state, without_raft(state, after_ms + 100, "n3"), reachable=heard)
    assert found == [SetNodeHealth("n3", 1, IS_RAFT_SILENT)]
    state = after(state, *found)
    assert state.nodes["n3"].is_up
    assert "n3" not in {each.leader for each in state.topics["orders"].partitions}
    assert all("n3" in each.in_sync for each in state.topics["orders"].partitions)
    # another controller has not heard it yet; then has for a moment, then it has answered
    assert decide(state, without_raft(state, 100), reachable=()) == []
    assert decide(state, without_raft(state, 100, "n3"), reachable=heard) == []
    is_fit = SetNodeHealth("n3", 1, "")
    assert is_fit in decide(state, without_raft(state, 200), reachable=("n1", "n2", "n3"))


def test_leaderships_return_some_time_after_a_silence_in_the_raft_group() -> None:
    silent = without_raft(nodes(3), 10_000, "n3")
    assert silent.received["n3"].steady_since_ms == 10_000
    assert silent.received["n2"].steady_since_ms == 0


def test_a_controller_that_stood_still_counts_no_silence_in_the_raft_group() -> None:
    liveness = without_raft(nodes(3), 300, "n3").tick(60_000, TIMEOUT_MS)
    assert not liveness.with_raft_silence(("n3",)).is_raft_silent("n3", was=False)


@pytest.mark.parametrize(("min_insync", "is_fenced"), [(1, True), (2, True), (3, False)])
def test_hearsay_leaves_enough_nodes_up_to_acknowledge_anything(
    min_insync: int, is_fenced: bool
) -> None:
    state = after(nodes(3), AlterClusterSettings(1, min_insync=min_insync))
    liveness = watching(state, 3000, silent=("n3",))
    found = decide(state, liveness, timeout_ms=TIMEOUT_MS, reachable=("n3",))
    assert found == ([FenceNode("n3", 1)] if is_fenced else [])
    assert decide(state, liveness, timeout_ms=TIMEOUT_MS) == [FenceNode("n3", 1)]


def test_hearsay_fences_nobody_whom_a_topic_needs_by_its_own_min_insync() -> None:
    state = after(nodes(3), CreateTopicWithMinInsync("t", 1, {}, 3, 3))
    liveness = watching(state, 3000, silent=("n3",))
    assert decide(state, liveness, timeout_ms=TIMEOUT_MS, reachable=("n3",)) == []
    assert decide(state, liveness, timeout_ms=TIMEOUT_MS) == [FenceNode("n3", 1)]


def test_a_node_that_has_ended_or_stops_is_fenced_though_raft_still_counts_it() -> None:
    state = nodes(3)
    liveness = watching(state, 3000, silent=("n2", "n3"))
    ended = liveness.with_refused_connection("n2", 1, 2900)
    found = decide(state, ended, timeout_ms=TIMEOUT_MS, reachable=("n2", "n3"))
    assert found == [FenceNode("n2", 1)]
    stopping = liveness.with_heartbeat("n3", Heartbeat(1, stopping=True), 2900, TIMEOUT_MS)
    found = decide(state, stopping, timeout_ms=TIMEOUT_MS, reachable=("n2", "n3"))
    assert found == [FenceNode("n3", 1)]


def test_a_look_for_partitions_that_need_a_step_costs_what_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics = [CreateTopic(f"t{number}", 4, {}, 3) for number in range(10)]
    state = after(nodes(3), *topics)
    looked_at: list[str] = []
    find = unsettled_partitions._find_unsettled

    def counted(topic: TopicMetadata, leaving: set[str], receivers: set[str]) -> Any:
        looked_at.append(topic.name)
        return find(topic, leaving, receivers)

    monkeypatch.setattr(unsettled_partitions, "_find_unsettled", counted)
    unsettled, receivers = UnsettledPartitions(), {"n1", "n2", "n3"}
    unsettled.find(state.topics, set(), receivers)
    assert len(looked_at) == len(topics)
    for name in ("t3", "t7"):
        looked_at.clear()
        partition = state.topics[name].partitions[0]
        other = next(n for n in partition.in_sync if n != partition.leader)
        state = after(state, ElectLeader(*at(state, name), other))
        found = unsettled.find(state.topics, set(), receivers)
        assert looked_at == [name]
        assert (name, 0) in found.places
        assert found == UnsettledPartitions().find(state.topics, set(), receivers)
    looked_at.clear()
    found = unsettled.find(state.topics, {"n2"}, receivers - {"n2"})
    assert len(looked_at) == len(topics)
    assert len(found.places) == 40
