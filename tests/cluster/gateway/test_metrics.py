"""Each metric of a cluster, driven to a known value on three running nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from goq.cluster.admin.cluster_view import ClusterView
from goq.cluster.metadata.features import OWN_LEVEL
from goq.errors import GoqError
from tests.support.api.calls import group_of, publish, receive, settle
from tests.support.api.scrape import metric
from tests.support.cluster.replicated_partition import ReplicatedPartition
from tests.support.cluster.running_cluster import (
    NAMES,
    RunningCluster,
    new_cluster,
    running_cluster,
)
from tests.support.eventually import eventually


def corrupt(partition: ReplicatedPartition, name: str) -> None:
    """Change a byte of a node's log of messages."""
    log = next(partition.folder(name).glob("*.log"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)


def damage(partition: ReplicatedPartition, name: str) -> None:
    """Change a byte of a node's log of messages, and let the node see it."""
    corrupt(partition, name)
    with pytest.raises(GoqError, match="damaged on this node"):
        partition.values(name)


def until_shown(cluster: RunningCluster, value: float, name: str, node: str = "n1") -> None:
    eventually(lambda: metric(cluster.by_name[node], name) == value, f"{name} is {value}")


def test_a_node_that_is_away_shows_in_the_metrics_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running_cluster() as cluster:
        first, gone = cluster.by_name["n1"], "n3"
        for node in NAMES:
            until_shown(cluster, OWN_LEVEL, "goq_cluster_feature_level", node)
        cluster.create("t", 6)
        single = {"name": "single", "partitions": 3, "replication_factor": 1}
        first.call("POST", "/v1/topics", single)
        eventually(lambda: sorted(map(str, cluster.leaders("single"))) == sorted(NAMES))
        eventually(lambda: sorted(map(str, cluster.leaders("t"))) == sorted([*NAMES, *NAMES]))
        until_shown(cluster, 0, "goq_cluster_under_replicated_partitions")
        until_shown(cluster, 0, "goq_cluster_offline_partitions")
        until_shown(cluster, 0, "goq_cluster_moving_partitions")
        elections = metric(first, "goq_cluster_elections_total")
        assert elections is not None
        cluster.stop(gone)
        until_shown(cluster, elections + 3, "goq_cluster_elections_total")
        until_shown(cluster, 6, "goq_cluster_under_replicated_partitions")
        until_shown(cluster, 1, "goq_cluster_offline_partitions")

        offline = cluster.leaders("single").index(None)
        move = {"topic": "single", "partition": offline, "replicas": ["n1"]}
        first.call("POST", "/v1/cluster/moves", move)
        until_shown(cluster, 1, "goq_cluster_moving_partitions")

        partition = cluster.leaders("t").index("n1")
        publish(first, "t", *"mmmm", partition=partition)
        labels = {"topic": "t", "partition": str(partition)}
        behind, up_to_date = {**labels, "node": gone}, {**labels, "node": "n2"}
        eventually(lambda: metric(first, "goq_replica_lag_messages", **behind) == 4)
        eventually(lambda: (metric(first, "goq_replica_lag_seconds", **behind) or 0) > 1)
        eventually(lambda: metric(first, "goq_replica_lag_messages", **up_to_date) == 0)
        assert metric(first, "goq_replica_lag_seconds", **up_to_date) == 0
        assert (metric(first, "goq_replica_lag_max_seconds", node=gone) or 0) > 1
        eventually(lambda: metric(first, "goq_replica_lag_max_seconds", node="n2") == 0)

        until_shown(cluster, 0, "goq_cluster_diverged")
        monkeypatch.setattr(ClusterView, "has_diverged", True)
        until_shown(cluster, 1, "goq_cluster_diverged")

        raft = cluster.on_loop("n1", lambda node: node.raft.status)
        assert metric(first, "goq_raft_term") == raft.term > 0
        commit = metric(first, "goq_raft_commit_index")
        assert commit is not None
        assert commit >= raft.commit_index > 0
        first.call("POST", "/v1/topics", {"name": "another", "partitions": 1})
        for node in ("n1", "n2"):
            for name in ("goq_raft_commit_index", "goq_raft_applied_index"):
                eventually(
                    lambda node=node, name=name: (metric(cluster.by_name[node], name) or 0) > commit
                )


@pytest.mark.long
def test_another_leader_counts_no_messages_as_dead_that_died_before() -> None:
    with running_cluster() as cluster:
        cluster.create("t", 6)
        eventually(lambda: sorted(map(str, cluster.leaders("t"))) == sorted([*NAMES, *NAMES]))
        first, gone = cluster.by_name["n1"], "n3"

        def dead(name: str) -> float | None:
            node = cluster.by_name[name]
            return metric(node, "goq_group_dead_messages_total", topic="t", group="g")

        for partition in range(6):
            publish(first, "t", *"abcd", partition=partition)
        got: list[str] = []

        def take() -> bool:
            got.extend(each["receipt"] for each in receive(first, "t", max_messages=24 - len(got)))
            return len(got) == 24

        eventually(take)
        settle(first, "t", "reject", *got)
        for name in NAMES:
            eventually(lambda name=name: dead(name) == 8)
        cluster.stop(gone)
        eventually(lambda: set(cluster.leaders("t")) == {"n1", "n2"})
        eventually(lambda: group_of(first, "t")["dead"] == 24)
        assert [dead("n1"), dead("n2")] == [8, 8]
        cluster.start(gone)
        eventually(lambda: gone in cluster.leaders("t"), seconds=60)
        assert [dead("n1"), dead("n2"), dead(gone)] == [8, 8, 0]


def test_damage_of_replicas_is_counted_until_it_is_repaired(tmp_path: Path) -> None:
    with new_cluster(tmp_path) as cluster:
        partition = ReplicatedPartition(cluster)
        leader = partition.fill()
        node = cluster.by_name[leader]
        damage(partition, leader)
        eventually(lambda: metric(node, "goq_replica_repaired_frames_total", topic="t") == 1)
        eventually(lambda: metric(node, "goq_replica_damaged_gaps", topic="t") == 0)
        assert metric(node, "goq_replica_lost_gaps", topic="t") == 0


def test_damage_that_all_replicas_have_is_counted_as_lost(tmp_path: Path) -> None:
    with new_cluster(tmp_path) as cluster:
        partition = ReplicatedPartition(cluster)
        leader = partition.fill()
        for name in NAMES:
            corrupt(partition, name)
        with pytest.raises(GoqError, match="damaged on this node"):
            partition.values(leader)
        node = cluster.by_name[leader]
        eventually(lambda: metric(node, "goq_replica_lost_gaps", topic="t") == 1)
        assert metric(node, "goq_replica_damaged_gaps", topic="t") == 1
