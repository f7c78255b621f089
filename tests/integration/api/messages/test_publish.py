from __future__ import annotations

import base64
import re
from typing import Any

import pytest

from goq.frame.encoder import ProducerMark
from goq.frame.hashes import partition_of
from tests.support.api import frames as f
from tests.support.api.calls import publish, values
from tests.support.node.running_node import RunningNode

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def read(node: RunningNode, topic: str, partition: int) -> list[dict[str, Any]]:
    path = f"/v1/topics/{topic}/messages?partition={partition}&limit=10000"
    messages: list[dict[str, Any]] = node.call("GET", path)["messages"]
    return messages


def send_frames(node: RunningNode, topic: str, *placed: bytes) -> Any:
    answer = node.request("POST", f"/v1/topics/{topic}/messages", b"".join(placed), f.FRAMES)
    assert answer.status == 200, answer
    return answer.json


def test_results_come_in_the_order_of_the_messages_and_say_where_each_lies(
    node: RunningNode, topic: str
) -> None:
    sent = [{"value": f"{n}", "partition": n % 3} for n in range(9)]
    answer = node.call("POST", f"/v1/topics/{topic}/messages", {"messages": sent})
    for number, result in enumerate(answer["results"]):
        partition, offset = number % 3, number // 3
        assert result == {
            "id": f"{topic}:{partition}:{offset}",
            "partition": partition,
            "offset": offset,
            "timestamp": result["timestamp"],
        }
        assert TIMESTAMP.fullmatch(result["timestamp"])
        shown = node.call("GET", f"/v1/messages/{result['id']}")
        standing = {"priority": "normal", "state": "available", "groups": []}
        assert shown == {**result, "value": str(number), **standing}
    assert answer["durability"] == "always"


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ({"value": ""}, {"value": ""}),
        ({"value": "é\0\n"}, {"value": "é\0\n"}),
        ({"value": None, "key": "k"}, {"value": None, "key": "k"}),
        ({"value_base64": ""}, {"value": ""}),
        ({"value_base64": "eA=="}, {"value": "x"}),
        ({"value_base64": "/w=="}, {"value_base64": "/w=="}),
        ({"value": "x", "key": ""}, {"value": "x", "key": ""}),
        ({"value": "x", "key": None}, {"value": "x"}),
        ({"value": "x", "key_base64": "/w=="}, {"value": "x", "key_base64": "/w=="}),
        ({"value": "x", "headers": {}}, {"value": "x"}),
        ({"value": "x", "headers": None}, {"value": "x"}),
        ({"value": "x", "headers": []}, {"value": "x"}),
        ({"value": "x", "headers": {"b": "1", "a": "é"}}, {"headers": {"b": "1", "a": "é"}}),
        (
            {"value": "x", "headers": [{"name": "a", "value": "1"}]},
            {"headers": {"a": "1"}},
        ),
        (
            {"value": "x", "headers": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]},
            {"headers": [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]},
        ),
        (
            {"value": "x", "headers": [{"name": "a", "value_base64": "/w=="}]},
            {"headers": [{"name": "a", "value_base64": "/w=="}]},
        ),
    ],
)
def test_a_message_comes_back_as_it_was_sent(
    node: RunningNode, topic: str, sent: dict[str, Any], shown: dict[str, Any]
) -> None:
    answer = node.call("POST", f"/v1/topics/{topic}/messages", {"messages": [sent]})
    found = node.call("GET", f"/v1/messages/{answer['results'][0]['id']}")
    assert {"value": "x", **found} == {**found, **shown, "value": shown.get("value", "x")}
    expected = {"value": "x", **shown}
    if "value_base64" in shown:
        del expected["value"]
    assert {name: found[name] for name in expected} == expected
    assert set(found) - set(expected) == {
        *("id", "partition", "offset", "timestamp"),
        *("priority", "state", "groups"),
    }


def test_a_key_decides_the_partition(node: RunningNode, topic: str) -> None:
    for key in ("a", "b", "order-123", "é"):
        for result in publish(node, topic, "1", "2", key=key):
            assert result["partition"] == partition_of(key.encode(), 3)


def test_what_is_wrong_with_one_message_keeps_all_from_being_stored(
    node: RunningNode, topic: str
) -> None:
    body = {"messages": [{"value": "good", "partition": 0}, {"value": "bad", "partition": 3}]}
    assert node.request("POST", f"/v1/topics/{topic}/messages", body).status == 404
    assert all(read(node, topic, partition) == [] for partition in range(3))


@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
def test_an_answer_says_how_durable_it_is(node: RunningNode, topic: str, fsync: str) -> None:
    node.call("PATCH", f"/v1/topics/{topic}", {"settings": {"fsync": fsync}})
    body = {"messages": [{"value": "x"}]}
    assert node.call("POST", f"/v1/topics/{topic}/messages", body)["durability"] == fsync
    assert send_frames(node, topic, f.placed(f.frame(b"x")))["durability"] == fsync


