"""Consumers of a group whose partitions belong to one each, at whatever nodes they are."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.cluster.running_cluster import RunningCluster, running_cluster
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode


@pytest.fixture
def shared(cluster: RunningCluster, topic: str) -> str:
    """A topic whose group ``g`` gives each partition to one consumer."""
    share(cluster, topic)
    return topic


def share(cluster: RunningCluster, topic: str) -> None:
    body = {"settings": {"ordering": "partition"}}
    cluster.nodes[0].call("PUT", f"/v1/topics/{topic}/groups/g", body)
    for node in cluster.nodes:
        eventually(lambda node=node: _ordering(node, topic) == "partition")


def test_members_at_different_nodes_share_out_all_partitions(
    cluster: RunningCluster, shared: str
) -> None:
    first, second, third = cluster.nodes
    assert _join(first, shared, "a")["partitions"] == [0, 1, 2, 3, 4, 5]
    _join(second, shared, "b")
    _join(third, shared, "c")
    had: dict[str, list[int]] = {}
    for node in cluster.nodes:
        members = node.call("GET", _members(shared))["members"]
        had = {member["consumer"]: member["partitions"] for member in members}
        assert {name: len(some) for name, some in had.items()} == {"a": 2, "b": 2, "c": 2}
        assert sorted(number for some in had.values() for number in some) == [0, 1, 2, 3, 4, 5]
    beat = second.call("POST", _members(shared, "c/heartbeat"))
    assert beat["partitions"] == had["c"]
    assert first.request("DELETE", _members(shared, "c")).status == 204
    assert third.request("POST", _members(shared, "c/heartbeat")).status == 404
    assert third.request("DELETE", _members(shared, "c")).status == 404
    assert len(_join(third, shared, "a")["partitions"]) == 3


def test_a_consumer_takes_from_its_own_partitions_of_all_nodes(
    cluster: RunningCluster, shared: str
) -> None:
    _join(cluster.nodes[0], shared, "a")
    _join(cluster.nodes[1], shared, "b")
    _publish(cluster, shared, 12)
    members = cluster.nodes[2].call("GET", _members(shared))["members"]
    for node, member in zip(cluster.nodes, members, strict=False):
        taken = _receive(node, shared, member["consumer"])
        assert sorted(m["partition"] for m in taken) == sorted(member["partitions"] * 2)
    for node in cluster.nodes:
        assert _receive(node, shared, "a") == []


def test_no_partition_is_ever_two_consumers_at_once(cluster: RunningCluster, shared: str) -> None:
    """Consumers come and go at all nodes; who holds a message of a partition holds it alone."""
    held: dict[int, tuple[str, int]] = {}
    done: list[str] = []
    lock = threading.Lock()

    def consume(number: int) -> None:
        node, consumer = cluster.nodes[number % 3], f"c{number}"
        for turn in range(1000):
            if len(done) == 120:
                return
            messages = _receive(node, shared, consumer, max_messages=3, wait="100ms")
            with lock:
                for message in messages:
                    owner, count = held.get(message["partition"], (consumer, 0))
                    assert owner == consumer or not count, (held, message, consumer)
                    held[message["partition"]] = consumer, count + 1
            with lock:
                for message in messages:
                    held[message["partition"]] = consumer, held[message["partition"]][1] - 1
                done.extend(message["id"] for message in messages)
            if messages:
                receipts = {"receipts": [message["receipt"] for message in messages]}
                path = f"/v1/topics/{shared}/groups/g/ack"
                assert node.call("POST", path, receipts)["failed"] == []
            if turn % 5 == number:
                node.request("DELETE", _members(shared, consumer))

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(consume, number) for number in range(4)]
        for _ in range(10):
            _publish(cluster, shared, 12)
        for each in running:
            each.result()
    assert len(done) == len(set(done)) == 120


def test_when_a_leader_dies_its_partitions_go_on_with_their_consumers() -> None:
    with running_cluster() as cluster:
        cluster.create("t")
        share(cluster, "t")
        node = cluster.by_name["n1"]
        for consumer in ("a", "b"):
            _join(node, "t", consumer)
        _publish(cluster, "t", 6)
        held = [_receive(node, "t", consumer) for consumer in ("a", "b")]
        assert [len(some) for some in held] == [3, 3]
        cluster.stop("n3")
        eventually(lambda: not {None, "n3"} & set(cluster.leaders("t")))
        _publish(cluster, "t", 6, through=node)
        owners = {m["partition"]: name for name, some in zip("ab", held, strict=True) for m in some}
        for consumer in ("a", "b"):
            for message in _receive(node, "t", consumer, wait="1s"):
                assert owners[message["partition"]] == consumer
        for some in held:
            receipts = {"receipts": [message["receipt"] for message in some]}
            answer = node.call("POST", "/v1/topics/t/groups/g/ack", receipts)
            assert answer == {"settled": 3, "failed": []}


def _publish(
    cluster: RunningCluster, topic: str, count: int, through: RunningNode | None = None
) -> None:
    messages = [{"value": "v", "partition": number % 6} for number in range(count)]
    node = through or cluster.nodes[0]
    node.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})


def _receive(node: RunningNode, topic: str, consumer: str, **asked: Any) -> list[Any]:
    body = {"max_messages": 100, "consumer": consumer, **asked}
    answer = node.call("POST", f"/v1/topics/{topic}/groups/g/receive", body)
    messages: list[Any] = answer["messages"]
    return messages


def _join(node: RunningNode, topic: str, consumer: str) -> Any:
    body = {"consumer": consumer, "session_timeout": "30s"}
    return node.call("POST", _members(topic), body)


def _members(topic: str, rest: str = "") -> str:
    return f"/v1/topics/{topic}/groups/g/members" + (f"/{rest}" if rest else "")


def _ordering(node: RunningNode, topic: str) -> str:
    shown = node.request("GET", f"/v1/topics/{topic}/groups/g")
    ordering: str = shown.json["settings"]["ordering"] if shown.status == 200 else ""
    return ordering
