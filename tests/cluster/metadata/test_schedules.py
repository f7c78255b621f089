"""Schedules in a cluster: any node takes them, one runs them, another takes over."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tests.support.cluster.running_cluster import NAMES, RunningCluster, running_cluster
from tests.support.node.running_node import RunningNode

TOPIC = "orders"
PATH = "/v1/schedules/tick"
MESSAGES = [{"value": "v"}, {"value": "w", "key": "k"}]


def due_times(node: RunningNode) -> list[int]:
    """The due times of the messages in the topic, in whole seconds, in order."""
    found: list[str] = []
    for partition in range(6):
        path = f"/v1/topics/{TOPIC}/messages?partition={partition}&limit=1000"
        messages: list[dict[str, Any]] = node.call("GET", path)["messages"]
        found += [message["headers"]["goq-schedule-due"] for message in messages]
    return sorted(int(datetime.fromisoformat(text).timestamp()) for text in found)


def controller(cluster: RunningCluster) -> str | None:
    active = [
        name for name in sorted(cluster.running) if cluster.cluster_node(name).controller.is_active
    ]
    return active[0] if len(active) == 1 else None


def test_no_time_is_lost_or_doubled_when_another_node_takes_over() -> None:
    with running_cluster() as cluster:
        check_takeover(cluster)


def check_takeover(cluster: RunningCluster) -> None:
    cluster.create(TOPIC)
    node = cluster.by_name["n2"]
    body = {"topic": TOPIC, "every": "1s", "messages": MESSAGES}
    cluster.until(lambda: node.request("PUT", PATH, body).status == 201)
    created = node.call("GET", PATH)["created"]
    assert [other.call("GET", PATH)["created"] for other in cluster.nodes] == [created] * 3
    cluster.until(lambda: len(due_times(node)) >= 4)
    cluster.until(lambda: controller(cluster) is not None)
    stopped = controller(cluster)
    assert stopped is not None
    left = cluster.by_name[next(name for name in NAMES if name != stopped)]
    cluster.stop(stopped)
    known = len(due_times(left))
    cluster.until(lambda: len(due_times(left)) >= known + 6)
    last = left.call("POST", f"{PATH}/pause")["last"]
    cluster.restart(stopped)
    back = cluster.by_name[stopped]
    cluster.until(lambda: "paused" in (back.request("GET", PATH).json or {}))
    until = int(datetime.fromisoformat(last).timestamp())
    found = [each for each in due_times(left) if each <= until]
    assert found == sorted(2 * list(range(found[0], until + 1)))
    assert left.request("DELETE", PATH).status == 204
    assert [n.call("GET", "/v1/schedules") for n in cluster.nodes] == [{"schedules": []}] * 3
