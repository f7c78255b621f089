from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from goq import limits
from goq.clock import SystemClock
from goq.config.topic import TopicSettings
from goq.units import parse_time_us
from tests.support.api.calls import publish
from tests.support.node.running_node import RunningNode, running_node


def test_a_topic_is_created_with_what_is_asked_and_shown_as_it_is(node: RunningNode) -> None:
    asked = {
        "name": "shown",
        "partitions": 2,
        "settings": {"retention": {"age": "12h"}, "segment.bytes": "64KiB", "fsync": "interval"},
    }
    created = node.request("POST", "/v1/topics", asked)
    assert created.status == 201
    topic = created.json
    assert topic["name"] == "shown"
    assert topic["settings"] == TopicSettings().written() | {
        "retention.age": "12h",
        "retention.bytes": "10GiB",
        "segment.bytes": "64KiB",
        "segment.age": "1d",
        "fsync": "interval",
        "delivery.backoff.initial": "0s",
    }
    assert topic["partitions"] == [
        {
            "partition": number,
            "leader": "node-1",
            "start_offset": 0,
            "end_offset": 0,
            "high_watermark": 0,
            "bytes": 0,
        }
        for number in range(2)
    ]
    shown = node.call("GET", "/v1/topics/shown")
    now_us = parse_time_us(shown.pop("time"), now_us=0)
    assert abs(now_us - SystemClock().wall_us()) < 60_000_000
    assert shown == topic
    assert topic in node.call("GET", "/v1/topics")["topics"]


def test_topics_are_listed_by_name(node: RunningNode) -> None:
    for name in ("b-list", "a-list", "c-list"):
        node.call("POST", "/v1/topics", {"name": name, "partitions": 1})
    names = [topic["name"] for topic in node.call("GET", "/v1/topics")["topics"]]
    assert names == sorted(names)
    assert {"a-list", "b-list", "c-list"} <= set(names)


def test_a_topic_without_wishes_gets_the_defaults(node: RunningNode) -> None:
    topic = node.call("POST", "/v1/topics", {"name": "defaults"})
    assert len(topic["partitions"]) == 6
    assert topic["settings"]["fsync"] == "always"


def test_altering_changes_what_is_said_and_nothing_else(node: RunningNode, topic: str) -> None:
    publish(node, topic, "stays")
    before = node.call("GET", f"/v1/topics/{topic}")
    change = {"settings": {"delivery": {"visibility_timeout": "1m"}}, "partitions": 4}
    after = node.call("PATCH", f"/v1/topics/{topic}", change)
    assert after["settings"] == {**before["settings"], "delivery.visibility_timeout": "1m"}
    assert after["partitions"][:3] == before["partitions"]
    assert len(after["partitions"]) == 4
    assert node.call("PATCH", f"/v1/topics/{topic}", {}) == after


def test_a_setting_that_is_none_is_unlimited(node: RunningNode, topic: str) -> None:
    change = {"settings": {"retention.age": None, "retention.bytes": "none"}}
    settings = node.call("PATCH", f"/v1/topics/{topic}", change)["settings"]
    assert (settings["retention.age"], settings["retention.bytes"]) == ("none", "none")


def test_thousands_of_tenants_have_a_weight_and_one_more_than_may_is_refused(
    node: RunningNode, topic: str
) -> None:
    path = f"/v1/topics/{topic}"
    most = ",".join(f"t{number:05}=2" for number in range(limits.TENANT_WEIGHTS_MAX))
    assert node.call("PATCH", path, {"settings": {"tenants.weights": most}})
    assert node.call("GET", path)["settings"]["tenants.weights"] == most
    for settings in (
        {"tenants.weights": f"{most},more=2"},
        {"tenants": {"weights": most + ",x=0"}},
    ):
        refused = node.request("PATCH", path, {"settings": settings})
        assert (refused.status, refused.json["field"]) == (400, "settings.tenants.weights")
    refused = node.request("PATCH", path, {"settings": {"retention.age": "9" * 101}})
    assert "at most 100 characters" in refused.json["detail"]


def test_a_topic_has_as_many_named_lanes_and_weights_as_may_be(
    node: RunningNode, topic: str
) -> None:
    lanes = [f"l{number:03}{'x' * 46}" for number in range(limits.LANES_MAX)]
    settings = {"priority.lanes": ",".join(lanes), "priority.weights": ",".join(["1000"] * 256)}
    path = f"/v1/topics/{topic}"
    shown = node.call("PATCH", path, {"settings": settings})["settings"]
    assert {name: shown[name] for name in settings} == settings
    message = {"value": "x", "priority": lanes[-1]}
    node.call("POST", f"{path}/messages", {"messages": [message]})
    answer = node.call("POST", f"{path}/groups/g/receive", {"wait": "5s"})
    assert [each["priority"] for each in answer["messages"]] == [lanes[-1]]
    for name in settings:
        change = {"settings": {name: f"{settings[name]},1"}}
        refused = node.request("PATCH", path, change)
        assert (refused.status, refused.json["field"]) == (400, f"settings.{name}")


