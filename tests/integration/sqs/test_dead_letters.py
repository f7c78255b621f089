"""Dead-letter queues by RedrivePolicy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.node.running_node import RunningNode


def arn(name: str) -> str:
    return f"arn:aws:sqs:us-east-1:000000000000:{name}"


def policy(name: str, count: object = 2) -> dict[str, str]:
    text = json.dumps({"deadLetterTargetArn": arn(name), "maxReceiveCount": count})
    return {"RedrivePolicy": text}


@pytest.fixture
def dead(sqs: Any, name: str) -> str:
    """The URL of a dead-letter queue; its source is the queue ``name``."""
    url = str(sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"])
    sqs.create_queue(QueueName=name, Attributes=policy(f"{name}-dead"))
    return url


def fail(sqs: Any, queue: str) -> None:
    """Receive the messages of a queue and give them back, until there are none."""
    while True:
        answer = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, VisibilityTimeout=60)
        if "Messages" not in answer:
            return
        for message in answer["Messages"]:
            sqs.change_message_visibility(
                QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
            )


def one(sqs: Any, queue: str) -> dict[str, Any]:
    answer = sqs.receive_message(
        QueueUrl=queue, WaitTimeSeconds=20, AttributeNames=["All"], MessageAttributeNames=["All"]
    )
    (message,) = answer["Messages"]
    return dict(message)


def test_a_message_that_was_received_too_often_is_in_the_dead_letter_queue(
    sqs: Any, node: RunningNode, dead: str, name: str
) -> None:
    attributes = {"a": {"DataType": "Number", "StringValue": "1"}}
    sent = sqs.send_message(QueueUrl=name, MessageBody="x", MessageAttributes=attributes)
    fail(sqs, name)
    message = one(sqs, dead)
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "x")
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == arn(name)
    trace = node.call("GET", f"/v1/messages/{sent['MessageId']}/trace")
    events = [event["event"] for event in trace["events"]]
    assert events.count("DELIVERED") == 3  # the third from the dead-letter queue
    assert "DEAD_LETTERED" in events
    sqs.delete_message(QueueUrl=dead, ReceiptHandle=message["ReceiptHandle"])
    assert "Messages" not in sqs.receive_message(QueueUrl=name)


def test_a_policy_is_shown_and_can_be_removed(sqs: Any, dead: str, name: str) -> None:
    def shown() -> dict[str, str]:
        names = ["RedrivePolicy"]
        answer = sqs.get_queue_attributes(QueueUrl=name, AttributeNames=names)
        return dict(answer.get("Attributes", {}))

    assert json.loads(shown()["RedrivePolicy"]) == json.loads(
        policy(f"{name}-dead")["RedrivePolicy"]
    )
    sqs.create_queue(QueueName=name, Attributes=policy(f"{name}-dead", "2"))
    with pytest.raises(sqs.exceptions.QueueNameExists):
        sqs.create_queue(QueueName=name, Attributes=policy(f"{name}-dead", 3))
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [
        sqs.get_queue_url(QueueName=name)["QueueUrl"]
    ]
    sqs.set_queue_attributes(QueueUrl=name, Attributes={"RedrivePolicy": ""})
    assert shown() == {}
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == []
    sqs.send_message(QueueUrl=name, MessageBody="x")
    for _ in range(5):
        answer = sqs.receive_message(QueueUrl=name, VisibilityTimeout=0, WaitTimeSeconds=20)
        assert len(answer["Messages"]) == 1


def test_a_policy_with_the_arn_of_another_account_means_the_queue_of_that_name_here(
    sqs: Any, dead: str, name: str
) -> None:
    elsewhere = f"arn:aws:sqs:eu-west-1:123456789012:{name}-dead"
    attributes = {
        "RedrivePolicy": json.dumps({"deadLetterTargetArn": elsewhere, "maxReceiveCount": 2})
    }
    again = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=again, Attributes=attributes)
    assert sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"] == again
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [again]


def test_a_fifo_queue_gives_up_a_message_and_goes_on_with_its_group(sqs: Any, name: str) -> None:
    fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    dead = sqs.create_queue(QueueName=f"{name}-dead.fifo", Attributes=fifo)["QueueUrl"]
    source = sqs.create_queue(
        QueueName=f"{name}.fifo", Attributes={**fifo, **policy(f"{name}-dead.fifo", 1)}
    )["QueueUrl"]
    for body in ("bad", "good"):
        sqs.send_message(QueueUrl=source, MessageBody=body, MessageGroupId="g")
    answer = sqs.receive_message(QueueUrl=source)
    handle = answer["Messages"][0]["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=source, ReceiptHandle=handle, VisibilityTimeout=0)
    assert one(sqs, source)["Body"] == "good"
    message = one(sqs, dead)
    assert (message["Body"], message["Attributes"]["MessageGroupId"]) == ("bad", "g")


@pytest.mark.parametrize(
    ("count", "is_allowed"),
    [(1, True), ("1000", True), (0, False), (1001, False), ("x", False), (None, False)],
)
def test_the_count_of_receives_has_bounds(
    sqs: Any, dead: str, name: str, count: object, is_allowed: bool
) -> None:
    attributes = policy(f"{name}-dead", count)
    if is_allowed:
        sqs.set_queue_attributes(QueueUrl=name, Attributes=attributes)
        return
    with pytest.raises(ClientError) as refused:
        sqs.set_queue_attributes(QueueUrl=name, Attributes=attributes)
    assert refused.value.response["Error"]["Code"] == "InvalidParameterValue"


def test_a_dead_letter_queue_exists_and_is_another_queue_of_the_same_kind(
    sqs: Any, dead: str, fifo: str, name: str
) -> None:
    for target in (f"{name}-none", name, f"{name}.fifo"):
        with pytest.raises(ClientError, match="RedrivePolicy is invalid"):
            sqs.set_queue_attributes(QueueUrl=name, Attributes=policy(target))
    with pytest.raises(ClientError, match="RedrivePolicy is invalid"):
        sqs.set_queue_attributes(QueueUrl=fifo, Attributes=policy(f"{name}-dead"))


def test_a_message_that_claims_to_be_a_dead_letter_is_received(
    sqs: Any, node: RunningNode, queue: str, name: str
) -> None:
    body = {"messages": [{"value": "x", "headers": {"goq-dead-id": "nonsense"}}]}
    sent = node.call("POST", f"/v1/topics/{name}/messages", body)["results"][0]["id"]
    message = one(sqs, queue)
    assert message["MessageId"] == sent
    assert "DeadLetterQueueSourceArn" not in message["Attributes"]
