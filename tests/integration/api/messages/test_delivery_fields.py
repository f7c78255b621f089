"""What a published message says of its delivery: how it is read, checked, kept and shown."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from goq import limits
from goq.api.codec import publish_answer
from goq.frame.encoder import NO_DEDUP_ID, Columns, encode_frame
from goq.frame.hashes import dedup_hash
from tests.support.api import frames as f
from tests.support.api.calls import publish, receive
from tests.support.node.running_node import RunningNode


def show(node: RunningNode, result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = node.call("GET", f"/v1/messages/{result['id']}")
    return found


def between(earlier: str, later: str) -> timedelta:
    return datetime.fromisoformat(later) - datetime.fromisoformat(earlier)


@pytest.mark.parametrize(
    ("priority", "shown"), [("high", "high"), ("low", "low"), (0, "high"), ("2", "low")]
)
def test_a_priority_is_a_lanes_name_or_number(
    node: RunningNode, topic: str, priority: object, shown: str
) -> None:
    (result,) = publish(node, topic, "x", priority=priority)
    assert show(node, result)["priority"] == shown


def test_messages_of_one_request_keep_their_own_lanes(node: RunningNode, topic: str) -> None:
    sent = [{"value": p, "priority": p, "partition": 0} for p in ("low", "high", "normal")]
    sent.append({"value": "normal", "partition": 0})
    results = node.call("POST", f"/v1/topics/{topic}/messages", {"messages": sent})["results"]
    assert [show(node, r)["priority"] for r in results] == ["low", "high", "normal", "normal"]


def test_a_topic_has_lanes_of_its_own(node: RunningNode) -> None:
    node.call("POST", "/v1/topics", {"name": "lanes", "settings": {"priority.lanes": "a,b,c,d"}})
    assert show(node, publish(node, "lanes", "x")[0])["priority"] == "c"
    assert show(node, publish(node, "lanes", "x", priority="d")[0])["priority"] == "d"
    node.call("POST", "/v1/topics", {"name": "numbers", "settings": {"priority.lanes": "numbers"}})
    assert show(node, publish(node, "numbers", "x")[0])["priority"] == "128"
    assert show(node, publish(node, "numbers", "x", priority=255)[0])["priority"] == "255"


def test_a_delay_counts_from_now_and_a_ttl_from_when_it_is_over(
    node: RunningNode, topic: str
) -> None:
    (result,) = publish(node, topic, "x", delay="30m", ttl="1h")
    found = show(node, result)
    assert found["deliver_at"] == result["deliver_at"]
    assert abs(between(result["timestamp"], found["deliver_at"]) - timedelta(minutes=30)) < (
        timedelta(seconds=10)
    )
    assert between(found["deliver_at"], found["expires_at"]) == timedelta(hours=1)


def test_a_ttl_alone_counts_from_now(node: RunningNode, topic: str) -> None:
    (result,) = publish(node, topic, "x", ttl=60)
    found = show(node, result)
    assert "deliver_at" not in found
    assert "deliver_at" not in result
    assert abs(between(result["timestamp"], found["expires_at"]) - timedelta(minutes=1)) < (
        timedelta(seconds=10)
    )


@pytest.mark.parametrize(
    "fields", [{"delay": 0}, {"delay": "0s"}, {"deliver_at": "-1h"}, {"deliver_at": 0},
               {"deliver_at": "now"}, {"delay": None, "deliver_at": None, "ttl": None}]
)  # fmt: skip
def test_no_delay_and_a_time_in_the_past_mean_at_once(
    node: RunningNode, topic: str, fields: dict[str, Any]
) -> None:
    (result,) = publish(node, topic, "x", **fields)
    assert "deliver_at" not in result
    assert "deliver_at" not in show(node, result)


def test_a_time_that_has_just_passed_means_at_once(node: RunningNode, topic: str) -> None:
    at = datetime.now().astimezone() - timedelta(seconds=1)
    (result,) = publish(node, topic, "x", deliver_at=at.isoformat(), ttl="1h")
    found = show(node, result)
    assert "deliver_at" not in result
    assert found["state"] != "scheduled"
    assert timedelta() <= between(result["timestamp"], found["expires_at"]) - timedelta(hours=1)


def test_a_time_of_delivery_is_kept_to_the_millisecond_and_never_made_earlier(
    node: RunningNode, topic: str
) -> None:
    at = (datetime.now().astimezone() + timedelta(days=200)).replace(microsecond=1)
    (result,) = publish(node, topic, "x", deliver_at=at.isoformat())
    assert datetime.fromisoformat(result["deliver_at"]) - at == timedelta(microseconds=999)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"priority": "urgent"}, "priority"),
        ({"priority": 3}, "priority"),
        ({"priority": -1}, "priority"),
        ({"priority": ""}, "priority"),
        ({"delay": "366d"}, "delay"),
        ({"delay": -1}, "delay"),
        ({"delay": "soon"}, "delay"),
        ({"delay": "1s", "deliver_at": "+1s"}, "delay"),
        ({"delay": 0, "deliver_at": "+1s"}, "delay"),
        ({"deliver_at": "+366d"}, "deliver_at"),
        ({"deliver_at": "9999-12-31"}, "deliver_at"),
        ({"deliver_at": "2030-01-01T00:00:00"}, "deliver_at"),
        ({"deliver_at": 1e300}, "deliver_at"),
        ({"ttl": 0}, "ttl"),
        ({"ttl": "40000d"}, "ttl"),
        ({"tenant": ""}, "tenant"),
        ({"tenant": "t" * (limits.TENANT_NAME_BYTES_MAX + 1)}, "tenant"),
        ({"tenant": "ü" * limits.TENANT_NAME_BYTES_MAX}, "tenant"),
        ({"dedup_id": ""}, "dedup_id"),
        ({"dedup_id": "d" * (limits.DEDUP_ID_BYTES_MAX + 1)}, "dedup_id"),
        ({"priority": True}, "priority"),
        ({"tenant": 1}, "tenant"),
    ],
)
def test_what_is_out_of_bounds_is_refused_and_nothing_is_stored(
    node: RunningNode, topic: str, fields: dict[str, Any], field: str
) -> None:
    body = {"messages": [{"value": "good"}, {"value": "bad", **fields}]}
    answer = node.request("POST", f"/v1/topics/{topic}/messages", body)
    assert (answer.status, answer.json["code"]) == (400, "invalid_input"), answer
    assert answer.json["field"] == f"messages[1].{field}"
    partitions = node.call("GET", f"/v1/topics/{topic}")["partitions"]
    assert all(p["end_offset"] == 0 for p in partitions)


def test_a_refused_message_creates_no_topic(node: RunningNode) -> None:
    body = {"messages": [{"value": "x", "priority": "urgent"}]}
    assert node.request("POST", "/v1/topics/never/messages", body).status == 400
    assert node.request("GET", "/v1/topics/never").status == 404


def test_a_topic_bounds_its_delays(node: RunningNode) -> None:
    node.call("POST", "/v1/topics", {"name": "bounded", "settings": {"delay.max": "1h"}})
    assert publish(node, "bounded", "x", delay="1h")
    body = {"messages": [{"value": "x", "delay": "61m"}]}
    assert node.request("POST", "/v1/topics/bounded/messages", body).status == 400


def test_a_dedup_id_names_the_original(node: RunningNode, topic: str) -> None:
    (first,) = publish(node, topic, "x", dedup_id="order-1")
    publish(node, topic, "other", dedup_id="order-2")
    (again,) = publish(node, topic, "y", dedup_id="order-1", delay="1h")
    assert again == {**first, "duplicate_of": first["id"]}
    assert show(node, first)["value"] == "x"
    one, other = publish(node, topic, "a", "b", dedup_id="order-3")
    assert other == {**one, "duplicate_of": one["id"]}


def test_a_keys_ids_are_compared_within_its_partition(node: RunningNode, topic: str) -> None:
    (first,) = publish(node, topic, "x", dedup_id="one", key="k")
    assert publish(node, topic, "x", dedup_id="one", key="k")[0]["duplicate_of"] == first["id"]


def test_frames_answer_which_of_their_messages_were_there(node: RunningNode, topic: str) -> None:
    def send(*names: str) -> dict[str, Any]:
        ids = [dedup_hash(name) if name else NO_DEDUP_ID for name in names]
        frame = encode_frame(Columns([b"v"] * len(ids), dedup_ids=ids))
        body = f.placed(frame, 1)
        answer = node.request("POST", f"/v1/topics/{topic}/messages", body, f.FRAMES)
        assert answer.status == 200, answer
        (result,) = answer.json["results"]
        found: dict[str, Any] = result
        return found

    first = send("a", "", "b")
    assert "duplicates" not in first
    second = send("b", "c", "c")
    (row_0, at_0, us_0), (row_2, at_2, us_2) = second["duplicates"]
    assert (second["offset"], second["count"], second["duplicate"]) == (3, 3, False)
    assert [(row_0, at_0), (row_2, at_2)] == [(0, 2), (2, 3)]
    assert us_2 > us_0


@pytest.mark.parametrize("joined_bytes_max", [0, 10_000])
def test_an_answer_of_many_frames_has_a_result_for_each(
    node: RunningNode, topic: str, joined_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_answer, "_JOINED_BYTES_MAX", joined_bytes_max)
    ids = [dedup_hash(name) for name in "abc"]
    frames = [
        encode_frame(Columns([b"v"] * len(some), dedup_ids=some)) for some in (ids, ids[1:], ids)
    ]
    body = b"".join(f.placed(frame, 0) for frame in frames)
    answer = node.request("POST", f"/v1/topics/{topic}/messages", body, f.FRAMES)
    assert answer.status == 200
    assert answer.json["durability"] == "always"
    results = answer.json["results"]
    assert [(one["offset"], one["count"]) for one in results] == [(0, 3), (1, 2), (0, 3)]
    rows = [[row[:2] for row in one.get("duplicates", [])] for one in results]
    assert rows == [[], [[0, 1], [1, 2]], [[0, 0], [1, 1], [2, 2]]]


def test_received_messages_and_peeked_ones_say_it_too(node: RunningNode, topic: str) -> None:
    publish(node, topic, "x", priority="high", tenant="acme", ttl="1h", partition=0)
    (message,) = receive(node, topic)
    path = f"/v1/topics/{topic}/groups/g/peek?state=leased"
    (peeked,) = node.call("GET", path)["messages"]
    for found in (message, peeked):
        assert (found["priority"], found["tenant"]) == ("high", "acme")
        assert found["expires_at"] > found["timestamp"]
