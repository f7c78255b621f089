"""Whole nodes of a cluster: they come, are seen, leave, and come back with the same flags."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from goq.cluster.cluster_node import ClusterNode
from goq.cluster.controller.node_liveness import Heartbeat
from goq.cluster.controller.runner import ControllerRunner
from goq.cluster.membership.join import JOIN
from goq.cluster.node_builder import remove_member
from goq.errors import Conflict, TimedOut, UsageError
from tests.support.cluster.running_cluster import RunningCluster
from tests.support.effort import first_of
from tests.support.eventually import eventually
from tests.support.node.ports import HOST, free_port
from tests.support.node.running_node import RunningNode, running_node


def grown(cluster: RunningCluster, *names: str) -> None:
    """Start a first node, and let others join by it."""
    first, *others = names
    cluster.start(first)
    eventually(lambda: cluster.statuses(first) == {first: "up"})
    for name in others:
        cluster.start(name, via=first)
        eventually(lambda name=name: cluster.statuses(first).get(name) == "up")


def incarnations(cluster: RunningCluster, by: str) -> dict[str, int]:
    nodes = cluster.by_name[by].call("GET", "/v1/cluster")["nodes"]
    return {node["id"]: node["incarnation"] for node in nodes}


def partition(cluster: RunningCluster, by: str, number: int = 0, query: str = "") -> dict[str, Any]:
    state = cluster.by_name[by].call("GET", f"/v1/cluster?topic=t{query}")
    found: dict[str, Any] = state["topics"][0]["partitions"][number]
    return found


def test_a_joining_node_is_not_up_before_the_controller_has_heard_it(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, bool]] = []
    refused: list[str] = []
    is_deaf = True
    receive, changed = ControllerRunner.receive_heartbeat, ClusterNode.on_metadata_change

    def receive_heartbeat(self: ControllerRunner, node: str, heartbeat: Heartbeat) -> Any:
        if node == "n2" and is_deaf:
            refused.append(node)
            raise TimedOut("its answers get lost")
        return receive(self, node, heartbeat)

    def on_metadata_change(self: ClusterNode) -> None:
        seen.append({node.id: node.is_up for node in self.state.nodes.values()})
        changed(self)

    monkeypatch.setattr(ControllerRunner, "receive_heartbeat", receive_heartbeat)
    monkeypatch.setattr(ClusterNode, "on_metadata_change", on_metadata_change)
    grown(cluster, "n1")
    cluster.start("n2", via="n1")
    eventually(lambda: len(refused) > 30)  # more than one round of tries
    assert cluster.statuses("n1") == {"n1": "up"}
    is_deaf = False
    eventually(lambda: cluster.statuses("n1").get("n2") == "up")
    eventually(lambda: any("n2" in nodes for nodes in seen))  # told just after it is applied
    assert {nodes["n2"] for nodes in seen if "n2" in nodes} == {True}


def test_a_cluster_grows_from_one_node_and_shrinks_again(cluster: RunningCluster) -> None:
    grown(cluster, "n1", "n2", "n3")
    first = cluster.by_name["n1"]
    first.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
    body = {"messages": [{"value": str(n)} for n in range(5)]}
    eventually(lambda: first.request("POST", "/v1/topics/t/messages", body).status == 200)
    first.call(
        "POST", "/v1/cluster/moves", {"topic": "t", "partition": 0, "replicas": ["n1", "n2"]}
    )
    eventually(lambda: partition(cluster, "n1")["replicas"] == ["n1", "n2"])
    first.call("DELETE", "/v1/cluster/nodes/n1")
    eventually(lambda: set(cluster.statuses("n2")) == {"n2", "n3"})
    cluster.stop("n1")
    eventually(lambda: sorted(partition(cluster, "n3")["in_sync"]) == ["n2", "n3"])
    assert partition(cluster, "n3")["leader"] in ("n2", "n3")


def test_the_last_of_the_nodes_that_can_hold_a_partition_does_not_leave(
    cluster: RunningCluster,
) -> None:
    grown(cluster, "n1")
    refused = cluster.by_name["n1"].request("DELETE", "/v1/cluster/nodes/n1")
    assert (refused.status, refused.json["code"]) == (409, "conflict")
    unknown = cluster.by_name["n1"].request("DELETE", "/v1/cluster/nodes/n9")
    assert (unknown.status, unknown.json["code"]) == (404, "node_not_found")


def test_all_nodes_started_again_with_the_same_flags_are_the_same_cluster(
    cluster: RunningCluster,
) -> None:
    grown(cluster, "n1", "n2")
    for name in ("n1", "n2"):
        cluster.stop(name)
    cluster.restart("n2")
    cluster.restart("n1")
    eventually(lambda: incarnations(cluster, "n2") == {"n1": 2, "n2": 2})
    eventually(lambda: cluster.statuses("n2") == {"n1": "up", "n2": "up"})


def test_a_node_that_has_left_stays_away_when_it_is_started_again(cluster: RunningCluster) -> None:
    grown(cluster, "n1", "n2")
    cluster.by_name["n1"].call("DELETE", "/v1/cluster/nodes/n2")
    eventually(lambda: cluster.statuses("n1") == {"n1": "up"})
    eventually(lambda: "has left" in _unready(cluster.by_name["n2"]))
    version = cluster.by_name["n1"].call("GET", "/v1/cluster")["version"]
    cluster.stop("n2")
    again = cluster.restart("n2")
    assert "this node has left it" in _unready(again)
    later = cluster.by_name["n1"].call("GET", f"/v1/cluster?version={version}&wait=1s")
    assert [node["id"] for node in later["nodes"]] == ["n1"]


def _unready(node: RunningNode) -> str:
    return " ".join(node.request("GET", "/readyz").json.get("waits_for", []))


def test_a_node_that_joined_again_is_not_removed_by_a_decision_about_the_earlier_one(
    cluster: RunningCluster,
) -> None:
    grown(cluster, "n1", "n2")
    first = cluster.by_name["n1"].node._bootstrap
    assert first is not None
    assert first._opened is not None
    member = first._opened.member
    assert not cluster.state("n1").nodes["n2"].leaving
    cluster.by_name["n1"].on_loop(lambda: remove_member("n1", member, "n2"))
    members = cluster.cluster_node("n1").raft.status.members
    assert [spec.partition("=")[0] for spec in members] == ["n1", "n2"]


def test_an_id_that_is_in_use_joins_no_second_time(cluster: RunningCluster) -> None:
    grown(cluster, "n1", "n2")
    bootstrap = cluster.by_name["n2"].node._bootstrap
    assert bootstrap is not None
    assert bootstrap._opened is not None
    rpc = bootstrap._opened.member.rpc
    url = cluster.by_name["n1"].url

    async def ask() -> None:
        address = f"127.0.0.1:{free_port()}"
        await rpc.call(url, JOIN, f"n2={address}".encode(), 5.0)

    with pytest.raises(Conflict, match="another disk"):
        cluster.by_name["n2"].on_loop(ask)


def test_a_node_that_was_admitted_by_mistake_leaves_and_others_join(
    cluster: RunningCluster,
) -> None:
    grown(cluster, "n1", "n2")
    first = cluster.by_name["n1"]
    first.call("POST", "/v1/cluster/nodes", {"node": "n9", "address": f"{HOST}:{free_port()}"})
    eventually(lambda: [n["id"] for n in first.call("GET", "/v1/cluster")["absent"]] == ["n9"])
    first.call("DELETE", "/v1/cluster/nodes/n9")
    eventually(lambda: "absent" not in first.call("GET", "/v1/cluster"))
    cluster.start("n3", via="n1")
    eventually(lambda: cluster.statuses("n1").get("n3") == "up")


def test_followers_are_shown_with_their_lag_on_every_node(cluster: RunningCluster) -> None:
    grown(cluster, "n1", "n2")
    first = cluster.by_name["n1"]
    first.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
    body = {"messages": [{"value": "x"}]}
    eventually(lambda: first.request("POST", "/v1/topics/t/messages", body).status == 200)
    for name in ("n1", "n2"):
        follower = {"end_offset": 1, "lag_messages": 0, "lag_s": 0.0}
        shown = partition(cluster, name, query="&lag=true")
        (found,) = shown["followers"]
        assert found == {**follower, "node": "n1" if shown["leader"] == "n2" else "n2"}
    metrics = "\n".join(
        cluster.by_name[n].request("GET", "/metrics").body.decode() for n in ("n1", "n2")
    )
    assert 'goq_cluster_nodes{status="up"} 2.0' in metrics
    assert 'goq_partition_in_sync_replicas{partition="0",topic="t"} 2.0' in metrics
    assert metrics.count("goq_cluster_controller 1.0") == 1


def test_the_state_is_answered_when_it_changes(cluster: RunningCluster) -> None:
    grown(cluster, "n1")
    first = cluster.by_name["n1"]
    version = first.call("GET", "/v1/cluster")["version"]
    first.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
    later = first.call("GET", f"/v1/cluster?version={version}&wait=60s")
    assert later["version"] > version
    assert [topic["name"] for topic in later["topics"]] == ["t"]


def test_a_node_that_has_topics_of_its_own_is_made_no_member(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    with running_node(tmp_path / "n1") as alone:
        alone.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
    with pytest.raises(UsageError, match="topics"):
        cluster.start("n1")


def test_who_waits_at_a_node_that_stops_may_ask_another_at_once(cluster: RunningCluster) -> None:
    grown(cluster, "n1", "n2")
    first = cluster.by_name["n1"]
    first.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
    eventually(lambda: partition(cluster, "n1")["leader"] is not None)
    answers: list[Any] = []
    asking = threading.Thread(
        target=lambda: answers.append(
            first.request("POST", "/v1/topics/t/groups/g/receive", {"wait": "60s"})
        )
    )
    asking.start()
    app = first.node.app
    assert app is not None
    eventually(lambda: app.router._waiting)
    cluster.stop("n1")
    asking.join(60)
    assert answers[0].json["code"] in ("shutting_down", "not_leader")
    assert "retry-after" not in answers[0].headers


@pytest.mark.parametrize("moved", first_of([(("n2", "n3"),), (("n1",),), (("n3",),)], quick=1))
def test_nodes_that_start_at_other_addresses_are_found(
    cluster: RunningCluster, moved: tuple[str, ...]
) -> None:
    cluster.start_three()
    before = {name: cluster.by_name[name].url for name in moved}
    cluster.stop(*moved)
    cluster.forget_addresses(*moved)
    for name in moved:
        cluster.start_peer(name)
    (stayed, *_) = (name for name in ("n1", "n2", "n3") if name not in moved)

    def urls() -> dict[str, str]:
        nodes = cluster.by_name[stayed].call("GET", "/v1/cluster")["nodes"]
        return {n["id"]: n["url"] for n in nodes if n["status"] == "up"}

    # The others may hold that a node is up, at its earlier address, until it has registered again.
    cluster.until(lambda: urls() == {name: node.url for name, node in cluster.by_name.items()})
    assert not set(before.values()) & set(urls().values())
    cluster.create("t", 3)
    body = {"messages": [{"value": str(number), "partition": number} for number in range(3)]}
    cluster.by_name[stayed].call("POST", "/v1/topics/t/messages", body)
