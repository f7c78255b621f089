"""Partitions of which a node had other metadata than the cluster, until it took the leader's state.

Meanwhile the node may have led such a partition, or followed another leader, in an epoch that the
cluster used too. Then frames of one epoch differ, and a comparison of epochs does not find them. So
the node's replica of such a partition is copied anew.
"""

from __future__ import annotations

from goq.cluster.metadata.state import MetadataState, active_partitions

DivergedPartitions = tuple[tuple[int, int], ...]
"""Topic ids and partition numbers, sorted."""


def diverged_partitions(diverged: MetadataState, true: MetadataState) -> DivergedPartitions:
    """Return the partitions that had another leader or leader epoch in a diverged state."""
    leaders = {
        (topic.topic_id, place.partition): (partition.leader, partition.leader_epoch)
        for place, topic, partition in active_partitions(diverged)
    }
    return tuple(
        sorted(
            key
            for place, topic, partition in active_partitions(true)
            if leaders.get(key := (topic.topic_id, place.partition))
            not in (None, (partition.leader, partition.leader_epoch))
        )
    )
