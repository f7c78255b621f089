from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

import goq
from goq import limits
from goq.api.views import group_backlog
from tests.support.api.calls import publish, receive, settle
from tests.support.api.scrape import metric
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node


def now(node: RunningNode, query: str = "") -> dict[str, Any]:
    lines = node.request("GET", f"/v1/live?limit=1{query}").body.splitlines()
    found = [json.loads(line) for line in lines if line]
    assert [line["more"] for line in found] == [True] * (len(found) - 1) + [False]
    whole: dict[str, Any] = found[0]
    for line in found[1:]:
        whole["topics"] += line["topics"]
    return whole


def stream(node: RunningNode, query: str = "interval=500ms") -> Iterator[dict[str, Any]]:
    connection = HTTPConnection(*node.address, timeout=30)
    try:
        connection.request("GET", f"/v1/live?{query}")
        answer = connection.getresponse()
        while line := answer.readline():
            if line.strip():
                yield json.loads(line)
    finally:
        connection.close()


def test_totals_of_topics_and_groups_are_told(node: RunningNode) -> None:
    topic = "one"
    node.call("POST", "/v1/topics", {"name": topic, "partitions": 1})
    publish(node, topic, "a", "b", "c", priority="high", tenant="acme")
    publish(node, topic, "d", tenant="zen")
    first, second = receive(node, topic, max_messages=2)
    settle(node, topic, "ack", first["receipt"])
    settle(node, topic, "nack", second["receipt"], delay="1h")
    (told,) = now(node, f"&topics={topic}")["topics"]
    assert told["published_messages"] == told["messages"] == 4
    (group,) = told["groups"]
    assert group["delivered_messages"] == 2
    assert group["acked_messages"] == group["nacked_messages"] == group["retry"] == 1
    assert group["ready"] == 2
    assert 0 < group["oldest_ready"] <= time.time() * 1000
    assert group["lanes"] == [{"name": "high", "waiting": 1}, {"name": "normal", "waiting": 1}]
    assert {each["name"]: each["waiting"] for each in group["tenants"]} == {"acme": 1, "zen": 1}
    receive(node, topic, max_messages=2)
    (told,) = now(node, f"&topics={topic}")["topics"]
    (group,) = told["groups"]
    assert group["lanes"] == [
        {"name": "high", "waiting": 0, "leased": 1},
        {"name": "normal", "waiting": 0, "leased": 1},
    ]
    assert {each["name"]: each["leased"] for each in group["tenants"]} == {"acme": 1, "zen": 1}


def test_after_a_restart_lanes_are_counted_or_said_to_be_unknown_and_never_none(
    tmp_path: Path,
) -> None:
    def told(node: RunningNode) -> dict[str, Any]:
        (group,) = now(node, "&topics=t")["topics"][0]["groups"]
        assert isinstance(group, dict)
        return group

    def shown(node: RunningNode, by: str, name: str) -> float | None:
        labels = {"topic": "t", "group": "g", by: name}
        return metric(node, f"goq_group_{by}_waiting_messages", **labels)

    with running_node(tmp_path) as node:
        node.call("POST", "/v1/topics", {"name": "t", "partitions": 1})
        publish(node, "t", "a", "b", "c", priority="high", tenant="acme")
        publish(node, "t", "d", "e")
        settle(node, "t", "ack", *(each["receipt"] for each in receive(node, "t", max_messages=2)))
    with running_node(tmp_path) as node:
        assert told(node)["lanes"] == [
            {"name": "high", "waiting": 1},
            {"name": "normal", "waiting": 2},
        ]
        assert told(node)["tenants"] == [{"name": "acme", "waiting": 1}]
        assert (shown(node, "lane", "normal"), shown(node, "tenant", "acme")) == (2, 1)
        publish(node, "t", "f")  # no group reads: the queues keep nothing
        assert told(node)["ready"] == 4
        assert told(node)["lanes"] is told(node)["tenants"] is None
        assert shown(node, "lane", "normal") is None
        got = receive(node, "t", max_messages=1)
        assert told(node)["lanes"] == [
            {"name": "high", "waiting": 0, "leased": 1},
            {"name": "normal", "waiting": 3},
        ]
        assert shown(node, "lane", "normal") == 3
        settle(node, "t", "ack", got[0]["receipt"])
        settle(node, "t", "ack", *(each["receipt"] for each in receive(node, "t")))
    with running_node(tmp_path) as node:
        assert told(node)["lanes"] == []
        publish(node, "t", "g")
        assert told(node)["lanes"] is None


