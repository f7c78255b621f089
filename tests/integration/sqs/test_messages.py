"""Messages of standard queues by a real SDK: send, receive, delete, visibility, batches."""

from __future__ import annotations

import base64
import logging
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from botocore.exceptions import ClientError

from goq import clock
from goq.http.loop_watch import LoopWatch
from tests.support.client.sqs_client import sqs_client
from tests.support.node.running_node import RunningNode, running_node

ATTRIBUTES = {
    "text": {"DataType": "String", "StringValue": "tä"},
    "count": {"DataType": "Number", "StringValue": "-1.5e3"},
    "kind": {"DataType": "String.json", "StringValue": "{}"},
    "bytes": {"DataType": "Binary", "BinaryValue": b"\xff\x00"},
    "ascii": {"DataType": "Binary.png", "BinaryValue": b"text"},
}


def receive(sqs: Any, queue: str, **options: Any) -> list[dict[str, Any]]:
    return list(sqs.receive_message(QueueUrl=queue, **options).get("Messages", []))


def one(sqs: Any, queue: str, **options: Any) -> dict[str, Any]:
    found = receive(sqs, queue, WaitTimeSeconds=20, **options)
    assert len(found) == 1
    return found[0]


def test_a_message_arrives_with_its_attributes_of_all_types(sqs: Any, queue: str) -> None:
    sent = sqs.send_message(QueueUrl=queue, MessageBody="héllo\r\n", MessageAttributes=ATTRIBUTES)
    message = one(sqs, queue, MessageAttributeNames=["All"])
    assert message["Body"] == "héllo\r\n"
    assert message["MessageAttributes"] == ATTRIBUTES
    assert message["MessageId"] == sent["MessageId"]
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]


