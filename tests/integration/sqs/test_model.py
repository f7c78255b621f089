"""Requests, answers and errors of all operations, against the model by which boto3 is made."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from typing import Any

import msgspec
import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel, Shape, StructureShape

from goq.sqs.app import SqsApp
from goq.sqs.protocol import errors
from tests.integration.sqs.test_moves import arn, ended, kill, make
from tests.support.client.sqs_client import json_request
from tests.support.node.running_node import RunningNode

MODEL = ServiceModel(Loader().load_service_model("sqs", "service-2"), "sqs")
OPERATIONS = MODEL.operation_names
IGNORED = {"ReceiveRequestAttemptId", "QueueOwnerAWSAccountId", "StringListValues"}
IGNORED |= {"BinaryListValues"}  # "not implemented, reserved for future use", as AWS says
REQUIRED = [
    (name, member)
    for name in OPERATIONS
    for member in MODEL.operation_model(name).input_shape.required_members
]
COMPLETE: dict[str, Any] = {
    "QueueUrl": "whole",
    "QueueName": "whole",
    "MessageBody": "x",
    "ReceiptHandle": "x",
    "VisibilityTimeout": 1,
    "Entries": [{"Id": "a", "MessageBody": "x"}],
    "Attributes": {"DelaySeconds": "1"},
    "Tags": {"k": "v"},
    "TagKeys": ["k"],
    "Label": "l",
    "AWSAccountIds": ["123456789012"],
    "Actions": ["SendMessage"],
    "SourceArn": arn("whole"),
    "TaskHandle": "x",
}
"""A value for each required member. Those of handles are wrong, which is found out later."""
KINDS = {"integer": int, "long": int, "boolean": bool, "string": str}


def _understood(struct: type[Any], name: str) -> type[Any] | None:
    """Return the part of a request that a member is, None for a plain value."""
    types = {each.encode_name: each.type for each in msgspec.structs.fields(struct)}
    assert name in types, (struct, name)
    inner = [
        each
        for each in _parts(types[name])
        if isinstance(each, type) and issubclass(each, msgspec.Struct)
    ]
    return inner[0] if inner else None


def _parts(kind: Any) -> list[Any]:
    inner = getattr(kind, "__args__", ())
    return [kind, *(part for each in inner for part in _parts(each))]


def _structure(shape: Shape) -> StructureShape | None:
    """Return the structure that a member is, or a list or map of it has."""
    for inner in ("member", "value"):
        if shape.type_name in ("list", "map") and hasattr(shape, inner):
            return _structure(getattr(shape, inner))
    return shape if isinstance(shape, StructureShape) else None


def check_input(shape: StructureShape, struct: type[Any]) -> None:
    for name, member in shape.members.items():
        if name not in IGNORED:
            part, structure = _understood(struct, name), _structure(member)
            assert (part is None) == (structure is None), name
            if structure is not None and part is not None:
                check_input(structure, part)


def check_output(shape: Shape, value: Any, seen: dict[str, set[str]]) -> None:
    """Assert that a value is of a shape, and note the members that it has."""
    if isinstance(shape, StructureShape):
        assert value.keys() <= shape.members.keys(), (shape.name, value)
        assert set(shape.required_members) <= value.keys(), (shape.name, value)
        seen[shape.name] |= value.keys()
        for name, each in value.items():
            check_output(shape.members[name], each, seen)
    elif shape.type_name == "list":
        assert isinstance(value, list)
        for each in value:
            check_output(shape.member, each, seen)
    elif shape.type_name == "map":
        for key, each in value.items():
            check_output(shape.key, key, seen)
            check_output(shape.value, each, seen)
    elif shape.type_name == "blob":
        base64.b64decode(value, validate=True)
    else:
        assert type(value) is KINDS[shape.type_name], (shape.name, value)
        enum = shape.metadata.get("enum")
        assert not enum or value in enum, (shape.name, value)


@pytest.fixture(scope="module")
def app(node: RunningNode) -> SqsApp:
    found = node.node._listeners._sqs
    assert found is not None
    return found


def test_each_member_of_a_request_of_the_model_is_understood(app: SqsApp) -> None:
    assert sorted(app.operations) == sorted(OPERATIONS)
    for name, operation in app.operations.items():
        check_input(MODEL.operation_model(name).input_shape, operation.shape)


@pytest.mark.parametrize(("operation", "member"), REQUIRED)
def test_what_a_request_must_have_is_asked_for(url: str, operation: str, member: str) -> None:
    json_request(url, "CreateQueue", {"QueueName": "whole"})
    needed = MODEL.operation_model(operation).input_shape.required_members
    body = {name: COMPLETE[name] for name in needed if name != member}
    answer = json_request(url, operation, body)
    kind = "com.amazonaws.sqs#EmptyBatchRequest" if member == "Entries" else "MissingParameter"
    assert (answer.status, answer.json["__type"]) == (400, kind)


def test_an_error_is_in_the_namespace_of_the_model_if_the_model_has_it() -> None:
    modelled = {shape.name for shape in MODEL.error_shapes}
    kinds = {*errors._MODELLED, *errors._KINDS.values()}
    for kind in kinds | {"MissingParameter", "InvalidParameterValue"}:
        is_named = errors.SqsError(kind, "").json_type.startswith("com.amazonaws.sqs#")
        assert is_named == (kind in modelled), kind


def test_answers_of_all_operations_are_those_of_the_model(sqs: Any, url: str, name: str) -> None:
    """Each member of each answer that the model has comes at least once."""
    seen: dict[str, set[str]] = defaultdict(set)
    asked = set()

    def ask(operation: str, **body: Any) -> Any:
        answer = json_request(url, operation, body)
        assert answer.status == 200, answer.body
        asked.add(operation)
        shape = MODEL.operation_model(operation).output_shape
        if shape is None:
            assert not answer.json
        else:
            check_output(shape, answer.json, seen)
        return answer.json

    values = {
        "t": {"DataType": "String", "StringValue": "x"},
        "b": {"DataType": "Binary", "BinaryValue": "/w=="},
    }
    traced = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}}
    more = {"MessageAttributes": values, "MessageSystemAttributes": traced}
    fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}

    ask("CreateQueue", QueueName=f"{name}-other")
    ask("CreateQueue", QueueName=f"{name}.fifo", Attributes=fifo)
    queue = ask("GetQueueUrl", QueueName=f"{name}.fifo")["QueueUrl"]
    ask("SetQueueAttributes", QueueUrl=queue, Attributes={"VisibilityTimeout": "60"})
    ask("TagQueue", QueueUrl=queue, Tags={"k": "v", "l": "w"})
    ask("ListQueueTags", QueueUrl=queue)
    ask("UntagQueue", QueueUrl=queue, TagKeys=["k"])
    ask("AddPermission", QueueUrl=queue, Label="l", AWSAccountIds=["1" * 12], Actions=["*"])
    ask("GetQueueAttributes", QueueUrl=queue, AttributeNames=["All"])
    ask("RemovePermission", QueueUrl=queue, Label="l")
    ask("ListQueues", QueueNamePrefix=name)
    ask("ListQueues", MaxResults=1)
    ask("SendMessage", QueueUrl=queue, MessageBody="one", MessageGroupId="g", **more)
    batch = {"Id": "a", "MessageBody": "two", "MessageGroupId": "h", **more}
    ask("SendMessageBatch", QueueUrl=queue, Entries=[batch, {"Id": "b", "MessageBody": "x"}])
    receive = {"MaxNumberOfMessages": 10, "MessageAttributeNames": ["All"]}
    receive |= {"MessageSystemAttributeNames": ["All"], "QueueUrl": queue}
    first, second = ask("ReceiveMessage", **receive)["Messages"]
    handle = {"ReceiptHandle": first["ReceiptHandle"]}
    ask("ChangeMessageVisibility", QueueUrl=queue, VisibilityTimeout=60, **handle)
    ask("DeleteMessage", QueueUrl=queue, **handle)
    entry = {"Id": "a", "ReceiptHandle": second["ReceiptHandle"], "VisibilityTimeout": 60}
    wrong = {"Id": "b", "ReceiptHandle": "wrong", "VisibilityTimeout": 60}
    ask("ChangeMessageVisibilityBatch", QueueUrl=queue, Entries=[entry, wrong])
    ask("DeleteMessageBatch", QueueUrl=queue, Entries=[entry, wrong])
    ask("PurgeQueue", QueueUrl=queue)
    ask("DeleteQueue", QueueUrl=queue)

    dead = f"{name}-dead"
    make(sqs, name)
    ask("CreateQueue", QueueName=f"{name}-more", Attributes=_redriving_to(dead))
    ask("ListDeadLetterSourceQueues", QueueUrl=dead, MaxResults=1)
    sqs.send_message(QueueUrl=dead, MessageBody="of no source")
    for _ in range(8):
        sqs.send_message(QueueUrl=name, MessageBody="dead")
    kill(sqs, name, dead, 9)
    rate = {"MaxNumberOfMessagesPerSecond": 1, "DestinationArn": arn(name)}
    task = ask("StartMessageMoveTask", SourceArn=arn(dead), **rate)
    ask("ListMessageMoveTasks", SourceArn=arn(dead))
    ask("CancelMessageMoveTask", TaskHandle=task["TaskHandle"])
    ended(sqs, dead)
    sqs.send_message(QueueUrl=dead, MessageBody="of no source")
    ask("StartMessageMoveTask", SourceArn=arn(dead))
    assert ended(sqs, dead)["Status"] == "FAILED"
    ask("ListMessageMoveTasks", SourceArn=arn(dead), MaxResults=10)

    assert asked == set(OPERATIONS)
    for shape_name, members in seen.items():
        whole = set(MODEL.shape_for(shape_name).members) - IGNORED
        assert members == whole, shape_name


def _redriving_to(queue: str) -> dict[str, str]:
    policy = {"deadLetterTargetArn": arn(queue), "maxReceiveCount": 1}
    return {"RedrivePolicy": json.dumps(policy)}
