"""A topic of a cluster is told from an earlier one of its name, by every node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from goq.cluster.metadata.features import OWN_LEVEL
from goq.model import NATIVE_TOPIC_IDS
from tests.support.cluster.running_cluster import NAMES, RunningCluster, new_cluster
from tests.support.node.running_node import RunningNode

T = "/v1/topics/t"


def wait_for_level(cluster: RunningCluster) -> None:
    cluster.until(lambda: all(cluster.state(n).features.level == OWN_LEVEL for n in NAMES))


def create(node: RunningNode) -> str:
    topic: dict[str, Any] = node.call("POST", "/v1/topics", {"name": "t", "partitions": 3})
    topic_id: str = topic["id"]
    assert int(topic_id, 16) >= NATIVE_TOPIC_IDS
    return topic_id


def publish(node: RunningNode, value: str) -> None:
    messages = [{"value": value, "partition": number} for number in range(3)]
    node.call("POST", f"{T}/messages", {"messages": messages})


def receive(node: RunningNode) -> list[str]:
    """Return the receipts of all three messages."""
    found: list[str] = []
    while len(found) < 3:
        answer = node.call("POST", f"{T}/groups/g/receive", {"max_messages": 100, "wait": "5s"})
        found += [message["receipt"] for message in answer["messages"]]
    return found


def values(node: RunningNode) -> list[str]:
    read = [node.call("GET", f"{T}/messages?partition={number}") for number in range(3)]
    return [message["value"] for page in read for message in page["messages"]]


def folders(cluster: RunningCluster, name: str) -> set[str]:
    """Return the folders of the topic on a node's disk."""
    return {path.name for path in (cluster.folder / name / "topics").glob("t*")}


def test_a_receipt_of_a_deleted_topic_settles_nothing_of_a_new_one_by_any_node(
    tmp_path: Path,
) -> None:
    with new_cluster(tmp_path) as cluster:
        cluster.start_three()
        wait_for_level(cluster)
        first, second, third = cluster.nodes
        topic_id = create(first)
        publish(first, "old")
        old = receive(second)
        third.call("DELETE", T)
        assert create(second) != topic_id
        assert len({node.call("GET", T)["id"] for node in cluster.nodes}) == 1
        publish(third, "new")
        new = receive(first)
        for node in cluster.nodes:
            for verb in ("ack", "nack", "extend", "reject"):
                answer = node.call("POST", f"{T}/groups/g/{verb}", {"receipts": old})
                assert answer["settled"] == 0
                assert {(each["receipt"], each["code"]) for each in answer["failed"]} == {
                    (receipt, "lease_lost") for receipt in old
                }
        assert second.call("POST", f"{T}/groups/g/ack", {"receipts": new})["settled"] == 3


def test_the_name_of_a_deleted_topic_is_free_while_a_node_is_away(tmp_path: Path) -> None:
    with new_cluster(tmp_path) as cluster:
        cluster.start_three()
        wait_for_level(cluster)
        first, second, _ = cluster.nodes
        old = [create(first)]
        publish(first, "old")
        cluster.until(lambda: all(folders(cluster, name) for name in NAMES))
        cluster.stop("n3")
        for number in range(3):
            first.call("DELETE", T)
            topic_id = create(second)
            assert topic_id not in old
            old.append(topic_id)
            publish(first, f"new {number}")
        cluster.until(lambda: set(cluster.state("n1").deleted_topics) == {old[0]})
        cluster.restart("n3")
        cluster.until(lambda: folders(cluster, "n3") == {f"t~{old[-1]}"})
        cluster.until(lambda: not cluster.state("n1").deleted_topics)
        publish(second, "newest")
        for node in cluster.nodes:
            assert sorted(values(node)) == ["new 2"] * 3 + ["newest"] * 3
