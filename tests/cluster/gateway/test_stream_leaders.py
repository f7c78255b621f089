"""A stream goes on when its partition moves to another leader and back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.api.streams import StreamOfLines, streaming
from tests.support.cluster.running_cluster import NAMES, RunningCluster
from tests.support.cluster.stream_reader import group_path, in_flight
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


def _partition(cluster: RunningCluster, topic: str) -> Any:
    shown = cluster.nodes[0].call("GET", f"/v1/cluster?topic={topic}")
    return shown["topics"][0]["partitions"][0]


def _settle(cluster: RunningCluster, via: str, topic: str, messages: list[Any]) -> None:
    if messages:
        receipts = {"receipts": [message["receipt"] for message in messages]}
        cluster.by_name[via].call("POST", group_path(topic, "ack"), receipts)


def _read_all(cluster: RunningCluster, via: str, topic: str, stream: StreamOfLines) -> None:
    """Settle messages as they come, until the group has none left."""
    while cluster.nodes[0].call("GET", group_path(topic))["lag"]:
        _settle(cluster, via, topic, [stream.message()])
