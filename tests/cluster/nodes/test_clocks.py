"""Real nodes of which one has a clock that is an hour off."""

from __future__ import annotations

import logging
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from goq.client import Client
from tests.support.cluster.running_cluster import NAMES, RunningCluster, new_cluster
from tests.support.effort import first_of
from tests.support.eventually import eventually

HOUR_MS = 3_600_000


def shown(cluster: RunningCluster, by: str, name: str) -> Any:
    """Return a node as another one shows it."""
    nodes = cluster.by_name[by].call("GET", "/v1/cluster")["nodes"]
    return next(node for node in nodes if node["id"] == name)


def skews(cluster: RunningCluster, by: str) -> dict[str, float]:
    """Return the skews in the metrics of a node."""
    text = cluster.by_name[by].request("GET", "/metrics").body.decode()
    found = re.findall(r'^goq_cluster_clock_skew_seconds{node="(\w+)"} (\S+)$', text, re.MULTILINE)
    return {node: float(value) for node, value in found}


def term(cluster: RunningCluster) -> int:
    """Return how many elections there were; a node that is elected runs the controller."""
    return max(cluster.cluster_node(name).raft.status.term for name in NAMES)


def received_at(cluster: RunningCluster, by: str, topic: str) -> float:
    """Return when a node hands out the next message of a topic."""
    body = {"consumer": "c", "wait": "20s"}
    found = cluster.by_name[by].call("POST", f"/v1/topics/{topic}/groups/g/receive", body)
    assert len(found["messages"]) == 1
    return time.time()


@pytest.mark.parametrize("ahead_ms", first_of([-HOUR_MS, HOUR_MS], quick=1))
def test_a_delay_counts_by_the_leader_and_not_by_the_node_that_was_asked(
    tmp_path: Path, ahead_ms: int
) -> None:
    with new_cluster(tmp_path) as cluster:
        cluster.start_three()
        cluster.create("t", 1)
        odd = next(name for name in NAMES if name not in cluster.leaders("t"))
        leader = cluster.leaders("t")[0]
        assert leader is not None
        asked = cluster.by_name[odd]
        eventually(lambda: asked.call("GET", "/v1/cluster")["feature_level"], "all know delays")
        asked.clock.set_ahead_ms(ahead_ms)
        for relative in ({"delay": "2s"}, {"deliver_at": "+2s"}, {"delay": "2s", "ttl": "1m"}):
            message = {"value": "m", **relative}
            path = "/v1/topics/t/messages"
            while True:
                # It may lead for a moment more: whose clock is off leads nothing soon.
                eventually(lambda: odd not in cluster.leaders("t"), "another leads")
                began = time.time()
                (stored,) = asked.call("POST", path, {"messages": [message]})["results"]
                if odd not in cluster.leaders("t"):
                    break
            (leader,) = cluster.leaders("t")
            assert leader is not None
            due = datetime.fromisoformat(stored["deliver_at"]).timestamp()
            assert due == pytest.approx(began + 2, abs=1)
            assert 2 <= received_at(cluster, leader, "t") - began < 6
        with Client(asked.url) as client:
            began = time.time()
            client.publish("t", "m", delay="2s")
            assert 2 <= received_at(cluster, leader, "t") - began < 6
            began = time.time()
            client.publish("t", "m", delay="4s")
            cluster.stop(leader)  # the leadership moves while the message waits
            other = next(name for name in NAMES if name not in (odd, leader))
            assert 4 <= received_at(cluster, other, "t") - began < 9
            assert cluster.leaders("t") == [other]


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, HOUR_MS])
def test_a_node_with_a_wrong_clock_leads_nothing_until_it_is_right(
    tmp_path: Path, ahead_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "goq.cluster")
    with new_cluster(tmp_path) as cluster:
        cluster.start_three()
        cluster.create("t", 6)
        odd = cluster.by_name["n1"].call("GET", "/v1/cluster")["controller"]
        assert odd in NAMES  # the hardest case: the controller's own clock is the odd one
        others = [name for name in NAMES if name != odd]
        first_term = term(cluster)
        cluster.by_name[odd].clock.set_ahead_ms(ahead_ms)

        def is_seen(by: str) -> bool:
            node = shown(cluster, by, odd)
            return node["status"] == "unfit" and (
                abs(node.get("clock_skew_s", 0) - ahead_ms / 1000) < 1
            )

        for by in NAMES:
            eventually(lambda by=by: is_seen(by), f"{by} shows the clock of {odd}")
        eventually(lambda: "clock" in shown(cluster, others[0], odd).get("reason", ""))
        eventually(lambda: {shown(cluster, odd, name)["status"] for name in others} == {"up"})
        eventually(lambda: odd not in cluster.leaders("t"), f"{odd} leads nothing")

        def skews_shown() -> list[float]:
            """The skews of the odd node, by the nodes that show any: the controller alone."""
            return [found.get(odd, 0) for name in NAMES if (found := skews(cluster, name))]

        eventually(lambda: skews_shown() == [pytest.approx(ahead_ms / 1000, abs=1)])
        cluster.by_name[odd].clock.set_ahead_ms(0)
        eventually(lambda: shown(cluster, odd, odd)["status"] == "up", f"{odd} is fit again")
        eventually(lambda: abs(shown(cluster, odd, odd)["clock_skew_s"]) < 0.1, "no skew is left")
        said = [each.getMessage() for each in caplog.records]
        about = [text for text in said if f"the clock of node {odd} " in text]
        assert "off the median" in about[0]
        elections = term(cluster) - first_term
        if not elections:
            assert "right again" in about[-1]
        # Once by each node that runs the controller, and again where it heard too few clocks.
        assert len(about) <= 2 * (elections + 2), about
