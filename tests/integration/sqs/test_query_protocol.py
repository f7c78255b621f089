"""The query protocol, as SDKs before 2024 speak it: forms as requests, XML as answers."""

from __future__ import annotations

import random
import threading
from hashlib import md5
from typing import Any
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree

import pytest

from goq.http.message import Request
from goq.sqs import app
from goq.sqs.protocol.query_protocol import UNFIT, QueryExchange, _escaped, _unescaped
from tests.support.client.sqs_client import RawAnswer, raw_request
from tests.support.node.running_node import RunningNode

FORM = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
SPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


def query(url: str, action: str, *, path: str = "/", **fields: object) -> RawAnswer:
    form = {"Action": action, "Version": "2012-11-05", **fields}
    return raw_request(url, urlencode(form).encode(), FORM, path)


def result(answer: RawAnswer) -> ElementTree.Element:
    """Return the result of an answer, or the answer without one."""
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "text/xml"
    root = ElementTree.fromstring(answer.body)
    assert root.findtext(f"{SPACE}ResponseMetadata/{SPACE}RequestId")
    return root[0] if root[0].tag.endswith("Result") else root


def texts(element: ElementTree.Element, *path: str) -> list[str]:
    return [found.text or "" for found in element.findall("/".join(SPACE + each for each in path))]


def pairs(element: ElementTree.Element, name: str, key: str = "Name") -> dict[str, str]:
    return dict(zip(texts(element, name, key), texts(element, name, "Value"), strict=True))


def error(answer: RawAnswer) -> tuple[int, str, str]:
    root = ElementTree.fromstring(answer.body)
    (code,), (fault,) = texts(root, "Error", "Code"), texts(root, "Error", "Type")
    return answer.status, code, fault


def test_a_queue_is_made_changed_and_listed(url: str, name: str) -> None:
    made = query(
        url,
        "CreateQueue",
        QueueName=name,
        **{
            "Attribute.1.Name": "VisibilityTimeout",
            "Attribute.1.Value": "40",
            "Attribute.2.Name": "DelaySeconds",
            "Attribute.2.Value": "2",
            "Tag.1.Key": "team",
            "Tag.1.Value": "a & b",
        },
    )
    (queue,) = texts(result(made), "QueueUrl")
    path = urlsplit(queue).path
    assert texts(result(query(url, "ListQueues", QueueNamePrefix=name)), "QueueUrl") == [queue]
    assert texts(result(query(url, "GetQueueUrl", QueueName=name)), "QueueUrl") == [queue]
    shown = query(url, "GetQueueAttributes", path=path, **{"AttributeName.1": "All"})
    found = pairs(result(shown), "Attribute")
    assert (found["VisibilityTimeout"], found["DelaySeconds"]) == ("40", "2")
    changed = {"Attribute.Name": "x", "Attribute.1.Name": "DelaySeconds", "Attribute.1.Value": "0"}
    del changed["Attribute.Name"]
    result(query(url, "SetQueueAttributes", path=path, **changed))
    names = {"AttributeName.1": "QueueArn", "AttributeName.2": "DelaySeconds"}
    shown = query(url, "GetQueueAttributes", QueueUrl=queue, **names)
    assert pairs(result(shown), "Attribute")["DelaySeconds"] == "0"
    result(query(url, "TagQueue", QueueUrl=queue, **{"Tag.1.Key": "b", "Tag.1.Value": "c"}))
    result(query(url, "UntagQueue", QueueUrl=queue, **{"TagKey.1": "b"}))
    tags = result(query(url, "ListQueueTags", QueueUrl=queue))
    assert pairs(tags, "Tag", "Key") == {"team": "a & b"}
    result(query(url, "DeleteQueue", path=path))
    missing = query(url, "GetQueueUrl", QueueName=name)
    assert error(missing) == (400, "AWS.SimpleQueueService.NonExistentQueue", "Sender")


