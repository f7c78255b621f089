"""Requests of all operations, as they are in the JSON protocol.

Numbers may be written as text: the SDK for PHP does so. Unknown members are ignored, as AWS does.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Shape(msgspec.Struct):
    """Base of requests and their parts."""


class QueueShape(Shape, kw_only=True):
    """A request that names a queue."""

    queue_url: str | None = msgspec.field(default=None, name="QueueUrl")


class AttributeValue(Shape):
    """The value of a message attribute."""

    data_type: str | None = msgspec.field(default=None, name="DataType")
    text: str | None = msgspec.field(default=None, name="StringValue")
    binary: bytes | None = msgspec.field(default=None, name="BinaryValue")


AttributeValues = dict[str, AttributeValue]


class SendShape(QueueShape, kw_only=True):
    """SendMessage, and an entry of SendMessageBatch."""

    id: str | None = msgspec.field(default=None, name="Id")
    body: str | None = msgspec.field(default=None, name="MessageBody")
    delay_s: int | None = msgspec.field(default=None, name="DelaySeconds")
    attributes: AttributeValues | None = msgspec.field(default=None, name="MessageAttributes")
    system: AttributeValues | None = msgspec.field(default=None, name="MessageSystemAttributes")
    dedup_id: str | None = msgspec.field(default=None, name="MessageDeduplicationId")
    group_id: str | None = msgspec.field(default=None, name="MessageGroupId")


class SendBatchShape(QueueShape, kw_only=True):
    """SendMessageBatch."""

    entries: list[SendShape] | None = msgspec.field(default=None, name="Entries")


class ReceiveShape(QueueShape, kw_only=True):
    """ReceiveMessage."""

    old_names: list[str] | None = msgspec.field(default=None, name="AttributeNames")
    names: list[str] | None = msgspec.field(default=None, name="MessageSystemAttributeNames")
    attribute_names: list[str] | None = msgspec.field(default=None, name="MessageAttributeNames")
    messages_max: int | None = msgspec.field(default=None, name="MaxNumberOfMessages")
    visibility_s: int | None = msgspec.field(default=None, name="VisibilityTimeout")
    wait_s: int | None = msgspec.field(default=None, name="WaitTimeSeconds")


class HandleShape(QueueShape, kw_only=True):
    """DeleteMessage, ChangeMessageVisibility, and an entry of their batches."""

    id: str | None = msgspec.field(default=None, name="Id")
    handle: str | None = msgspec.field(default=None, name="ReceiptHandle")
    visibility_s: int | None = msgspec.field(default=None, name="VisibilityTimeout")


class HandleBatchShape(QueueShape, kw_only=True):
    """DeleteMessageBatch and ChangeMessageVisibilityBatch."""

    entries: list[HandleShape] | None = msgspec.field(default=None, name="Entries")


class CreateQueueShape(Shape):
    """CreateQueue."""

    name: str | None = msgspec.field(default=None, name="QueueName")
    attributes: dict[str, Any] | None = msgspec.field(default=None, name="Attributes")
    tags: dict[str, str] | None = None
    upper_tags: dict[str, str] | None = msgspec.field(default=None, name="Tags")


class QueueUrlShape(Shape):
    """GetQueueUrl."""

    name: str | None = msgspec.field(default=None, name="QueueName")


class ListQueuesShape(Shape):
    """ListQueues."""

    prefix: str | None = msgspec.field(default=None, name="QueueNamePrefix")
    token: str | None = msgspec.field(default=None, name="NextToken")
    results_max: int | None = msgspec.field(default=None, name="MaxResults")


class ListSourcesShape(QueueShape, kw_only=True):
    """ListDeadLetterSourceQueues."""

    token: str | None = msgspec.field(default=None, name="NextToken")
    results_max: int | None = msgspec.field(default=None, name="MaxResults")


class GetAttributesShape(QueueShape, kw_only=True):
    """GetQueueAttributes."""

    names: list[str] | None = msgspec.field(default=None, name="AttributeNames")


class SetAttributesShape(QueueShape, kw_only=True):
    """SetQueueAttributes."""

    attributes: dict[str, Any] | None = msgspec.field(default=None, name="Attributes")


class TagShape(QueueShape, kw_only=True):
    """TagQueue."""

    tags: dict[str, str] | None = msgspec.field(default=None, name="Tags")


class UntagShape(QueueShape, kw_only=True):
    """UntagQueue."""

    keys: list[str] | None = msgspec.field(default=None, name="TagKeys")


class RemovePermissionShape(QueueShape, kw_only=True):
    """RemovePermission."""

    label: str | None = msgspec.field(default=None, name="Label")


class AddPermissionShape(RemovePermissionShape, kw_only=True):
    """AddPermission."""

    accounts: list[str] | None = msgspec.field(default=None, name="AWSAccountIds")
    actions: list[str] | None = msgspec.field(default=None, name="Actions")


class StartMoveShape(Shape):
    """StartMessageMoveTask."""

    source: str | None = msgspec.field(default=None, name="SourceArn")
    target: str | None = msgspec.field(default=None, name="DestinationArn")
    rate: int | None = msgspec.field(default=None, name="MaxNumberOfMessagesPerSecond")


class ListMovesShape(Shape):
    """ListMessageMoveTasks."""

    source: str | None = msgspec.field(default=None, name="SourceArn")
    results_max: int | None = msgspec.field(default=None, name="MaxResults")


class CancelMoveShape(Shape):
    """CancelMessageMoveTask."""

    handle: str | None = msgspec.field(default=None, name="TaskHandle")
