"""A stream goes on when its partition moves to another leader and back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.api.streams import StreamOfLines, streaming
from tests.support.cluster.running_cluster import NAMES, RunningCluster, running_cluster
from tests.support.cluster.stream_reader import group_path, in_flight, open_streams
from tests.support.eventually import eventually

_TOPICS = {"leases that are over": "1s", "leases that go on": "1h"}


@pytest.mark.parametrize("leases", _TOPICS)
def test_a_stream_gets_as_much_as_before_once_its_first_leader_leads_again(
    cluster: RunningCluster, leases: str
) -> None:
    topic = leases.replace(" ", "-")
    cluster.create(topic, 1)
    eventually(lambda: len(_partition(cluster, topic)["in_sync"]) == 3)
    first = _partition(cluster, topic)["leader"]
    other = next(name for name in NAMES if name != first)
    messages = [{"value": f"{number}"} for number in range(20)]
    cluster.nodes[0].call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})
    asked = {"max_in_flight": 5, "visibility": _TOPICS[leases]}
    with streaming(cluster.by_name[first], topic, consumer="c", **asked) as stream:
        found = stream.messages(5)
        if leases == "leases that are over":
            eventually(lambda: in_flight(cluster, topic) == 0)
        for leader in (other, first):
            cluster.nodes[0].call(
                "POST",
                "/v1/cluster/elections",
                {"topic": topic, "partition": 0, "leader": leader},
            )
            eventually(lambda leader=leader: _partition(cluster, topic)["leader"] == leader)
            _settle(cluster, other, topic, found)
            found = []
        _read_all(cluster, other, topic, stream)


def test_messages_whose_leader_changed_are_ready_again_when_their_stream_closes(
    cluster: RunningCluster,
) -> None:
    topic = "moved-in-flight"
    cluster.create(topic, 1)
    eventually(lambda: len(_partition(cluster, topic)["in_sync"]) == 3)
    first = _partition(cluster, topic)["leader"]
    other, third = (name for name in NAMES if name != first)
    cluster.nodes[0].call("POST", f"/v1/topics/{topic}/messages", {"messages": [{"value": "v"}]})
    with streaming(cluster.by_name[third], topic, max_in_flight=5, visibility="1h") as stream:
        assert stream.message()["attempt"] == 1
        _lead(cluster, topic, [other])
        eventually(lambda: _leased(cluster, topic) == [1])
    body = {"wait": "30s", "visibility": "1h"}
    (again,) = cluster.by_name[first].call("POST", group_path(topic, "receive"), body)["messages"]
    assert (again["value"], again["attempt"]) == ("v", 2)


def test_messages_of_a_leader_that_is_gone_are_ready_again_when_their_stream_closes() -> None:
    with running_cluster() as cluster:
        topic = "leader-gone"
        cluster.create(topic, 1)
        eventually(lambda: len(_partition(cluster, topic)["in_sync"]) == 3)
        first = _partition(cluster, topic)["leader"]
        other, third = (name for name in NAMES if name != first)
        messages = {"messages": [{"value": "v"}]}
        cluster.by_name[other].call("POST", f"/v1/topics/{topic}/messages", messages)
        with streaming(cluster.by_name[third], topic, max_in_flight=5, visibility="1h") as stream:
            assert stream.message()["attempt"] == 1
            cluster.stop(first)
            cluster.until(lambda: cluster.leaders(topic)[0] not in (None, first))
        asked = {"wait": "30s", "visibility": "1h"}
        path = group_path(topic, "receive")
        (again,) = cluster.by_name[other].call("POST", path, asked)["messages"]
        assert (again["value"], again["attempt"]) == ("v", 2)


def test_a_stream_at_the_leader_of_all_partitions_goes_on_when_other_nodes_lead(
    cluster: RunningCluster,
) -> None:
    topic = "of-one-leader"
    cluster.create(topic, 1)
    eventually(lambda: len(_partition(cluster, topic)["in_sync"]) == 3)
    first = _partition(cluster, topic)["leader"]
    with streaming(cluster.by_name[first], topic, max_in_flight=5) as stream:
        for leader in (name for name in NAMES if name != first):
            _lead(cluster, topic, [leader])
            body = {"messages": [{"value": leader}]}
            cluster.nodes[0].call("POST", f"/v1/topics/{topic}/messages", body)
            assert stream.message()["value"] == leader


def test_a_stream_whose_leaders_become_more_shares_its_maximum_anew(
    cluster: RunningCluster,
) -> None:
    topic = "spread"
    cluster.create(topic, 3)
    eventually(lambda: all(len(each["in_sync"]) == 3 for each in _partitions(cluster, topic)))
    _lead(cluster, topic, ["n1", "n1", "n1"])
    with streaming(cluster.by_name["n1"], topic, max_in_flight=6, visibility="1h") as stream:
        _lead(cluster, topic, NAMES)
        eventually(lambda: all(open_streams(node) for node in cluster.nodes))
        messages = [{"value": "v", "partition": number % 3} for number in range(30)]
        cluster.nodes[0].call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})
        stream.messages(6)
        eventually(lambda: _leased(cluster, topic) == [2, 2, 2], seconds=20)


def test_life_that_a_consumer_shows_at_one_leader_counts_at_the_others(
    cluster: RunningCluster, topic: str
) -> None:
    leaders = cluster.leaders(topic)
    silent = 0
    other = next(number for number, name in enumerate(leaders) if name != leaders[silent])

    def publish(partition: int) -> None:
        body = {"messages": [{"value": "v", "partition": partition}]}
        cluster.nodes[0].call("POST", f"/v1/topics/{topic}/messages", body)

    with streaming(cluster.nodes[0], topic, max_in_flight=3, visibility="1s") as stream:
        publish(silent)
        lost = stream.message()
        eventually(lambda: in_flight(cluster, topic) == 0)
        found = lost
        for _ in range(100):  # it forgets the message, and goes on with others
            publish(other)
            found = stream.message()
            if found["partition"] == silent:
                break
            _settle(cluster, "n1", topic, [found])
            time.sleep(0.05)
        assert (found["id"], found["attempt"]) == (lost["id"], 2)


def _partition(cluster: RunningCluster, topic: str) -> Any:
    return _partitions(cluster, topic)[0]


def _partitions(cluster: RunningCluster, topic: str) -> list[Any]:
    shown = cluster.nodes[0].call("GET", f"/v1/cluster?topic={topic}")
    found: list[Any] = shown["topics"][0]["partitions"]
    return found


def _leased(cluster: RunningCluster, topic: str) -> list[int]:
    shown = cluster.nodes[0].call("GET", group_path(topic))
    return [partition["leased"] for partition in shown["partitions"]]


def _lead(cluster: RunningCluster, topic: str, leaders: Sequence[str]) -> None:
    """Have these nodes lead the partitions of a topic, and be preferred for them."""
    for number, leader in enumerate(leaders):
        replicas = [leader, *(name for name in NAMES if name != leader)]
        body = {"topic": topic, "partition": number}
        cluster.nodes[0].request("POST", "/v1/cluster/moves", {**body, "replicas": replicas})
        cluster.nodes[0].request("POST", "/v1/cluster/elections", body)
    eventually(lambda: cluster.leaders(topic) == list(leaders))


def _settle(cluster: RunningCluster, via: str, topic: str, messages: list[Any]) -> None:
    if messages:
        receipts = {"receipts": [message["receipt"] for message in messages]}
        cluster.by_name[via].call("POST", group_path(topic, "ack"), receipts)


def _read_all(cluster: RunningCluster, via: str, topic: str, stream: StreamOfLines) -> None:
    """Settle messages as they come, until the group has none left."""
    while cluster.nodes[0].call("GET", group_path(topic))["lag"]:
        _settle(cluster, via, topic, [stream.message()])
