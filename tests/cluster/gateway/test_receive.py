"""Receiving and settling through any node takes from all of them, each message once."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest

from goq import limits
from goq.api.codec.leased import read_frames, read_leased
from goq.api.route import FRAMES, JSON
from goq.cluster.forwarding.http_proxy import HttpProxy
from goq.http.message import Request, Response
from tests.support.cluster.running_cluster import RunningCluster, running_cluster
from tests.support.effort import first_of
from tests.support.eventually import eventually
from tests.support.node.node_api import Answer
from tests.support.node.running_node import RunningNode


def test_one_receive_takes_from_all_nodes(cluster: RunningCluster, topic: str) -> None:
    groups = count()
    _publish(cluster, topic, range(6))
    for node in cluster.nodes:

        def takes_all(node: RunningNode = node) -> bool:
            """Receive for a new group: a node that stands still for a moment is left out."""
            group = f"g{next(groups)}"
            messages = _receive(node, topic, group=group)
            if sorted(m["partition"] for m in messages) != list(range(6)):
                return False
            assert _settle(node, topic, messages, group=group) == {"settled": 6, "failed": []}
            return True

        eventually(takes_all)


def test_no_more_is_taken_than_was_asked_for(cluster: RunningCluster, topic: str) -> None:
    _publish(cluster, topic, [n % 6 for n in range(30)])
    for asked in (1, 7, 12):
        assert len(_receive(cluster.nodes[1], topic, max_messages=asked)) == asked
    assert _group(cluster.nodes[0], topic)["leased"] == 20


def test_nodes_take_turns(cluster: RunningCluster, topic: str) -> None:
    _publish(cluster, topic, [n % 6 for n in range(30)])
    leaders = cluster.leaders(topic)
    taken = [_receive(cluster.nodes[0], topic, max_messages=1)[0]["partition"] for _ in range(6)]
    assert sorted(str(leaders[number]) for number in taken) == ["n1", "n1", "n2", "n2", "n3", "n3"]


@pytest.mark.parametrize("as_frames", [False, True])
@pytest.mark.parametrize("size_bytes", first_of([1_000_000, 2_500_000, 5_000_000], quick=1))
def test_an_answer_has_no_more_bytes_than_a_nodes_own(
    cluster: RunningCluster, topic: str, size_bytes: int, as_frames: bool
) -> None:
    for number in (*range(6), *range(6)):
        _publish(cluster, topic, [number], value="x" * size_bytes)
    headers = {"Accept": FRAMES} if as_frames else {}
    counts = []
    while sum(counts) < 12:
        answer = cluster.nodes[0].request(
            "POST", _path(topic, "receive"), {"max_messages": 100}, headers=headers
        )
        assert len(answer.body) <= limits.RECEIVE_BYTES_MAX + 10_000
        found = read_leased(Response(200, answer.body, FRAMES if as_frames else JSON))
        counts.append(found.message_count)
        assert counts[-1] > 0
        assert _group(cluster.nodes[0], topic)["leased"] == sum(counts)
        if found.preface is None:
            attempts = {json.loads(bytes(each))["attempt"] for each in found.messages}
        else:
            attempts = {n for d in found.preface["deliveries"] for *_, n in d["ranges"]}
        assert attempts == {1}


@pytest.mark.parametrize("size_bytes", [1_500_000, 4_500_000])
def test_a_message_of_any_size_comes_through_any_node_at_its_first_attempt(
    cluster: RunningCluster, topic: str, size_bytes: int
) -> None:
    for number, leader in list(enumerate(cluster.leaders(topic)))[:3]:
        node = next(each for each in cluster.nodes if each is not cluster.by_name[str(leader)])
        _publish(cluster, topic, [number], value="x" * size_bytes)
        found: list[Any] = []
        for _ in range(3):  # a busy machine may not bring it within one wait
            found = found or _receive(node, topic, max_messages=1, wait="20s")
        (message,) = found
        assert (message["partition"], message["attempt"]) == (number, 1)
        assert len(message["value"]) == size_bytes
        assert _settle(node, topic, [message])["settled"] == 1


def test_frames_of_all_nodes_come_in_one_answer(cluster: RunningCluster, topic: str) -> None:
    _publish(cluster, topic, [n % 6 for n in range(18)])
    found = _receive_frames(cluster.nodes[2], topic)
    assert found.message_count == 18
    assert found.preface is not None
    assert sorted(d["partition"] for d in found.preface["deliveries"]) == list(range(6))
    receipts = [str(receipt) for receipt in found.receipts()]
    body = {"receipts": receipts}
    answer = cluster.nodes[0].call("POST", _path(topic, "ack"), body)
    assert answer == {"settled": 18, "failed": []}
    assert _receive_frames(cluster.nodes[2], topic).message_count == 0


def test_who_waits_at_one_node_gets_what_another_node_stores(
    cluster: RunningCluster, topic: str
) -> None:
    for waits, (number, leader) in zip(
        [*cluster.nodes, *cluster.nodes], enumerate(cluster.leaders(topic)), strict=True
    ):
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(_receive, waits, topic, wait="20s")
            eventually(lambda leader=leader: _waiters(cluster.by_name[str(leader)], topic))
            _publish(cluster, topic, [number])
            (message,) = asked.result()
        assert message["partition"] == number
        assert _settle(waits, topic, [message])["settled"] == 1


def test_a_wait_ends_with_nothing(cluster: RunningCluster, topic: str) -> None:
    for node in cluster.nodes:
        assert _receive(node, topic, wait="100ms") == []


def test_many_consumers_at_all_nodes_get_each_message_once(
    cluster: RunningCluster, topic: str
) -> None:
    done: list[str] = []
    lock = threading.Lock()

    def consume(node: RunningNode) -> None:
        while len(done) < 300:
            messages = _receive(node, topic, max_messages=7, wait="500ms")
            if messages:
                assert _settle(node, topic, messages)["failed"] == []
            with lock:
                done.extend(message["id"] for message in messages)

    with ThreadPoolExecutor(6) as threads:
        running = [threads.submit(consume, node) for node in cluster.nodes * 2]
        for _ in range(10):
            _publish(cluster, topic, [n % 6 for n in range(30)])
        for each in running:
            each.result()
    assert len(done) == len(set(done)) == 300
    assert _group(cluster.nodes[0], topic)["lag"] == 0


def test_what_a_client_that_is_gone_was_given_is_ready_again(
    cluster: RunningCluster, topic: str
) -> None:
    for node in cluster.nodes:
        for _ in range(5):
            with _sent(node, topic, max_messages=100, wait="30s"):
                eventually(lambda: all(_waiters(each, topic) for each in cluster.nodes))
            _publish(cluster, topic, range(6))
            eventually(lambda: _group(cluster.nodes[0], topic)["ready"] == 6)
            messages = _receive(cluster.nodes[0], topic)
            assert [message["attempt"] for message in messages] == [1] * 6
            assert _settle(cluster.nodes[0], topic, messages)["settled"] == 6


def test_receipts_are_settled_by_who_leads_their_partitions(
    cluster: RunningCluster, topic: str
) -> None:
    _publish(cluster, topic, [n % 6 for n in range(24)])
    messages = _receive(cluster.nodes[0], topic)
    assert len(messages) == 24
    for number, verb in enumerate(("extend", "nack", "reject", "ack")):
        some = messages[number::4]
        node = cluster.nodes[number % 3]
        assert _settle(node, topic, some, verb=verb) == {"settled": 6, "failed": []}
    lost = ["5:99:0", messages[1]["receipt"], "77:1:0", "0:99:3"]  # [1] was given back
    for node in cluster.nodes:  # the ack of [3], sent again, is done
        asked = {"receipts": [*lost, messages[3]["receipt"]]}
        answer = node.call("POST", _path(topic, "ack"), asked)
        assert answer["settled"] == 1
        assert [failed["receipt"] for failed in answer["failed"]] == lost
        assert {failed["code"] for failed in answer["failed"]} == {"lease_lost"}


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("ack", b"{"),
        ("ack", b"[]"),
        ("ack", b'{"receipts": ["\xff"]}'),
        ("receive", b'{"consumer": "\xff"}'),
        ("receive", b"[" * 100_000),
        ("ack", {"receipts": ["no receipt"]}),
        ("ack", {"receipts": ["0:1:2"], "unknown": 1}),
        ("nack", {"receipts": ["0:1:2", "1:1:2"], "delay": "soon"}),
        ("receive", {"max_messages": 0}),
        ("receive", {"max_messages": 1, "wait": "long"}),
        ("receive", {"visibility": 0}),
        ("receive", {"limit": 3}),
        ("receive", {"consumer": "c" * 1000}),
    ],
)
def test_a_mistake_is_refused_as_on_a_node_of_its_own(
    cluster: RunningCluster, topic: str, verb: str, body: object
) -> None:
    headers = {"Content-Type": "application/json"}
    local = {**headers, "Goq-Local": "true"}
    expected = cluster.nodes[0].request("POST", _path(topic, verb), body, local)
    assert 400 <= expected.status < 500
    for node in cluster.nodes:
        answer = node.request("POST", _path(topic, verb), body, headers)
        assert (answer.status, answer.json) == (expected.status, expected.json)


def test_small_receives_waits_and_acks_go_over_the_streams_between_nodes(
    cluster: RunningCluster, topic: str
) -> None:
    forwarded: list[str] = []
    original = HttpProxy.forward

    async def forward(self: HttpProxy, url: str, request: Request) -> Response:
        forwarded.append(request.path)
        return await original(self, url, request)

    with (
        patch.object(HttpProxy, "forward", forward),
        patch.object(limits, "STREAM_ANSWER_MESSAGES_MAX", 100),
    ):
        _publish(cluster, topic, [n % 6 for n in range(900)])
        for node in cluster.nodes:
            messages = _receive(node, topic, max_messages=100)
            assert len(messages) == 100
            assert _settle(node, topic, messages) == {"settled": 100, "failed": []}
        assert forwarded == []
        assert len(_receive(cluster.nodes[0], topic, max_messages=250)) == 250
        assert len(_receive(cluster.nodes[0], topic, max_messages=600)) == 350
        assert forwarded
        forwarded.clear()
        for node in cluster.nodes:
            for number in range(6):
                with ThreadPoolExecutor(1) as thread:
                    asked = thread.submit(_receive, node, topic, wait="20s")
                    eventually(lambda: all(_waiters(each, topic) for each in cluster.nodes))
                    _publish(cluster, topic, [number])
                    assert [message["partition"] for message in asked.result()] == [number]
                eventually(lambda: not any(_waiters(each, topic) for each in cluster.nodes))
        assert forwarded == []


def test_a_group_is_reset_on_all_nodes(cluster: RunningCluster, topic: str) -> None:
    _publish(cluster, topic, [n % 6 for n in range(12)])
    messages = _receive(cluster.nodes[0], topic)
    assert _settle(cluster.nodes[0], topic, messages)["settled"] == 12
    path = _path(topic, "reset")
    plan = cluster.nodes[1].call("POST", path, {"to": "earliest", "dry_run": True})
    assert [p["redelivers"] for p in plan["partitions"]] == [2] * 6
    assert _group(cluster.nodes[2], topic)["lag"] == 0
    one = cluster.nodes[1].call("POST", path, {"to": "earliest", "partition": 3})
    assert [p["partition"] for p in one["partitions"]] == [3]
    assert _group(cluster.nodes[2], topic)["lag"] == 2
    cluster.nodes[2].call("POST", path, {"to": "earliest"})
    assert _group(cluster.nodes[0], topic)["lag"] == 12


def test_a_deleted_group_begins_anew_on_all_nodes(cluster: RunningCluster, topic: str) -> None:
    _publish(cluster, topic, [n % 6 for n in range(12)])
    for node in cluster.nodes:
        assert len(_receive(node, topic)) == 12
        assert node.request("DELETE", _path(topic)).status == 204
        eventually(lambda: all(_is_missing(each, topic) for each in cluster.nodes))


def test_settings_of_a_group_hold_on_all_nodes(cluster: RunningCluster, topic: str) -> None:
    body = {"settings": {"visibility_timeout": "17s"}}
    shown = cluster.nodes[1].call("PUT", _path(topic), body)
    assert shown["settings"]["visibility_timeout"] == "17s"
    _receive(cluster.nodes[2], topic)
    for node in cluster.nodes:
        eventually(lambda node=node: _group(node, topic)["settings"]["visibility_timeout"] == "17s")


def test_while_a_leader_is_gone_consumers_get_answers_and_its_messages_come_later() -> None:
    with running_cluster() as cluster:
        cluster.create("t")
        _publish(cluster, "t", range(6))
        node = cluster.by_name["n1"]
        messages = _receive(node, "t")
        assert len(messages) == 6
        assert _settle(node, "t", messages[:3])["settled"] == 3
        with ThreadPoolExecutor(3) as threads:
            asked: list[Future[Answer]] = [
                threads.submit(
                    node.request, "POST", _path("t", "receive", group=group), {"wait": "8s"}
                )
                for group in ("g", "g", "other")
            ]
            eventually(lambda: _waiters(cluster.by_name["n3"], "t"))
            cluster.stop("n3")
            _, _, other = [each.result() for each in asked]
        assert [each.result().status for each in asked] == [200, 200, 200]
        assert len(other.json["messages"]) == 1
        answer = _settle(node, "t", messages[3:])
        assert answer == {"settled": 3, "failed": []}
        assert None not in cluster.leaders("t")
        assert "n3" not in cluster.leaders("t")
        _publish(cluster, "t", range(6), through=node)
        assert len(_receive(cluster.by_name["n2"], "t", wait="5s")) > 0


def _publish(
    cluster: RunningCluster,
    topic: str,
    partitions: Any,
    *,
    value: str = "v",
    through: RunningNode | None = None,
) -> None:
    messages = [{"value": value, "partition": number} for number in partitions]
    node = through or cluster.nodes[0]
    node.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})


def _receive(node: RunningNode, topic: str, group: str = "g", **asked: Any) -> list[Any]:
    path = _path(topic, "receive", group=group)
    messages: list[Any] = node.call("POST", path, {"max_messages": 100, **asked})["messages"]
    return messages


def _receive_frames(node: RunningNode, topic: str) -> Any:
    answer = node.request(
        "POST", _path(topic, "receive"), {"max_messages": 100}, {"Accept": FRAMES}
    )
    assert answer.status == 200
    assert answer.headers["content-type"] == FRAMES
    return read_frames(answer.body)


def _settle(
    node: RunningNode, topic: str, messages: list[Any], *, verb: str = "ack", group: str = "g"
) -> Any:
    receipts = [message["receipt"] for message in messages]
    return node.call("POST", _path(topic, verb, group=group), {"receipts": receipts})


def _group(node: RunningNode, topic: str) -> Any:
    return node.call("GET", _path(topic))


def _is_missing(node: RunningNode, topic: str) -> bool:
    return node.request("GET", _path(topic)).status == 404


def _path(topic: str, verb: str = "", *, group: str = "g") -> str:
    return f"/v1/topics/{topic}/groups/{group}" + (f"/{verb}" if verb else "")


def _waiters(node: RunningNode, topic: str) -> int:
    broker = node.node.broker
    assert broker is not None
    return node.on_loop(lambda: broker.topic(topic).receiver.waiters.count("g"))


def _sent(node: RunningNode, topic: str, **asked: Any) -> socket.socket:
    """Send a receive, and return its connection."""
    body = json.dumps(asked).encode()
    connection = socket.create_connection(node.address)
    head = f"POST {_path(topic, 'receive')} HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection
