"""Changes of one topic that several nodes take at once: none that was acknowledged is undone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from tests.support.cluster.running_cluster import RunningCluster, running_cluster
from tests.support.node.running_node import RunningNode

_ROUNDS = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with running_cluster() as running:
        yield running


def test_nodes_that_change_other_settings_of_a_topic_at_once_undo_nothing(
    cluster: RunningCluster,
) -> None:
    path = "/v1/topics/shared"
    cluster.nodes[0].call("POST", "/v1/topics", {"name": "shared", "partitions": 1})
    keys = ("retention.age", "delivery.visibility_timeout", "dedup.window")
    together = Barrier(len(keys))

    def change(node: RunningNode, key: str, seconds: int) -> None:
        together.wait(60)
        settings = {key: f"{seconds}s"}
        while (answer := node.request("PATCH", path, {"settings": settings})).status == 409:
            assert answer.json["code"] == "conflict"
        assert answer.status == 200, answer.json

    with ThreadPoolExecutor(len(keys)) as pool:
        for seconds in range(11, 11 + _ROUNDS):
            list(pool.map(change, cluster.nodes, keys, [seconds] * len(keys)))
            for node in cluster.nodes:
                shown = node.call("GET", path)["settings"]
                assert [shown[key] for key in keys] == [f"{seconds}s"] * len(keys)


def test_of_nodes_that_expect_the_same_of_a_topic_one_changes_it(cluster: RunningCluster) -> None:
    path, key = "/v1/topics/counted", "delivery.max_attempts"
    new = {"name": "counted", "partitions": 1, "settings": {key: 2}}
    cluster.nodes[0].call("POST", "/v1/topics", new)

    def count(node: RunningNode) -> None:
        done = 0
        while done < _ROUNDS:
            now = node.call("GET", path)["settings"][key]
            change = {"expected": {key: now}, "settings": {key: int(now) + 1}}
            answer = node.request("PATCH", path, change)
            assert answer.status in (200, 409), answer.json
            done += answer.status == 200

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(count, cluster.nodes))
    for node in cluster.nodes:
        assert node.call("GET", path)["settings"][key] == str(2 + 3 * _ROUNDS)
