"""A node whose metadata contradicts the cluster's takes part again only with the cluster's."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from goq.cluster.metadata.features import OWN_LEVEL
from goq.cluster.metadata.state import MetadataState, encode_state
from goq.cluster.metadata.state_machine import FILE_NAME
from tests.support.cluster.running_cluster import NAMES, RunningCluster
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode

TOPICS = ("zebra", "apple", "mango")


def state_of(node: RunningNode) -> MetadataState:
    assert node.node.cluster is not None
    return node.node.cluster.state


def canonical_states(cluster: RunningCluster) -> set[bytes]:
    return {encode_state(state_of(node)) for node in cluster.nodes}


def values(node: RunningNode, topic: str) -> list[str]:
    """Return all values of a topic, as read through a node."""
    pages = [
        node.call("GET", f"/v1/topics/{topic}/messages?partition={number}&limit=1000")
        for number in range(2)
    ]
    return sorted(message["value"] for page in pages for message in page["messages"])


def publish(node: RunningNode, topic: str, *sent: str) -> None:
    body = {"messages": [{"value": value} for value in sent]}
    node.call("POST", f"/v1/topics/{topic}/messages", body)


def forge_leader(folder: Path, node: str) -> int:
    """Let a stopped node's metadata say that it leads all partitions; return how many.

    Without their digest the rows are as those of an earlier version, and no damage.
    """
    with closing(sqlite3.connect(folder / "cluster" / FILE_NAME)) as db, db:
        db.execute("DELETE FROM state_digest")
        return db.execute(
            "UPDATE partitions SET leader = ?, in_sync = ?, leader_epoch = leader_epoch + 3",
            (node, json.dumps([node])),
        ).rowcount


def is_whole(cluster: RunningCluster) -> bool:
    state = state_of(cluster.nodes[0])
    return all(
        set(partition.in_sync) == set(NAMES)
        for topic in state.topics.values()
        for partition in topic.partitions
    )


def test_a_node_with_other_metadata_takes_the_clusters(
    cluster: RunningCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.start_three()
    for topic in TOPICS:
        cluster.create(topic, 2)
        publish(cluster.nodes[0], topic, *(f"{topic} {number}" for number in range(20)))
    eventually(lambda: state_of(cluster.nodes[0]).features.level == OWN_LEVEL)
    expected = {topic: values(cluster.nodes[0], topic) for topic in TOPICS}
    assert all(len(found) == 20 for found in expected.values())

    leader = cluster.by_name["n1"].call("GET", "/v1/cluster")["controller"]
    odd = next(name for name in NAMES if name != leader)
    cluster.stop(odd)
    assert forge_leader(tmp_path / odd, odd) == 2 * len(TOPICS)
    cluster.restart(odd)

    eventually(lambda: len(canonical_states(cluster)) == 1)
    assert "differs from the leader's" in caplog.text
    eventually(lambda: is_whole(cluster))
    for topic in TOPICS:
        publish(cluster.by_name[odd], topic, "after")
        for node in cluster.nodes:
            assert values(node, topic) == sorted([*expected[topic], "after"])
    aside = sorted(path.name for path in (tmp_path / odd / "diverged").iterdir())
    assert len(aside) == 2 * len(TOPICS), "the old files are kept"
    assert cluster.by_name[odd].request("GET", "/readyz").status == 200