def test_long_settings_are_read_beside_the_event_loop(
    node: RunningNode, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    weights = {"tenants.weights": ",".join(f"t{number}=2" for number in range(2_000))}
    changed = TopicSettings.changed

    def noting(settings: TopicSettings, written: Mapping[str, Any]) -> TopicSettings:
        if written == weights:
            threads.append(threading.get_ident())
        return changed(settings, written)

    monkeypatch.setattr(TopicSettings, "changed", noting)
    node.call("PATCH", f"/v1/topics/{topic}", {"settings": weights})
    node.call("POST", "/v1/topics", {"name": f"{topic}-new", "settings": weights})
    loop_thread = node.on_loop(threading.get_ident)
    assert [thread == loop_thread for thread in threads] == [False, False]


def test_a_deleted_topic_is_gone_and_its_name_is_free(node: RunningNode, topic: str) -> None:
    publish(node, topic, "gone")
    deleted = node.request("DELETE", f"/v1/topics/{topic}")
    assert (deleted.status, deleted.body) == (204, b"")
    assert node.request("GET", f"/v1/topics/{topic}").status == 404
    again = node.call("POST", "/v1/topics", {"name": topic, "partitions": 1})
    assert again["partitions"][0]["end_offset"] == 0


def test_using_a_topic_creates_it_once(node: RunningNode) -> None:
    first = node.call("PUT", "/v1/topics/used")
    again = node.call("PUT", "/v1/topics/used")
    assert again.pop("time") > first.pop("time")
    assert again == first
    assert len(first["partitions"]) == 6


def test_using_a_topic_takes_no_settings_that_it_would_not_set(node: RunningNode) -> None:
    for body in ({"settings": {"retention.age": "1h"}}, {"partitions": 3}, [], b"age=1h"):
        answer = node.request("PUT", "/v1/topics/used-with-settings", body)
        assert (answer.status, answer.json["field"]) == (400, "body"), body
    assert node.request("GET", "/v1/topics/used-with-settings").status == 404
    assert node.request("PUT", "/v1/topics/used-with-settings", {}).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/topics/absent", None),
        ("POST", "/v1/topics/absent/messages", {"messages": [{"value": "x"}]}),
    ],
)
def test_a_node_that_may_not_create_topics_does_not(
    tmp_path: Path, method: str, path: str, body: object
) -> None:
    with running_node(tmp_path, broker={"auto_create_topics": False}) as node:
        answer = node.request(method, path, body)
        assert (answer.status, answer.json["code"]) == (404, "topic_not_found")
        assert node.call("GET", "/v1/topics") == {"topics": []}


@pytest.mark.parametrize("name", ["replication_factor", "min_insync"])
@pytest.mark.parametrize("value", [0, 2])
def test_a_node_of_its_own_keeps_one_replica(
    node: RunningNode, topic: str, name: str, value: int
) -> None:
    for method, path, body in (
        ("POST", "/v1/topics", {"name": f"{topic}-more"}),
        ("PATCH", f"/v1/topics/{topic}", {}),
    ):
        answer = node.request(method, path, {**body, name: value})
        assert (answer.status, answer.json["code"]) == (400, "invalid_input")
        assert answer.json["field"] == name
        assert f"{name} can only be 1, not {value}" in answer.json["detail"]
    assert node.request("GET", f"/v1/topics/{topic}-more").status == 404


def test_a_node_of_its_own_takes_one_replica_for_an_answer(node: RunningNode, topic: str) -> None:
    one = {"replication_factor": 1, "min_insync": 1}
    made = node.call("POST", "/v1/topics", {"name": f"{topic}-one", **one})
    altered = node.call("PATCH", f"/v1/topics/{topic}", one)
    shown = node.call("GET", f"/v1/topics/{topic}")
    for found in (made, altered, shown):
        assert {name: found[name] for name in one} == one


def test_a_size_that_was_set_holds_to_the_byte_after_a_restart(tmp_path: Path) -> None:
    with running_node(tmp_path) as node:
        node.call("POST", "/v1/topics", {"name": "t", "settings": {"retention.bytes": "1100001B"}})
        assert node.call("GET", "/v1/topics/t")["settings"]["retention.bytes"] == "1100001B"
    with running_node(tmp_path) as node:
        assert node.call("GET", "/v1/topics/t")["settings"]["retention.bytes"] == "1100001B"
