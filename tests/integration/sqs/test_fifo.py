"""FIFO queues by a real SDK: order of message groups, deduplication, high throughput."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.node.running_node import RunningNode


def send(sqs: Any, queue: str, body: str, group: str, **more: Any) -> dict[str, Any]:
    return dict(sqs.send_message(QueueUrl=queue, MessageBody=body, MessageGroupId=group, **more))


def receive(sqs: Any, queue: str, count: int = 10) -> list[dict[str, Any]]:
    answer = sqs.receive_message(
        QueueUrl=queue, MaxNumberOfMessages=count, AttributeNames=["All"], WaitTimeSeconds=0
    )
    return list(answer.get("Messages", []))


def test_a_group_in_flight_gives_nothing_and_others_go_on(sqs: Any, fifo: str) -> None:
    for number in range(2):
        for group in "ab":
            send(sqs, fifo, f"{group}{number}", group)
    (first,) = receive(sqs, fifo, 1)
    assert first["Body"] == "a0"
    rest = receive(sqs, fifo)
    assert [m["Body"] for m in rest] == ["b0", "b1"]
    assert receive(sqs, fifo) == []
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=first["ReceiptHandle"])
    (second,) = receive(sqs, fifo)
    assert second["Body"] == "a1"
    assert second["Attributes"]["MessageGroupId"] == "a"


def test_a_message_that_comes_back_keeps_its_place(sqs: Any, fifo: str) -> None:
    for number in range(3):
        send(sqs, fifo, f"a{number}", "a")
    for message in receive(sqs, fifo):
        sqs.change_message_visibility(
            QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
        )
    again = receive(sqs, fifo)
    assert [m["Body"] for m in again] == ["a0", "a1", "a2"]
    assert {m["Attributes"]["ApproximateReceiveCount"] for m in again} == {"2"}


def test_sequence_numbers_rise_within_a_group(sqs: Any, fifo: str) -> None:
    sent = [send(sqs, fifo, str(number), "a")["SequenceNumber"] for number in range(4)]
    assert sent == sorted(sent)
    assert {len(number) for number in sent} == {20}
    assert [m["Attributes"]["SequenceNumber"] for m in receive(sqs, fifo)] == sent


def test_the_same_content_is_taken_once_even_after_its_delete(sqs: Any, fifo: str) -> None:
    first = send(sqs, fifo, "x", "a")
    assert send(sqs, fifo, "x", "b")["MessageId"] == first["MessageId"]
    (message,) = receive(sqs, fifo)
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"])
    send(sqs, fifo, "x", "a")
    assert receive(sqs, fifo) == []


def test_an_id_of_its_own_wins_over_the_content(sqs: Any, fifo: str) -> None:
    for number in range(2):
        send(sqs, fifo, "x", "a", MessageDeduplicationId=f"id-{number}")
        send(sqs, fifo, "y", "a", MessageDeduplicationId=f"id-{number}")
    found = receive(sqs, fifo)
    assert [m["Body"] for m in found] == ["x", "x"]
    ids = [m["Attributes"]["MessageDeduplicationId"] for m in found]
    assert ids == ["id-0", "id-1"]


def test_high_throughput_has_several_partitions_and_ids_of_each_group(
    sqs: Any, node: RunningNode, name: str
) -> None:
    attributes = {
        "FifoQueue": "true",
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
    }
    queue = sqs.create_queue(QueueName=f"{name}.fifo", Attributes=attributes)["QueueUrl"]
    assert len(node.call("GET", f"/v1/topics/{name}.fifo")["partitions"]) == 6
    for group in range(20):
        for number in range(2):
            send(sqs, queue, f"{group}-{number}", str(group), MessageDeduplicationId=str(number))
            send(sqs, queue, f"{group}-{number}", str(group), MessageDeduplicationId=str(number))
    found: dict[str, list[str]] = {}
    for _ in range(20):
        for message in receive(sqs, queue):
            found.setdefault(message["Attributes"]["MessageGroupId"], []).append(message["Body"])
    assert found == {str(group): [f"{group}-0", f"{group}-1"] for group in range(20)}
    with pytest.raises(ClientError):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DeduplicationScope": "queue"})


def test_high_throughput_needs_ids_of_each_group(sqs: Any, fifo: str, name: str) -> None:
    throughput = {"FifoThroughputLimit": "perMessageGroupId"}
    with pytest.raises(ClientError):
        sqs.create_queue(QueueName=f"{name}-2.fifo", Attributes={"FifoQueue": "true", **throughput})
    with pytest.raises(ClientError):
        sqs.set_queue_attributes(QueueUrl=fifo, Attributes=throughput)
    scope = {"DeduplicationScope": "messageGroup"}
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={**scope, **throughput})
    with pytest.raises(ClientError):
        sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"DeduplicationScope": "queue"})


def test_a_shorter_delay_of_the_queue_lets_no_message_overtake(sqs: Any, fifo: str) -> None:
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"DelaySeconds": "1"})
    send(sqs, fifo, "first", "a")
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"DelaySeconds": "0"})
    send(sqs, fifo, "second", "a")
    bodies: list[str] = []
    while len(bodies) < 2:
        answer = sqs.receive_message(QueueUrl=fifo, WaitTimeSeconds=20)
        for message in answer["Messages"]:
            bodies.append(message["Body"])
            sqs.delete_message(QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"])
    assert bodies == ["first", "second"]


@pytest.mark.parametrize(
    "missing", [{"MessageGroupId": None}, {"MessageDeduplicationId": None}, {"DelaySeconds": 1}]
)
def test_a_message_needs_a_group_and_an_id_and_has_no_delay_of_its_own(
    sqs: Any, name: str, missing: dict[str, Any]
) -> None:
    made = sqs.create_queue(QueueName=f"{name}.fifo", Attributes={"FifoQueue": "true"})
    given = {"MessageGroupId": "a", "MessageDeduplicationId": "1", **missing}
    message = {key: value for key, value in given.items() if value is not None}
    with pytest.raises(ClientError) as refused:
        sqs.send_message(QueueUrl=made["QueueUrl"], MessageBody="x", **message)
    assert refused.value.response["Error"]["Code"] in ("MissingParameter", "InvalidParameterValue")


def test_a_delete_by_an_expired_receipt_is_told(sqs: Any, fifo: str) -> None:
    send(sqs, fifo, "x", "a")
    (first,) = receive(sqs, fifo)
    handle = {"QueueUrl": fifo, "ReceiptHandle": first["ReceiptHandle"]}
    sqs.change_message_visibility(**handle, VisibilityTimeout=0)
    receive(sqs, fifo)
    with pytest.raises(ClientError) as refused:
        sqs.delete_message(**handle)
    assert "expired" in refused.value.response["Error"]["Message"]
