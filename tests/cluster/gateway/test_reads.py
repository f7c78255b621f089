"""What is asked of any node about all partitions is what all nodes together have."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from goq.api.route import FRAMES
from goq.client import Client
from goq.frame.encoder import Columns, ProducerMark, encode_frame
from tests.support.cluster.running_cluster import NAMES, RunningCluster
from tests.support.eventually import eventually
from tests.support.node.node_api import NodeApi

_VARYING = ("time", "oldest_ready_age_ms", "rates", "as_of")


def test_a_topic_shows_all_its_partitions_on_every_node(
    cluster: RunningCluster, topic: str
) -> None:
    publish(cluster, topic, 30)
    (shown,) = _same(cluster, f"/v1/topics/{topic}")
    assert [p["partition"] for p in shown["partitions"]] == list(range(6))
    assert {p["leader"] for p in shown["partitions"]} == set(NAMES)
    assert sum(p["high_watermark"] for p in shown["partitions"]) == 30
    (listed,) = _same(cluster, "/v1/topics")
    names = [each["name"] for each in listed["topics"]]
    assert names == sorted(names)
    (found,) = [each for each in listed["topics"] if each["name"] == topic]
    assert found["partitions"] == shown["partitions"]


def test_a_topic_is_whole_in_the_answer_that_creates_alters_or_uses_it(
    cluster: RunningCluster,
) -> None:
    for number, node in enumerate(cluster.nodes):
        name = f"made-{number}"
        made = node.call("POST", "/v1/topics", {"name": name, "partitions": 3})
        assert {p["leader"] for p in made["partitions"]} == set(NAMES)
        altered = node.call("PATCH", f"/v1/topics/{name}", {"partitions": 6})
        assert [p["partition"] for p in altered["partitions"]] == list(range(6))
        assert all(p.get("online", True) for p in altered["partitions"])
        stored = node.call("POST", f"/v1/topics/{name}/messages", {"messages": [{"value": "v"}]})
        assert stored["partitions"] == 6
        used = node.call("PUT", f"/v1/topics/{name}")
        assert [p["leader"] for p in used["partitions"]] == [
            p["leader"] for p in altered["partitions"]
        ]


def test_a_topic_that_its_first_use_makes_is_shown_with_all_its_partitions(
    cluster: RunningCluster,
) -> None:
    for number, node in enumerate(cluster.nodes):
        used = node.call("PUT", f"/v1/topics/used-{number}")
        assert len(used["partitions"]) == 6
        assert {p["leader"] for p in used["partitions"]} == set(NAMES)
        assert all(p.get("online", True) for p in used["partitions"])


def test_the_history_adds_up_what_all_nodes_hold(cluster: RunningCluster, topic: str) -> None:
    publish(cluster, topic, 20)
    (shown,) = _same(cluster, f"/v1/topics/{topic}/history")
    assert [day["messages"] for day in shown["days"]] == [20]
    rates = [n.call("GET", f"/v1/topics/{topic}/history")["rates"] for n in cluster.nodes]
    assert all(each["published_per_s"] > 0 for each in rates)


def test_a_group_adds_up_on_every_node(cluster: RunningCluster, topic: str) -> None:
    publish(cluster, topic, 30)
    taken = []
    for node in cluster.nodes:
        answer = node.call("POST", _group(topic, "receive"), {"max_messages": 4, "consumer": "c"})
        taken += answer["messages"]
    receipts = [message["receipt"] for message in taken]
    cluster.nodes[0].call("POST", _group(topic, "ack"), {"receipts": receipts[:5]})
    (shown,) = _same(cluster, _group(topic))
    assert (shown["lag"], shown["leased"], shown["ready"]) == (25, 7, 18)
    assert shown["members"] == [{"consumer": "c", "leased": 7}]
    assert [p["partition"] for p in shown["partitions"]] == list(range(6))
    assert _same(cluster, f"/v1/topics/{topic}/groups") == [{"groups": [shown]}]
    (past,) = _same(cluster, _group(topic) + "?as_of=now")
    assert (past["lag"], past["leased"], past["ready"]) == (25, 7, 18)
    assert "known" not in past


def test_what_is_not_there_is_not_found_on_any_node(cluster: RunningCluster, topic: str) -> None:
    publish(cluster, topic, 6)
    for path, code in (
        (_group(topic, group="nobody"), "group_not_found"),
        (_group(topic, group="nobody") + "?as_of=now", "group_not_found"),
        (f"/v1/topics/{topic}/trace?key=nothing", "message_not_found"),
        ("/v1/topics/nothing", "topic_not_found"),
        ("/v1/topics/nothing/dead", "topic_not_found"),
    ):
        for node in cluster.nodes:
            answer = node.request("GET", path)
            assert (answer.status, answer.json["code"]) == (404, code)
    text = cluster.nodes[0].request("GET", f"/v1/topics/{topic}/trace?key=nothing").json["detail"]
    assert "searched 6 messages in 6 partitions" in text


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_pages_of_a_group_go_on_over_all_nodes(
    cluster: RunningCluster, topic: str, limit: int
) -> None:
    publish(cluster, topic, 25)
    cluster.nodes[0].call("POST", _group(topic, "receive"), {"max_messages": 1})
    found = _pages(cluster, _group(topic, f"peek?state=ready&limit={limit}"), "after", limit)
    places = [(m["partition"], m["offset"]) for m in found]
    assert len(places) == 24
    assert places == sorted(set(places))


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_pages_of_what_is_scheduled_are_in_the_order_of_due_time(
    cluster: RunningCluster, topic: str, limit: int
) -> None:
    publish(cluster, topic, 15, delays=True)
    found = _pages(cluster, f"/v1/topics/{topic}/scheduled?limit={limit}", "after", limit)
    assert len({m["id"] for m in found}) == 15
    due = [m["deliver_at"] for m in found]
    assert due == sorted(due)
    history = cluster.nodes[1].call("GET", f"/v1/topics/{topic}/history")
    assert history["scheduled"]["count"] == 15
    assert history["scheduled"]["next_due"] == due[0]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_search_finds_what_all_nodes_have_the_newest_first(
    cluster: RunningCluster, topic: str, limit: int
) -> None:
    for number in range(9):
        message = {"value": str(number), "partition": number % 6, "headers": {"of": "us"}}
        cluster.nodes[number % 3].call(
            "POST", f"/v1/topics/{topic}/messages", {"messages": [message]}
        )
    path = f"/v1/topics/{topic}/search?text=us&limit={limit}"
    found = _pages(cluster, path, "cursor", limit)
    assert len({message["id"] for message in found}) == 9
    times = [message["timestamp"] for message in found]
    assert limit < 9 or times == sorted(times, reverse=True)
    path = f"/v1/topics/{topic}/trace?header=of%3Dus&limit={limit}"
    found = _pages(cluster, path, "cursor", limit, "traces")
    assert len({trace["message"]["id"] for trace in found}) == 9
    times = [trace["message"]["timestamp"] for trace in found]
    assert times == sorted(times, reverse=True)


def test_frames_without_values_come_from_any_node(cluster: RunningCluster, topic: str) -> None:
    publish(cluster, topic, 6)
    for node in cluster.nodes:
        with Client(node.url) as client:
            for partition in range(6):
                whole = client.read(topic, partition=partition).messages
                narrow = client.read(topic, partition=partition, without=["value"]).messages
                assert [(m.offset, m.value) for m in whole] == [(0, b"v%d" % partition)]
                assert [(m.offset, m.value) for m in narrow] == [(0, b"")]


def test_a_producer_is_known_wherever_it_got(cluster: RunningCluster, topic: str) -> None:
    for number, node in enumerate([*cluster.nodes, *cluster.nodes]):
        frame = encode_frame(Columns([b"a", b"b"]), producer=ProducerMark(12345, 3, 10))
        body = number.to_bytes(4, "little") + frame
        path = f"/v1/topics/{topic}/messages"
        assert node.request("POST", path, body, {"Content-Type": FRAMES}).status == 200
    (shown,) = _same(cluster, f"/v1/topics/{topic}/producers/12345")
    assert shown["partitions"] == [
        {"partition": number, "epoch": 3, "next_sequence": 12, "offset": 1} for number in range(6)
    ]


def test_dead_letters_are_listed_put_back_and_purged_on_all_nodes(
    cluster: RunningCluster, topic: str
) -> None:
    publish(cluster, topic, 18)
    first, second, third = cluster.nodes
    messages = first.call("POST", _group(topic, "receive"), {"max_messages": 100})["messages"]
    assert len(messages) == 18
    receipts = {"receipts": [message["receipt"] for message in messages]}
    assert second.call("POST", _group(topic, "reject"), receipts) == {"settled": 18, "failed": []}
    eventually(lambda: _dead_count(cluster, topic) == [18] * 3)
    assert len(_pages(cluster, f"/v1/topics/{topic}/dead?limit=4", "after", 4)) == 18
    assert _redriven(third, topic, max_messages=5, dry_run=True) == 5
    assert _redriven(third, topic, max_messages=5) == 5
    eventually(lambda: _dead_count(cluster, topic) == [13] * 3)
    purged = second.call("DELETE", f"/v1/topics/{topic}/dead?max_messages=6")
    assert (purged["purged"], purged["matched"]) == (6, 6)
    assert purged["next"] is not None
    assert _redriven(first, topic) == 7
    assert _dead_count(cluster, topic) == [0] * 3
    eventually(lambda: first.call("GET", _group(topic))["ready"] == 12)


def _redriven(node: Any, topic: str, **asked: Any) -> int:
    redriven: int = node.call("POST", f"/v1/topics/{topic}/redrive", asked)["redriven"]
    return redriven


def test_a_peek_at_dead_messages_asks_the_leaders_of_the_dead_letter_topic(
    cluster: RunningCluster,
) -> None:
    topic, first = "dying", cluster.nodes[0]
    cluster.create(topic, partitions=1)
    first.call("POST", f"/v1/topics/{topic}/messages", {"messages": [{"value": "v"}]})
    (taken,) = first.call("POST", _group(topic, "receive"), {})["messages"]
    first.call("POST", _group(topic, "reject"), {"receipts": [taken["receipt"]]})
    eventually(lambda: _dead_count(cluster, topic) == [1] * 3)
    for name in NAMES:
        to = {"topic": f"{topic}.dlq", "partition": 0, "leader": name}
        if cluster.leaders(f"{topic}.dlq") != [name]:
            first.call("POST", "/v1/cluster/elections", to)
        for node in cluster.nodes:
            found = node.call("GET", _group(topic, "peek?state=dead"))["messages"]
            assert [message["value"] for message in found] == ["v"]


@pytest.mark.parametrize("path", ["/v1/messages/{}:1:0", "/v1/topics/{}/messages?partition=1"])
def test_the_head_of_an_answer_is_that_of_the_leader_on_every_node(
    cluster: RunningCluster, topic: str, path: str
) -> None:
    publish(cluster, topic, 6)
    whole = cluster.nodes[0].request("GET", path.format(topic))
    for node in cluster.nodes:
        head = node.request("HEAD", path.format(topic), timeout_s=10)
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == str(len(whole.body))


def _dead_count(cluster: RunningCluster, topic: str) -> list[int]:
    path = f"/v1/topics/{topic}/dead"
    return [len(node.call("GET", path)["messages"]) for node in cluster.nodes]


def publish(cluster: RunningCluster, topic: str, count: int, *, delays: bool = False) -> None:
    """Publish messages to partitions in turn, through nodes in turn."""
    for number in range(count):
        message: dict[str, Any] = {"value": f"v{number}", "partition": number % 6}
        if delays:
            message["delay"] = f"{3600 - 60 * (number * 7 % count)}s"
        node = cluster.nodes[number % 3]
        node.call("POST", f"/v1/topics/{topic}/messages", {"messages": [message]})


def _group(topic: str, verb: str = "", *, group: str = "g") -> str:
    return f"/v1/topics/{topic}/groups/{group}" + (f"/{verb}" if verb else "")


def _same(cluster: RunningCluster, path: str) -> list[Any]:
    """Return the answer of all nodes, which is one but for what time changes."""
    found: list[Any] = []
    for node in cluster.nodes:
        shown = _still(node.call("GET", path))
        if shown not in found:
            found.append(shown)
    return found


def _still(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: _still(each) for name, each in document.items() if name not in _VARYING}
    return [_still(each) for each in document] if isinstance(document, list) else document


def _pages(
    cluster: RunningCluster, path: str, cursor: str, limit: int, field: str = "messages"
) -> list[Any]:
    """Return what is found page by page, each asked of the next node."""
    found: list[Any] = []
    at = None
    for number in range(100):
        node = cluster.nodes[number % 3]
        page = node.call("GET", path if at is None else f"{path}&{cursor}={at}")
        assert len(page[field]) <= limit
        found += page[field]
        at = page["next"]
        if at is None:
            return found
    raise AssertionError("the pages do not end")


def test_a_trace_says_which_nodes_have_the_message(cluster: RunningCluster, topic: str) -> None:
    publish(cluster, topic, 6)

    def is_on_all_nodes(node: NodeApi, path: str) -> bool:
        return bool(node.call("GET", path)["message"]["nodes"] == list(NAMES))

    for number in range(6):
        path = f"/v1/messages/{topic}:{number}:0/trace"
        for node in cluster.nodes:
            eventually(partial(is_on_all_nodes, node, path))
            assert "node" not in node.call("GET", path)["events"][0]


def test_a_trace_that_goes_on_at_another_leader_says_so(
    cluster: RunningCluster, topic: str
) -> None:
    first, dead = cluster.nodes[0], f"{topic}.dlq"
    cluster.create(dead)
    here, there, *_ = cluster.leaders(topic)
    replicas = [there, *(name for name in NAMES if name != there)]
    move = {"topic": dead, "partition": 0, "replicas": replicas}
    first.call("POST", "/v1/cluster/moves", move)
    first.request("POST", "/v1/cluster/elections", {"topic": dead, "partition": 0})
    eventually(lambda: cluster.leaders(dead)[:2] == [there, there])
    assert here != there
    for partition in (0, 1):
        messages = [{"value": "v", "partition": partition}] * 2
        first.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})
    received = first.call("POST", _group(topic, "receive"), {"max_messages": 100})["messages"]
    receipts = {"receipts": [message["receipt"] for message in received]}
    first.call("POST", _group(topic, "reject"), receipts)
    eventually(lambda: _dead_count(cluster, topic) == [4] * 3)
    for number in (0, 1):
        origin, letter = f"{topic}:1:{number}", f"{dead}:1:{number}"
        assert _links(cluster, letter) == _links(cluster, origin) == (letter, origin, [])
        origin, letter = f"{topic}:0:{number}", f"{dead}:0:{number}"
        to, _, gaps = _links(cluster, origin)
        assert to in (letter, None)
        assert gaps == [f"another node leads partition 0 of {dead}"]
        assert _links(cluster, letter) == (
            None,
            origin,
            [f"another node leads partition 0 of {topic}"],
        )


def _links(cluster: RunningCluster, asked: str) -> tuple[str | None, str | None, list[str]]:
    """Return where a trace says that the message went, where it came from, and what is missing."""
    trace = cluster.nodes[0].call("GET", f"/v1/messages/{asked}/trace")
    (to,) = [e.get("to") for e in trace["events"] if e["event"] == "DEAD_LETTERED"] or [None]
    (*_, origin) = [e.get("from") for e in trace["events"] if e["event"] == "PUBLISHED"]
    return to, origin, [gap["reason"].partition(":")[0] for gap in trace["incomplete"]]