def test_a_message_arrives_with_its_attributes(url: str, queue: str) -> None:
    body = "<a>&\r\n\té\u2028</a>"
    attributes = {
        "MessageAttribute.1.Name": "n",
        "MessageAttribute.1.Value.DataType": "Number",
        "MessageAttribute.1.Value.StringValue": "5",
        "MessageAttribute.2.Name": "b",
        "MessageAttribute.2.Value.DataType": "Binary",
        "MessageAttribute.2.Value.BinaryValue": "/wA=",
    }
    path = urlsplit(queue).path
    sent = result(query(url, "SendMessage", path=path, MessageBody=body, **attributes))
    asked = {"AttributeName.1": "All", "MessageAttributeName.1": "All", "MaxNumberOfMessages": "1"}
    received = result(query(url, "ReceiveMessage", QueueUrl=queue, **asked))
    assert texts(received, "Message", "Body") == [body]
    assert texts(received, "Message", "MessageId") == texts(sent, "MessageId")
    assert texts(received, "Message", "MD5OfBody") == texts(sent, "MD5OfMessageBody")
    digests = texts(received, "Message", "MD5OfMessageAttributes")
    assert digests == texts(sent, "MD5OfMessageAttributes")
    (message,) = received
    found = {
        each.findtext(f"{SPACE}Name"): {
            value.tag.removeprefix(SPACE): value.text for value in each.findall(f"{SPACE}Value/*")
        }
        for each in message.findall(f"{SPACE}MessageAttribute")
    }
    assert found == {
        "n": {"DataType": "Number", "StringValue": "5"},
        "b": {"DataType": "Binary", "BinaryValue": "/wA="},
    }
    assert pairs(message, "Attribute")["ApproximateReceiveCount"] == "1"
    (handle,) = texts(received, "Message", "ReceiptHandle")
    change = {"ReceiptHandle": handle, "VisibilityTimeout": "50"}
    result(query(url, "ChangeMessageVisibility", QueueUrl=queue, **change))
    result(query(url, "DeleteMessage", QueueUrl=queue, ReceiptHandle=handle))
    assert len(result(query(url, "ReceiveMessage", QueueUrl=queue))) == 0


