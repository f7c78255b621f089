from __future__ import annotations

from urllib.parse import quote

import pytest

from goq.frame.encoder import ProducerMark
from tests.support.api import frames as f
from tests.support.node.running_node import RunningNode


def publish(
    node: RunningNode, topic: str, partition: int, mark: ProducerMark, *values: bytes
) -> None:
    body = f.placed(f.frame(*values, producer=mark), partition)
    assert node.request("POST", f"/v1/topics/{topic}/messages", body, f.FRAMES).status == 200


def test_a_producer_goes_on_where_its_last_batch_ended(node: RunningNode, topic: str) -> None:
    path = f"/v1/topics/{topic}/producers/{2**63}"
    assert node.call("GET", path) == {"partitions": []}
    publish(node, topic, 1, ProducerMark(2**63, 3, 10), b"a", b"b")
    publish(node, topic, 1, ProducerMark(9, 0, 0), b"of another")
    publish(node, topic, 1, ProducerMark(2**63, 3, 12), b"c")
    publish(node, topic, 2, ProducerMark(2**63, 0, 0), b"d")
    assert node.call("GET", path) == {
        "partitions": [
            {"partition": 1, "epoch": 3, "next_sequence": 13, "offset": 3},
            {"partition": 2, "epoch": 0, "next_sequence": 1, "offset": 0},
        ]
    }


@pytest.mark.parametrize("producer_id", ["0", "-1", str(2**64), "x", "9" * 40, "1.5", "٣"])
def test_an_id_that_is_none_is_named(node: RunningNode, topic: str, producer_id: str) -> None:
    answer = node.request("GET", f"/v1/topics/{topic}/producers/{quote(producer_id)}")
    assert (answer.status, answer.json["code"]) == (400, "invalid_input")
    assert answer.json["field"] == "producer_id"


def test_a_topic_that_is_not_there_is_not_found(node: RunningNode) -> None:
    answer = node.request("GET", "/v1/topics/missing/producers/7")
    assert (answer.status, answer.json["code"]) == (404, "topic_not_found")
