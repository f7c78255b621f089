"""Three nodes with real files: one loses bits."""

from __future__ import annotations

import errno

import pytest

from goq.cluster.cluster_node import ClusterNode
from goq.errors import GoqError
from tests.support.cluster.replicated_partition import SENT, ReplicatedPartition
from tests.support.cluster.running_cluster import RunningCluster


def test_a_leader_that_has_lost_bits_hands_over_and_gets_them_back(
    cluster: RunningCluster, partition: ReplicatedPartition
) -> None:
    leader = partition.fill()
    log = next(partition.folder(leader).glob("*.log"))
    data = bytearray(log.read_bytes())
    sound = bytes(data)
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    with pytest.raises(GoqError, match="damaged on this node"):
        partition.values(leader)
    cluster.until(lambda: cluster.cluster_node(leader).repairs.repaired_frames)
    cluster.until(lambda: (p := partition.metadata()) and p.leader and not p.damaged)
    files = sorted(partition.folder(leader).glob("*.log"))
    assert b"".join(each.read_bytes() for each in files) == sound
    now = partition.leader()
    assert now is not None
    partition.publish(now, b"after")
    assert partition.values(now) == [*SENT, b"after"]


def test_a_node_whose_disk_has_failed_says_so_until_it_works_again(cluster: RunningCluster) -> None:
    node = cluster.start("n1")
    cluster.until(lambda: cluster.statuses("n1") == {"n1": "up"})
    cluster.create("t", partitions=1)
    cluster.until(lambda: node.request("GET", "/healthz").status == 200)
    is_broken = True

    def probe() -> None:
        if is_broken:
            raise OSError(errno.EIO, "a bad disk")

    def break_disk(member: ClusterNode) -> None:
        member.disk_health._probe = probe
        member.disk_health.on_error(OSError(errno.EIO, "a bad disk"))

    cluster.on_loop("n1", break_disk)
    answer = node.request("GET", "/healthz")
    assert answer.status == 503
    (problem,) = answer.json["problems"]
    assert (problem["what"], problem["state"]) == ("node", "unfit")
    assert problem["reason"] == "it leads nothing: its disk has failed"
    is_broken = False
    cluster.until(lambda: node.request("GET", "/healthz").json == {"status": "ok"})


def test_a_replica_that_cannot_be_opened_is_named_with_the_reason(cluster: RunningCluster) -> None:
    node = cluster.start("n1")
    cluster.until(lambda: cluster.statuses("n1") == {"n1": "up"})
    cluster.create("t", partitions=1)

    def fail(member: ClusterNode) -> None:
        (replica,) = member.replicas
        replica.failure = OSError(errno.EIO, "a bad disk")

    cluster.on_loop("n1", fail)
    answer = node.request("GET", "/healthz")
    assert answer.status == 503
    (problem,) = answer.json["problems"]
    assert (problem["what"], problem["state"]) == ("t:0", "offline")
    assert problem["reason"].endswith("a bad disk")
