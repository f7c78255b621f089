"""A wrong secret, and nodes that never come: told by the nodes, and shown by the others."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest

from goq.errors import UsageError
from tests.support.cli.command import Run
from tests.support.cluster.running_cluster import RunningCluster
from tests.support.eventually import eventually


def absent(cluster: RunningCluster, by: str) -> dict[str, Any]:
    """Return the nodes that never came, each with the reason that a node knows."""
    shown = cluster.by_name[by].call("GET", "/v1/cluster")
    return {node["id"]: node.get("reason") for node in shown.get("absent", [])}


def troubled(cluster: RunningCluster, by: str) -> set[str]:
    """Return the members that do not reach all others, or that a node has a reason to tell of."""
    shown = cluster.by_name[by].call("GET", "/v1/cluster")
    return {n["id"] for n in shown["nodes"] if "unreachable" in n or "reason" in n}


def test_a_node_with_another_secret_is_told_by_itself_and_by_the_others(
    cluster: RunningCluster, goq: Run, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("n1", "n2"):
        cluster.start_peer(name)
    eventually(lambda: cluster.statuses("n1") == {"n1": "up", "n2": "up"})
    eventually(lambda: absent(cluster, "n1") == {"n3": None})
    url = cluster.by_name["n1"].url
    status = goq("cluster", "status", GOQ_SERVER=url, code=1).stdout.decode()
    assert status.startswith("degraded: 2 nodes, controller ")
    assert "never came: n3" in status.splitlines()[0]

    secret = cluster.secret.read_text()
    cluster.secret.write_text(secrets.token_hex(32))
    stranger = cluster.start_peer("n3")
    eventually(lambda: absent(cluster, "n1") == {"n3": "has another secret than n1"})
    eventually(lambda: absent(cluster, "n2") == {"n3": "has another secret than n2"})
    eventually(lambda: "its secret differs from that of n1, n2" in str(_pending(stranger)))
    assert "this node takes no part: its secret differs" in caplog.text
    shown = goq("cluster", "status", GOQ_SERVER=stranger.url, code=1).stdout.decode()
    assert "NO CONTROLLER, never came: n1 n2" in shown.splitlines()[0]
    assert "n1    never came: has another secret than n3" in shown.replace("\t", "    ")

    cluster.stop("n3")
    cluster.secret.write_text(secret)
    cluster.restart("n3")
    eventually(lambda: set(cluster.statuses("n1")) == {"n1", "n2", "n3"})
    eventually(lambda: absent(cluster, "n1") == {})
    eventually(lambda: set(cluster.statuses("n1").values()) == {"up"})
    eventually(lambda: not troubled(cluster, "n1"), "n1 reaches n3, and says nothing of its secret")
    assert json.loads(goq("cluster", "status", "--json", GOQ_SERVER=url).stdout)


def test_a_node_that_joins_with_another_secret_ends_and_both_sides_say_why(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.start("n1")
    eventually(lambda: cluster.statuses("n1") == {"n1": "up"})
    cluster.secret.write_text(secrets.token_hex(32))
    with pytest.raises(UsageError, match="different secrets: compare"):
        cluster.start("n2", via="n1")
    assert "a call in the name of node 'n2' is refused" in caplog.text


def test_a_node_without_a_controller_says_how_old_its_view_is(
    cluster: RunningCluster, goq: Run
) -> None:
    cluster.start_three()
    cluster.stop("n2", "n3")
    first = cluster.by_name["n1"]
    eventually(lambda: first.call("GET", "/v1/cluster").get("unheard_s", 0) > 1)
    eventually(lambda: first.call("GET", "/v1/cluster")["controller"] is None)
    shown = goq("cluster", "status", GOQ_SERVER=first.url, code=1).stdout.decode()
    assert "NO CONTROLLER, as of " in shown.splitlines()[0]
    assert " s ago" in shown.splitlines()[0]
    cluster.stop("n1")
    alone = cluster.restart("n1")
    shown = goq("cluster", "status", GOQ_SERVER=alone.url, code=1).stdout.decode()
    assert "NO CONTROLLER, as of before the start of n1" in shown.splitlines()[0]


def _pending(node: Any) -> object:
    answer = node.request("GET", "/readyz")
    return answer.json if answer.status == 503 else {}
