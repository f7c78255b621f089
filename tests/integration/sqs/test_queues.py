"""Queues by a real SDK: create, find, list, delete, attributes, tags, purge."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from goq.api.codec.problem import problem_response
from goq.errors import Conflict
from goq.http.message import Response
from goq.sqs.node_calls import NodeCalls, SqsCall
from goq.sqs.operations import queue_directory
from tests.support.client.sqs_client import json_request
from tests.support.node.running_node import RunningNode

COUNTS = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


def attributes(sqs: Any, queue: str, *names: str) -> dict[str, str]:
    answer = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=list(names) or ["All"])
    return dict(answer.get("Attributes", {}))


def counts(sqs: Any, queue: str) -> list[int]:
    found = attributes(sqs, queue, *COUNTS)
    return [int(found[name]) for name in COUNTS]


def test_a_queue_is_found_by_its_name_and_by_its_prefix(sqs: Any, queue: str, name: str) -> None:
    assert queue.endswith(f"/000000000000/{name}")
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == queue
    assert sqs.list_queues(QueueNamePrefix=name)["QueueUrls"] == [queue]
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix=f"{name}-none")


def test_the_url_of_a_queue_has_the_host_that_the_client_called(
    sqs: Any, url: str, name: str
) -> None:
    sqs.create_queue(QueueName=name)
    by_name = url.replace("127.0.0.1", "localhost")
    answer = json_request(by_name, "GetQueueUrl", {"QueueName": name})
    assert answer.json["QueueUrl"] == f"{by_name}/000000000000/{name}"
    elsewhere = f"https://sqs.eu-west-1.amazonaws.com/123456789012/{name}"
    assert sqs.send_message(QueueUrl=elsewhere, MessageBody="x")["MessageId"]


def test_queues_are_listed_in_pages(sqs: Any, name: str) -> None:
    made = {sqs.create_queue(QueueName=f"{name}-{n}")["QueueUrl"] for n in range(5)}
    pages = sqs.get_paginator("list_queues").paginate(
        QueueNamePrefix=f"{name}-", PaginationConfig={"PageSize": 2}
    )
    sizes = [page.get("QueueUrls", []) for page in pages]
    assert [len(page) for page in sizes] == [2, 2, 1]
    assert {one for page in sizes for one in page} == made


def test_a_queue_created_again_is_the_same_and_with_other_attributes_an_error(
    sqs: Any, name: str
) -> None:
    first = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "60"})
    again = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "60"})
    assert first["QueueUrl"] == again["QueueUrl"]
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == first["QueueUrl"]
    with pytest.raises(sqs.exceptions.QueueNameExists) as refused:
        sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "61"})
    assert refused.value.response["Error"]["Code"] == "QueueAlreadyExists"


def test_a_deleted_queue_is_gone_with_its_messages(sqs: Any, queue: str, name: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="old")
    sqs.delete_queue(QueueUrl=queue)
    with pytest.raises(sqs.exceptions.QueueDoesNotExist) as missing:
        sqs.get_queue_url(QueueName=name)
    assert missing.value.response["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    sqs.create_queue(QueueName=name)
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)


def test_attributes_are_shown_as_they_were_set(sqs: Any, name: str) -> None:
    given = {
        "VisibilityTimeout": "0",
        "DelaySeconds": "5",
        "MessageRetentionPeriod": "60",
        "MaximumMessageSize": "1024",
        "ReceiveMessageWaitTimeSeconds": "3",
        "Policy": json.dumps({"Version": "2012-10-17"}),
    }
    queue = sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"]
    found = attributes(sqs, queue)
    assert {key: found[key] for key in given} == given
    assert found["QueueArn"] == f"arn:aws:sqs:us-east-1:000000000000:{name}"
    assert abs(int(found["CreatedTimestamp"]) - int(found["LastModifiedTimestamp"])) <= 1
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"VisibilityTimeout": "7", "Policy": ""})
    found = attributes(sqs, queue)
    assert (found["VisibilityTimeout"], found["DelaySeconds"]) == ("7", "5")
    assert "Policy" not in found
    assert attributes(sqs, queue, "QueueArn").keys() == {"QueueArn"}


def test_attributes_and_tags_are_those_of_the_topic(
    sqs: Any, node: RunningNode, queue: str, name: str
) -> None:
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"VisibilityTimeout": "90"})
    settings = node.call("GET", f"/v1/topics/{name}")["settings"]
    assert settings["delivery.visibility_timeout"] == "1m30s"
    changed = {"settings": {"delivery.visibility_timeout": "45s", "retention.age": "1h"}}
    node.call("PATCH", f"/v1/topics/{name}", changed)
    found = attributes(sqs, queue)
    assert (found["VisibilityTimeout"], found["MessageRetentionPeriod"]) == ("45", "3600")


def test_a_topic_that_no_sdk_made_is_a_queue(sqs: Any, node: RunningNode, name: str) -> None:
    node.call("POST", "/v1/topics", {"name": name, "partitions": 2})
    body = {"messages": [{"value": "old", "key": "k", "headers": {"from": "goq"}}]}
    published = node.call("POST", f"/v1/topics/{name}/messages", body)["results"][0]["id"]
    queue = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    assert counts(sqs, queue) == [1, 0, 0]
    (message,) = sqs.receive_message(QueueUrl=queue, MessageAttributeNames=["All"])["Messages"]
    assert (message["MessageId"], message["Body"]) == (published, "old")
    assert message["MessageAttributes"]["from"] == {"DataType": "String", "StringValue": "goq"}
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert counts(sqs, queue) == [0, 0, 0]


def test_a_change_that_meets_one_of_another_node_begins_anew(
    sqs: Any, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, left = NodeCalls.ask, 10
    monkeypatch.setattr(queue_directory, "_CONFLICT_PAUSE_S", 0.001)

    async def conflicting(
        self: NodeCalls, call: SqsCall, method: str, path: str, body: object = None
    ) -> Response:
        nonlocal left
        if method == "PATCH" and left:
            left -= 1
            return problem_response(Conflict("topic is at version 2, not 1"))
        return await ask(self, call, method, path, body)

    monkeypatch.setattr(NodeCalls, "ask", conflicting)
    sqs.tag_queue(QueueUrl=queue, Tags={"team": "a"})
    assert (left, sqs.list_queue_tags(QueueUrl=queue)["Tags"]) == (0, {"team": "a"})
    left = 1_000
    monkeypatch.setattr(queue_directory, "_CONFLICT_S_MAX", 0.1)
    with pytest.raises(ClientError, match="ServiceUnavailable"):  # which SDKs send again
        sqs.tag_queue(QueueUrl=queue, Tags={"team": "b"})
    assert left > 0


def test_tags_of_aws_are_refused_as_there(sqs: Any, queue: str, name: str) -> None:
    for make in (
        lambda: sqs.tag_queue(QueueUrl=queue, Tags={"aws:x": "1"}),
        lambda: sqs.create_queue(QueueName=f"{name}-2", tags={"AWS:x": "1"}),
    ):
        with pytest.raises(ClientError, match="InvalidParameterValue"):
            make()


def test_tags_are_added_replaced_and_removed(sqs: Any, name: str) -> None:
    queue = sqs.create_queue(QueueName=name, tags={"team": "a"})["QueueUrl"]
    sqs.tag_queue(QueueUrl=queue, Tags={"team": "b", "tier": "1"})
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"team": "b", "tier": "1"}
    sqs.untag_queue(QueueUrl=queue, TagKeys=["team", "none"])
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"tier": "1"}
    sqs.untag_queue(QueueUrl=queue, TagKeys=["tier"])
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=queue)


def test_the_counts_tell_what_is_visible_received_and_delayed(sqs: Any, queue: str) -> None:
    for number in range(3):
        sqs.send_message(QueueUrl=queue, MessageBody=str(number))
    sqs.send_message(QueueUrl=queue, MessageBody="later", DelaySeconds=900)
    assert counts(sqs, queue) == [3, 0, 1]
    (message,) = sqs.receive_message(QueueUrl=queue)["Messages"]
    assert counts(sqs, queue) == [2, 1, 1]
    sqs.change_message_visibility(
        QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
    )
    assert counts(sqs, queue) == [3, 0, 1]


def test_a_purge_removes_all_messages_and_ends_all_leases(sqs: Any, queue: str) -> None:
    for number in range(4):
        sqs.send_message(QueueUrl=queue, MessageBody=str(number))
    (message,) = sqs.receive_message(QueueUrl=queue)["Messages"]
    sqs.purge_queue(QueueUrl=queue)
    assert counts(sqs, queue) == [0, 0, 0]
    with pytest.raises(sqs.exceptions.MessageNotInflight):
        sqs.change_message_visibility(
            QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=9
        )
    sqs.send_message(QueueUrl=queue, MessageBody="new")
    (message,) = sqs.receive_message(QueueUrl=queue)["Messages"]
    assert message["Body"] == "new"


def test_each_topic_is_a_queue_of_the_list_but_the_audit_trail_is_none(
    sqs: Any, node: RunningNode, name: str
) -> None:
    topics = [f"{name}.dlq", f"{name}.eu.orders"]
    for topic in topics:
        node.call("POST", "/v1/topics", {"name": topic})
    listed = sqs.list_queues(QueueNamePrefix=f"{name}.")["QueueUrls"]
    assert listed == [sqs.get_queue_url(QueueName=topic)["QueueUrl"] for topic in topics]
    with pytest.raises(ClientError):
        sqs.get_queue_url(QueueName="__audit")


def test_a_new_queue_keeps_its_messages_until_their_retention_is_over(
    sqs: Any, node: RunningNode, name: str
) -> None:
    retention = {"MessageRetentionPeriod": "1209600"}
    sqs.create_queue(QueueName=name, Attributes=retention)
    settings = node.call("GET", f"/v1/topics/{name}")["settings"]
    assert (settings["retention.age"], settings["retention.bytes"]) == ("14d", "none")
    assert (settings["delivery.max_attempts"], settings["segment.age"]) == ("none", "1d")


@pytest.mark.parametrize("padded", ["0000000000000901", "9" * 13, "٣", "-1", "1.0", ""])
def test_a_number_out_of_bounds_is_refused_however_it_is_written(
    sqs: Any, queue: str, padded: str
) -> None:
    with pytest.raises(ClientError, match="DelaySeconds"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DelaySeconds": padded})
    assert attributes(sqs, queue, "DelaySeconds") == {"DelaySeconds": "0"}


def test_an_attribute_however_deep_it_is_nested_is_refused(queue: str, url: str) -> None:
    for depth in range(500, 1100, 6):  # somewhere JSON can still be read, and not be written
        body = '{"QueueUrl": "%s", "Attributes": {"Policy": %s}}'
        deep = body % (queue, "[" * depth + "]" * depth)
        assert json_request(url, "SetQueueAttributes", deep.encode()).status == 400, depth


def test_a_setting_that_no_queue_has_makes_a_plain_topic_of_it(
    sqs: Any, queue: str, name: str, node: RunningNode
) -> None:
    strange = {"attributes": {"DelaySeconds": "soon", "ReceiveMessageWaitTimeSeconds": "9" * 20}}
    for text in (json.dumps(strange), '{"a":' * 5_000, "garbage"):
        node.call("PATCH", f"/v1/topics/{name}", {"settings": {"sqs": text}})
        sqs.send_message(QueueUrl=queue, MessageBody="x")
        assert len(sqs.receive_message(QueueUrl=queue)["Messages"]) == 1
        assert "QueueArn" in attributes(sqs, queue)
        assert queue in sqs.list_queues(QueueNamePrefix=name)["QueueUrls"]


def test_changes_at_the_same_time_all_stay(sqs: Any, queue: str) -> None:
    def change(number: int) -> None:
        sqs.tag_queue(QueueUrl=queue, Tags={str(number): "x"})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(change, range(8)))
    assert set(sqs.list_queue_tags(QueueUrl=queue)["Tags"]) == {str(n) for n in range(8)}
