"""Message move tasks: dead letters go back to their queues, or to another one."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.support.broker.copies import put_copies
from tests.support.client.sqs_client import raw_request, sqs_client
from tests.support.eventually import eventually
from tests.support.node.running_node import RunningNode, running_node

FIFO = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}


def arn(name: str) -> str:
    return f"arn:aws:sqs:us-east-1:000000000000:{name}"


def count(sqs: Any, queue: str) -> int:
    names = ["ApproximateNumberOfMessages"]
    shown = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)
    return int(shown["Attributes"][names[0]])


def make(sqs: Any, name: str, suffix: str = "", attributes: dict[str, str] | None = None) -> None:
    """Make the queue ``name`` and its dead-letter queue ``name``-dead."""
    common = attributes or {}
    sqs.create_queue(QueueName=f"{name}-dead{suffix}", Attributes=common)
    text = json.dumps({"deadLetterTargetArn": arn(f"{name}-dead{suffix}"), "maxReceiveCount": 1})
    sqs.create_queue(QueueName=f"{name}{suffix}", Attributes={**common, "RedrivePolicy": text})


def kill(sqs: Any, source: str, dead: str, messages: int) -> None:
    """Have the messages of a queue die: each is received once and given back."""

    def all_are_dead() -> bool:
        answer = sqs.receive_message(QueueUrl=source, MaxNumberOfMessages=10, VisibilityTimeout=60)
        for message in answer.get("Messages", []):
            sqs.change_message_visibility(
                QueueUrl=source, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
            )
        return count(sqs, dead) == messages

    eventually(all_are_dead, seconds=30)


def dead_letters(sqs: Any, name: str, messages: int) -> None:
    """Make queues, and dead letters of the bodies "0", "1", …"""
    make(sqs, name)
    attributes = {"n": {"DataType": "Number", "StringValue": "7"}}
    for number in range(messages):
        sqs.send_message(QueueUrl=name, MessageBody=str(number), MessageAttributes=attributes)
    kill(sqs, name, f"{name}-dead", messages)


def newest(sqs: Any, name: str) -> dict[str, Any]:
    return dict(sqs.list_message_move_tasks(SourceArn=arn(name))["Results"][0])


def ended(sqs: Any, name: str) -> dict[str, Any]:
    """Return the newest task when it has ended."""
    eventually(lambda: newest(sqs, name)["Status"] not in ("RUNNING", "CANCELLING"), seconds=30)
    return newest(sqs, name)


def taken(sqs: Any, queue: str, messages: int) -> list[dict[str, Any]]:
    """Return so many messages of a queue."""
    found: list[dict[str, Any]] = []

    def all_found() -> bool:
        answer = sqs.receive_message(
            QueueUrl=queue,
            MaxNumberOfMessages=10,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        for message in answer.get("Messages", []):
            sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
            found.append(message)
        return len(found) >= messages

    eventually(all_found, seconds=30)
    assert len(found) == messages
    return found


def test_dead_letters_go_back_to_their_queue(sqs: Any, name: str) -> None:
    dead_letters(sqs, name, 25)
    handle = sqs.start_message_move_task(SourceArn=arn(f"{name}-dead"))["TaskHandle"]
    assert handle
    task = ended(sqs, f"{name}-dead")
    assert (task["Status"], task["SourceArn"]) == ("COMPLETED", arn(f"{name}-dead"))
    assert task["ApproximateNumberOfMessagesMoved"] == 25
    assert task["ApproximateNumberOfMessagesToMove"] == 25
    assert abs(task["StartedTimestamp"] / 1000 - time.time()) < 600
    assert not {"TaskHandle", "DestinationArn", "FailureReason"} & task.keys()
    found = taken(sqs, name, 25)
    assert {message["Body"] for message in found} == {str(number) for number in range(25)}
    for message in found:
        assert message["MessageAttributes"]["n"]["StringValue"] == "7"
        assert message["Attributes"]["ApproximateReceiveCount"] == "1"
        assert "DeadLetterQueueSourceArn" not in message["Attributes"]
    assert count(sqs, f"{name}-dead") == 0


def test_dead_letters_go_to_a_queue_of_choice_even_without_a_source(sqs: Any, name: str) -> None:
    dead_letters(sqs, name, 2)
    sqs.send_message(QueueUrl=f"{name}-dead", MessageBody="direct")
    other = sqs.create_queue(QueueName=f"{name}-other")["QueueUrl"]
    sqs.start_message_move_task(SourceArn=arn(f"{name}-dead"), DestinationArn=arn(f"{name}-other"))
    task = ended(sqs, f"{name}-dead")
    assert (task["Status"], task["DestinationArn"]) == ("COMPLETED", arn(f"{name}-other"))
    assert {message["Body"] for message in taken(sqs, other, 3)} == {"0", "1", "direct"}
    assert count(sqs, name) == 0


def test_a_message_without_a_source_stays_and_fails_the_task(sqs: Any, name: str) -> None:
    make(sqs, name)
    sqs.send_message(QueueUrl=f"{name}-dead", MessageBody="direct")
    sqs.start_message_move_task(SourceArn=arn(f"{name}-dead"))
    task = ended(sqs, f"{name}-dead")
    assert task["Status"] == "FAILED"
    assert "CouldNotDetermineMessageSource" in task["FailureReason"]
    assert task["ApproximateNumberOfMessagesMoved"] == 0
    assert [message["Body"] for message in taken(sqs, f"{name}-dead", 1)] == ["direct"]


def test_a_producer_cannot_send_to_a_queue_by_headers_that_claim_it_as_the_source(
    sqs: Any, node: RunningNode, name: str
) -> None:
    make(sqs, name)
    headers = {"goq-dead-id": f"{name}:0:0", "goq-dead-group": "sqs"}
    forged = {"messages": [{"value": "pay me", "headers": headers}]}
    node.call("POST", f"/v1/topics/{name}-dead/messages", forged)
    redriven = node.call("POST", f"/v1/topics/{name}/redrive", {})
    assert (redriven["matched"], redriven["redriven"]) == (0, 0)
    sqs.start_message_move_task(SourceArn=arn(f"{name}-dead"))
    assert "CouldNotDetermineMessageSource" in ended(sqs, f"{name}-dead")["FailureReason"]
    (message,) = taken(sqs, f"{name}-dead", 1)
    assert message["MessageId"].startswith(f"{name}-dead:")
    assert "DeadLetterQueueSourceArn" not in message["Attributes"]
    assert count(sqs, name) == 0


def test_a_dead_letter_whose_content_is_lost_stays_and_fails_the_task(
    sqs: Any, node: RunningNode, name: str
) -> None:
    dead_letters(sqs, name, 2)
    headers = {"goq-dead-id": f"{name}:0:9", "goq-dead-lost": "damaged"}
    put_copies(node, f"{name}-dead", "", headers=headers)
    sqs.start_message_move_task(SourceArn=arn(f"{name}-dead"))
    task = ended(sqs, f"{name}-dead")
    assert (task["Status"], task["FailureReason"][:11]) == ("FAILED", "MessageLost")
    moved = task["ApproximateNumberOfMessagesMoved"]
    eventually(lambda: (count(sqs, name), count(sqs, f"{name}-dead")) == (moved, 3 - moved))


def test_a_task_fails_when_its_target_is_gone_and_keeps_the_messages(sqs: Any, name: str) -> None:
    dead_letters(sqs, name, 1)
    make(sqs, f"{name}-x")
    sqs.set_queue_attributes(
        QueueUrl=f"{name}-x",
        Attributes={
            "RedrivePolicy": json.dumps(
                {"deadLetterTargetArn": arn(f"{name}-dead"), "maxReceiveCount": 1}
            )
        },
    )
    sqs.delete_queue(QueueUrl=name)
    sqs.start_message_move_task(SourceArn=arn(f"{name}-dead"))
    task = ended(sqs, f"{name}-dead")
    assert (task["Status"], task["FailureReason"][:17]) == ("FAILED", "QueueDoesNotExist")
    assert len(taken(sqs, f"{name}-dead", 1)) == 1
    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.get_queue_url(QueueName=name)


@pytest.mark.parametrize("is_dead", [True, False])
@pytest.mark.parametrize("target", ["", "-other"])
def test_a_trace_leads_from_a_message_to_its_moved_copy_and_back(
    sqs: Any, node: RunningNode, name: str, is_dead: bool, target: str
) -> None:
    make(sqs, name)
    sqs.create_queue(QueueName=f"{name}-other")
    queue = name if is_dead else f"{name}-dead"
    sent = sqs.send_message(QueueUrl=queue, MessageBody="x")["MessageId"]
    if is_dead:
        kill(sqs, name, f"{name}-dead", 1)
    asked = {"DestinationArn": arn(name + target)} if target or not is_dead else {}
    sqs.start_message_move_task(SourceArn=arn(f"{name}-dead"), **asked)
    assert ended(sqs, f"{name}-dead")["Status"] == "COMPLETED"
    (moved,) = taken(sqs, name + target, 1)
    lives = [f"{name}-dead", name + target]
    ids = [sent, moved["MessageId"]]
    if is_dead:
        lives.insert(0, name)
    steps = []
    for message_id in ids:
        traced = node.call("GET", f"/v1/messages/{message_id}/trace")
        steps = [(event["event"], event["id"].rsplit(":", 2)[0]) for event in traced["events"]]
        assert [topic for step, topic in steps if step == "PUBLISHED"] == lives
        assert not traced["incomplete"]
    assert steps[-1] == ("ACKNOWLEDGED", name + target)
    assert steps.count(("REDRIVEN", f"{name}-dead")) == 1


def test_a_move_that_was_done_before_a_crash_is_not_done_again(
    sqs: Any, node: RunningNode, name: str
) -> None:
    dead_letters(sqs, name, 2)
    (held,) = node.call("POST", f"/v1/topics/{name}-dead/groups/sqs/receive", {"max_messages": 1})[
        "messages"
    ]
    node.call("POST", f"/v1/topics/{name}-dead/redrive", {"ids": [held["id"]], "to": name})
    eventually(lambda: count(sqs, name) == 1)
    receipts = {"receipts": [held["receipt"]], "delay": 0}
    node.call("POST", f"/v1/topics/{name}-dead/groups/sqs/nack", receipts)
    sqs.start_message_move_task(SourceArn=arn(f"{name}-dead"))
    assert ended(sqs, f"{name}-dead")["ApproximateNumberOfMessagesMoved"] == 1
    eventually(lambda: (count(sqs, name), count(sqs, f"{name}-dead")) == (2, 0))


def test_a_dead_letter_queue_with_one_of_its_own_is_refused(sqs: Any, name: str) -> None:
    make(sqs, name)
    policy = json.dumps({"deadLetterTargetArn": arn(name), "maxReceiveCount": 1})
    sqs.set_queue_attributes(QueueUrl=f"{name}-dead", Attributes={"RedrivePolicy": policy})
    with pytest.raises(sqs.exceptions.UnsupportedOperation):
        sqs.start_message_move_task(SourceArn=arn(f"{name}-dead"))


def test_the_rate_bounds_the_messages_of_a_second(sqs: Any, name: str) -> None:
    dead_letters(sqs, name, 5)
    began_s = time.monotonic()
    sqs.start_message_move_task(SourceArn=arn(f"{name}-dead"), MaxNumberOfMessagesPerSecond=2)
    task = ended(sqs, f"{name}-dead")
    assert time.monotonic() - began_s > 1.9
    assert (task["Status"], task["MaxNumberOfMessagesPerSecond"]) == ("COMPLETED", 2)
    assert task["ApproximateNumberOfMessagesMoved"] == 5


def test_a_running_task_is_the_only_one_until_it_is_cancelled(sqs: Any, name: str) -> None:
    dead_letters(sqs, name, 60)
    dead = arn(f"{name}-dead")
    handle = sqs.start_message_move_task(SourceArn=dead, MaxNumberOfMessagesPerSecond=1)
    shown = newest(sqs, f"{name}-dead")
    assert (shown["Status"], shown["TaskHandle"]) == ("RUNNING", handle["TaskHandle"])
    with pytest.raises(sqs.exceptions.UnsupportedOperation):
        sqs.start_message_move_task(SourceArn=dead)
    answer = sqs.cancel_message_move_task(TaskHandle=handle["TaskHandle"])
    task = ended(sqs, f"{name}-dead")
    assert task["Status"] == "CANCELLED"
    moved = task["ApproximateNumberOfMessagesMoved"]
    assert answer["ApproximateNumberOfMessagesMoved"] <= moved < 60
    eventually(lambda: (count(sqs, name), count(sqs, f"{name}-dead")) == (moved, 60 - moved))
    with pytest.raises(sqs.exceptions.UnsupportedOperation):
        sqs.cancel_message_move_task(TaskHandle=handle["TaskHandle"])
    sqs.start_message_move_task(SourceArn=dead)
    assert ended(sqs, f"{name}-dead")["Status"] == "COMPLETED"
    tasks = sqs.list_message_move_tasks(SourceArn=dead, MaxResults=10)["Results"]
    assert [task["Status"] for task in tasks] == ["COMPLETED", "CANCELLED"]


def test_a_fifo_queue_gets_the_messages_of_a_group_back_in_order(sqs: Any, name: str) -> None:
    make(sqs, name, ".fifo", FIFO)
    for body in "abc":
        sqs.send_message(QueueUrl=f"{name}.fifo", MessageBody=body, MessageGroupId="g")
    kill(sqs, f"{name}.fifo", f"{name}-dead.fifo", 3)
    sqs.start_message_move_task(SourceArn=arn(f"{name}-dead.fifo"))
    assert ended(sqs, f"{name}-dead.fifo")["Status"] == "COMPLETED"
    found = taken(sqs, f"{name}.fifo", 3)
    assert [message["Body"] for message in found] == ["a", "b", "c"]
    assert {message["Attributes"]["MessageGroupId"] for message in found} == {"g"}


def test_a_list_has_the_last_10_tasks_and_keeps_tags_and_attributes(sqs: Any, name: str) -> None:
    make(sqs, name)
    dead = f"{name}-dead"
    sqs.tag_queue(QueueUrl=dead, Tags={"k": "v"})
    assert sqs.list_message_move_tasks(SourceArn=arn(dead))["Results"] == []
    for _ in range(11):
        sqs.start_message_move_task(SourceArn=arn(dead))
        assert ended(sqs, dead)["Status"] == "COMPLETED"
    sqs.tag_queue(QueueUrl=dead, Tags={"l": "w"})
    listed = sqs.list_message_move_tasks(SourceArn=arn(dead), MaxResults=10)["Results"]
    assert len(listed) == 10
    assert sqs.list_queue_tags(QueueUrl=dead)["Tags"] == {"k": "v", "l": "w"}


@pytest.mark.parametrize(
    ("source", "changed", "code"),
    [
        ("{}-dead", {"MaxNumberOfMessagesPerSecond": 1}, None),
        ("{}-dead", {"MaxNumberOfMessagesPerSecond": 500}, None),
        ("{}-dead", {"MaxNumberOfMessagesPerSecond": 0}, "InvalidParameterValue"),
        ("{}-dead", {"MaxNumberOfMessagesPerSecond": 501}, "InvalidParameterValue"),
        ("{}-dead", {"DestinationArn": "{}-none"}, "ResourceNotFoundException"),
        ("{}-dead", {"DestinationArn": "{}-dead"}, "InvalidParameterValue"),
        ("{}-dead", {"DestinationArn": "{}.fifo"}, "InvalidParameterValue"),
        ("{}", {}, "InvalidParameterValue"),
        ("{}-none", {}, "ResourceNotFoundException"),
        ("", {}, "InvalidParameterValue"),
    ],
)
def test_a_start_has_bounds(
    sqs: Any, name: str, source: str, changed: dict[str, Any], code: str | None
) -> None:
    make(sqs, name)
    sqs.create_queue(QueueName=f"{name}.fifo", Attributes=FIFO)
    asked = {
        key: arn(value.format(name)) if isinstance(value, str) else value
        for key, value in changed.items()
    }
    if code is None:
        sqs.start_message_move_task(SourceArn=arn(source.format(name)), **asked)
        return
    with pytest.raises(ClientError) as refused:
        sqs.start_message_move_task(SourceArn=arn(source.format(name)), **asked)
    assert refused.value.response["Error"]["Code"] == code
    assert sqs.list_message_move_tasks(SourceArn=arn(f"{name}-dead"))["Results"] == []


def test_a_list_and_a_cancel_have_bounds(sqs: Any, queue: str, name: str) -> None:
    for size in (0, 11):
        with pytest.raises(ClientError, match="MaxResults"):
            sqs.list_message_move_tasks(SourceArn=arn(name), MaxResults=size)
    with pytest.raises(sqs.exceptions.ResourceNotFoundException):
        sqs.list_message_move_tasks(SourceArn=arn(f"{name}-none"))
    content = json.dumps({"taskId": "none", "sourceArn": arn(name)}).encode()
    with pytest.raises(sqs.exceptions.ResourceNotFoundException):
        sqs.cancel_message_move_task(TaskHandle=base64.b64encode(content).decode())
    for handle in ("x", "e30=", "é"):
        with pytest.raises(ClientError, match="TaskHandle"):
            sqs.cancel_message_move_task(TaskHandle=handle)


def test_move_tasks_work_in_the_query_protocol(sqs: Any, url: str, name: str) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    dead_letters(sqs, name, 1)
    for action in ("StartMessageMoveTask", "ListMessageMoveTasks"):
        body = f"Action={action}&SourceArn={arn(f'{name}-dead')}"
        answer = raw_request(url, body.encode(), form)
        assert answer.status == 200, answer
    assert b"<ListMessageMoveTasksResultEntry><Status>" in answer.body
    assert ended(sqs, f"{name}-dead")["Status"] == "COMPLETED"


def test_a_task_of_a_node_that_stopped_is_failed_and_can_be_started_again(tmp_path: Path) -> None:
    where = {"listen": "127.0.0.1:0"}
    data = tmp_path / "data"
    with running_node(data, sqs=where) as node, sqs_client(node.node.sqs_url or "") as sqs:
        dead_letters(sqs, "q", 60)
        sqs.start_message_move_task(SourceArn=arn("q-dead"), MaxNumberOfMessagesPerSecond=1)
    with running_node(data, sqs=where) as node, sqs_client(node.node.sqs_url or "") as sqs:
        task = newest(sqs, "q-dead")
        assert (task["Status"], task["FailureReason"]) == ("FAILED", "NodeStopped")
        eventually(lambda: count(sqs, "q-dead") + count(sqs, "q") == 60)
        sqs.start_message_move_task(SourceArn=arn("q-dead"))
        assert ended(sqs, "q-dead")["Status"] == "COMPLETED"
        eventually(lambda: count(sqs, "q") == 60)  # copies arrive a little later
