"""Three nodes with real files: one loses bits."""

from __future__ import annotations

import pytest

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
