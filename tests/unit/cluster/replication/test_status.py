"""What a node tells of its replicas."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from goq.broker.partition.loader import open_logs
from goq.cluster.replication.progress import LogOffsets, ReplicaProgress
from goq.cluster.replication.protocol import PartitionKey
from goq.cluster.replication.status import (
    FollowerReport,
    ReplicaReport,
    decode_query,
    decode_reports,
    encode_reports,
    end_offset_of,
    leader_reports,
    stored_report,
)
from goq.config.topic import TopicSettings
from goq.errors import InvalidFrame
from tests.support.storage.disk import SimulatedDisk
from tests.support.storage.logs import append, frame_of


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


def test_of_a_partition_that_is_not_open_the_disk_tells_the_bounds_up_to_a_torn_frame() -> None:
    disk, directory = SimulatedDisk(), Path("/t/0")
    assert stored_report(disk, directory, "t", 0) is None
    logs = open_logs(directory, disk, TopicSettings())
    for _ in range(2):
        append(logs.messages, [frame_of([b"a", b"b"])])
        logs.messages.roll()
    logs.messages.remove(logs.messages.detach_before(2))
    assert stored_report(disk, directory, "t", 0) == ReplicaReport("t", 0, False, 2, 4)
    append(logs.messages, [frame_of([b"c"]), frame_of([b"torn"])])
    assert stored_report(disk, directory, "t", 0) == ReplicaReport("t", 0, False, 2, 6)
    newest = logs.messages.active
    disk.flip(newest.path, newest.size_bytes - 1, 1)
    assert stored_report(disk, directory, "t", 0) == ReplicaReport("t", 0, False, 2, 5)


def test_reports_and_queries_come_back_as_they_were_and_other_bytes_are_refused() -> None:
    reports = [ReplicaReport("t", 0, True, 2, 4, {"b": FollowerReport(3, None)})]
    assert decode_reports(encode_reports(reports)) == reports
    for data in (b"", b"\xc1", b"\xa1x"):
        with pytest.raises(InvalidFrame):
            decode_reports(data)
        with pytest.raises(InvalidFrame):
            decode_query(data)
