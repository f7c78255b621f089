"""The header in which clients name themselves."""

from __future__ import annotations

import pytest

from goq import limits
from goq.frame.encoder import ProducerMark
from tests.support.api import frames as f
from tests.support.node.node_api import Answer
from tests.support.node.running_node import RunningNode


def publish_as(node: RunningNode, topic: str, name: str | bytes) -> Answer:
    raw = name if isinstance(name, bytes) else name.encode()
    messages = {"messages": [{"value": "v", "partition": 0}]}
    headers = {"Goq-Client-Id": raw.decode("latin-1")}
    return node.request("POST", f"/v1/topics/{topic}/messages", messages, headers)


def producers(node: RunningNode, topic: str) -> list[str | None]:
    def find() -> list[str | None]:
        partition = node.node.broker.topic(topic).partitions[0]
        frames = partition.read(0, messages_max=100).frames
        return [partition.producers.name(view.header) for view in frames]

    return node.on_loop(find)


LONGEST = "x" * limits.CLIENT_ID_CHARS_MAX


@pytest.mark.parametrize("name", ["shop-1", "a", "Zoë's till · 3", LONGEST])
def test_who_publishes_is_known_by_its_name(node: RunningNode, topic: str, name: str) -> None:
    assert publish_as(node, topic, name).status == 200
    sent = f.placed(f.frame(b"v", producer=ProducerMark(5, 0, 0)), 0)
    headers = f.FRAMES | {"Goq-Client-Id": name.encode().decode("latin-1")}
    path = f"/v1/topics/{topic}/messages"
    assert node.request("POST", path, sent, headers).status == 200
    assert producers(node, topic) == [name, name]


def test_what_is_left_out_of_a_named_batch_is_told_as_ever(node: RunningNode, topic: str) -> None:
    path, headers = f"/v1/topics/{topic}/messages", {"Goq-Client-Id": "shop"}
    batch = [{"value": v, "partition": 0, "dedup_id": d} for v, d in (("a", "1"), ("b", "2"))]
    node.request("POST", path, {"messages": batch[:1]}, headers)
    answer = node.request("POST", path, {"messages": batch}, headers).json
    assert [r.get("duplicate_of") for r in answer["results"]] == [f"{topic}:0:0", None]
    assert producers(node, topic) == ["shop", "shop"]


def test_the_header_is_described_where_it_says_something(node: RunningNode) -> None:
    paths = node.call("GET", "/openapi.json")["paths"]
    where = {
        path
        for path, methods in paths.items()
        for operation in methods.values()
        for parameter in operation["parameters"]
        if (parameter["name"], parameter["in"]) == ("Goq-Client-Id", "header")
    }
    group = "/v1/topics/{topic}/groups/{group}"
    assert where == {"/v1/topics/{topic}/messages", f"{group}/receive"}


def test_who_says_no_name_has_none(node: RunningNode, topic: str) -> None:
    node.call(
        "POST", f"/v1/topics/{topic}/messages", {"messages": [{"value": "v", "partition": 0}]}
    )
    assert producers(node, topic) == [None]


@pytest.mark.parametrize(
    "name",
    ["", LONGEST + "x", "a\tb", "a\u200bb", b"\xff\xfe", "a\u0085b"],
)
def test_a_name_that_cannot_be_shown_is_refused_and_nothing_stored(
    node: RunningNode, topic: str, name: str | bytes
) -> None:
    answer = publish_as(node, topic, name)
    assert (answer.status, answer.json["code"]) == (400, "invalid_input")
    assert answer.json["field"] == "Goq-Client-Id"
    assert producers(node, topic) == []


def test_a_consumer_that_says_no_other_name_goes_by_that_of_the_client(
    node: RunningNode, topic: str
) -> None:
    publish_as(node, topic, "shop")
    publish_as(node, topic, "shop")
    path = f"/v1/topics/{topic}/groups/g/receive"
    for body in ({"max_messages": 1}, {"max_messages": 1, "consumer": "other"}):
        node.request("POST", path, body, {"Goq-Client-Id": "worker"})
    shown = node.call("GET", f"/v1/topics/{topic}/groups/g")
    assert [member["consumer"] for member in shown["members"]] == ["other", "worker"]
