"""What a node tells of its replicas."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from goq.cluster.replication.progress import LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.status import FollowerReport, end_offset_of, leader_reports


def leading(topic: str, number: int, *nodes: str) -> Any:
    progress = ReplicaProgress("a", LogOffsets(10, 4), in_sync=("a",), min_insync=1)
    progress.set_replicas(nodes, 0)
    logs = SimpleNamespace(messages=SimpleNamespace(start_offset=3))
    return SimpleNamespace(
        key=PartitionKey(topic, 1, number),
        as_leader=SimpleNamespace(progress=progress, logs=logs),
        as_follower=None,
        assignment=SimpleNamespace(replicas=nodes),
    )


def following(topic: str, end_offset: int) -> Any:
    ends = SimpleNamespace(ends=LogOffsets(end_offset, 0))
    follower = SimpleNamespace(position=ends)
    return SimpleNamespace(
        key=PartitionKey(topic, 1, 0), as_leader=None, as_follower=follower, assignment=None
    )


def test_a_leader_tells_the_bounds_of_its_messages_and_how_far_each_follower_is() -> None:
    replica = leading("t", 2, "a", "b", "c", "d", "e")
    progress = replica.as_leader.progress
    progress.on_fetch("b", LogOffsets(10, 4), 100)
    progress.on_fetch("c", LogOffsets(10, 4), 200)
    progress.on_fetch("c", LogOffsets(8, 4), 300)
    progress.on_fetch("d", LogOffsets(9, 4), 300)
    [report] = leader_reports([replica], None, 1000)
    assert (report.topic, report.number, report.is_leading) == ("t", 2, True)
    assert (report.start_offset, report.end_offset) == (3, 10)
    assert report.followers == {
        "b": FollowerReport(10, 0),
        "c": FollowerReport(8, 800),
        "d": FollowerReport(9, None),
        "e": FollowerReport(None, None),
    }


def test_a_clock_that_was_set_back_makes_no_follower_early() -> None:
    replica = leading("t", 0, "a", "b")
    replica.as_leader.progress.on_fetch("b", LogOffsets(10, 4), 500)
    replica.as_leader.progress.on_fetch("b", LogOffsets(9, 4), 500)
    [report] = leader_reports([replica], "t", 400)
    assert report.followers == {"b": FollowerReport(9, 0)}


def test_only_partitions_that_the_node_leads_are_told_and_of_one_topic_if_it_is_named() -> None:
    replicas = [leading("t", 0, "a"), leading("u", 0, "a"), following("t", 5)]
    assert [each.topic for each in leader_reports(replicas, None, 0)] == ["t", "u"]
    assert [each.topic for each in leader_reports(replicas, "u", 0)] == ["u"]


def test_the_end_of_a_replica_is_known_while_it_is_open() -> None:
    assert end_offset_of(leading("t", 0, "a")) == 10
    assert end_offset_of(following("t", 5)) == 5
    closed: Any = SimpleNamespace(as_leader=None, as_follower=None)
    assert end_offset_of(closed) is None
