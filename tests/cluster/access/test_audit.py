"""The audit trail in a cluster: one record an action, whichever node is asked; replicated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from goq import limits
from goq.cluster.metadata.features import has_audit_topic
from goq.errors import TimedOut
from goq.model import AUDIT_TOPIC
from tests.support.cluster.running_cluster import NAMES, RunningCluster, running_cluster
from tests.support.eventually import eventually
from tests.support.node.node_api import Answer


def ask(cluster: RunningCluster, name: str, method: str, path: str, body: object = None) -> Answer:
    token = (cluster.folder / name / "admin.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    return cluster.by_name[name].request(method, path, body, headers)


def records(cluster: RunningCluster, name: str) -> list[dict[str, Any]]:
    answer = ask(cluster, name, "GET", "/v1/audit?limit=1000")
    assert answer.status == 200, answer
    return list(answer.json["records"])


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with running_cluster(security={"auth": "tokens"}) as cluster:
        eventually(lambda: all(has_audit_topic(cluster.state(name)) for name in NAMES))
        created = {"name": "orders", "partitions": 6}
        eventually(lambda: ask(cluster, "n1", "POST", "/v1/topics", created).status in (201, 409))
        yield cluster


def test_an_action_has_one_record_whichever_node_is_asked_and_it_outlives_that_node(
    cluster: RunningCluster,
) -> None:
    wanted = []
    for name in NAMES:
        body = {"name": f"of-{name}", "partitions": 6}
        assert ask(cluster, name, "POST", "/v1/topics", body).status == 201
        assert (
            ask(cluster, name, "PUT", "/v1/topics/orders/groups/g", {"settings": {}}).status == 200
        )
        assert ask(cluster, name, "DELETE", "/v1/topics/orders/groups/g").status == 204
        assert ask(cluster, name, "DELETE", "/v1/topics/absent").status == 404
        refused = {"Authorization": "Bearer goq_abcdefgh_wrong"}
        assert cluster.by_name[name].request("GET", "/v1/topics", headers=refused).status == 401
        results = ("allowed", "allowed", "allowed", "allowed", "failed", "refused")
        wanted += [(name, result) for result in results]
    for name in NAMES:
        found = [(record["node"], record["result"]) for record in records(cluster, name)]
        assert found[-len(wanted) :] == wanted
    leader = cluster.state("n1").topics[AUDIT_TOPIC].partitions[0].leader
    assert leader is not None
    assert len(cluster.state("n1").topics[AUDIT_TOPIC].partitions[0].in_sync) == 3
    kept = records(cluster, leader)
    cluster.stop(leader)
    left = next(name for name in NAMES if name != leader)
    eventually(lambda: ask(cluster, left, "GET", "/v1/audit").status == 200)
    assert records(cluster, left)[: len(kept)] == kept
    eventually(lambda: ask(cluster, left, "DELETE", "/v1/topics/of-n1").status == 204)
    assert records(cluster, left)[-1]["path"] == "/v1/topics/of-n1"


def test_a_leader_that_may_have_been_fenced_does_not_say_where_the_trail_ends(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FORWARD_LEADER_WAIT_S", 0.1)
    leader = str(cluster.state("n1").topics[AUDIT_TOPIC].partitions[0].leader)
    monkeypatch.setattr(cluster.cluster_node(leader).leaders, "has_session", lambda: False)
    for name in NAMES:
        answer = ask(cluster, name, "GET", "/v1/audit")
        assert (name, answer.status, answer.json["code"]) == (name, 503, "partition_offline")


def test_the_cluster_is_operated_also_while_nothing_can_be_recorded(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = cluster.by_name["n1"].node.broker
    assert broker is not None

    async def fail(_key: str, _value: bytes) -> None:
        raise TimedOut("no quorum")

    monkeypatch.setattr(broker.audit_log, "append", fail)
    assert ask(cluster, "n1", "DELETE", "/v1/topics/orders").status == 503
    assert ask(cluster, "n1", "GET", "/v1/topics/orders").status == 200
    change = {"moves_at_once": 3}
    assert ask(cluster, "n1", "PATCH", "/v1/cluster/settings", change).status == 200
    assert "not in the audit trail" in caplog.text
    assert "moves_at_once" in caplog.text
