"""Streams of one session through several nodes, and clients that leave while theirs are opened."""

from __future__ import annotations

import json
import socket

from tests.support.cluster.running_cluster import RunningCluster
from tests.support.cluster.stream_reader import (
    group_path,
    open_streams,
    publish_to_all,
    reading_stream,
)
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode

SESSION = {"Goq-Session": "loop"}
PARTITIONS = 6


def test_a_new_stream_of_a_session_ends_its_old_one_through_whichever_node(
    cluster: RunningCluster, topic: str
) -> None:
    for number, node in enumerate(cluster.nodes):
        group = f"g{number}"
        publish_to_all(node, topic, PARTITIONS)
        with (
            reading_stream(cluster.nodes[0], topic, SESSION, group=group, max_in_flight=60) as old,
            reading_stream(node, topic, SESSION, group=group, max_in_flight=60) as new,
        ):
            old.rest()
            publish_to_all(cluster.nodes[1], topic, PARTITIONS)
            found = [new.message() for _ in range((number + 2) * PARTITIONS)]
            receipts = {"receipts": [message["receipt"] for message in found]}
            settled = node.call("POST", group_path(topic, "ack", group=group), receipts)
            assert settled == {"settled": len(found), "failed": []}
            assert max(message["attempt"] for message in found) <= 2  # the old one had some


def test_clients_that_leave_while_their_streams_are_opened_leave_nothing_behind(
    cluster: RunningCluster, topic: str
) -> None:
    for step in range(90):
        node = cluster.nodes[step % 3]
        with socket.create_connection(node.address) as client:
            client.sendall(_request(node, group_path(topic, "receive")))
            client.settimeout(0.0002 * (step + 1))
            try:
                client.recv(1)
            except TimeoutError:
                pass
    for node in cluster.nodes:
        eventually(lambda node=node: open_streams(node) == 0)
    publish_to_all(cluster.nodes[0], topic, PARTITIONS)
    path = group_path(topic, "receive")
    found: list[int] = []
    while len(found) < PARTITIONS:
        got = cluster.nodes[1].call("POST", path, {"max_messages": 100, "wait": "10s"})["messages"]
        assert got
        found += [message["attempt"] for message in got]
    assert found == PARTITIONS * [1]


def test_a_stream_that_no_node_can_open_is_refused(cluster: RunningCluster, topic: str) -> None:
    node = cluster.nodes[0]
    node.call("PUT", group_path(topic), {"settings": {"ordering": "partition"}})
    for each in cluster.nodes:
        answer = each.request("POST", group_path(topic, "receive"), {"stream": True})
        assert answer.status == 400
        assert open_streams(each) == 0


def test_a_stream_ends_when_its_topic_is_deleted(cluster: RunningCluster, topic: str) -> None:
    with reading_stream(cluster.nodes[0], topic, max_in_flight=60) as stream:
        assert cluster.nodes[1].request("DELETE", f"/v1/topics/{topic}").status == 204
        assert stream.rest() == b""


def _request(node: RunningNode, path: str) -> bytes:
    body = json.dumps({"stream": True, "max_in_flight": 60}).encode()
    host, port = node.address
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
