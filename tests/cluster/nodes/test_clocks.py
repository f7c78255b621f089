"""Real nodes of which one has a clock that is an hour off."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.running_cluster import NAMES, RunningCluster, new_cluster
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
        cluster.by_name[odd].clock.ahead_ms = ahead_ms

        def is_seen(by: str) -> bool:
            node = shown(cluster, by, odd)
            return node["status"] == "unfit" and (
                abs(node.get("clock_skew_s", 0) - ahead_ms / 1000) < 1
            )

        for by in NAMES:
            eventually(lambda by=by: is_seen(by), f"{by} shows the clock of {odd}")
        assert "clock" in shown(cluster, others[0], odd)["reason"]
        assert {shown(cluster, odd, name)["status"] for name in others} == {"up"}
        eventually(lambda: odd not in cluster.leaders("t"), f"{odd} leads nothing")
        assert skews(cluster, odd)[odd] == pytest.approx(ahead_ms / 1000, abs=1)
        assert all(skews(cluster, name) == {} for name in others)
        cluster.by_name[odd].clock.ahead_ms = 0
        eventually(lambda: shown(cluster, odd, odd)["status"] == "up", f"{odd} is fit again")
        eventually(lambda: abs(shown(cluster, odd, odd)["clock_skew_s"]) < 0.1, "no skew is left")
        said = [each.getMessage() for each in caplog.records]
        about = [text for text in said if f"the clock of node {odd} " in text]
        assert len(about) == 2, about
        assert "off the median" in about[0]
        assert "right again" in about[1]
