"""Feature levels: raised once all nodes know them, and then required of every node."""

from __future__ import annotations

from typing import Any

import pytest

from goq.cluster.controller.controller import decide
from goq.cluster.controller.node_liveness import Heartbeat, NodeLiveness
from goq.cluster.metadata.broker_store import check_optional
from goq.cluster.metadata.commands import (
    PutSchedule,
    RaiseFeatureLevel,
    RecordScheduleRuns,
    RegisterNode,
    RegisterNodeWithLevel,
    RenewLeadership,
    ResetReplicas,
)
from goq.cluster.metadata.features import (
    OPTIONAL_SETTINGS_LEVEL,
    OWN_LEVEL,
    RENEWALS_LEVEL,
    TOTAL_RETENTION_LEVEL,
    has_digests,
    has_renewals,
    level_of,
)
from goq.cluster.metadata.state import MetadataState
from goq.config.topic import TopicSettings
from goq.errors import Unavailable
from goq.schedules.schedule_record import ScheduleRecord, ScheduleRun
from tests.support.cluster.metadata.states import after, nodes, partition, refused, with_topic


def known(state: MetadataState, level: int) -> dict[str, tuple[int, int]]:
    return {node.id: (node.incarnation, level) for node in state.nodes.values()}


def raised(state: MetadataState, level: int = 1) -> MetadataState:
    return after(state, RaiseFeatureLevel(level, known(state, level)))


def register(level: int | None, incarnation: int = 2, name: str = "n1") -> RegisterNode:
    fields: tuple[Any, ...] = (name, incarnation, f"http://{name}", f"{name}:9")
    if level is None:
        return RegisterNode(*fields)
    return RegisterNodeWithLevel(*fields, feature_level=level)


def test_the_level_is_raised_when_all_nodes_are_known_to_have_it() -> None:
    state = nodes(3)
    assert not has_digests(state)
    state = raised(state)
    assert has_digests(state)
    assert {node.feature_level for node in state.nodes.values()} == {1}


@pytest.mark.parametrize(("level", "last_ms"), [(15, 9_000_000), (16, 1000)])
def test_an_earlier_run_of_a_schedule_counts_once_all_nodes_take_it(
    level: int, last_ms: int
) -> None:
    state = nodes(3)
    for each in range(1, level + 1):
        state = raised(state, each)
    record = ScheduleRecord("s", "t", '[{"value":"x"}]', "", "", 1000, "", 1, 1)
    state = after(state, PutSchedule(record))
    for due_ms in (9_000_000, 1000):
        state = after(state, RecordScheduleRuns({"s": ScheduleRun(due_ms)}))
    assert state.schedules["s"].last_due_ms == last_ms


@pytest.mark.parametrize(
    "entry", [None, (1, 0), (2, 1)], ids=["not known", "too low", "another incarnation"]
)
def test_one_node_that_may_not_know_a_level_keeps_it_from_being_raised(entry: Any) -> None:
    state = nodes(3)
    levels = known(state, 1)
    if entry is None:
        del levels["n2"]
    else:
        levels["n2"] = entry
    assert refused(state, RaiseFeatureLevel(1, levels)) == "feature_level"


def test_the_level_never_falls() -> None:
    state = raised(nodes(3), 2)
    for level in (0, 1, 2):
        assert refused(state, RaiseFeatureLevel(level, known(state, level))) == "unchanged"


@pytest.mark.parametrize("name", ["n1", "n9"])
def test_a_node_without_the_level_is_not_registered(name: str) -> None:
    state = raised(nodes(3), 2)
    assert refused(state, register(None, name=name)) == "feature_level"
    assert refused(state, register(1, name=name)) == "feature_level"
    state = after(state, register(2, name=name))
    assert state.nodes[name].feature_level == 2
    assert after(state, register(3, 3, name)).nodes[name].feature_level == 3


def test_both_forms_of_a_registration_are_taken_before_the_level_is_raised() -> None:
    assert after(nodes(3), register(None)).nodes["n1"].incarnation == 2
    assert after(nodes(3), register(1)).nodes["n1"].incarnation == 2


