"""The nodes of the Compose file and of the StatefulSet, run as processes on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support.eventually import eventually
from tests.support.node.deploy.deployment import (
    DeployedNode,
    compose_nodes,
    kubernetes_nodes,
    on_this_machine,
)

PUBLISH_S_MAX = 30.0


def publish(node: DeployedNode, value: str) -> None:
    def is_done() -> bool:
        body = {"messages": [{"value": value, "key": "k"}]}
        answer = node.request("POST", "/v1/topics/orders/messages", body)
        # 504: the leader changed while it was written, so it may be there twice, which no set sees
        assert answer.status in (200, 421, 503, 504), answer
        return answer.status == 200

    eventually(is_done, f"{value} is published", seconds=PUBLISH_S_MAX)


def read(node: DeployedNode) -> set[str]:
    page = node.call("GET", "/v1/topics/orders/messages?partition=0&offset=0")
    return {message["value"] for message in page["messages"]}


def begun(nodes: Sequence[DeployedNode]) -> None:
    """Start the nodes at once, as their managers do, and make a topic of which all have a copy."""
    for node in nodes:
        node.launch()
    for node in nodes:
        node.wait_ready()

    def is_made() -> bool:
        answer = nodes[0].request("POST", "/v1/topics", {"name": "orders", "partitions": 1})
        # a node may be thought silent while all start at once
        assert answer.status in (201, 503), answer
        return answer.status == 201

    eventually(is_made, "the topic is made", seconds=PUBLISH_S_MAX)


def test_the_services_become_a_cluster_that_loses_nothing_while_each_is_stopped_and_started(
    tmp_path: Path,
) -> None:
    with on_this_machine(compose_nodes(), tmp_path) as nodes:
        begun(nodes)
        expected = set()
        for number, node in enumerate(nodes):
            other = nodes[number - 1]
            assert node.stop(seconds=30) == 0, node.log_text()
            publish(other, f"without {node.told.host}")
            node.start()
            publish(node, f"through {node.told.host}")
            expected |= {f"without {node.told.host}", f"through {node.told.host}"}
        assert [read(node) for node in nodes] == [expected] * len(nodes)


def test_the_pods_become_a_cluster_which_a_later_one_joins_by_what_all_are_told(
    tmp_path: Path,
) -> None:
    with on_this_machine(kubernetes_nodes(4), tmp_path) as nodes:
        *first, later = nodes
        begun(first)
        later.start()
        publish(later, "through the fourth")
        assert read(first[0]) == {"through the fourth"}
        assert later.stop(seconds=30) == 0
        later.start()
        assert read(later) == {"through the fourth"}
