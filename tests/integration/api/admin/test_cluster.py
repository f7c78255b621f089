"""A node of its own answers about the cluster: it is one, of one node."""

from __future__ import annotations

import pytest

from tests.support.api.calls import publish
from tests.support.node.running_node import RunningNode


def test_a_node_of_its_own_leads_everything(node: RunningNode, topic: str) -> None:
    publish(node, topic, "x")
    shown = node.call("GET", f"/v1/cluster?topic={topic}&lag=true")
    (itself,) = shown["nodes"]
    assert (shown["cluster"], shown["version"], shown["controller"]) == (False, 0, itself["id"])
    assert (itself["status"], itself["url"]) == ("up", node.url)
    assert (shown["under_replicated"], shown["offline"], shown["moves"]) == ([], [], [])
    ((name, partitions),) = [(t["name"], t["partitions"]) for t in shown["topics"]]
    assert name == topic
    assert [p["partition"] for p in partitions] == list(range(len(partitions)))
    assert {p["leader"] for p in partitions} == {itself["id"]}
    assert all(p["replicas"] == p["in_sync"] == [itself["id"]] for p in partitions)
    assert sum(p["end_offset"] for p in partitions) == 1


def test_topics_are_those_asked_for(node: RunningNode, topic: str) -> None:
    publish(node, topic, "x")
    publish(node, f"{topic}-b", "x")
    shown = node.call("GET", f"/v1/cluster?topic={topic},{topic}-b,none")
    assert [t["name"] for t in shown["topics"]] == [topic, f"{topic}-b"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("version=x", "version"),
        ("version=-1", "version"),
        ("version=99999999999999999", "version"),
        ("version=0&wait=2h", "wait"),
        ("version=0&wait=soon", "wait"),
        ("lag=perhaps", "lag"),
        ("lags=true", "lags"),
    ],
)
def test_a_wrong_question_names_what_is_wrong(node: RunningNode, query: str, field: str) -> None:
    answer = node.request("GET", f"/v1/cluster?{query}")
    assert (answer.status, answer.json["code"], answer.json["field"]) == (
        400,
        "invalid_input",
        field,
    )


def test_another_version_is_answered_at_once_and_this_one_when_the_time_is_over(
    node: RunningNode,
) -> None:
    assert node.call("GET", "/v1/cluster?version=7&wait=60s")["version"] == 0
    assert node.call("GET", "/v1/cluster?version=0&wait=10ms")["version"] == 0


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "nodes", {"node": "n2", "address": "h:1"}),
        ("DELETE", "nodes/n1", None),
        ("POST", "rebalance", {}),
        ("POST", "moves", {"topic": "t", "partition": 0, "replicas": ["n1"]}),
        ("DELETE", "moves/t/0", None),
        ("POST", "elections", {"topic": "t", "partition": 0}),
        ("PATCH", "settings", {"min_insync": 1}),
    ],
)
def test_nothing_can_be_done_to_it(node: RunningNode, method: str, path: str, body: object) -> None:
    answer = node.request(method, f"/v1/cluster/{path}", body)
    assert (answer.status, answer.json["code"]) == (409, "conflict")
    assert "docs/cluster.md" in answer.json["detail"]


@pytest.mark.parametrize(
    "body",
    [
        {"topic": "t", "partition": 0, "dry_run": True},
        {"topic": "t", "partition": 0, "unclean": True},
        {"topic": "t", "partition": 0, "leeder": "n1"},
        {"topic": "t"},
    ],
)
def test_an_election_that_makes_no_sense_is_refused(node: RunningNode, body: object) -> None:
    answer = node.request("POST", "/v1/cluster/elections", body)
    assert answer.status in (400, 409)
    assert answer.json["code"] in ("invalid_input", "conflict")