def test_commands_that_are_newer_than_the_first_version_need_a_level() -> None:
    assert level_of(register(None)) == 0
    assert level_of(register(1)) == 1
    assert level_of(ResetReplicas("n1", 1, ())) == 1
    assert level_of(RaiseFeatureLevel(1, {})) == 0
    assert level_of(RenewLeadership("t", 1, 0, 1, "n1", 1)) == RENEWALS_LEVEL
    assert not has_renewals(raised(nodes(3), RENEWALS_LEVEL - 1))
    assert has_renewals(raised(nodes(3), RENEWALS_LEVEL))
    assert OWN_LEVEL >= 1


def heard(state: MetadataState, **levels: int) -> NodeLiveness:
    liveness = NodeLiveness.start(0)
    for name, level in levels.items():
        heartbeat = Heartbeat(state.nodes[name].incarnation, feature_level=level)
        liveness = liveness.with_heartbeat(name, heartbeat, 10)
    return liveness.tick(20)


def test_the_controller_raises_the_level_that_all_nodes_report() -> None:
    state = nodes(3)
    assert decide(state, heard(state, n1=1, n2=1)) == []
    assert decide(state, heard(state, n1=1, n2=1, n3=0)) == []
    found = decide(state, heard(state, n1=2, n2=1, n3=1))
    assert found == [RaiseFeatureLevel(1, {"n1": (1, 2), "n2": (1, 1), "n3": (1, 1)})]
    state = raised(state)
    assert decide(state, heard(state, n1=1, n2=1, n3=1)) == []


# Replicas that are copied anew


def test_replicas_that_are_reset_leave_the_in_sync_set_and_the_lead() -> None:
    state = with_topic(nodes(3), partitions=3)
    topic_id = state.topics["orders"].topic_id
    leader = partition(state, number=1).leader
    assert leader is not None
    changed = after(state, ResetReplicas(leader, 1, ((topic_id, 1), (topic_id, 99), (99, 0))))
    for number in (0, 2):
        assert partition(changed, number=number) == partition(state, number=number)
    found = partition(changed, number=1)
    assert leader not in found.in_sync
    assert found.leader in found.in_sync
    assert found.leader_epoch == partition(state, number=1).leader_epoch + 1
    again = after(changed, ResetReplicas(leader, 1, ((topic_id, 1),)))
    assert partition(again, number=1) == found


def test_a_replica_that_is_alone_in_sync_is_never_reset() -> None:
    state = with_topic(nodes(3), factor=1)
    holder = partition(state).leader
    assert holder is not None
    topic_id = state.topics["orders"].topic_id
    changed = after(state, ResetReplicas(holder, 1, ((topic_id, 0),)))
    assert partition(changed) == partition(state)


def test_a_reset_is_refused_for_another_start_of_the_node() -> None:
    state = with_topic(nodes(3))
    assert refused(state, ResetReplicas("n1", 2, ())) == "stale_incarnation"
    assert refused(state, ResetReplicas("n9", 1, ())) == "node_not_found"


def test_a_setting_that_only_some_topics_have_waits_for_the_last_node_to_know_it() -> None:
    plain = TopicSettings().written()
    queue = TopicSettings().changed({"sqs": "{}"}).written()
    below = raised(nodes(3), OPTIONAL_SETTINGS_LEVEL - 1)
    check_optional(below, plain)
    with pytest.raises(Unavailable, match="upgrade all nodes"):
        check_optional(below, queue)
    check_optional(raised(nodes(3), OPTIONAL_SETTINGS_LEVEL), queue)


def test_a_total_retention_waits_until_all_nodes_know_it() -> None:
    settings = {"retention.total_age": "7d"}
    with pytest.raises(Unavailable, match=r"retention\.total_age"):
        check_optional(raised(nodes(3), TOTAL_RETENTION_LEVEL - 1), settings)
    check_optional(raised(nodes(3), TOTAL_RETENTION_LEVEL), settings)
