"""Messages are found by key, dedup id and header, over all partitions, the newest first."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import urlencode

import pytest

from goq import limits
from tests.support.api.calls import publish
from tests.support.node.running_node import RunningNode


def find(node: RunningNode, topic: str, **asked: Any) -> dict[str, Any]:
    answer: dict[str, Any] = node.call("GET", f"/v1/topics/{topic}/trace?{urlencode(asked)}")
    return answer


def ids(answer: dict[str, Any]) -> list[str]:
    return [trace["message"]["id"] for trace in answer["traces"]]


def test_messages_are_found_by_key_the_newest_first(node: RunningNode, topic: str) -> None:
    first, second = publish(node, topic, "1", "2", key="order-1")
    publish(node, topic, "3", key="order-2")
    publish(node, topic, "4")
    [third] = publish(node, topic, "5", key="order-1")
    answer = find(node, topic, key="order-1")
    assert ids(answer) == [third["id"], second["id"], first["id"]]
    assert answer["next"] is None


def test_a_key_is_found_in_partitions_that_are_not_its_own(node: RunningNode, topic: str) -> None:
    published = [publish(node, topic, "v", key="k", partition=n)[0]["id"] for n in (2, 0, 1)]
    assert ids(find(node, topic, key="k")) == published[::-1]
    first = find(node, topic, key="k", limit=1)
    second = find(node, topic, key="k", limit=1, cursor=first["next"])
    third = find(node, topic, key="k", limit=1, cursor=second["next"])
    assert ids(first) + ids(second) + ids(third) == published[::-1]
    rest = find(node, topic, key="k", cursor=third["next"]) if third["next"] else {"traces": []}
    assert rest["traces"] == []


def test_messages_are_found_by_a_key_that_is_not_text(node: RunningNode, topic: str) -> None:
    key = base64.b64encode(b"\xff\xfe\x00").decode()
    [published] = publish(node, topic, "v", key_base64=key)
    assert ids(find(node, topic, key_base64=key)) == [published["id"]]


def test_messages_are_found_by_dedup_id(node: RunningNode, topic: str) -> None:
    [published] = publish(node, topic, "v", dedup_id="payment-7")
    publish(node, topic, "v", dedup_id="payment-8")
    publish(node, topic, "again", dedup_id="payment-7")
    assert ids(find(node, topic, dedup_id="payment-7")) == [published["id"]]


def test_messages_are_found_by_a_header(node: RunningNode, topic: str) -> None:
    publish(node, topic, "v", headers={"trace": "1"})
    wanted = [publish(node, topic, "v", headers={"a": "b", "trace": "1=2"}) for _ in range(3)]
    publish(node, topic, "v", headers={"other": "1=2"})
    answer = find(node, topic, header="trace=1=2")
    assert ids(answer) == [results[0]["id"] for results in wanted[::-1]]
    assert answer["next"] is None
    first = find(node, topic, header="trace=1=2", limit=1)
    assert ids(first) == [wanted[2][0]["id"]]
    rest = find(node, topic, header="trace=1=2", cursor=first["next"])
    assert ids(rest) == [wanted[1][0]["id"], wanted[0][0]["id"]]


def test_a_key_that_is_nowhere_says_what_was_searched(node: RunningNode, topic: str) -> None:
    publish(node, topic, "1", "2", key="Order")
    answer = node.request("GET", f"/v1/topics/{topic}/trace?key=order")
    problem = answer.json
    assert answer.status == 404
    assert problem["code"] == "message_not_found"
    assert "key 'order'" in problem["detail"]
    assert "searched 2 messages in 3 partitions" in problem["detail"]
    assert "A differs from a" in problem["detail"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "key"),
        ("limit=5", "key"),
        ("key=a&header=b=c", "header"),
        ("key=a&key_base64=YQ==", "key_base64"),
        ("dedup_id=a&key=", "dedup_id"),
        ("key_base64=%25", "key_base64"),
        ("key_base64=Y", "key_base64"),
        ("header=name", "header"),
        ("header==value", "header"),
        ("dedup_id=", "dedup_id"),
        ("key=a&limit=0", "limit"),
        ("key=a&limit=101", "limit"),
        ("key=a&cursor=x", "cursor"),
        ("key=a&from_time=never", "from_time"),
        ("key=a&to_time=", "to_time"),
        ("key=a&partition=0", "partition"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(
    node: RunningNode, topic: str, query: str, field: str
) -> None:
    answer = node.request("GET", f"/v1/topics/{topic}/trace?{query}")
    assert (answer.status, answer.json["code"]) == (400, "invalid_input")
    assert answer.json["field"] == field


def test_a_search_in_no_topic_is_refused(node: RunningNode) -> None:
    answer = node.request("GET", "/v1/topics/nothing-there/trace?key=a")
    assert (answer.status, answer.json["code"]) == (404, "topic_not_found")


def test_the_empty_key_is_a_key(node: RunningNode, topic: str) -> None:
    publish(node, topic, "without")
    [published] = publish(node, topic, "with", key="")
    assert ids(find(node, topic, key="")) == [published["id"]]


def test_a_page_has_at_most_so_many_messages(node: RunningNode, topic: str) -> None:
    publish(node, topic, *"x" * (limits.SEARCH_MESSAGES_MAX + 1), key="k")
    assert len(find(node, topic, key="k")["traces"]) == 10
    assert len(find(node, topic, key="k", limit=100)["traces"]) == limits.SEARCH_MESSAGES_MAX


def test_a_search_keeps_to_the_times_asked_for(node: RunningNode, topic: str) -> None:
    times = []
    for _ in range(3):
        [published] = publish(node, topic, "x", key="k", headers={"h": "1"})
        times.append(published["timestamp"])
    for selector in ({"key": "k"}, {"header": "h=1"}):
        answer = find(node, topic, **selector, from_time=times[1], to_time=times[2])
        assert len(answer["traces"]) == 1
    answer = node.request("GET", f"/v1/topics/{topic}/trace?key=k&to_time={times[0]}")
    assert answer.status == 404
    assert f"up to {times[0]}" in answer.json["detail"]