@pytest.mark.parametrize("is_form", [False, True])
def test_large_messages_are_decoded_and_encoded_one_by_one(
    sqs: Any, url: str, queue: str, is_form: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other requests get a turn between them: ten have up to 10 MiB."""
    for _ in range(10):
        sqs.send_message(QueueUrl=queue, MessageBody="x")
    steps: list[str] = []
    monkeypatch.setattr(clock, "SLICE_S", 0.0)
    monkeypatch.setattr(
        LoopWatch, "end_step", lambda _watch, request, _started_s: steps.append(request.route)
    )
    if is_form:
        form = {"Action": "ReceiveMessage", "QueueUrl": queue, "MaxNumberOfMessages": "10"}
        with urlopen(url, urlencode(form).encode()) as answer:
            assert answer.read().count(b"<Body>x</Body>") == 10
    else:
        assert len(receive(sqs, queue, MaxNumberOfMessages=10)) == 10
    turns_of_the_receive_itself = 10
    assert steps.count("ReceiveMessage") >= turns_of_the_receive_itself + 10


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (["text", "none"], {"text"}),
        (["t.*"], {"text"}),
        ([".*"], set(ATTRIBUTES)),
        (["All"], set(ATTRIBUTES)),
        (["none"], set()),
    ],
)
def test_attributes_are_chosen_by_name_and_prefix(
    sqs: Any, queue: str, asked: list[str], found: set[str]
) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=ATTRIBUTES)
    message = one(sqs, queue, MessageAttributeNames=asked)
    assert set(message.get("MessageAttributes", {})) == found


def test_system_attributes_tell_when_it_was_sent_and_how_often_received(
    sqs: Any, queue: str
) -> None:
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-2-3"}}
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageSystemAttributes=trace)
    first = one(sqs, queue, AttributeNames=["All"], VisibilityTimeout=0)["Attributes"]
    again = one(sqs, queue, MessageSystemAttributeNames=["All"])["Attributes"]
    assert (first["ApproximateReceiveCount"], again["ApproximateReceiveCount"]) == ("1", "2")
    assert again["AWSTraceHeader"] == "Root=1-2-3"
    assert again["SentTimestamp"] == first["SentTimestamp"]
    times = [each["ApproximateFirstReceiveTimestamp"] for each in (first, again)]
    assert abs(int(times[0]) - int(times[1])) < 1000
    assert int(first["SentTimestamp"]) <= int(times[0])


def test_the_trace_knows_a_message_by_the_id_that_the_sdk_got(
    sqs: Any, node: RunningNode, queue: str
) -> None:
    sent = sqs.send_message(QueueUrl=queue, MessageBody="x")["MessageId"]
    message = one(sqs, queue)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    trace = node.call("GET", f"/v1/messages/{sent}/trace")
    events = [event["event"] for event in trace["events"]]
    assert [each for each in events if each != "RETAINED"] == [
        "PUBLISHED",
        "DELIVERED",
        "ACKNOWLEDGED",
    ]


def test_a_message_that_is_not_deleted_comes_back_without_a_backoff(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    first = one(sqs, queue, VisibilityTimeout=1)
    again = one(sqs, queue)
    assert first["MessageId"] == again["MessageId"]
    assert first["ReceiptHandle"] != again["ReceiptHandle"]


def test_a_delayed_message_is_not_received_early(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="later", DelaySeconds=2)
    sqs.send_message(QueueUrl=queue, MessageBody="now")
    assert one(sqs, queue)["Body"] == "now"
    assert receive(sqs, queue) == []
    message = one(sqs, queue, AttributeNames=["All"])
    assert message["Body"] == "later"
    found = message["Attributes"]
    waited_ms = int(found["ApproximateFirstReceiveTimestamp"]) - int(found["SentTimestamp"])
    assert waited_ms >= 2000


def test_the_delay_of_the_queue_holds_for_messages_without_one(sqs: Any, name: str) -> None:
    made = sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "900"})
    queue = made["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="later")
    sqs.send_message(QueueUrl=queue, MessageBody="now", DelaySeconds=0)
    assert one(sqs, queue)["Body"] == "now"
    assert receive(sqs, queue) == []


def test_the_receipt_of_an_earlier_lease_deletes_nothing(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    old = one(sqs, queue, VisibilityTimeout=0)["ReceiptHandle"]
    new = one(sqs, queue)["ReceiptHandle"]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=old)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=new, VisibilityTimeout=0)
    assert one(sqs, queue)["Body"] == "x"
    with pytest.raises(sqs.exceptions.MessageNotInflight):
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=old, VisibilityTimeout=10)


def test_a_delete_may_be_repeated(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    handle = one(sqs, queue)["ReceiptHandle"]
    for _ in range(2):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=handle)
    entries = [{"Id": each, "ReceiptHandle": handle} for each in "ab"]
    answer = sqs.delete_message_batch(QueueUrl=queue, Entries=entries)
    assert [each["Id"] for each in answer["Successful"]] == ["a", "b"]
    assert "Failed" not in answer


def test_a_handle_with_a_time_that_no_number_holds_is_invalid(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    handle = one(sqs, queue)["ReceiptHandle"]
    topic, _, receipt = base64.urlsafe_b64decode(handle).decode().split("/")
    changed = base64.urlsafe_b64encode(f"{topic}/{'9' * 4000}/{receipt}".encode()).decode()
    with pytest.raises(ClientError) as refused:
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=changed, VisibilityTimeout=5)
    assert refused.value.response["Error"]["Code"] == "ReceiptHandleIsInvalid"


def test_a_handle_of_another_queue_is_invalid(sqs: Any, queue: str, name: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    handle = one(sqs, queue)["ReceiptHandle"]
    other = sqs.create_queue(QueueName=f"{name}-other")["QueueUrl"]
    for wrong in (handle, "x", "%%%", handle[:-4]):
        target = other if wrong == handle else queue
        with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
            sqs.delete_message(QueueUrl=target, ReceiptHandle=wrong)
    sqs.delete_queue(QueueUrl=queue)
    sqs.create_queue(QueueName=name)
    with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=handle)


def test_a_longer_visibility_keeps_a_message_from_others(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    handle = one(sqs, queue, VisibilityTimeout=1)["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=600)
    assert receive(sqs, queue, WaitTimeSeconds=2) == []
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=handle)


@pytest.mark.parametrize("kind", ["String", "String.json", "Binary"])
def test_attributes_that_are_too_large_fail_their_entry_only(
    sqs: Any, queue: str, kind: str
) -> None:
    def entry(name: str, size_bytes: int) -> dict[str, Any]:
        types = len("AWS.types") + len(f'{{"k":"{kind}"}}') if kind != "String" else 0
        value = "StringValue" if kind != "Binary" else "BinaryValue"
        text = "z" * (size_bytes - len("k") - types)
        attributes = {"k": {"DataType": kind, value: text}}
        return {"Id": name, "MessageBody": name, "MessageAttributes": attributes}

    entries = [entry("good", 65_536), entry("big", 65_537)]
    answer = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert [each["Id"] for each in answer["Successful"]] == ["good"]
    (failed,) = answer["Failed"]
    assert (failed["Id"], failed["Code"]) == ("big", "InvalidParameterValue")
    assert "65536 bytes" in failed["Message"]
    assert [message["Body"] for message in receive(sqs, queue)] == ["good"]


def test_a_batch_tells_of_each_entry(sqs: Any, queue: str) -> None:
    entries: list[dict[str, Any]] = [
        {"Id": f"e{number}", "MessageBody": f"body {number}"} for number in range(8)
    ]
    entries[2]["MessageBody"] = "\x01"
    entries[3]["DelaySeconds"] = 901
    answer = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert [each["Id"] for each in answer["Failed"]] == ["e2", "e3"]
    assert [each["Code"] for each in answer["Failed"]] == [
        "InvalidMessageContents",
        "InvalidParameterValue",
    ]
    assert all(each["SenderFault"] for each in answer["Failed"])
    assert len({each["MessageId"] for each in answer["Successful"]}) == 6
    found = receive(sqs, queue, MaxNumberOfMessages=10)
    assert len(found) == 6
    handles = {m["Body"].replace("body ", "m"): m["ReceiptHandle"] for m in found}
    changes = [
        {"Id": key, "ReceiptHandle": handle, "VisibilityTimeout": 0}
        for key, handle in handles.items()
    ]
    changes[0]["VisibilityTimeout"] = 43_201
    answer = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=changes)
    assert [len(answer[kind]) for kind in ("Successful", "Failed")] == [5, 1]
    found = receive(sqs, queue, MaxNumberOfMessages=10)
    assert len(found) == 5
    deletes = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(found)]
    deletes.append({"Id": "bad", "ReceiptHandle": "bad"})
    answer = sqs.delete_message_batch(QueueUrl=queue, Entries=deletes)
    assert [each["Id"] for each in answer["Failed"]] == ["bad"]
    assert [each["Code"] for each in answer["Failed"]] == ["ReceiptHandleIsInvalid"]


def test_a_group_id_on_a_standard_queue_is_a_tenant_that_gets_its_share(
    sqs: Any, node: RunningNode, name: str
) -> None:
    node.call("POST", "/v1/topics", {"name": name, "partitions": 1})
    queue = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    for number in range(30):
        sqs.send_message(QueueUrl=queue, MessageBody=f"busy {number}", MessageGroupId="busy")
    sqs.send_message(QueueUrl=queue, MessageBody="calm", MessageGroupId="calm")
    found = receive(sqs, queue, MaxNumberOfMessages=5, AttributeNames=["All"])
    assert "calm" in {message["Body"] for message in found}
    assert {m["Attributes"]["MessageGroupId"] for m in found} == {"busy", "calm"}


def test_bytes_of_another_client_arrive_in_base64(
    sqs: Any, node: RunningNode, queue: str, name: str
) -> None:
    body = {"messages": [{"value_base64": "/wA="}]}
    node.call("POST", f"/v1/topics/{name}/messages", body)
    assert one(sqs, queue)["Body"] == "/wA="


def test_a_consumer_extends_its_lease_for_12_hours_in_all_whatever_the_clock_is_set_to(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "goq.broker")  # retention tells that the clock was set
    with running_node(sqs={"listen": "127.0.0.1:0"}) as node:
        assert node.node.sqs_url is not None
        with sqs_client(node.node.sqs_url) as sqs:
            queue = sqs.create_queue(QueueName="q")["QueueUrl"]
            sqs.send_message(QueueUrl=queue, MessageBody="slow")
            handle = one(sqs, queue, VisibilityTimeout=43_200)["ReceiptHandle"]

            def extend(seconds: int) -> None:
                sqs.change_message_visibility(
                    QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=seconds
                )

            for days in (1, -1):
                node.clock.ahead_ms = node.clock.jumped_ms = days * 86_400_000
                extend(600)
            node.clock.ahead_ms = node.clock.jumped_ms = 0
            node.clock.ahead_ms = 300_000  # as time passes
            with pytest.raises(ClientError, match="beyond the limit"):
                extend(43_000)
            extend(42_000)
