"""After an acknowledged change every node answers by it, whichever node made it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.cluster.running_cluster import RunningCluster, running_cluster
from tests.support.node.node_api import LEADERSHIP_S_MAX, Answer
from tests.support.node.running_node import RunningNode


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    with running_cluster() as running:
        yield running


def test_a_created_topic_is_known_to_every_node_and_a_deleted_one_to_none(
    cluster: RunningCluster,
) -> None:
    _create_and_delete(cluster, random.Random(0), rounds=5)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_created_topic_is_known_to_every_node_for_hundreds_of_rounds(
    cluster: RunningCluster, seed: int
) -> None:
    _create_and_delete(cluster, random.Random(seed), rounds=200, prefix=f"long{seed}-")


def _create_and_delete(
    cluster: RunningCluster, draw: random.Random, rounds: int, prefix: str = "t"
) -> None:
    for number in range(rounds):
        topic = f"{prefix}{number}"
        path = f"/v1/topics/{topic}"
        messages = f"{path}/messages"
        one = {"messages": [{"value": "a"}]}
        by, first, second = (draw.choice(cluster.nodes) for _ in range(3))
        partitions = draw.choice((1, 3))
        body = {"name": topic, "partitions": partitions}
        shown = _sent(by, 201, "POST", "/v1/topics", body).json
        assert len(shown["partitions"]) == partitions
        assert _sent(first, 200, "GET", path).json["name"] == topic
        _sent(second, 200, "POST", messages, one)
        _sent(first, 409, "POST", "/v1/topics", body)
        for node in cluster.nodes:
            _sent(node, 200, "GET", f"{messages}?partition={partitions - 1}")
        by, first, second = (draw.choice(cluster.nodes) for _ in range(3))
        change = {"settings": {"retention.age": f"{number + 1}d"}, "partitions": partitions + 1}
        _sent(by, 200, "PATCH", path, change)
        for node in (first, second):
            found = _sent(node, 200, "GET", path).json
            assert found["settings"]["retention.age"] == f"{number + 1}d"
            assert len(found["partitions"]) == partitions + 1
        placed = {"messages": [{"value": "b", "partition": partitions}]}
        _sent(first, 200, "POST", messages, placed)
        group = f"{path}/groups/g"
        by, first, second = (draw.choice(cluster.nodes) for _ in range(3))
        _sent(by, 200, "PUT", group, {"settings": {"max_attempts": number + 2}})
        assert _sent(first, 200, "GET", group).json["settings"]["max_attempts"] == str(number + 2)
        _sent(second, 200, "POST", f"{group}/receive", {})
        _sent(by, 204, "DELETE", group)
        _sent(first, 404, "GET", group)
        _sent(second, 404, "GET", group)
        _sent(second, 204, "DELETE", path)
        for node in cluster.nodes:
            _sent(node, 404, "GET", path)
            _sent(node, 404, "GET", f"{messages}?partition=0")
            _sent(node, 404, "POST", f"{group}/receive", {})
            assert topic not in [t["name"] for t in node.call("GET", "/v1/topics")["topics"]]
            assert topic not in _open_topics(node)


def test_many_topics_created_at_once_are_all_created(cluster: RunningCluster) -> None:
    draw = random.Random(0)
    nodes = [draw.choice(cluster.nodes) for _ in range(24)]

    def create(number: int) -> int:
        body = {"name": f"many-{number}", "partitions": 2}
        return nodes[number].request("POST", "/v1/topics", body).status

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(create, range(24))) == {201}
        names = [f"/v1/topics/many-{number}" for number in range(24)]
        deletes = threads.map(
            lambda path: draw.choice(cluster.nodes).request("DELETE", path), names
        )
        assert {answer.status for answer in deletes} == {204}


def _delete(path: str, node: RunningNode) -> Answer:
    return node.request("DELETE", path)


def test_a_flood_of_misses_shares_its_barriers(cluster: RunningCluster) -> None:
    node = cluster.nodes[0]
    member = node.node.cluster
    assert member is not None
    barriers = 0
    shared = member.freshness._barrier
    begin = shared._barrier

    async def count(timeout_s: float) -> None:
        nonlocal barriers
        barriers += 1
        await begin(timeout_s)

    shared._barrier = count
    try:
        with ThreadPoolExecutor(16) as threads:
            answers = list(
                threads.map(lambda n: node.request("GET", f"/v1/topics/no-{n}").status, range(200))
            )
    finally:
        shared._barrier = begin
    assert set(answers) == {404}
    assert 1 <= barriers <= 100


def _open_topics(node: RunningNode) -> set[str]:
    broker = node.node.broker
    assert broker is not None
    return node.on_loop(lambda: set(broker.topics))


def _sent(node: RunningNode, status: int, method: str, path: str, body: Any = None) -> Answer:
    """Send a request, and check the status of its answer.

    It is sent again while its leader has no session. One that may be repeated is sent again after
    an unknown outcome, too: on a busy machine the stream to a leader may end under it.
    """
    again = {421} if method == "DELETE" or path == "/v1/topics" else {421, 504}
    until_s = time.monotonic() + LEADERSHIP_S_MAX
    while (answer := node.request(method, path, body)).status in again:
        assert time.monotonic() < until_s, answer
        time.sleep(0.05)
    assert answer.status == status, (method, path, answer)
    return answer
