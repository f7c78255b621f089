"""A client on a node of its own asks nothing about clusters; on members, it asks leaders."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from goq.client import Client
from goq.errors import InvalidInput
from tests.support.client.scripted_server import ScriptedServer
from tests.support.node.running_node import running_node


def requests_of(metrics: bytes) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for line in metrics.decode().splitlines():
        if line.startswith("goq_http_requests_total{"):
            labels, _, count = line.partition("} ")
            fields = dict(
                pair.split("=", 1) for pair in labels.partition("{")[2].replace('"', "").split(",")
            )
            if not fields["route"].startswith("/metrics"):
                found[fields["method"], fields["route"]] += int(float(count))
    return found


def test_a_node_of_its_own_gets_not_one_request_more_than_the_work_needs() -> None:
    topic, group = "/v1/topics/{topic}", "/v1/topics/{topic}/groups/{group}"
    with running_node() as node:
        with Client(node.url) as client:
            client.create_topic("orders", partitions=1)
            client.publish("orders", b"1")
            client.publish("orders", b"2", acks="leader")
            client.publish_many("orders", [b"3", b"4"])
            assert len(client.read("orders", partition=0).messages) == 4
            client.read_events("orders", partition=0)
            first = client.receive("orders", "shop", max_messages=1)
            assert client.ack_many(first).done == 1
            consumed = []
            for message in client.consume("orders", group="shop", prefetch=10):
                message.ack()
                consumed.append(message)
                if len(consumed) == 3:
                    break
        answered = requests_of(node.request("GET", "/metrics").body)
    assert answered == {
        ("POST", "/v1/topics"): 1,
        ("PUT", topic): 2,  # one for each of the two ways to acknowledge
        ("POST", f"{topic}/messages"): 3,
        ("GET", f"{topic}/messages"): 1,
        ("GET", f"{topic}/events"): 1,
        ("POST", f"{group}/receive"): 2,
        ("POST", f"{group}/ack"): 4,
        ("DELETE", f"{group}/streams/{{stream}}"): 1,
    }


def test_acks_are_quorum_or_leader_and_nothing_is_sent_for_others() -> None:
    with Client("http://127.0.0.1:1") as client:
        for use in (
            lambda: client.publish("orders", b"1", acks="all"),
            lambda: client.publish_many("orders", [b"1"], acks=""),
            lambda: client.producer("orders", acks="0"),
        ):
            with pytest.raises(InvalidInput) as refused:
                use()
            assert refused.value.field == "acks"


def test_receipts_that_found_no_leader_are_sent_again_and_only_these() -> None:
    first = answer(
        {
            "settled": 1,
            "failed": [
                {"receipt": "0:7:2", "code": "lease_lost"},
                {"receipt": "1:8:0", "code": "partition_offline"},
            ],
        }
    )
    script = [[first], [answer({"settled": 1, "failed": []})]]
    with ScriptedServer(script) as server, Client(server.url) as client:
        settled = client.ack("orders", "shop", ["0:7:1", "0:7:2", "1:8:0"])
    assert settled.done == 2
    assert [(each.receipt, each.code) for each in settled.failed] == [("0:7:2", "lease_lost")]
    bodies = [json.loads(request.rpartition(b"\r\n\r\n")[2]) for request in server.requests]
    assert [body["receipts"] for body in bodies] == [["0:7:1", "0:7:2", "1:8:0"], ["1:8:0"]]


def answer(document: Any) -> bytes:
    body = json.dumps(document).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body
