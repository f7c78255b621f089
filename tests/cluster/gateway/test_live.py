"""``GET /v1/live`` of a cluster: any node tells of all."""

from __future__ import annotations

import json
from typing import Any

from tests.support.api.calls import publish, receive, settle
from tests.support.cluster.running_cluster import NAMES, running_cluster
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode


def now(node: RunningNode) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(node.request("GET", "/v1/live?limit=1&topics=t").body)
    return line


def of_all(node: RunningNode) -> dict[str, Any]:
    """Return the first line to which all nodes have answered in time."""
    lines: list[dict[str, Any]] = []

    def have_answered() -> bool:
        lines.append(now(node))
        assert [each["node"] for each in lines[-1]["nodes"]] == sorted(NAMES)
        return all("started" in each for each in lines[-1]["nodes"])

    eventually(have_answered)
    return lines[-1]


def test_any_node_tells_of_all_and_a_node_that_is_away_is_named() -> None:
    with running_cluster() as cluster:
        cluster.create("t", 6)
        eventually(lambda: sorted(map(str, cluster.leaders("t"))) == sorted([*NAMES, *NAMES]))
        first = cluster.by_name["n1"]
        publish(first, "t", *map(str, range(30)))
        got = receive(first, "t", max_messages=7)
        settle(first, "t", "ack", *(message["receipt"] for message in got))
        for name in NAMES:
            line = of_all(cluster.by_name[name])
            (topic,) = line["topics"]
            assert topic["published_messages"] == topic["messages"] == 30
            assert topic["partitions"] == 6
            (group,) = topic["groups"]
            assert group["acked_messages"] == len(got)
            assert group["ready"] == group["lag"] == 30 - len(got)
        cluster.stop("n3")

        def is_told() -> bool:
            away = now(first)["nodes"][2]
            return away["node"] == "n3" and "does not answer" in away.get("problem", "")

        eventually(is_told)
