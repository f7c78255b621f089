"""Bounds of AWS, each on both sides, in the JSON protocol without an SDK that checks before."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client.sqs_client import json_request
from tests.support.node.running_node import running_node

MIB = 1024 * 1024
INVALID = "InvalidParameterValue"
MISSING = "MissingParameter"
ATTRIBUTE = {"DataType": "String", "StringValue": "x"}


def attributes(count: int) -> dict[str, Any]:
    return {"MessageAttributes": {f"a{number}": ATTRIBUTE for number in range(count)}}


LONG = "1" * 900_000 + "x"  # no number


def attribute(name: str = "a", **value: str) -> dict[str, Any]:
    return {"MessageAttributes": {name: value or ATTRIBUTE}}


def entries(count: int, **more: Any) -> dict[str, Any]:
    return {"Entries": [{"Id": str(n), "MessageBody": "x", **more} for n in range(count)]}


SEND: list[tuple[dict[str, Any], str]] = [
    ({"MessageBody": "x" * MIB}, ""),
    ({"MessageBody": "x" * (MIB + 1)}, INVALID),
    ({"MessageBody": "x" * (MIB - 8), **attribute()}, ""),
    ({"MessageBody": "x" * (MIB - 7), **attribute()}, INVALID),
    ({"MessageBody": ""}, MISSING),
    ({}, MISSING),
    ({"MessageBody": "\t\n\r \ud7ff\ue000\ufffd\U0010ffff"}, ""),
    ({"MessageBody": "\x00"}, "InvalidMessageContents"),
    ({"MessageBody": "\ufffe"}, "InvalidMessageContents"),
    ({"MessageBody": "x", "DelaySeconds": 900}, ""),
    ({"MessageBody": "x", "DelaySeconds": "900"}, ""),
    ({"MessageBody": "x", "DelaySeconds": 901}, INVALID),
    ({"MessageBody": "x", "DelaySeconds": -1}, INVALID),
    ({"MessageBody": "x", **attributes(10)}, ""),
    ({"MessageBody": "x", **attributes(11)}, INVALID),
    ({"MessageBody": "x", **attribute("n" * 256)}, ""),
    ({"MessageBody": "x", **attribute("n" * 257)}, INVALID),
    ({"MessageBody": "x", **attribute("A-z_0.9")}, ""),
    ({"MessageBody": "x", **attribute(".a")}, INVALID),
    ({"MessageBody": "x", **attribute("a.")}, INVALID),
    ({"MessageBody": "x", **attribute("a..b")}, INVALID),
    ({"MessageBody": "x", **attribute("a b")}, INVALID),
    ({"MessageBody": "x", **attribute("AWS.x")}, INVALID),
    ({"MessageBody": "x", **attribute("amazon.x")}, INVALID),
    ({"MessageBody": "x", **attribute(DataType="String", StringValue="")}, INVALID),
    ({"MessageBody": "x", **attribute(DataType="String", BinaryValue="eA==")}, INVALID),
    ({"MessageBody": "x", **attribute(DataType="Number", StringValue="1e5")}, ""),
    ({"MessageBody": "x", **attribute(DataType="Number", StringValue="five")}, INVALID),
    ({"MessageBody": "x", **attribute(DataType="Number", StringValue="-.5E-3")}, ""),
    ({"MessageBody": "x", **attribute(DataType="Number", StringValue="5.")}, ""),
    (
        {"MessageBody": "x", **attribute(DataType="Number", StringValue=LONG)},
        INVALID,
    ),
    ({"MessageBody": "x", **attribute(DataType="Text", StringValue="x")}, INVALID),
    ({"MessageBody": "x", **attribute(DataType=f"String.{'t' * 249}", StringValue="x")}, ""),
    ({"MessageBody": "x", **attribute(DataType=f"String.{'t' * 250}", StringValue="x")}, INVALID),
    ({"MessageBody": "x", "MessageGroupId": "g" * 128}, ""),
    ({"MessageBody": "x", "MessageGroupId": "g" * 129}, INVALID),
    ({"MessageBody": "x", "MessageDeduplicationId": "d"}, INVALID),
    ({"MessageBody": "x", "MessageSystemAttributes": {"Other": ATTRIBUTE}}, INVALID),
]
SEND_BATCH: list[tuple[dict[str, Any], str]] = [
    (entries(10), ""),
    (entries(11), "AWS.SimpleQueueService.TooManyEntriesInBatchRequest"),
    ({"Entries": []}, "AWS.SimpleQueueService.EmptyBatchRequest"),
    (entries(2, Id="same"), "AWS.SimpleQueueService.BatchEntryIdsNotDistinct"),
    (entries(1, Id="i" * 80), ""),
    (entries(1, Id="i" * 81), "AWS.SimpleQueueService.InvalidBatchEntryId"),
    (entries(1, Id="a.b"), "AWS.SimpleQueueService.InvalidBatchEntryId"),
    (entries(8, MessageBody="x" * (MIB // 8)), ""),
    (
        entries(8, MessageBody="x" * (MIB // 8 + 1)),
        "AWS.SimpleQueueService.BatchRequestTooLong",
    ),
]
RECEIVE: list[tuple[dict[str, Any], str]] = [
    ({"MaxNumberOfMessages": 10}, ""),
    ({"MaxNumberOfMessages": 11}, INVALID),
    ({"MaxNumberOfMessages": 0}, INVALID),
    ({"WaitTimeSeconds": -1}, INVALID),
    ({"WaitTimeSeconds": 21}, INVALID),
    ({"VisibilityTimeout": 43_200}, ""),
    ({"VisibilityTimeout": 43_201}, INVALID),
    ({"VisibilityTimeout": -1}, INVALID),
    ({"AttributeNames": ["Nothing"]}, "InvalidAttributeName"),
    ({"MessageSystemAttributeNames": ["All"]}, ""),
]
VALUE = "InvalidAttributeValue"
QUEUE_ATTRIBUTES: list[tuple[str, Any, str]] = [
    ("VisibilityTimeout", "43200", ""),
    ("VisibilityTimeout", "43201", VALUE),
    ("VisibilityTimeout", "-1", VALUE),
    ("VisibilityTimeout", 30, ""),
    ("DelaySeconds", "900", ""),
    ("DelaySeconds", "901", VALUE),
    ("ReceiveMessageWaitTimeSeconds", "20", ""),
    ("ReceiveMessageWaitTimeSeconds", "21", VALUE),
    ("MessageRetentionPeriod", "60", ""),
    ("MessageRetentionPeriod", "59", VALUE),
    ("MessageRetentionPeriod", "1209600", ""),
    ("MessageRetentionPeriod", "1209601", VALUE),
    ("MaximumMessageSize", "1024", ""),
    ("MaximumMessageSize", "1023", VALUE),
    ("MaximumMessageSize", str(MIB), ""),
    ("MaximumMessageSize", str(MIB + 1), VALUE),
    ("Policy", "{", VALUE),
    ("Policy", "[" * 10_000, VALUE),
    ("ContentBasedDeduplication", "true", "InvalidAttributeName"),
    ("Nothing", "1", "InvalidAttributeName"),
    ("QueueArn", "arn", "InvalidAttributeName"),
]


def check(url: str, operation: str, body: dict[str, Any], code: str) -> None:
    answer = json_request(url, operation, body)
    if code:
        assert (answer.status, answer.code) == (400, code), answer.body
        assert answer.json["message"]
    else:
        assert (answer.status, answer.json) == (200, answer.json), answer.body
        assert not (answer.json or {}).get("Failed")


def named(cases: list[tuple[Any, ...]]) -> list[Any]:
    return [pytest.param(*case, id=str(number)) for number, case in enumerate(cases)]


@pytest.mark.parametrize(("given", "code"), named(SEND))
def test_a_message_has_bounds(url: str, queue: str, given: dict[str, Any], code: str) -> None:
    check(url, "SendMessage", {"QueueUrl": queue, **given}, code)


@pytest.mark.parametrize(("given", "code"), named(SEND_BATCH))
def test_a_batch_has_bounds(url: str, queue: str, given: dict[str, Any], code: str) -> None:
    check(url, "SendMessageBatch", {"QueueUrl": queue, **given}, code)


@pytest.mark.parametrize(("given", "code"), named(RECEIVE))
def test_a_receive_has_bounds(url: str, queue: str, given: dict[str, Any], code: str) -> None:
    check(url, "ReceiveMessage", {"QueueUrl": queue, **given}, code)


@pytest.mark.parametrize(("key", "value", "code"), named(QUEUE_ATTRIBUTES))
def test_an_attribute_of_a_queue_has_bounds(
    url: str, queue: str, name: str, key: str, value: Any, code: str
) -> None:
    given = {"Attributes": {key: value}}
    check(url, "SetQueueAttributes", {"QueueUrl": queue, **given}, code)
    check(url, "CreateQueue", {"QueueName": f"{name}-new", **given}, code)


@pytest.mark.parametrize(
    ("made", "is_fifo", "code"),
    [
        ("n" * 80, False, ""),
        ("n" * 81, False, INVALID),
        ("a.b", False, INVALID),
        ("a b", False, INVALID),
        ("", False, MISSING),
        ("__n", False, INVALID),
        ("n.fifo", False, INVALID),
        ("n", True, INVALID),
        ("n" * 75 + ".fifo", True, ""),
        ("n" * 76 + ".fifo", True, INVALID),
    ],
)
def test_the_name_of_a_queue_has_bounds(url: str, made: str, is_fifo: bool, code: str) -> None:
    given = {"Attributes": {"FifoQueue": "true"}} if is_fifo else {}
    check(url, "CreateQueue", {"QueueName": made, **given}, code)


@pytest.mark.parametrize(
    ("tags", "code"),
    [
        ({f"k{n}": "v" for n in range(50)}, ""),
        ({f"k{n}": "v" for n in range(51)}, INVALID),
        ({"k" * 128: "v" * 256}, ""),
        ({"k" * 129: "v"}, INVALID),
        ({"k": "v" * 257}, INVALID),
        ({}, MISSING),
    ],
)
def test_tags_have_bounds(url: str, queue: str, tags: dict[str, str], code: str) -> None:
    check(url, "TagQueue", {"QueueUrl": queue, "Tags": tags}, code)


def test_the_attributes_and_tags_of_one_queue_may_all_be_as_long_as_they_can(
    url: str, queue: str
) -> None:
    tags = {f"{n:03}" + "é" * 125: "é" * 256 for n in range(50)}
    check(url, "TagQueue", {"QueueUrl": queue, "Tags": tags}, "")
    policy = '{"x":"' + "p" * 16_000 + '"}'
    given = {"Policy": policy, "RedriveAllowPolicy": policy}
    check(url, "SetQueueAttributes", {"QueueUrl": queue, "Attributes": given}, "")
    answer = json_request(url, "ListQueueTags", {"QueueUrl": queue})
    assert answer.json["Tags"] == tags


def test_the_own_bound_of_a_queue_holds_for_its_messages(url: str, name: str) -> None:
    body = {"QueueName": name, "Attributes": {"MaximumMessageSize": "1024"}}
    queue = json_request(url, "CreateQueue", body).json["QueueUrl"]
    check(url, "SendMessage", {"QueueUrl": queue, "MessageBody": "x" * 1024}, "")
    check(url, "SendMessage", {"QueueUrl": queue, "MessageBody": "x" * 1025}, INVALID)


def test_relaxed_limits_are_those_of_goq() -> None:
    with running_node(sqs={"listen": "127.0.0.1:0", "limits": "relaxed"}) as node:
        url = node.node.sqs_url
        assert url is not None
        queue = json_request(url, "CreateQueue", {"QueueName": "q"}).json["QueueUrl"]
        check(url, "SendMessage", {"QueueUrl": queue, "MessageBody": "x" * 2 * MIB}, "")
        check(url, "SendMessageBatch", {"QueueUrl": queue, **entries(100)}, "")
        received = {"QueueUrl": queue, "MaxNumberOfMessages": 200}
        assert len(json_request(url, "ReceiveMessage", received).json["Messages"]) >= 100