def test_more_queues_than_are_looked_through_are_not_known(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.call("POST", "/v1/topics", {"name": "wide", "partitions": 1})
    for tenant in "abc":
        publish(node, "wide", "v", "w", tenant=tenant)
    receive(node, "wide", max_messages=1)

    def lanes() -> object:
        return now(node, "&topics=wide")["topics"][0]["groups"][0]["lanes"]

    assert lanes() == [{"name": "normal", "waiting": 5, "leased": 1}]
    monkeypatch.setattr(group_backlog, "_QUEUES_MAX", 2)
    publish(node, "wide", "x")
    assert lanes() is None
    monkeypatch.setattr(group_backlog, "_QUEUES_MAX", 9)
    monkeypatch.setattr(group_backlog, "_LEASED_MAX", 0)
    publish(node, "wide", "x")
    assert lanes() is None


def test_a_group_without_consumers_waits_since_its_first_message(node: RunningNode) -> None:
    node.call("POST", "/v1/topics", {"name": "left", "partitions": 1})
    publish(node, "left", "a")
    node.call("PUT", "/v1/topics/left/groups/nobody", {"settings": {}})
    (told,) = now(node, "&topics=left")["topics"]
    (group,) = told["groups"]
    assert group["ready"] == 1
    assert abs(group["oldest_ready"] - told["last_append"]) <= 1


def test_a_line_has_only_what_changed_since_the_line_before(node: RunningNode, topic: str) -> None:
    node.call("POST", "/v1/topics", {"name": "idle"})
    lines = stream(node, f"interval=500ms&topics={topic},idle")
    assert {each["name"] for each in next(lines)["topics"]} == {topic, "idle"}
    assert next(lines)["topics"] == []
    publish(node, topic, "a")
    changed = next(line for line in lines if line["topics"])
    assert [each["name"] for each in changed["topics"]] == [topic]
    node.call("DELETE", "/v1/topics/idle")
    assert next(line for line in lines if line["removed"])["removed"] == ["idle"]
    lines.close()


def test_many_topics_come_in_several_lines_of_one_moment(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b", "c", "d"):
        node.call("POST", "/v1/topics", {"name": name, "partitions": 1})
    monkeypatch.setattr(limits, "LIVE_LINE_TOPICS_MAX", 2)
    whole = now(node, "&topics=b,c,d")
    assert [each["name"] for each in whole["topics"]] == ["b", "c", "d"]
    assert not whole["is_partial"]
    monkeypatch.setattr(limits, "LIVE_TOPICS_MAX", 3)
    assert not now(node, "&topics=b,c,d")["is_partial"]
    monkeypatch.setattr(limits, "LIVE_TOPICS_MAX", 2)
    whole = now(node, "&topics=b,c,d")
    assert [each["name"] for each in whole["topics"]] == ["b", "c"]
    assert whole["is_partial"]
    assert whole["totals"]["topics"] == 3


def test_topics_are_found_by_a_part_of_their_name_and_told_in_their_order(
    node: RunningNode,
) -> None:
    for number in range(4):
        node.call("POST", "/v1/topics", {"name": f"part-{number}", "partitions": 1})
        publish(node, f"part-{number}", *"abcd"[number:])
    publish(node, "part-2", *map(str, range(9)))
    query = "&search=PART-&order=messages&top=2"
    eventually(lambda: now(node, query)["totals"]["messages"] == 19)
    found = now(node, query)
    assert [topic["name"] for topic in found["topics"]] == ["part-0", "part-2"]
    assert (found["totals"]["topics"], found["is_partial"]) == (4, True)
    assert now(node, "&search=part-3")["totals"]["topics"] == 1


def test_groups_of_a_named_topic_are_found_and_those_that_lag_most_come_first(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(node, topic, "a", "b")
    for name in ("billing", "audit", "archive"):
        node.call("PUT", f"/v1/topics/{topic}/groups/{name}", {"settings": {}})
    for message in receive(node, topic, "audit"):
        settle(node, topic, "ack", message["receipt"], group="audit")
    monkeypatch.setattr(limits, "LIVE_GROUPS_MAX", 2)
    (told,) = now(node, f"&topics={topic}")["topics"]
    assert [group["group"] for group in told["groups"]] == ["archive", "billing"]
    assert (told["group_count"], told["lag"]) == (3, 4)
    found = now(node, f"&topics={topic}&groups=AU")
    assert [group["group"] for group in found["topics"][0]["groups"]] == ["audit"]
    waits = {(wait["topic"], wait["group"]) for wait in now(node, f"&search={topic}")["waits"]}
    assert waits <= {(topic, "archive"), (topic, "billing")}


def test_of_very_many_groups_all_are_counted_and_those_that_lag_most_are_told(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(node, topic, "a", "b")
    for name in ("archive", "billing", "late", "mail"):
        node.call("PUT", f"/v1/topics/{topic}/groups/{name}", {"settings": {}})
    for name in ("archive", "billing"):
        messages = receive(node, topic, name)
        for message in messages:
            settle(node, topic, "ack", message["receipt"], group=name)
    monkeypatch.setattr(limits, "LIVE_GROUPS_MAX", 2)
    (told,) = now(node, f"&topics={topic}")["topics"]
    assert [(group["group"], group["lag"]) for group in told["groups"]] == [
        ("late", 2),
        ("mail", 2),
    ]
    assert (told["group_count"], told["lag"]) == (4, 4)


def test_a_group_that_has_waited_longest_is_told_though_others_lag_more(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.call("POST", "/v1/topics", {"name": "waits", "partitions": 1})
    for value in "abc":
        publish(node, "waits", value)
    groups = "/v1/topics/waits/groups"
    for name in ("late", "old"):
        node.call("PUT", f"{groups}/{name}", {"settings": {}})
    node.call("POST", f"{groups}/late/reset", {"to": 1})
    node.call("POST", f"{groups}/old/reset", {"to": 0, "end": 1})
    monkeypatch.setattr(limits, "LIVE_GROUPS_MAX", 1)
    told = now(node, "&search=waits")
    lags = [(group["group"], group["lag"]) for group in told["topics"][0]["groups"]]
    assert lags == [("late", 2), ("old", 1)]
    assert ("waits", "old") in {(wait["topic"], wait["group"]) for wait in told["waits"]}


def test_the_node_tells_its_load(node: RunningNode, topic: str) -> None:
    publish(node, topic, "a")
    (told,) = now(node)["nodes"]
    assert told["version"] == goq.__version__
    assert told["cpu_s"] > 0
    assert told["rss_bytes"] > limits.MIB
    assert sum(told["publish"]["counts"]) >= 1


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("interval=499ms", "interval"),
        ("interval=61s", "interval"),
        ("limit=0", "limit"),
        ("topics=a/b", "topics"),
        ("topics=" + ",".join(f"t{n}" for n in range(limits.LIVE_NAMED_MAX + 1)), "topics"),
        ("topic=a", "topic"),
        ("order=size", "order"),
        ("top=0", "top"),
        (f"top={limits.LIVE_TOPICS_MAX + 1}", "top"),
        ("search=" + "x" * (limits.LIVE_SEARCH_MAX + 1), "search"),
        ("groups=a", "groups"),
    ],
)
def test_what_cannot_be_shown_is_refused(node: RunningNode, query: str, field: str) -> None:
    answer = node.request("GET", f"/v1/live?{query}")
    assert (answer.status, answer.json["field"]) == (400, field)


def test_the_bounds_themselves_are_allowed(node: RunningNode) -> None:
    names = ",".join(f"t{n}" for n in range(limits.LIVE_NAMED_MAX))
    for interval in ("500ms", "60s"):
        path = f"/v1/live?limit=1&interval={interval}&topics={names}"
        assert node.request("GET", path).status == 200


def test_the_client_gets_the_state(node: RunningNode, topic: str) -> None:
    publish(node, topic, "a")
    with goq.Client(node.url) as client:
        state = client.get_live_state(topic)
        assert [each.name for each in state.topics] == [topic]
        assert state.topics[0].published_messages == 1
        assert state.nodes[0].node == state.node