def test_a_batch_tells_of_each_entry(url: str, queue: str) -> None:
    entries: dict[str, Any] = {}
    for number in range(1, 11):
        entries[f"SendMessageBatchRequestEntry.{number}.Id"] = f"e{number}"
        entries[f"SendMessageBatchRequestEntry.{number}.MessageBody"] = f"body {number}"
    entries["SendMessageBatchRequestEntry.10.DelaySeconds"] = "901"
    sent = result(query(url, "SendMessageBatch", QueueUrl=queue, **entries))
    ids = texts(sent, "SendMessageBatchResultEntry", "Id")
    assert ids == [f"e{number}" for number in range(1, 10)]
    assert texts(sent, "BatchResultErrorEntry", "Id") == ["e10"]
    assert texts(sent, "BatchResultErrorEntry", "SenderFault") == ["true"]
    received = result(query(url, "ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages="10"))
    handles = texts(received, "Message", "ReceiptHandle")
    assert len(handles) == 9
    deletes = {}
    for number, handle in enumerate(handles, 1):
        deletes[f"DeleteMessageBatchRequestEntry.{number}.Id"] = f"d{number}"
        deletes[f"DeleteMessageBatchRequestEntry.{number}.ReceiptHandle"] = handle
    answer = result(query(url, "DeleteMessageBatch", QueueUrl=queue, **deletes))
    assert len(texts(answer, "DeleteMessageBatchResultEntry", "Id")) == 9


def test_both_protocols_see_the_same_queues(url: str, sqs: Any, queue: str) -> None:
    result(query(url, "SendMessage", QueueUrl=queue, MessageBody="x"))
    (message,) = sqs.receive_message(QueueUrl=queue)["Messages"]
    deleted = query(url, "DeleteMessage", QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert b"<DeleteMessageResult>" not in deleted.body
    assert deleted.status == 200


def test_characters_that_xml_does_not_have_are_replaced(
    url: str, node: Any, queue: str, name: str
) -> None:
    message = {"value": "a\x00\x1b\ufffeb", "headers": {"h": "\x1bx"}}
    node.call("POST", f"/v1/topics/{name}/messages", {"messages": [message]})
    received = result(query(url, "ReceiveMessage", QueueUrl=queue, MessageAttributeName="h"))
    body = "a\ufffd\ufffd\ufffdb"
    assert texts(received, "Message", "Body") == [body]
    assert texts(received, "Message", "MD5OfBody") == [md5(body.encode()).hexdigest()]
    encoded = b"\0\0\0\1h" + b"\0\0\0\6String" + b"\1\0\0\0\4" + "\ufffdx".encode()
    digest = md5(encoded).hexdigest()
    assert texts(received, "Message", "MD5OfMessageAttributes") == [digest]


def test_xml_has_each_character_as_it_is_or_replaced() -> None:
    text = "".join(chr(n) for n in range(0x11000) if not 0xD800 <= n < 0xE000)
    element = ElementTree.fromstring(f"<Body>{_escaped(text)}</Body>")
    assert element.text == UNFIT.sub("\ufffd", text)


def test_a_single_member_needs_no_number(url: str, queue: str) -> None:
    changed = {"Attribute.Name": "VisibilityTimeout", "Attribute.Value": "35"}
    result(query(url, "SetQueueAttributes", QueueUrl=queue, **changed))
    shown = query(url, "GetQueueAttributes", QueueUrl=queue, AttributeName="VisibilityTimeout")
    assert pairs(result(shown), "Attribute") == {"VisibilityTimeout": "35"}


@pytest.mark.parametrize(
    ("form", "code"),
    [
        ("", "InvalidAction"),
        ("Action=Nothing", "InvalidAction"),
        ("Action.1=ListQueues", "InvalidAction"),
        ("Action=ListQueues&MaxResults=x", "InvalidParameterValue"),
        ("Action=ListQueues&QueueNamePrefix.1=x", "InvalidParameterValue"),
        ("Action=ListQueues&Action=ListQueues", "MalformedQueryString"),
        ("Action=ListQueues&a=1&a.b=2", "MalformedQueryString"),
        ("Action=ListQueues&a.b=1&a=2", "MalformedQueryString"),
        ("Action=ListQueues&a=%", "MalformedQueryString"),
        ("Action=ListQueues&a=%ff", "MalformedQueryString"),
        ("Action=ListQueues&" + "a" * 2000 + "=%", "MalformedQueryString"),
        ("Action=ListQueues&a=" + "%C3%BC" * 1000 + "%ff", "MalformedQueryString"),
        ("Action=ListQueues" + "&a" * 5000, "MalformedQueryString"),
        ("Action=TagQueue&QueueUrl=q&Tag.x.Key=a", "InvalidParameterValue"),
        ("Action=TagQueue&QueueUrl=q&Tag.1=a", "InvalidParameterValue"),
        ("Action=SendMessage&MessageBody=x", "MissingParameter"),
        (
            "Action=SendMessageBatch&QueueUrl=q&SendMessageBatchRequestEntry.1=x",
            "InvalidParameterValue",
        ),
    ],
)
def test_a_wrong_form_gets_an_error_of_the_protocol(url: str, form: str, code: str) -> None:
    assert error(raw_request(url, form.encode(), FORM)) == (400, code, "Sender")


def test_a_form_that_is_too_large_to_be_read_gets_an_error_of_the_protocol(url: str) -> None:
    answer = raw_request(url, b"", FORM | {"Content-Length": "1000000000"})
    assert answer.headers["content-type"] == "text/xml"
    assert error(answer) == (413, "InvalidRequest", "Sender")
    other = {"Content-Type": "application/x-amz-json-1.0", "Content-Length": "1000000000"}
    assert raw_request(url, b"", other).json["__type"] == "InvalidRequest"


def test_a_large_form_is_read_beside_the_event_loop(
    url: str, queue: str, node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    class Noting(QueryExchange):
        def __init__(self, request: Request) -> None:
            threads.append(threading.get_ident())
            super().__init__(request)

    monkeypatch.setattr(app, "QueryExchange", Noting)
    loop_thread = node.on_loop(threading.get_ident)
    for size in (app._LARGE_FORM_BYTES // 6 - 100, app._LARGE_FORM_BYTES // 6 + 100):
        body = "ü" * size  # six bytes each
        sent = result(query(url, "SendMessage", QueueUrl=queue, MessageBody=body))
        assert texts(sent, "MD5OfMessageBody") == [md5(body.encode()).hexdigest()]
    wrong = urlencode({"Action": "SendMessage", "MessageBody": "x" * app._LARGE_FORM_BYTES}) + "%"
    assert error(raw_request(url, wrong.encode(), FORM)) == (400, "MalformedQueryString", "Sender")
    assert [thread == loop_thread for thread in threads] == [True, False, False]


def test_a_get_does_nothing(url: str, queue: str) -> None:
    path = f"{urlsplit(queue).path}?Action=DeleteQueue"
    assert raw_request(url, b"", FORM, path, method="GET").status == 400
    result(query(url, "ReceiveMessage", QueueUrl=queue))


def test_a_long_value_stands_for_what_a_short_one_would() -> None:
    chance = random.Random(1)
    for _ in range(5_000):
        text = "".join(chance.choices("a%%=\n\r_3DF0g+ ", k=chance.randint(1, 12)))
        padded = "x" * 1_000 + text
        try:
            short = _unescaped(text)
        except ValueError as error:
            with pytest.raises(type(error)):
                _unescaped(padded)
        else:
            assert _unescaped(padded) == "x" * 1_000 + short, text