def test_publishing_creates_the_topic(node: RunningNode) -> None:
    publish(node, "made-by-publish", "x")
    assert len(node.call("GET", "/v1/topics/made-by-publish")["partitions"]) == 6


def test_curl_needs_no_content_type(node: RunningNode, topic: str) -> None:
    body = b'{"messages": [{"value": "x"}]}'
    for headers in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):
        assert node.request("POST", f"/v1/topics/{topic}/messages", body, headers).status == 200


def test_frames_are_stored_as_they_are_and_answered_in_order(node: RunningNode, topic: str) -> None:
    answer = send_frames(
        node,
        topic,
        f.placed(f.frame(b"a", b"b", keys=[b"k", None]), 2),
        f.placed(f.frame(b"c", None, b"\xff", compress=True), 1),
        f.placed(f.frame(b"x" * 1000, b"x" * 1000, compress=True), 2),
    )
    assert [(r["partition"], r["offset"], r["count"]) for r in answer["results"]] == [
        (2, 0, 2),
        (1, 0, 3),
        (2, 2, 2),
    ]
    assert all(r["duplicate"] is False for r in answer["results"])
    assert all(TIMESTAMP.fullmatch(r["timestamp"]) for r in answer["results"])
    assert values(read(node, topic, 2)) == ["a", "b", "x" * 1000, "x" * 1000]
    assert [m.get("key") for m in read(node, topic, 2)[:2]] == ["k", None]
    assert read(node, topic, 1)[2]["value_base64"] == base64.b64encode(b"\xff").decode()


def test_a_batch_that_is_sent_again_is_answered_with_its_first_place(
    node: RunningNode, topic: str
) -> None:
    frames = [f.placed(f.frame(b"x", b"y", producer=ProducerMark(9, 0, n)), 0) for n in (5, 7, 9)]
    first = send_frames(node, topic, frames[0])["results"]
    send_frames(node, topic, frames[1])
    again = send_frames(node, topic, frames[0], frames[1], frames[2])["results"]
    assert again[0] == {**first[0], "duplicate": True}
    assert [(r["offset"], r["duplicate"]) for r in again] == [(0, True), (2, True), (4, False)]
    assert len(read(node, topic, 0)) == 6


def test_the_same_batch_twice_in_one_request_is_stored_once(node: RunningNode, topic: str) -> None:
    placed = f.placed(f.frame(b"x", producer=ProducerMark(9, 0, 0)), 0)
    results = send_frames(node, topic, placed, placed)["results"]
    assert [(r["offset"], r["duplicate"]) for r in results] == [(0, False), (0, True)]


def test_a_gap_in_a_producers_sequence_is_refused(node: RunningNode, topic: str) -> None:
    send_frames(node, topic, f.placed(f.frame(b"x", producer=ProducerMark(9, 0, 0)), 0))
    gap = f.placed(f.frame(b"x", producer=ProducerMark(9, 0, 2)), 0)
    answer = node.request("POST", f"/v1/topics/{topic}/messages", gap, f.FRAMES)
    assert (answer.status, answer.json["code"]) == (409, "out_of_order_sequence")
    assert len(read(node, topic, 0)) == 1


def test_an_older_epoch_of_a_producer_is_fenced(node: RunningNode, topic: str) -> None:
    for epoch in (1, 3):
        send_frames(node, topic, f.placed(f.frame(b"x", producer=ProducerMark(9, epoch, 0)), 0))
    old = f.placed(f.frame(b"x", producer=ProducerMark(9, 2, 1)), 0)
    answer = node.request("POST", f"/v1/topics/{topic}/messages", old, f.FRAMES)
    assert (answer.status, answer.json["code"]) == (409, "producer_fenced")
    assert len(read(node, topic, 0)) == 2


def test_producers_and_partitions_count_apart(node: RunningNode, topic: str) -> None:
    for producer, partition in ((8, 0), (9, 0), (9, 1)):
        mark = ProducerMark(producer, 0, 0)
        answer = send_frames(node, topic, f.placed(f.frame(b"x", producer=mark), partition))
        assert answer["results"][0]["duplicate"] is False


def test_a_publish_to_the_topic_of_an_id_never_enters_another_one(
    node: RunningNode, topic: str
) -> None:
    frame = f.placed(f.frame(b"x"), 0)
    shown = node.call("GET", f"/v1/topics/{topic}")
    path = f"/v1/topics/{topic}/messages?topic_id={shown['id']}"
    assert node.request("POST", path, frame, f.FRAMES).status == 200
    node.call("DELETE", f"/v1/topics/{topic}")
    for is_created_again in (False, True):
        if is_created_again:
            node.call("POST", "/v1/topics", {"name": topic, "partitions": 3})
        for body, kind in ((frame, f.FRAMES), (b'{"messages": [{"value": "x"}]}', {})):
            answer = node.request("POST", path, body, kind)
            assert (answer.status, answer.json["code"]) == (404, "topic_not_found")
            assert answer.json["field"] == "topic_id"
    assert read(node, topic, 0) == []
